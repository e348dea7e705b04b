"""LoRA adapters of a blueprint: whether each lies where its role can load it, and was made for that role's model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake
from llm_serving.workloads.serving.blueprint import Blueprint

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""What PEFT writes, and vLLM reads."""

MOST_RANK = 64
"""The engine sets memory aside for adapters of this rank: --max-lora-rank in the engines' catalogue."""

_QUANTIZED = re.compile(r"-(?:FP8|NVFP4|AWQ|GPTQ-Int[48]|W8A8)$", re.IGNORECASE)
"""What a quantized checkpoint adds to the name of the model that adapters are trained on."""


def wrong(blueprint: Document[Blueprint], target: str) -> Iterator[Mistake]:
    """Adapters that their roles cannot load on `target`."""
    for name, role in blueprint.value.roles.engines.items():
        model = blueprint.value.served_by(role).model or ""
        for adapter, where in role.adapters.items():
            found = _cannot_load(blueprint, model, where, target)
            if found:
                yield blueprint.mistake([*blueprint.value.at(name), "adapters", adapter], where, *found)


def _cannot_load(blueprint: Document[Blueprint], model: str, where: str, target: str) -> tuple[str, str] | None:
    """Why a role cannot load an adapter, and what to write."""
    remote = where.startswith("s3://")
    if target == "local" and remote:
        return "the S3 of this machine is an embedded one, which has no adapters", "a folder beside the blueprint"
    if remote:
        return None  # what lies there is asked for when it is deployed: see `wrong_afar`
    if target != "local":
        why = f"a container on {target} does not see this folder"
        return why, "s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` puts it there"
    return why_not(blueprint.path.resolve().parent / where, model)


def wrong_afar(
    blueprint: Document[Blueprint], read: Callable[[str], tuple[Container[str], str] | None]
) -> Iterator[Mistake]:
    """Adapters in S3 that are none of their roles' models.

    Args:
        read: the names below s3://BUCKET/PREFIX and the text of its CONFIG; None where it may not be read from here.
    """
    for name, role in blueprint.value.roles.engines.items():
        model = blueprint.value.served_by(role).model or ""
        for adapter, where in role.adapters.items():
            there = read(where) if where.startswith("s3://") else None
            found = there and _why_none(*there, where, model)
            if found:
                yield blueprint.mistake([*blueprint.value.at(name), "adapters", adapter], where, *found)


def why_not(folder: Path, model: str) -> tuple[str, str] | None:
    """Why the adapter in `folder` is none of `model`, and what to write; None where it is one."""
    there = {name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()}
    text = (folder / CONFIG).read_text(encoding="utf-8", errors="replace") if CONFIG in there else ""
    return _why_none(there, text, str(folder), model)


def _why_none(there: Container[str], text: str, where: str, model: str) -> tuple[str, str] | None:
    missing = [name for name in (CONFIG, WEIGHTS) if name not in there]
    if missing:
        return f"there is no {' and no '.join(missing)} in {where}", "a folder that PEFT wrote"
    config = _config(text)
    base, rank = str(config.get("base_model_name_or_path", "")), config.get("r")
    if _plain(base) != _plain(model):
        why = f"it was made for {base or 'no model that it names'}, and the role serves {model}"
        return why, f"an adapter of {model}, or a role of {base}" if base else f"an adapter of {model}"
    if not isinstance(rank, int) or not 0 < rank <= MOST_RANK:
        why = f"its rank is {rank}, and replicas set memory aside for {MOST_RANK}"
        return why, f"an adapter of rank {MOST_RANK} or less"
    return None


def _config(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _plain(model: str) -> str:
    """A model's own name: organizations publish the same one, and quantized copies of it."""
    return _QUANTIZED.sub("", Path(model).name)
