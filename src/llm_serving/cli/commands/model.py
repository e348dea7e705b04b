"""`blueprint model`: list the catalog, size a model, predict its speed, create a tiny one, upload one to S3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.aws import s3
from llm_serving.aws.preflight import identity
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import engines, instances, models, pipelines, records
from llm_serving.catalog.models import Model
from llm_serving.catalog.records import ModelRecord
from llm_serving.engines import memory
from llm_serving.fleet import aws_limits
from llm_serving.fleet.model import Fleet
from llm_serving.hub import make_gguf, read, upload
from llm_serving.hub import make_tiny as tiny_model
from llm_serving.hub import source as source_record
from llm_serving.options import completions, quantities
from llm_serving.options.arguments import FLEET, AsJson
from llm_serving.prediction import closed_loop, step_time
from llm_serving.services.models import build_bucket_prefix
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError, quote_value, require_choice
from llm_serving.settings.units import Tokens, format_bytes, format_count
from llm_serving.tables import fit_table

_FORMATS = tuple(models.FORMATS)

app = typer.Typer(help="List, size, predict, create and upload models.", no_args_is_help=True)


@app.command("make-tiny")
def make_tiny(
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to create it in.")],
    size: Annotated[
        str,
        typer.Option(
            help="tiny (a few MB), mid (0.9 GB, to measure weight streaming), tiny-vision, tiny-embed, tiny-rerank, "
            "tiny-classify or tiny-draw."
        ),
    ] = "tiny",
    format_: Annotated[
        str | None,
        typer.Option("--format", help="gguf: one file for llama.cpp; default is safetensors, of tiny-draw a pipeline."),
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Create a LoRA adapter of tiny instead of the model.")
    ] = False,
) -> None:
    """Create a Qwen3, a Qwen3-VL or a Stable Diffusion with random weights and a real tokenizer.

    The files are the same bytes each time.
    """
    require_choice("--size", size, "size", tiny_model.SIZES)
    size_name = cast(tiny_model.Size, size)
    own_formats = models.find(size_name).formats
    format_ = format_ or own_formats[0]
    require_choice("--format", format_, "format", _FORMATS)
    if format_ not in own_formats:
        only = f"{size} exists as {own_formats[0]} only"
        raise InputError(f"--format: {quote_value(format_)}: {only}. Fix: remove --format.")
    if adapter and format_ != _FORMATS[0]:
        raise InputError(f"--format: {quote_value(format_)}: adapters are safetensors. Fix: remove --format.")
    if adapter:
        console.out.print(str(tiny_model.make_adapter(to)), markup=False)
        return
    with console.step(f"Create model {size} in {to}") as step:
        make: Callable[..., Path] = make_gguf.make if format_ == make_gguf.FORMAT else tiny_model.make
        folder = make(size_name, to, step.note_bytes)
        step.note = f"{models.find(size).parameters / 1e6:.0f} million parameters"
    console.err.print(f"[yellow]{models.RANDOM_NOTICE}[/yellow]")
    console.out.print(str(folder), markup=False)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the models of the catalog."""
    rows = models.load().values()
    payload = [
        {
            **row.model_dump(include={"name", "task", "weight_bytes", "max_context", "random", "source", "read_on"}),
            "parameters": row.parameters,
            "active_parameters": row.active_parameters,
            "kv_bytes_per_token": memory.compute_kv_bytes_per_token(row),
        }
        for row in rows
    ]
    console.print_rows(payload, _render_models(rows), as_json=as_json, soft_wrap=False)


