"""Record the options that SGLang's own parser takes, as catalog/engines/sglang.options.json holds them.

Needs SGLang's wheel only, unpacked, and the engine's Python, whose torch the parser imports; its GPU libraries are
stand-ins that the parser never calls:

    pip download --no-deps sglang==0.5.23 && unzip -q sglang-*.whl -d /tmp/sglang
    PYTHONPATH=/tmp/sglang .venv-engine/bin/python -m scripts.record_sglang_options \
        src/llm_serving/catalog/engines/sglang.options.json tests/catalog/sglang.json

The second file has names of metrics and paths of its server, read from its source; tests compare the row with them. Of
another version, which a framework pins, one file has the names of its options only: sglang-VERSION.arguments.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.stand_ins import StandIns

ABSENT = ("triton", "IPython")
"""Modules that SGLang imports beside its parser and that the engine's environment does not have."""

METRIC = re.compile(r'(Counter|Gauge|Histogram)\(\s*(?:#.*\s*)*name="(sglang:\w+)"')
ROUTE = re.compile(r'^@app\.(?:get|post|api_route)\(\s*"(/[\w/-]*)"', re.MULTILINE)
FINISH_TYPE = re.compile(r'"type": "(\w+)"')


def record_options(describe: Callable[[argparse.Action], dict[str, Any]]) -> dict[str, Any]:
    """Return the parser's options by name, without dashes; its parsers of answers, and the variables that it reads."""
    from sglang.srt import environ, server_args

    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    options = {
        name.removeprefix("--").replace("-", "_"): sort_choices(describe(action))
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--") and not name.startswith("--no-") and action.dest != "help"
    }
    return {
        "source": f"SGLang {metadata.version('sglang')}, its own parser, by scripts/record_sglang_options.py",
        "read_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "options": dict(sorted(options.items())),
        "parsers": {
            "tools": sorted(server_args._tool_call_parser_choices()),
            "reasoning": sorted(server_args._reasoning_parser_choices()),
        },
        "variables": sorted(name for name in vars(type(environ.envs)) if name.startswith("SGLANG_")),
    }


def sort_choices(option: dict[str, Any]) -> dict[str, Any]:
    """Return an option with its choices sorted: some are sets, whose order changes from run to run."""
    return option | {"choices": sorted(option["choices"], key=str)} if "choices" in option else option


def record_server(package: Path) -> dict[str, Any]:
    """Return the metrics by kind, the paths that the server answers, and the ends of an answer."""
    sources = {file: file.read_text(encoding="utf-8") for file in sorted((package / "srt").rglob("*.py"))}
    server, batch = (package / "srt" / name for name in ("entrypoints/http_server.py", "managers/schedule_batch.py"))
    metrics = {declaration for text in sources.values() for declaration in METRIC.findall(text)}
    return {
        "version": metadata.version("sglang"),
        "source": "its wheel on PyPI, by scripts/record_sglang_options.py",
        "names": {
            kind: sorted(name for metric_class, name in metrics if metric_class.lower() == kind)
            for kind in ("counter", "gauge", "histogram")
        },
        "paths": sorted(set(ROUTE.findall(sources[server]))),
        "finish_types": sorted(set(FINISH_TYPE.findall(sources[batch]))),
    }


def write(file: str, content: dict[str, Any]) -> None:
    Path(file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    from scripts import record_vllm_options  # vLLM has its own stand-ins, so it is imported before these

    sys.meta_path.append(StandIns(ABSENT))
    import sglang

    recorded = record_options(record_vllm_options.describe)
    if sys.argv[2:]:
        write(sys.argv[1], recorded)
        write(sys.argv[2], record_server(Path(sglang.__file__).parent))
    else:
        names = {key: recorded[key] for key in ("source", "read_on")} | {"arguments": sorted(recorded["options"])}
        write(sys.argv[1], names)
