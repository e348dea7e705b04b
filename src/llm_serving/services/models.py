"""The models of a deployment: what clients name, what is loaded, and where the weights are."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from llm_serving.catalog import records
from llm_serving.catalog.models import FORMATS, WeightsFormat
from llm_serving.settings.plain import PlainData


class Weights(PlainData):
    """Where the weights come from."""

    uri: str
    """s3://BUCKET/PREFIX/"""

    format: WeightsFormat = "safetensors"
    loader: str
    """The engine's own name of the way they are loaded."""

    bytes: int
    random: bool
    """Whether they are random numbers from a seed: every report of their output says so."""

    memory_computed: bool = True
    """Whether the memory of the model is computed: of a kind that is not known, the size of the weights is all there
    is."""

    revision: str = ""
    """The branch, tag or commit on the hub that they must be a copy of; any where empty."""


class LoadedModel(PlainData):
    """A model's files in S3."""

    model: str
    """As the blueprint names it: in the catalog, on the hub, or a folder."""

    weights: Weights


class ServedModel(LoadedModel):
    """A model as clients see it."""

    name: str
    """What clients put in `model`."""

    context: int
    """Most tokens of a request."""

    adapters: dict[str, str] = Field(default_factory=dict)
    """Location of each LoRA adapter, by the name that clients put in `model`."""

    draft: LoadedModel | None = None
    """The draft model; None without one."""


def resolve_served_name(model: str) -> str:
    """Return what clients put in `model`: the name in the catalog or on the hub, or the last part of a path."""
    if model.startswith(records.S3_SCHEME):
        return model.rstrip("/").rpartition("/")[2]
    return Path(model).expanduser().name if Path(model).expanduser().is_dir() else model


def build_bucket_prefix(model: str, weights_format: WeightsFormat = "safetensors") -> str:
    return f"{FORMATS[weights_format].folder}/{resolve_served_name(model).replace(':', '/')}"
