"""The models that blueprints can name: a catalog with a source on each row, and folders that hold a config.json."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from llm_serving.catalog import config_json, families, gguf, pipelines, records, safetensors
from llm_serving.catalog.architecture import Architecture, ModelError, UnknownMemoryError
from llm_serving.catalog.records import ModelRecord
from llm_serving.settings import own_yaml, untrusted_json
from llm_serving.settings.choices import Task
from llm_serving.settings.errors import BlueprintError, InputError, Unavailable, quote_value
from llm_serving.settings.plain import PlainData
from llm_serving.settings.untrusted_file import open_regular

FILE = Path(__file__).with_name("models.yaml")
REPOSITORIES_FILE = Path(__file__).with_name("gguf_repositories.yaml")

CONFIG_FILE = "config.json"

QUANTIZATION_FILE = "hf_quant_config.json"
"""NVIDIA's, of checkpoints whose config.json does not say how they are quantized."""

INDEX_FILE = "model.safetensors.index.json"
"""Of a checkpoint in several files: which of them holds which tensor, and the size of all."""

RANDOM_KEY = "random_weights"
"""Key in the config.json of a model with random weights, whose output has no meaning."""

RANDOM_NOTICE = "The weights are random numbers from a fixed seed: the text has no meaning, its timing is real."


MODULES_FILE = "modules.json"
"""By which sentence-transformers marks a model that embeds: a decoder that was trained to looks like any other."""


class _Row(PlainData):
    """One row of models.yaml."""

    task: Task
    config: dict[str, Any]
    weight_bytes: int | None = None
    source: str
    read: str


_GGUF_TASKS: tuple[Task, ...] = ("generate", "embed")

WeightsFormat = Literal["safetensors", "gguf", "diffusers"]
"""Forms of weights: Hugging Face's files, llama.cpp's one file with tokenizer and chat template, or a pipeline of
diffusers, whose parts have a folder of safetensors each."""


class FormatFacts(NamedTuple):
    """What is said of a form of weights, and where those of it lie."""

    title: str
    folder: str
    """Of the fleet's model bucket: weights of two forms never lie in each other."""


FORMATS: Mapping[WeightsFormat, FormatFacts] = {
    "safetensors": FormatFacts("safetensors", "models"),
    "gguf": FormatFacts("one GGUF file", "gguf"),
    "diffusers": FormatFacts("a pipeline of diffusers", "pipelines"),
}


class Repository(PlainData):
    """One row of gguf_repositories.yaml: files of one model, each with other types of numbers."""

    of: str
    """The model in the catalog that they were made from."""

    weight_bytes: Mapping[str, int]
    """By llama.cpp's name of the quantization, such as Q8_0."""

    source: str
    read: str


class Model(Architecture):
    """A model with all that placing it needs."""

    name: str
    """What a blueprint writes in `model`."""

    hub: str | None
    """Its id on the hub; None for one that is generated or in a folder."""

    task: Task
    weight_bytes: int
    """Size of the checkpoint's safetensors."""

    random: bool
    """Whether the weights are random numbers: every output is shown with RANDOM_NOTICE."""

    architectures: tuple[str, ...] = ()
    """Names of its classes in its config.json, by which engines choose their own code."""

    formats: tuple[WeightsFormat, ...] = ("safetensors",)
    """Forms in which its weights can be had."""

    source: str
    """Where the numbers come from."""

    read_on: str
    """The day they were read at the source."""


