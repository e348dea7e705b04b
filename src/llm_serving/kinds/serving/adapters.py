"""Checks of a blueprint's LoRA adapters: its role can load each, and each was made for that role's model."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_serving.engines.memory import ADAPTER_RANK
from llm_serving.engines.vllm import is_adapted
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services.environment import Conventions
from llm_serving.services.kinds import ReadRemoteFiles
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Conflict

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files that PEFT writes and engines read."""

_UNSUPPORTED = (
    "alora_invocation_tokens", "layer_replication", "lora_bias", "modules_to_save", "use_bdlora", "use_dora",
    "use_qalora",
)  # fmt: skip
"""Keys of CONFIG that the engine refuses where they say something, and..."""

_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""words of `init_lora_weights` that it takes; others change the model itself. Source of both: vLLM 0.32.0,
lora/peft_helper.py, _validate_features."""

_EXPERT_MODULES = ("gate_proj", "up_proj", "down_proj")
"""How PEFT calls what is `experts` in vLLM."""

_QUANTIZED = re.compile(r"-(?:FP8|NVFP4|AWQ|GPTQ-Int[48]|W8A8)$", re.IGNORECASE)
"""Suffixes of quantized checkpoints; adapters are trained on the model without them."""


def check(settings: Blueprint, folder: Path, target: str, conventions: Conventions) -> Iterator[Conflict]:
    """Yield adapters that their roles cannot load on `target`, which has these conventions.

    Args:
        folder: of the blueprint, beside which adapters may lie.
    """
    for key_path, location, model, modules in _list_adapters(settings):
        if location.startswith("s3://"):  # on AWS it is read when it is deployed: `check_remote`
            reason = f"the S3 of {conventions.title} is an embedded one, which has no adapters"
            problem = (reason, "use a folder beside the blueprint") if conventions.is_local else None
        elif conventions.is_local:
            problem = find_folder_error(folder / location, model, modules)
        else:
            problem = describe_unreachable(target)
        if problem:
            yield Conflict(key_path, *problem, location)


def describe_unreachable(target: str) -> tuple[str, str]:
    """Return why replicas on a target do not load an adapter from a folder of this machine, and the fix."""
    reason = f"a container on {target} cannot read this folder"
    return reason, "use s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` uploads it"


def check_remote(blueprint: Blueprint, read_files: ReadRemoteFiles) -> Iterator[Conflict]:
    """Yield adapters in S3 that do not belong to their roles' models."""
    for key_path, location, model, modules in _list_adapters(blueprint):
        files = read_files(location, CONFIG) if location.startswith("s3://") else None
        problem = files and find_error(*files, location, model, modules)
        if problem:
            yield Conflict(key_path, *problem, location)


def _list_adapters(settings: Blueprint) -> Iterator[tuple[tuple[str, ...], str, str, tuple[str, ...]]]:
    """Yield the key path of each adapter, its location, its role's model, and the modules that it may change."""
    for name, role in settings.roles.engine_roles.items():
        model = settings.select_model_settings(role).model or ""
        modules = settings.engine_row.list_adapter_modules(settings.merge_arguments(role))
        for adapter, location in role.adapters.items():
            key_path = (*settings.find_key_path(name), "adapters", adapter)
            yield key_path, location, model, modules


def find_folder_error(folder: Path, model: str, modules: Sequence[str]) -> tuple[str, str] | None:
    """Return why replicas of `model` do not serve the adapter in `folder`, and the fix; None where they do."""
    file_names = {name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()}
    text = (folder / CONFIG).read_text(encoding="utf-8", errors="replace") if CONFIG in file_names else ""
    return find_error(file_names, text, str(folder), model, modules)


def find_error(
    file_names: Container[str], text: str, location: str, model: str, modules: Sequence[str]
) -> tuple[str, str] | None:
    """Return why replicas of `model` do not serve an adapter, and the fix; None where they do.

    Args:
        file_names: below its location.
        text: of its CONFIG.
        modules: that adapters may change there; none where they may change all.
    """
    missing_files = [name for name in (CONFIG, WEIGHTS) if name not in file_names]
    if missing_files:
        return f"{location} has no {' and no '.join(missing_files)}", "use a folder that PEFT wrote"
    config = _parse_config(text)
    base = str(config.get("base_model_name_or_path", ""))
    if _normalize_model(base) != _normalize_model(model):
        reason = f"it was trained on {base or 'a model that it does not name'}, and the role serves {model}"
        return reason, f"use an adapter of {model}, or a role of {base}" if base else f"use an adapter of {model}"
    return _find_rank_error(config) or _find_unsupported(config) or _find_left_out(config, modules)


def _find_rank_error(config: dict[str, Any]) -> tuple[str, str] | None:
    patterns = config.get("rank_pattern")
    for rank in (config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())):
        if not isinstance(rank, int) or not 0 < rank <= ADAPTER_RANK:
            reason = f"its rank is {rank}, and replicas reserve memory for {ADAPTER_RANK}"
            return reason, f"use an adapter of rank {ADAPTER_RANK} or less"
    return None


def _find_unsupported(config: dict[str, Any]) -> tuple[str, str] | None:
    """Return what of PEFT the engine does not load: it would not start with such an adapter."""
    init = config.get("init_lora_weights")
    written_settings = {key: config.get(key) for key in _UNSUPPORTED} | {
        "bias": config.get("bias", "none") != "none" and config["bias"],
        "init_lora_weights": isinstance(init, str) and init.lower() not in _PLAIN_INITS and init,
    }
    for key, value in written_settings.items():
        if value:
            reason = f"its {key} is {json.dumps(value)[:100]}, with which the engine does not load it"
            return reason, f"train it without {key}, or merge it into a model of its own (PEFT's merge_and_unload)"
    return None


def _find_left_out(config: dict[str, Any], modules: Sequence[str]) -> tuple[str, str] | None:
    """Return what an adapter changes and replicas have no room for: the engine leaves it out without a word."""
    target_modules = config.get("target_modules")
    names = [str(name).rpartition(".")[2] for name in target_modules] if isinstance(target_modules, list) else []
    allowed = [module.rpartition(".")[2] for module in modules]
    if "experts" in allowed:
        allowed += _EXPERT_MODULES
    left_out = sorted(name for name in names if not is_adapted(name, allowed))
    if not left_out:
        return None
    reason = f"it changes {', '.join(left_out)}, which lora_target_modules leaves out: answers would be without that"
    return reason, "name them too, or remove lora_target_modules"


def _parse_config(text: str) -> dict[str, Any]:
    try:
        config = untrusted_json.parse(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _normalize_model(model: str) -> str:
    """Return a model's name without its organization and quantization."""
    return _QUANTIZED.sub("", Path(model).name)
