"""`blueprint model`: make a model, list the catalogue, see what a model fits on, copy one to S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.cli import completions
from llm_serving.cli.arguments import FLEET, AsJson

app = typer.Typer(help="Models: make, copy, and see what they fit on.", no_args_is_help=True)


@app.command("make-tiny")
def make_tiny(
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to make it in.")],
    size: Annotated[
        str, typer.Option(help="tiny: a few MB. mid: 0.9 GB, so that streaming is worth measuring.")
    ] = "tiny",
    adapter: Annotated[bool, typer.Option("--adapter", help="A LoRA adapter of tiny instead of the model.")] = False,
) -> None:
    """Make a Qwen3 with random weights and a real tokenizer, the same bytes each time."""
    from llm_serving.catalog import models
    from llm_serving.hub import make_tiny
    from llm_serving.settings.errors import InputError

    size_name = next((candidate for candidate in make_tiny.SIZES if candidate == size), None)
    if size_name is None:
        raise InputError(f"--size: now {size!r}: there is no such size. Fix: {' or '.join(make_tiny.SIZES)}.")
    if adapter:
        console.out.print(str(make_tiny.make_adapter(to)), markup=False)
        return
    with console.step(f"Make the model {size} in {to}") as step:
        folder = make_tiny.make(size_name, to, _build_progress(step))
        step.note = f"{models.find(size).parameters / 1e6:.0f} million parameters"
    console.err.print(f"[yellow]{models.RANDOM_NOTICE}[/yellow]")
    console.out.print(str(folder), markup=False)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the models that a blueprint can name."""
    from rich.table import Table

    from llm_serving.catalog import models
    from llm_serving.engines import memory
    from llm_serving.settings.units import format_bytes

    rows = models.load().values()
    if as_json:
        payload = [
            {
                **row.model_dump(
                    include={"name", "task", "weight_bytes", "max_context", "random", "source", "read_on"}
                ),
                "parameters": row.parameters,
                "active_parameters": row.active_parameters,
                "kv_bytes_per_token": memory.compute_kv_bytes_per_token(row),
            }
            for row in rows
        ]
        print(json.dumps(payload, indent=2))
        return
    table = Table("name", "task", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("parameters", "weights", "KV bytes\na token", "most\ncontext"):
        table.add_column(title, justify="right")
    for row in rows:
        cache, name = memory.compute_kv_bytes_per_token(row), f"{row.name} (random weights)" if row.random else row.name
        numbers = (
            f"{row.parameters / 1e9:.3g} B",
            format_bytes(row.weight_bytes),
            f"{cache:,}",
            f"{row.max_context:,}",
        )
        table.add_row(name, row.task, *numbers)
    console.out.print(table, soft_wrap=False)


@app.command()
def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="A name of the catalogue, a folder with config.json, or a hub id.",
            autocompletion=completions.complete_models,
        ),
    ],
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Only this instance type, explained.", autocompletion=completions.complete_instance_types
        ),
    ] = None,
    context: Annotated[str, typer.Option(help="Longest request, prompt and answer, in tokens.")] = "8k",
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, or fp8 for half the cache.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """See on which instance types a model fits, and how many tokens of KV cache remain."""
    from llm_serving.catalog import instances, models
    from llm_serving.hub import client
    from llm_serving.settings.errors import InputError
    from llm_serving.tables import fit_table

    if kv_cache_dtype not in ("auto", "fp8"):
        raise InputError(f"--kv-cache-dtype: now {kv_cache_dtype!r}: there is no such type. Fix: auto or fp8.")
    model_row = models.find(model, fetch_config=client.fetch_config)
    context_tokens = min(_parse_tokens(context), model_row.max_context)
    rows = {name: instances.find(name) for name in type_} if type_ else dict(instances.load())
    fits = fit_table.compute(model_row, rows.values(), context_tokens, kv_cache_dtype)
    if as_json:
        print(json.dumps(fit_table.build_payload(model_row, rows, fits, context_tokens, kv_cache_dtype), indent=2))
        return
    console.out.print(fit_table.render(model_row, rows, fits, context_tokens, kv_cache_dtype), soft_wrap=False)
    for line in fit_table.explain(fits) if type_ else ():
        console.out.print(line, markup=False)


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="An id on the hub, ORGANIZATION/MODEL, or a folder.")],
    to: Annotated[str | None, typer.Option(metavar="s3://BUCKET/PREFIX", help="Where to.")] = None,
    fleet: Annotated[Path, typer.Option(metavar="FILE", help="Without --to: the model bucket of this fleet.")] = FLEET,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit on the hub.")] = "main",
    all_files: Annotated[bool, typer.Option("--all-files", help="Other formats than safetensors as well.")] = False,
    staging: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where files lie on their way.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a model from the hub or a folder to S3: checked, several files at a time, resumed where it broke off."""
    from llm_serving.hub import upload
    from llm_serving.settings.units import format_bytes

    name = upload.resolve_source_name(source)
    uri = to or _resolve_fleet_uri(fleet, name)
    with console.step(f"Copy {source} to {uri}") as step:
        if upload.is_folder(source):
            folder = Path(source).expanduser()
            upload_result = upload.upload(folder, uri, all_files=all_files, on_progress=_build_progress(step))
        else:
            upload_result = upload.copy_from_hub(
                name, uri, revision=revision, all_files=all_files, staging=staging, on_progress=_build_progress(step)
            )
        sent_summary = (
            f"{format_bytes(upload_result.sent)} of them sent now" if upload_result.sent else "all there already"
        )
        step.note = f"{upload_result.files} files, {format_bytes(upload_result.bytes)}, {sent_summary}"
    if as_json:
        print(json.dumps(upload_result._asdict()))
    else:
        console.out.print(upload_result.uri, markup=False)


def _resolve_fleet_uri(fleet_file: Path, name: str) -> str:
    """Where a blueprint of this fleet with `weights: s3` looks for the model."""
    from llm_serving.aws import s3
    from llm_serving.fleet import aws_limits
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings import document as settings
    from llm_serving.workloads.serving import resolve

    fleet = settings.load(fleet_file, Fleet).value
    bucket = aws_limits.build_bucket_name(fleet.name, "models", s3.fetch_account(fleet.region), fleet.region)
    return f"s3://{bucket}/{resolve.build_bucket_prefix(name)}"


def _parse_tokens(text: str) -> int:
    """`8k` as 8000."""
    from pydantic import TypeAdapter, ValidationError

    from llm_serving.settings.errors import InputError
    from llm_serving.settings.units import Tokens

    try:
        return int(TypeAdapter(Tokens).validate_python(int(text) if text.isdecimal() else text))
    except ValidationError:
        raise InputError(f"--context: now {text!r}: it is no number of tokens. Fix: 4096 or 8k.") from None


def _build_progress(step: console.Step) -> Callable[[int, int], None]:
    """Progress in bytes as the note of a step."""
    from llm_serving.settings.units import format_bytes

    def update_note(done: int, total: int) -> None:
        step.note = f"{format_bytes(done)} of {format_bytes(total)}"

    return update_note