@app.command()
def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="A catalog name, a folder with config.json, a Hugging Face id, with :QUANTIZATION a GGUF file, or the "
            "s3://BUCKET/PREFIX of a model.",
            autocompletion=completions.complete_models,
        ),
    ],
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Explain the fit on this instance type; repeatable.",
            autocompletion=completions.complete_instance_types,
        ),
    ] = None,
    context: Annotated[str, typer.Option(help="Longest request in tokens, prompt and output.")] = "8k",
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, or fp8 to halve the KV cache.")] = "auto",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A draft model beside it (tuning.speculative).",
            autocompletion=completions.complete_models,
        ),
    ] = None,
    videos: Annotated[
        bool,
        typer.Option(
            "--videos/--no-videos",
            help="Keep memory for a video, where the model reads them and the engine is not told to refuse them.",
        ),
    ] = True,
    adapters: Annotated[int, typer.Option(min=0, help="LoRA adapters loaded at once.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show which instance types a model fits on, and the tokens of KV cache."""
    require_choice("--kv-cache-dtype", kv_cache_dtype, "type", ("auto", "fp8"))
    if model.startswith("s3://"):
        model = _record_s3_model(model)
    model_row = models.find(model, fetch=_fetch_record, unchecked=True)
    draft_row = _find_draft(draft, model_row) if draft else None
    context_tokens = min(quantities.parse("--context", context, Tokens), model_row.max_context)
    rows = {name: instances.find(name) for name in type_} if type_ else dict(instances.load())
    setup = memory.ReplicaSetup(
        context=context_tokens, dtype=kv_cache_dtype, draft=draft_row, videos=videos, adapters=adapters
    )
    fits = fit_table.compute(model_row, rows.values(), setup)
    if as_json:
        console.print_json(fit_table.build_payload(model_row, rows, fits, context_tokens, kv_cache_dtype))
        return
    console.out.print(fit_table.render(model_row, rows, fits, context_tokens, kv_cache_dtype), soft_wrap=False)
    for line in fit_table.explain(fits) if type_ else ():
        console.out.print(line, markup=False)


def _find_draft(name: str, model: Model) -> Model:
    """Return the draft model of another."""
    reason = ""
    if not model.is_known:
        reason = f"of {model.name} only the weights and a tenth are computed"
    elif model.task != "generate":
        reason = f"{model.name} generates no tokens"
    elif "speculative-draft" not in engines.load_engines()[engines.find_reader(model.formats)].options:
        reason = f"this repository deploys {model.name} with none"
    if reason:
        raise InputError(f"--draft: {quote_value(name)}: {reason}. Fix: leave out --draft.")
    draft = models.find(name, fetch=_fetch_record)
    if draft.task != "generate":
        raise InputError(f"--draft: {quote_value(name)}: it generates no tokens. Fix: use a small model that does.")
    if reason := memory.describe_other_vocabulary(model, draft):
        fix = "use a model whose config.json has the same vocab_size"
        raise InputError(f"--draft: {quote_value(name)}: {reason}. Fix: {fix}.")
    return draft


@app.command()
def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="A catalog name, a folder with config.json, or a Hugging Face id.",
            autocompletion=completions.complete_models,
        ),
    ],
    type_: Annotated[
        str, typer.Option("--type", help="Instance type.", autocompletion=completions.complete_instance_types)
    ],
    input_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a prompt.")],
    output_tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens of an answer.")],
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Users, one request each at once.")],
    tensor: Annotated[int, typer.Option(min=1, metavar="N", help="Accelerators that split each layer.")] = 1,
    precision: Annotated[
        str, typer.Option(help="Of weights: bf16, fp8 or fp4; a quantized model keeps its own.")
    ] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Predict mean latencies of one replica in a closed loop, without an accelerator."""
    require_choice("--precision", precision, "precision", step_time.PRECISIONS)
    model_row = step_time.apply_precision(models.find(model, fetch=_fetch_record), precision)
    step_time.require_predicted("MODEL", model, model_row)
    if input_tokens + output_tokens > model_row.max_context:
        reason = f"with the prompt it is longer than the context of {model_row.max_context} tokens"
        raise InputError(f"--output-tokens: {output_tokens}: {reason}. Fix: use shorter requests.")
    instance = instances.find(type_)
    loop = closed_loop.predict(model_row, instance, tensor, input_tokens, output_tokens, concurrency)
    console.print_rows(_build_prediction(loop), Text(_describe_prediction(loop)), as_json=as_json)


def _build_prediction(loop: closed_loop.ClosedLoop) -> dict[str, Any]:
    return {
        **{name: round(getattr(loop, name), 2) for name in ("ttft_ms", "itl_ms", "e2e_ms", "output_tokens_per_s")},
        "basis": loop.basis,
        "interval": {"low": loop.interval.low, "high": loop.interval.high},
        "preemptions": loop.preemptions,
    }


def _describe_prediction(loop: closed_loop.ClosedLoop) -> str:
    low, high = (f"{loop.itl_ms * share:.3g}" for share in (loop.interval.low, loop.interval.high))
    return (
        f"TTFT {loop.ttft_ms:.3g} ms, ITL {loop.itl_ms:.3g} ms ({low} to {high}), E2E {loop.e2e_ms:.4g} ms, means; "
        f"{loop.output_tokens_per_s:,.0f} output tokens/s; basis: {loop.basis}"
    )


@app.command()
def copy(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face id, ORGANIZATION/MODEL; with :QUANTIZATION, such as :Q4_K_M, a GGUF file; or a folder."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="s3://BUCKET/PREFIX", help="The destination; the fleet's model bucket if left out."),
    ] = None,
    fleet: Annotated[
        Path, typer.Option(metavar="FILE", help="The fleet whose model bucket is used without --to.")
    ] = FLEET,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit on Hugging Face.")] = "main",
    all_files: Annotated[bool, typer.Option("--all-files", help="Also copy formats other than safetensors.")] = False,
    staging: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for files in transit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a model from Hugging Face or a folder to S3.

    Verifies checksums, copies several files at a time, and resumes an interrupted upload.
    """
    name = upload.resolve_source_name(source)
    uri = to or _resolve_fleet_uri(fleet, name, _detect_format(source))
    with console.step(f"Copy {source} to {uri}") as step:
        if upload.is_folder(source):
            folder = Path(source).expanduser()
            upload_result = upload.upload(folder, uri, all_files=all_files, on_progress=step.note_bytes)
        else:
            upload_result = upload.copy_from_hub(
                name, uri, revision=revision, all_files=all_files, staging=staging, on_progress=step.note_bytes
            )
        sent_summary = f"{format_bytes(upload_result.sent)} uploaded" if upload_result.sent else "up to date"
        step.note = f"{upload_result.files} files, {format_bytes(upload_result.bytes)}, {sent_summary}"
        if upload_result.removed:
            step.note += f", {format_count(upload_result.removed, 'file')} of an earlier copy deleted"
        if upload_result.commit:
            step.note += f", commit {upload_result.commit[:12]}"
    if as_json:
        payload = upload_result._asdict()
        print(json.dumps({"to": payload.pop("uri"), **payload}))
    else:
        console.out.print(upload_result.uri, markup=False)


