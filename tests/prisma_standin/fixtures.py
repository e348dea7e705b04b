"""A stand-in for Prisma's native query engine, which only Prisma's own host has: the same engine as WebAssembly.

npm has it; query_engine.js gives it the native engine's interface. Installed once from a lock with hashes, in the user's
cache. Programs find it by Prisma's own variables.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import console, processes
from llm_serving.kinds.gateway import litellm_env
from llm_serving.settings.errors import BlueprintError, Unavailable
from llm_serving.validation import on_demand

FOLDER = Path(__file__).parent
FILES = ("package.json", "package-lock.json", "query_engine.js")

_INSTALL_S = 120.0


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
    for name in ("node", "npm"):
        if not shutil.which(name):
            raise Unavailable(f"{name}: not found on PATH. Fix: install Node.js 20 or later.")
    pins = b"".join((FOLDER / name).read_bytes() for name in FILES)
    folder = on_demand.locate_cache() / f"prisma-standin-{hashlib.sha256(pins).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(folder.with_suffix(".lock")):
        if not folder.is_dir():
            partial = folder.with_suffix(".part")  # renamed when complete
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "bin").mkdir(parents=True)
            for name in FILES:
                shutil.copy(FOLDER / name, partial)
            (partial / "query_engine.js").chmod(0o755)
            (partial / "bin" / "prisma").write_text("#!/bin/sh\n")
            (partial / "bin" / "prisma").chmod(0o755)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            console.run(command, log=folder.with_suffix(".log"), cwd=partial, timeout_s=_INSTALL_S)
            partial.rename(folder)
    return folder / "query_engine.js"
