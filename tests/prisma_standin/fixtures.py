"""A stand-in for Prisma's native query engine, which only Prisma's own host has: the same engine as WebAssembly.

npm has it; query_engine.js gives it the native engine's interface. Installed once from a lock with hashes, in the user's
cache. Programs find it by Prisma's own variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.kinds.gateway import litellm_env
from llm_serving.settings.errors import BlueprintError
from tests import npm_tools

FOLDER = Path(__file__).parent
FILES = ("package.json", "package-lock.json", "query_engine.js")


@pytest.fixture(scope="module")
def prisma_standin() -> Iterator[Path]:
    """Let Prisma's client use the stand-in; a test without Node or npm is skipped."""
    try:
        program = install()
    except BlueprintError as error:
        pytest.skip(f"no stand-in of Prisma's query engine: {error}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in build_environment(program).items():
            patch.setenv(name, value)
        yield program


def build_environment(program: Path) -> dict[str, str]:
    """Build the variables by which Prisma uses the stand-in, and downloads nothing.

    LiteLLM runs `prisma migrate diff` when it starts, which needs another native program: here an empty one.
    """
    engines = ("PRISMA_QUERY_ENGINE_LIBRARY", "PRISMA_SCHEMA_ENGINE_BINARY", litellm_env.ENGINE_VARIABLE)
    types = ("PRISMA_CLI_QUERY_ENGINE_TYPE", "PRISMA_CLIENT_ENGINE_TYPE")
    path = f"{program.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**dict.fromkeys(engines, str(program)), **dict.fromkeys(types, "binary"), "PATH": path}


def install() -> Path:
    """Return the stand-in's program, installed if it is not.

    Raises:
        BlueprintError: Node or npm is missing, or npm failed.
    """
    return npm_tools.install("prisma-standin", FOLDER, FILES, _prepare) / "query_engine.js"


def _prepare(folder: Path) -> None:
    """Make the stand-in a program, with an empty one for migrations."""
    (folder / "query_engine.js").chmod(0o755)
    program = folder / "bin" / "prisma"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
