"""LiteLLM's own environment: its proxy as requirements/gateway.txt locks it, with the Prisma client of its database.

It is separate from the command line's, and set up only where a gateway is deployed. Prisma's client is Python, and
calls Prisma's query engine, a native program that Prisma downloads from its own host.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from llm_serving import console, locked_env, paths, processes
from llm_serving.settings.errors import Unavailable

FOLDER = paths.ROOT / ".venv-gateway"
LOCK = paths.ROOT / "requirements" / "gateway.txt"
PRISMA = paths.ROOT / "requirements" / "gateway-prisma"
"""npm's lock of Prisma's generator."""

ENGINE_VARIABLE = "PRISMA_QUERY_ENGINE_BINARY"
"""Prisma's own: the path of its query engine, where it must not be downloaded."""

_STAMP = FOLDER / ".locked"
_LOG = FOLDER.with_suffix(".log")
_NODE_PINS = ("package.json", "package-lock.json")


def find_program(name: str) -> Path:
    return FOLDER / "bin" / name


def find_migrations() -> list[Path]:
    """List LiteLLM's statements for its database, in their order."""
    folder = next(FOLDER.glob("lib/python3*/site-packages/litellm_proxy_extras/migrations"))
    return sorted(folder.glob("*/migration.sql"))


def is_ready() -> bool:
    """Return whether the environment is complete, and of the current lock and query engine."""
    return _STAMP.is_file() and _STAMP.read_text() == _compute_stamp()


def ensure(on_progress: Callable[[str], None]) -> None:
    """Set the environment up unless it is ready; two at once wait for each other.

    Raises:
        Unavailable: uv, Node or npm is missing, or something cannot be downloaded.
    """
    with processes.lock_file(LOCK):
        if not is_ready():
            _build(on_progress)


def _build(on_progress: Callable[[str], None]) -> None:
    for name in ("node", "npm"):
        if not shutil.which(name):
            raise Unavailable(
                f"{name}: not found on PATH; Prisma's generator needs it. Fix: install Node.js 20 or later."
            )
    try:
        _install_packages(on_progress)
    except console.CommandFailed as error:
        raise Unavailable(f"LiteLLM's environment could not be set up: {error}\n{locked_env.NETWORK_HINT}") from None
    on_progress("writing the database's client")
    try:
        _generate_client()
    except console.CommandFailed as error:
        raise Unavailable(
            f"LiteLLM's database client could not be generated: {error}\nFix: let this machine reach "
            f"https://binaries.prisma.sh, or set {ENGINE_VARIABLE} to the query engine of Prisma 5.17.0."
        ) from None
    _STAMP.write_text(_compute_stamp())


def _install_packages(on_progress: Callable[[str], None]) -> None:
    locked_env.create(FOLDER, [LOCK], _LOG, on_progress=on_progress)
    for name in _NODE_PINS:
        shutil.copy(PRISMA / name, FOLDER)
    console.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], log=_LOG, cwd=FOLDER)


def _generate_client() -> None:
    """Generate Prisma's Python client of LiteLLM's schema, for this machine alone."""
    (packaged,) = FOLDER.glob("lib/python3*/site-packages/litellm/proxy/schema.prisma")
    lines = packaged.read_text(encoding="utf-8").splitlines(keepends=True)
    schema = FOLDER / "schema.prisma"
    schema.write_text("".join(line for line in lines if "binaryTargets" not in line), encoding="utf-8")
    generator = FOLDER / "node_modules" / "prisma" / "build" / "index.js"
    console.run(
        ["node", str(generator), "generate", f"--schema={schema}"],
        log=_LOG,
        environment={
            "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PRISMA_CLI_QUERY_ENGINE_TYPE": "binary",  # as prisma/cli/prisma.py of 0.15.0 does
            "CHECKPOINT_DISABLE": "1",
        },
    )


def _compute_stamp() -> str:
    """Compute a finished environment's stamp: locks, path and query engine, whose path is in the client."""
    digest = hashlib.sha256()
    for file in (LOCK, *(PRISMA / name for name in _NODE_PINS)):
        digest.update(file.read_bytes())
    return f"{FOLDER} {os.environ.get(ENGINE_VARIABLE, '')} {digest.hexdigest()}\n"