def find(name: str, *, fetch: Callable[[str], ModelRecord] | None = None, unchecked: bool = False) -> Model:
    """Return a model by its name in the catalog, the folder that holds its config.json, or its id on the hub.

    Args:
        fetch: reads the record of a hub id; where left out, the record that was kept is read, and no hub is asked.
        unchecked: takes a kind whose memory is not known, with the size of its weights only.

    Raises:
        ModelError: there is no such model; names the nearest ones.
        BlueprintError: what `fetch` raises, where no record was kept.
    """
    if name in _read_rows():
        return _build_listed(name)
    folder = _find_folder(name)
    if folder:
        return read_folder(folder, unchecked=unchecked)
    repository, _, quantization = name.partition(":")
    row = load_repositories().get(repository)
    if row and quantization in row.weight_bytes:
        return build_quantized(repository, quantization)
    hub_error = None
    record = records.find(name) if fetch is None or name.startswith(records.S3_SCHEME) else None
    if record is None and fetch is not None and _may_be_on_hub(name):
        try:
            record = fetch(name)
        except BlueprintError as error:
            record, hub_error = records.find(name), error
    if record and (record.config or record.gguf):
        return _build_recorded(name, record, unchecked=unchecked)
    if hub_error:
        raise _add_near_names(hub_error, name)
    if row and quantization:
        return build_quantized(repository, quantization)  # refuses it, with those that there are
    raise _build_unknown_error(name)


def _build_recorded(name: str, record: ModelRecord, *, unchecked: bool) -> Model:
    origin = f"{name} at {record.commit[:12]}" if record.commit else name
    hub_id = record.source.partition(":")[0] if record.commit else None
    if record.gguf:
        return _build_gguf(record.gguf, name, f"header of {origin}", hub_id)
    embeds, config = MODULES_FILE in record.files, record.config
    if pipelines.is_index(config):
        sizes = {file: file_record.bytes for file, file_record in record.files.items()}
        return _build_pipeline(name, config, sizes, f"{pipelines.INDEX_FILE} of {origin}", hub_id)
    source = f"{CONFIG_FILE} of {origin}"
    return _build_checked(name, config, source, hub_id, record.weight_bytes, embeds=embeds, unchecked=unchecked)


def _build_checked(
    name: str,
    config: Mapping[str, Any],
    source: str,
    hub_id: str | None,
    weight_bytes: int,
    *,
    embeds: bool,
    unchecked: bool,
) -> Model:
    """Return the model of a config.json; where its kind is not known and `unchecked`, by the size of its weights alone.

    Args:
        embeds: whether MODULES_FILE lies beside it.
    """
    task = _detect_task(config, embeds=embeds)
    try:
        arch = config_json.parse(config, source)
        return _build_model(name, arch, task, config, source, "", hub_id, weight_bytes or None)
    except UnknownMemoryError:
        if not unchecked:
            raise
    if not weight_bytes:
        raise ModelError(
            f"{name}: the size of its weights is not known: it holds neither safetensors nor {INDEX_FILE}",
            f"put {INDEX_FILE} from the model's repository beside config.json",
        )
    return _build_model(name, config_json.assume(config), task, config, source, "", hub_id, weight_bytes)


def _find_folder(name: str) -> Path | None:
    """Return the folder that `name` leads to, or None where it is no path to one or to its config.json."""
    try:
        path = Path(name).expanduser()
        is_file = path.name in (CONFIG_FILE, pipelines.INDEX_FILE)
        return path if path.is_dir() else path.parent if is_file else None
    except (OSError, RuntimeError):  # a name too long for a path, or of a home that nobody has
        return None


def _may_be_on_hub(name: str) -> bool:
    return "/" in name and "://" not in name and not name.startswith((".", "/", "~"))


def _add_near_names(error: BlueprintError, name: str) -> BlueprintError:
    """Return the hub's refusal, whose fix offers names of the catalog too where there are similar ones."""
    near_names = _find_near_names(name)
    if not near_names:
        return error
    kind = Unavailable if isinstance(error, Unavailable) else InputError
    return kind(f"{str(error).removesuffix('.')}; or {' or '.join(near_names)}, which the catalog has.")


def _find_near_names(name: str) -> list[str]:
    """Return models of the catalog whose names are similar, the nearest first; three at most."""
    by_lower_name = {model_name.lower(): model_name for model_name in load()}
    by_short_name = {model_name.lower().split("/")[-1]: model_name for model_name in load()}
    close_words = difflib.get_close_matches(name.lower(), [*by_lower_name, *by_short_name], n=3, cutoff=0.5)
    return list(dict.fromkeys({**by_short_name, **by_lower_name}[word] for word in close_words))


