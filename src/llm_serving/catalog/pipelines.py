"""Pipelines of diffusers, which draw pictures: `model_index.json` names their parts, each a folder of its own.

Source: diffusers 0.42.1, pipelines/pipeline_loading_utils.py; a key of the index is a part, its value [library, class].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llm_serving.catalog.architecture import Architecture, ModelError
from llm_serving.catalog.families import TensorShape

INDEX_FILE = "model_index.json"
CLASS_KEY = "_class_name"

PARTS_KEY = "parts"
"""Key of a row of models.yaml with the parameters of each part."""

RANDOM_KEY = "_random_weights"
"""Key of the index of a pipeline with random weights; diffusers reads none that begins like this."""

UNBOUNDED = 2**31
"""Most tokens of a request: a prompt has none that memory follows from."""

_VARIANT = ".fp16."
"""In the names of files with 16 bits where others have 32: taken wherever a part has both."""

_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".safetensors")


def is_index(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get(CLASS_KEY), str) and "model_type" not in config


def list_parts(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of a pipeline's parts; an optional part that it goes without has no class."""
    return tuple(
        name
        for name, value in index.items()
        if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(word, str) for word in value)
    )


def select_names(names: Iterable[str], index: Mapping[str, Any]) -> set[str]:
    """Return the files that a pipeline is loaded from, of all files beside its index."""
    parts, all_names = list_parts(index), list(names)
    selected = {INDEX_FILE} & set(all_names)
    for part in parts:
        own = {name for name in all_names if name.startswith(f"{part}/") and name.endswith(_SUFFIXES)}
        weights = {name for name in own if ".safetensors" in name}
        halves = {name for name in weights if _VARIANT in name}
        selected |= own - weights
        # Of other variants, such as non_ema, none is loaded: name.VARIANT.safetensors.
        selected |= halves or {
            name for name in weights if name.rpartition("/")[2].count(".") <= (3 if "index" in name else 1)
        }
    return selected


def list_missing(index: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return parts of a pipeline that have no file among `names`."""
    folders = {name.partition("/")[0] for name in names}
    return sorted(part for part in list_parts(index) if part not in folders)


def sum_weights(sizes: Mapping[str, int], index: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of the weights of each part."""
    selected = select_names(sizes, index)
    totals = {
        part: sum(sizes[name] for name in selected if name.startswith(f"{part}/") and name.endswith(".safetensors"))
        for part in list_parts(index)
    }
    return {part: total for part, total in totals.items() if total}


def build(config: Mapping[str, Any], source: str) -> Architecture:
    """Return what memory follows from, of a pipeline's index with the parameters of its parts.

    Raises:
        ModelError: no part has weights.
    """
    parts = config.get(PARTS_KEY)
    if not (isinstance(parts, dict) and parts and all(isinstance(count, int) for count in parts.values())):
        raise ModelError(f"{source}: none of its parts has safetensors", "use a pipeline whose parts have")
    return Architecture(
        kind=str(config[CLASS_KEY]),
        encoder=True,  # it keeps no KV cache
        layers=1,
        hidden=1,
        intermediate=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        vocabulary=1,
        tied=False,
        max_context=UNBOUNDED,
        dtype="bfloat16",
        tensors=tuple(TensorShape(name=name, rows=count) for name, count in parts.items()),
    )
