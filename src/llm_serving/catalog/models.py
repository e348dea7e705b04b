"""The models that blueprints can name: a catalog with a source on each row, and folders that hold a config.json."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from llm_serving.catalog import architecture
from llm_serving.catalog.architecture import Architecture, ModelError
from llm_serving.settings.errors import BlueprintError

FILE = Path(__file__).with_name("models.yaml")

RANDOM_KEY = "random_weights"
"""Key in the config.json of a model with random weights, whose output has no meaning."""

RANDOM_NOTICE = "The weights are random numbers from a fixed seed: the text has no meaning, its timing is real."


class _Row(BaseModel):
    """One row of models.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["generate", "embed", "rerank"]
    config: dict[str, Any]
    weight_bytes: int | None = None
    source: str
    read: str


class Model(Architecture):
    """A model with all that placing it needs."""

    name: str
    """What a blueprint writes in `model`."""

    hub: str | None
    """Its id on the hub; None for one that is generated or in a folder."""

    task: Literal["generate", "embed", "rerank"]
    weight_bytes: int
    """Size of the checkpoint's safetensors."""

    random: bool
    """Whether the weights are random numbers: every output is shown with RANDOM_NOTICE."""

    source: str
    """Where the numbers come from."""

    read_on: str
    """The day they were read at the source."""


def find(name: str, *, fetch_config: Callable[[str], Mapping[str, Any]] | None = None) -> Model:
    """A model by its name in the catalog, the folder that holds its config.json, or its id on the hub.

    Args:
        fetch_config: reads the config.json of a hub id; where left out, no hub is asked.

    Raises:
        ModelError: there is no such model; names the nearest ones.
    """
    models = load()
    if name in models:
        return models[name]
    folder = _find_folder(name)
    if folder:
        return read_folder(folder)
    hub_error = ""
    if fetch_config is not None and "/" in name:
        try:
            return parse_config(name, fetch_config(name), source=f"config.json of {name} on the hub", hub_id=name)
        except BlueprintError as error:
            hub_error = str(error)
    raise _build_unknown_error(name, models, hub_error)


def _find_folder(name: str) -> Path | None:
    """The folder that `name` leads to, or None where it is no path to one or to its config.json."""
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() else path.parent if path.name == "config.json" else None
    except (OSError, RuntimeError):  # a name too long for a path, or of a home that nobody has
        return None


def _build_unknown_error(name: str, models: Mapping[str, Model], hub_error: str) -> ModelError:
    by_lower_name = {model_name.lower(): model_name for model_name in models}
    by_short_name = {model_name.lower().split("/")[-1]: model_name for model_name in models}
    close_words = difflib.get_close_matches(name.lower(), [*by_lower_name, *by_short_name], n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys({**by_short_name, **by_lower_name}[word] for word in close_words)) or list(models)
    fix = f"{' or '.join(suggestions[:3])}, or the path of a folder; `blueprint model list` names all"
    return ModelError(
        "neither in the catalog nor a folder that holds config.json",
        fix,
        subject=f"model: now {name!r}: ",
        detail=f" The hub: {hub_error}" if hub_error else "",
    )


@functools.cache
def load() -> Mapping[str, Model]:
    """All models of models.yaml by name."""
    rows = yaml.load(FILE.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return MappingProxyType({name: _build_from_row(name, _Row.model_validate(row)) for name, row in rows.items()})


@functools.cache
def read_config(name: str) -> Mapping[str, Any]:
    """The config.json that a row of the catalog holds, for making the model."""
    rows = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return MappingProxyType(rows[name]["config"])


def read_folder(folder: Path) -> Model:
    """The model in `folder`; its size is that of its safetensors.

    Raises:
        ModelError: config.json is missing, broken, or of a kind whose memory is not known.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder}: it holds no config.json", "the folder of a model") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: it cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: it is not a mapping of keys to values", "the folder of a model")
    stored_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return parse_config(str(folder), config, source=str(path), weight_bytes=stored_bytes or None)


def parse_config(
    name: str, config: Mapping[str, Any], *, source: str, hub_id: str | None = None, weight_bytes: int | None = None
) -> Model:
    """A model from its config.json; the size of its weights follows from the architecture where it is not given.

    Raises:
        ModelError: a number is missing, or its kind is not known.
    """
    return _build_model(
        name, architecture.parse(config, source), _detect_task(config), config, source, "", hub_id, weight_bytes
    )


def _build_from_row(name: str, row: _Row) -> Model:
    arch = architecture.parse(row.config, f"{FILE.name}: {name}")
    hub_id = None if row.config.get(RANDOM_KEY) else name
    return _build_model(name, arch, row.task, row.config, row.source, row.read, hub_id, row.weight_bytes)


def _build_model(
    name: str,
    arch: Architecture,
    task: Literal["generate", "embed", "rerank"],
    config: Mapping[str, Any],
    source: str,
    read_on: str,
    hub_id: str | None,
    weight_bytes: int | None,
) -> Model:
    computed_bytes = round(sum(group.bytes for group in arch.list_tensors()))
    return Model(
        **arch.model_dump(),
        name=name,
        hub=hub_id,
        task=task,
        weight_bytes=weight_bytes or computed_bytes,
        random=bool(config.get(RANDOM_KEY, False)),
        source=source,
        read_on=read_on,
    )


def _detect_task(config: Mapping[str, Any]) -> Literal["generate", "embed", "rerank"]:
    """What a checkpoint's head is for. A decoder that was trained to embed or rerank looks like any other decoder."""
    head_names = " ".join(config.get("architectures") or ())
    if "SequenceClassification" in head_names:
        return "rerank"
    return "embed" if config.get("model_type") in architecture.ENCODERS else "generate"
