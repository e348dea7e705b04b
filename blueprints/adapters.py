"""LoRA adapters of a blueprint: whether each lies where its role can load it, and was made for that role's model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blueprints.blueprint import Blueprint
from infra.errors import Mistake
from infra.settings import Document

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
        return None  # what lies there shows when a replica starts
    if target != "local":
        why = f"a container on {target} does not see this folder"
        return why, "s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` puts it there"
    return why_not(blueprint.path.resolve().parent / where, model)


def why_not(folder: Path, model: str) -> tuple[str, str] | None:
    """Why the adapter in `folder` is none of `model`, and what to write; None where it is one."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        return f"there is no {' and no '.join(missing)} in {folder}", "a folder that PEFT wrote"
    config = _config(folder)
    base, rank = str(config.get("base_model_name_or_path", "")), config.get("r")
    if _plain(base) != _plain(model):
        why = f"it was made for {base or 'no model that it names'}, and the role serves {model}"
        return why, f"an adapter of {model}, or a role of {base}" if base else f"an adapter of {model}"
    if not isinstance(rank, int) or not 0 < rank <= MOST_RANK:
        why = f"its rank is {rank}, and replicas set memory aside for {MOST_RANK}"
        return why, f"an adapter of rank {MOST_RANK} or less"
    return None


def _config(folder: Path) -> dict[str, Any]:
    try:
        read = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _plain(model: str) -> str:
    """A model's own name: organizations publish the same one, and quantized copies of it."""
    return _QUANTIZED.sub("", Path(model).name)
