"""Environments of optional tools: made on demand from a lock with hashes, in the user's cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from llm_serving import console, locked_env, paths, processes
from llm_serving.settings.errors import Unavailable

ENGINE = paths.ROOT / ".venv-engine"

_STAMP = ".complete"
_LATEST_MINOR = 14


class Tool(Protocol):
    """What an environment is for."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """Its own name."""

    @property
    def lock(self) -> Path:
        """File with its packages and their hashes."""

    @property
    def python(self) -> tuple[int, int]:
        """Least version of Python that it runs on."""

    @property
    def download_mib(self) -> int:
        """Wheels of its lock, in MiB."""


def locate_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "llm-serving-blueprints"


def ensure(tool: Tool) -> Path:
    """Make the tool's environment if there is none of its lock; return the directory of its executables.

    Raises:
        Unavailable: it cannot be made; the message says why.
    """
    folder = locate_cache() / f"{tool.name}-{hashlib.sha256(tool.lock.read_bytes()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(folder.with_suffix(".lock")):
        if not (folder / _STAMP).is_file():
            _build(tool, folder)
    return folder / "bin"


def find_engine(title: str, executable: str) -> Path:
    """Return the directory of executables of the engine's own environment.

    Raises:
        Unavailable: it is not set up.
    """
    if not (ENGINE / "bin" / executable).exists():
        raise Unavailable(
            f"{title} comes with the engine, and {ENGINE} is not set up. "
            "Fix: run .venv/bin/python -m llm_serving.targets.local.engine_env."
        )
    return ENGINE / "bin"


def _build(tool: Tool, folder: Path) -> None:
    python = _find_python(tool)
    log = folder.with_suffix(".log")
    with console.step(f"Install {tool.title}: up to {tool.download_mib:,} MiB to download") as step:
        try:
            locked_env.create(folder, [tool.lock], log, python=python)
        except console.CommandFailed as error:
            raise Unavailable(
                f"{tool.title} could not be installed: {error}\n"
                "Fix: correct what it names; behind a proxy or a mirror, set HTTPS_PROXY or UV_DEFAULT_INDEX."
            ) from None
        (folder / _STAMP).touch()
        step.note = str(folder)


def _find_python(tool: Tool) -> str:
    """Return a Python that is new enough: this one, or one on PATH that starts."""
    if sys.version_info[:2] >= tool.python:
        return sys.executable
    major, least = tool.python
    for minor in range(least, _LATEST_MINOR + 1):
        path = shutil.which(f"python{major}.{minor}")
        if path and subprocess.run([path, "-c", ""], capture_output=True, timeout=30, check=False).returncode == 0:
            return path
    raise Unavailable(
        f"{tool.title} needs Python {major}.{least} or later, and none is on PATH. "
        f"Fix: install one, such as `uv python install {major}.{least}`, and put it on PATH."
    )


def read_version(package: str, executables: Path) -> str:
    name = re.sub(r"[-_.]+", "_", package)
    folders = executables.parent.glob(f"lib/python3*/site-packages/{name}-*.dist-info")
    return next((folder.name.removesuffix(".dist-info").partition("-")[2] for folder in folders), "unknown")