def _build_unknown_error(name: str) -> ModelError:
    subject = f"model: {quote_value(name)}: "
    if name.startswith(records.S3_SCHEME):
        fix = f"run `blueprint model fit {name}`, which reads it once"
        return ModelError("what lies there was not read yet", fix, subject=subject)
    if "://" in name:
        fix = "write ORGANIZATION/MODEL, as a hub names it, the path of a folder, or s3://BUCKET/PREFIX"
        return ModelError("a model has no such URL here", fix, subject=subject)
    if name.startswith((".", "/", "~")):
        path = Path.cwd() / name if name.startswith(".") else name
        fix = "write the path of one, absolute or from the current directory"
        return ModelError(f"{path} is no folder that holds config.json", fix, subject=subject)
    ways = "the path of a folder"
    if _may_be_on_hub(name):
        ways += f", or `blueprint model fit {name}`, which asks the hub once"
    suggestions = _find_near_names(name) or list(load())[:3]
    fix = f"use {' or '.join(suggestions)}, or {ways}; `blueprint model list` names all"
    return ModelError("neither in the catalog nor a folder that holds config.json", fix, subject=subject)


@functools.cache
def load() -> Mapping[str, Model]:
    return MappingProxyType({name: _build_listed(name) for name in _read_rows()})


@functools.cache
def _read_rows() -> Mapping[str, _Row]:
    return own_yaml.read_rows(FILE, _Row)


@functools.cache
def _build_listed(name: str) -> Model:
    """Return a model of the catalog; all of them would take a tenth of the time of a command that needs one."""
    row = _read_rows()[name]
    parse = pipelines.build if row.task == "draw" else config_json.parse
    arch = parse(row.config, f"{FILE.name}: {name}")
    hub_id = None if row.config.get(RANDOM_KEY) else name
    return _build_model(name, arch, row.task, row.config, row.source, row.read, hub_id, row.weight_bytes)


def read_config(name: str) -> Mapping[str, Any]:
    """Return the config.json that a row of the catalog holds, for making the model."""
    return MappingProxyType(_read_rows()[name].config)


def read_folder(folder: Path, *, unchecked: bool = False) -> Model:
    """Return the model in `folder`; its size is that of its safetensors, or what their index says.

    Args:
        unchecked: takes a kind whose memory is not known.

    Raises:
        ModelError: config.json is missing, broken, or of a kind whose memory is not known.
    """
    path = folder / "config.json"
    if (folder / pipelines.INDEX_FILE).exists():
        return _read_pipeline(folder)
    gguf_files = sorted(folder.glob(f"*{gguf.SUFFIX}"))
    if gguf_files and not path.exists():
        return _read_gguf(folder, gguf_files)
    try:
        config = untrusted_json.read(path, infinite=True)
    except FileNotFoundError:
        raise ModelError(f"{folder}: it holds no config.json", "name the folder of a model") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: it cannot be read as JSON: {error}", "copy or download it again") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: it is not a mapping of keys to values", "name the folder of a model")
    config = merge_quantization(config, _read_json(folder / QUANTIZATION_FILE))
    stored_bytes = sum(
        file.stat().st_size for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated")
    )
    indexed_bytes = read_index_bytes(_read_json(folder / INDEX_FILE))
    weight_bytes, embeds = stored_bytes or indexed_bytes, (folder / MODULES_FILE).exists()
    return _build_checked(str(folder), config, str(path), None, weight_bytes, embeds=embeds, unchecked=unchecked)


def _read_pipeline(folder: Path) -> Model:
    """Return the model in the folder of a pipeline, by its index and the sizes of its files."""
    index = _read_json(folder / pipelines.INDEX_FILE)
    if not isinstance(index, dict) or not pipelines.is_index(index):
        reason = f"{folder / pipelines.INDEX_FILE}: it names no class of a pipeline"
        raise ModelError(reason, "copy or download it again")
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return _build_pipeline(str(folder), index, sizes, str(folder / pipelines.INDEX_FILE), None)


