"""Record the options that vLLM's own parser takes, as catalog/engines/vllm.options.json holds them.

Runs in the engine's Python, and prints JSON:

    .venv-engine/bin/python scripts/record_vllm_options.py > src/llm_serving/catalog/engines/vllm.options.json

An option's type is found by asking the parser's own converter, so `human_readable_int` and its like need no list here;
the bounds of a number are those of its field in vLLM's configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import vllm
import vllm.config
from vllm import envs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.model_executor.models import registry
from vllm.model_executor.models.interfaces import supports_lora
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

HELP = "help"
BOUNDS = ("ge", "gt", "le", "lt")


def record(architectures: Iterable[str] = tuple(registry.ModelRegistry.models)) -> dict[str, Any]:
    """Return the parser's options by name, without dashes; parsers by kind; variables; and what models it limits.

    Args:
        architectures: of which it is recorded whether they take LoRA adapters; the class of each is imported.
    """
    parser, bounds = make_arg_parser(FlexibleArgumentParser()), find_bounds()
    options = {
        name.removeprefix("--").replace("-", "_"): describe(action) | bounds.get(action.dest, {})
        for action in parser._actions
        for name in action.option_strings[:1]
        if name.startswith("--") and action.dest != HELP
    }
    return {
        "source": f"vLLM {vllm.__version__.partition('+')[0]}, its own parser, by scripts/record_vllm_options.py",
        "read_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "options": dict(sorted(options.items())),
        "parsers": {
            "tools": sorted({*ToolParserManager.tool_parsers, *ToolParserManager.lazy_parsers}),
            "reasoning": sorted({*ReasoningParserManager.reasoning_parsers, *ReasoningParserManager.lazy_parsers}),
        },
        "variables": sorted(envs.environment_variables),
        "dropped_architectures": dict(sorted(registry._PREVIOUSLY_SUPPORTED_MODELS.items())),
        "architectures_without_adapters": sorted(list_without_adapters(architectures)),
    }


def find_bounds() -> dict[str, dict[str, Any]]:
    """Return the bounds of numbers by the names of their fields, but for names whose fields have unlike ones."""
    bounds_by_name: dict[str, list[dict[str, float]]] = {}
    for config in vars(vllm.config).values():
        for name, field in getattr(config, "__pydantic_fields__", {}).items():
            bounds = {key: getattr(item, key) for item in field.metadata for key in BOUNDS if hasattr(item, key)}
            bounds_by_name.setdefault(name, []).append(bounds)
    return {
        name: {"bounds": rows[0]}
        for name, rows in bounds_by_name.items()
        if rows[0] and all(row == rows[0] for row in rows)
    }


def list_without_adapters(architectures: Iterable[str]) -> Iterator[str]:
    """Yield the architectures whose classes refuse LoRA adapters.

    Those that cannot be imported here are not known, and those that have one for CPUs say nothing of GPUs.
    """
    for architecture in architectures:
        model_class = registry.ModelRegistry._try_load_model_cls(architecture)
        if model_class is None or re.search(r"\.cpu\.|_stub$", model_class.__module__):
            continue
        if not supports_lora(model_class):
            yield architecture


def describe(action: argparse.Action) -> dict[str, Any]:
    """Return an option's type, and its choices where it has some."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return {"type": "switch"}
    if action.nargs == 0:
        return {"type": "flag"}
    choices = [choice for choice in action.choices or () if choice is not None]
    return {
        "type": find_type(action.type),
        **({"list": "words"} if action.nargs in ("+", "*") else {}),
        **({"list": "repeat"} if isinstance(action, argparse._AppendAction) else {}),
        **({"choices": choices} if choices else {}),
    }


def find_type(convert: Any) -> str:
    """Return `int`, `number`, `json` or `text`, by what a converter takes."""
    if convert is None or convert is str:
        return "text"
    if accepts(convert, "7") and not accepts(convert, "word") and not accepts(convert, "{}"):
        return "number" if accepts(convert, "0.5") else "int"
    if not accepts(convert, "{}"):
        return "text"
    return "text" if accepts(convert, "word") and not isinstance(convert('{"key": 1}'), dict) else "json"


def accepts(convert: Callable[[str], Any], text: str) -> bool:
    """Return whether a converter of the parser takes a text."""
    with contextlib.suppress(Exception):
        convert(text)
        return True
    return False


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=1)
    print()
