"""Checks of a blueprint's LoRA adapters: its role can load each, and each was made for that role's model."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from llm_serving.engines.memory import ADAPTER_RANK
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services.environment import Conventions
from llm_serving.services.kinds import ReadRemoteFiles
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Conflict

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files that PEFT writes and engines read."""

_QUANTIZED = re.compile(r"-(?:FP8|NVFP4|AWQ|GPTQ-Int[48]|W8A8)$", re.IGNORECASE)
"""Suffixes of quantized checkpoints; adapters are trained on the model without them."""


def check(settings: Blueprint, folder: Path, target: str, conventions: Conventions) -> Iterator[Conflict]:
    """Yield adapters that their roles cannot load on `target`, which has these conventions.

    Args:
        folder: of the blueprint, beside which adapters may lie.
    """
    for key_path, location, model in _list_adapters(settings):
        problem = _find_load_error(folder, model, location, target, conventions)
        if problem:
            yield Conflict(key_path, *problem, location)


def _find_load_error(
    folder: Path, model: str, location: str, target: str, conventions: Conventions
) -> tuple[str, str] | None:
    """Return why a role cannot load an adapter, and the fix."""
    is_remote = location.startswith("s3://")
    if is_remote and conventions.is_local:
        reason = f"the S3 of {conventions.title} is an embedded one, which has no adapters"
        return reason, "use a folder beside the blueprint"
    if is_remote:
        return None  # read when it is deployed: `check_remote`
    if not conventions.is_local:
        return describe_unreachable(target)
    return find_folder_error(folder / location, model)


def describe_unreachable(target: str) -> tuple[str, str]:
    """Return why replicas on a target do not load an adapter from a folder of this machine, and the fix."""
    reason = f"a container on {target} cannot read this folder"
    return reason, "use s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` uploads it"


def check_remote(blueprint: Blueprint, read_files: ReadRemoteFiles) -> Iterator[Conflict]:
    """Yield adapters in S3 that do not belong to their roles' models."""
    for key_path, location, model in _list_adapters(blueprint):
        files = read_files(location, CONFIG) if location.startswith("s3://") else None
        problem = files and find_error(*files, location, model)
        if problem:
            yield Conflict(key_path, *problem, location)


def _list_adapters(settings: Blueprint) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the key path of each adapter, its location, and the model of its role."""
    for name, role in settings.roles.engine_roles.items():
        model = settings.select_model_settings(role).model or ""
        for adapter, location in role.adapters.items():
            yield (*settings.find_key_path(name), "adapters", adapter), location, model


def find_folder_error(folder: Path, model: str) -> tuple[str, str] | None:
    """Return why the adapter in `folder` does not belong to `model`, and the fix; None where it does."""
    file_names = {name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()}
    text = (folder / CONFIG).read_text(encoding="utf-8", errors="replace") if CONFIG in file_names else ""
    return find_error(file_names, text, str(folder), model)


def find_error(file_names: Container[str], text: str, location: str, model: str) -> tuple[str, str] | None:
    """Return why an adapter does not belong to `model`, and the fix; None where it does.

    Args:
        file_names: below its location.
        text: of its CONFIG.
    """
    missing = [name for name in (CONFIG, WEIGHTS) if name not in file_names]
    if missing:
        return f"{location} has no {' and no '.join(missing)}", "use a folder that PEFT wrote"
    config = _parse_config(text)
    base, rank = str(config.get("base_model_name_or_path", "")), config.get("r")
    if _normalize_model(base) != _normalize_model(model):
        reason = f"it was trained on {base or 'a model that it does not name'}, and the role serves {model}"
        return reason, f"use an adapter of {model}, or a role of {base}" if base else f"use an adapter of {model}"
    if not isinstance(rank, int) or not 0 < rank <= ADAPTER_RANK:
        reason = f"its rank is {rank}, and replicas reserve memory for {ADAPTER_RANK}"
        return reason, f"use an adapter of rank {ADAPTER_RANK} or less"
    return None


def _parse_config(text: str) -> dict[str, Any]:
    try:
        config = untrusted_json.parse(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _normalize_model(model: str) -> str:
    """Return a model's name without its organization and quantization."""
    return _QUANTIZED.sub("", Path(model).name)