def _build_pipeline(
    name: str, index: Mapping[str, Any], sizes: Mapping[str, int], source: str, hub_id: str | None
) -> Model:
    """Return a pipeline by its index and the sizes of its files; its weights are in 16 bits, or counted as if."""
    parts = pipelines.sum_weights(sizes, index)
    parameters = {part: size // 2 for part, size in parts.items()}
    config = {**index, pipelines.PARTS_KEY: parameters, RANDOM_KEY: index.get(pipelines.RANDOM_KEY, False)}
    arch = pipelines.build(config, source)
    return _build_model(name, arch, "draw", config, source, "", hub_id, sum(parts.values()))


def check_folder(name: str) -> None:
    """Check that the checkpoint in a folder is whole, where `name` is one that holds weights.

    Raises:
        ModelError: a file is missing or cut short.
    """
    folder = _find_folder(name)
    if folder and (folder / pipelines.INDEX_FILE).exists():
        _check_pipeline(folder)
        return
    files = sorted(folder.glob(f"*{safetensors.SUFFIX}")) if folder else []
    if not folder or not files:
        return
    names = {path.name for path in folder.iterdir()}
    if len(files) > 1 and INDEX_FILE not in names and files[0].name.startswith("model-00001-of-"):
        reason = f"{folder}: it holds {len(files)} files of weights and no {INDEX_FILE}"
        raise ModelError(reason, "put the index beside them")
    missing_files = safetensors.list_missing(_read_json(folder / INDEX_FILE), names)
    if missing_files:
        reason = f"{folder}: {INDEX_FILE} names files that are not there, {missing_files[0]} first"
        raise ModelError(reason, "copy all files of the checkpoint")
    _check_whole(files)
    if not safetensors.has_tokenizer(names):
        reason = f"{folder}: it holds no tokenizer, none of {', '.join(safetensors.TOKENIZER_FILES)}"
        raise ModelError(reason, "put the tokenizer's files beside the weights")


def _check_pipeline(folder: Path) -> None:
    """Check that each part of a pipeline is there, and each file of weights whole."""
    index = _read_json(folder / pipelines.INDEX_FILE)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    missing_files = pipelines.list_missing(index, names)
    if missing_files:
        reason = f"{folder}: {pipelines.INDEX_FILE} names parts that are not there, {missing_files[0]} first"
        raise ModelError(reason, "copy all folders of the pipeline")
    selected = pipelines.select_names(names, index)
    _check_whole(folder / name for name in sorted(selected) if name.endswith(safetensors.SUFFIX))


def _check_whole(files: Iterable[Path]) -> None:
    for file in files:
        size, expected = file.stat().st_size, _compute_file_bytes(file)
        if size != expected:
            damage = safetensors.describe_damage(size, expected)
            raise ModelError(f"{file}: {damage}", "copy or download it again")


def _compute_file_bytes(path: Path) -> int | None:
    with open(path, "rb", opener=open_regular) as content:
        return safetensors.compute_file_bytes(
            lambda offset, length: os.pread(content.fileno(), length, offset), path.stat().st_size
        )


def _read_json(path: Path) -> Any:
    try:
        return untrusted_json.read(path, infinite=True)
    except (OSError, ValueError):
        return {}


def read_index_bytes(index: Any) -> int:
    """Return the bytes of all weights, by the index of a checkpoint in several files; 0 where it does not say."""
    try:
        return int(index["metadata"]["total_size"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0


def merge_quantization(config: Mapping[str, Any], quantization: Any) -> Mapping[str, Any]:
    """Return a config.json with NVIDIA's hf_quant_config.json, where it says nothing of quantization itself."""
    settings = quantization.get("quantization") if isinstance(quantization, dict) else None
    if config.get("quantization_config") or not isinstance(settings, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **settings}}


def _read_gguf(folder: Path, files: Sequence[Path]) -> Model:
    """Return the model in a folder of one GGUF file, by the file's own header."""
    header = gguf.read_file(files[0])  # first, since one of a split model's files says what to do with them
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise ModelError(f"{folder}: it holds {len(files)} GGUF files, {names}", "name a folder with one of them")
    return _build_gguf(header, str(folder), str(files[0]), None)


def _build_gguf(header: gguf.Header, name: str, source: str, hub_id: str | None) -> Model:
    """Return the model of a GGUF file."""
    gguf.check_known(header, source)
    return Model(
        **{**dict(gguf.build_architecture(header, source)), "pooled": header.task != "generate"},
        name=name,
        hub=hub_id,
        task=header.task,
        weight_bytes=header.weight_bytes,
        random=False,
        formats=("gguf",),
        source=source,
        read_on="",
    )


@functools.cache
def load_repositories() -> Mapping[str, Repository]:
    """Return repositories of GGUF files, by their id on the hub."""
    return own_yaml.read_rows(REPOSITORIES_FILE, Repository)


def list_copies(model: Model, weights_format: WeightsFormat) -> list[str]:
    """Return names of the catalog by which the same model can be had in another form, the smallest first."""
    if weights_format == "safetensors":
        return [row.of for name, row in load_repositories().items() if name == model.hub]
    if weights_format == "diffusers":
        return []
    repositories = {name: row for name, row in load_repositories().items() if row.of == model.name}
    return [
        f"{name}:{quantization}"
        for name, row in repositories.items()
        for quantization, _ in sorted(row.weight_bytes.items(), key=lambda item: item[1])
    ]


def build_quantized(repository: str, quantization: str) -> Model:
    """Return the model of one file of a repository of GGUF files.

    Raises:
        ModelError: there is no such quantization.
    """
    row = load_repositories()[repository]
    if quantization not in row.weight_bytes:
        choices = " or ".join(f"{repository}:{name}" for name in row.weight_bytes)
        raise ModelError(f"{repository}: the catalog has no file of the type {quantization}", choices)
    base = load()[row.of]
    return base.model_copy(
        update={
            "name": f"{repository}:{quantization}",
            "hub": repository,
            "weight_bytes": row.weight_bytes[quantization],
            "formats": ("gguf",),
            "source": row.source,
            "read_on": row.read,
        }
    )


def _build_model(
    name: str,
    arch: Architecture,
    task: Task,
    config: Mapping[str, Any],
    source: str,
    read_on: str,
    hub_id: str | None,
    weight_bytes: int | None,
) -> Model:
    arch = arch.model_copy(update={"pooled": task != "generate"})
    is_made = config.get(RANDOM_KEY) and hub_id is None and read_on
    computed_bytes = round(sum(group.bytes for group in arch.list_tensors())) if arch.is_known else 0
    return Model(
        **dict(arch),
        name=name,
        hub=hub_id,
        task=task,
        weight_bytes=weight_bytes or computed_bytes,
        random=bool(config.get(RANDOM_KEY, False)),
        architectures=config_json.read_names(config),
        # What is made here is made in either form; llama.cpp has no head that ranks or classifies with Qwen3, and its
        # row takes one file, where a model that sees has two.
        formats=("diffusers",)
        if task == "draw"
        else ("safetensors", "gguf")
        if is_made and not arch.vision and task in _GGUF_TASKS
        else ("safetensors",),
        source=source,
        read_on=read_on,
    )


def _detect_task(config: Mapping[str, Any], *, embeds: bool = False) -> Task:
    """Return what a checkpoint's head is for: one score ranks, several classify."""
    head_names = " ".join(config_json.read_names(config))
    if "SequenceClassification" in head_names:
        return "rerank" if config_json.count_labels(config) == 1 else "classify"
    family = families.load().get(str(config.get("model_type")))
    return "embed" if embeds or (family and family.encoder) else "generate"