def _fetch_record(name: str) -> ModelRecord:
    """Read what the hub says of a model, and keep it: checking a blueprint then needs no hub."""
    return _keep_record(read.fetch_record(name))


def _keep_record(record: ModelRecord) -> ModelRecord:
    records.save(record)
    return record


def _record_s3_model(uri: str) -> str:
    """Read what lies at a place in S3, and keep it by that place and by what it is a copy of; return its name."""
    bucket = s3.Bucket(s3.parse_location(uri))
    record = source_record.find(lambda: bucket) or read.read_s3_record(bucket)
    records.save(record, name=uri)
    return _keep_record(record).source if record.commit else uri


def _detect_format(source: str) -> models.WeightsFormat:
    """Return the form of the weights to copy: that of a folder's files, or of a repository by its name."""
    if upload.is_folder(source) and upload.is_pipeline_folder(Path(source).expanduser()):
        return "diffusers"
    if upload.is_folder(source):
        return "gguf" if upload.is_gguf_folder(Path(source).expanduser()) else "safetensors"
    if ":" in source:
        return "gguf"
    if source in models.load():
        return models.load()[source].formats[0]
    record = records.find(source) or _fetch_record(source)
    return "diffusers" if pipelines.is_index(record.config) else "safetensors"


def _resolve_fleet_uri(fleet_file: Path, name: str, weights_format: models.WeightsFormat) -> str:
    """Return the S3 URI that a blueprint of this fleet with `weights: s3` loads the model from."""
    fleet = load(fleet_file, Fleet).value
    account = identity.fetch_identity(AwsSession.from_environment(fleet.region)).account
    bucket = aws_limits.build_bucket_name(fleet.name, "models", account, fleet.region)
    return f"s3://{bucket}/{build_bucket_prefix(name, weights_format)}"


def _render_models(models: Iterable[Model]) -> Table:
    table = Table("name", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("billion\nparam.", "weights", "KV B/\ntoken", "max\ncontext"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        billions = model.parameters / 1e9
        table.add_row(
            _describe_name(model),
            f"{billions:.{3 if billions > 0.001 else 1}g}" if billions < 1000 else f"{billions:,.0f}",
            format_bytes(model.weight_bytes),
            f"{memory.compute_kv_bytes_per_token(model):,}",
            f"{model.max_context:,}" if model.max_context < pipelines.UNBOUNDED else "–",
        )
    return table


def _describe_name(model: Model) -> str:
    remarks = [remark for remark in ("random weights" * model.random, model.task) if remark not in ("", "generate")]
    return f"{model.name} ({', '.join(remarks)})" if remarks else model.name
