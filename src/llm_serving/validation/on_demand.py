"""Environments of optional tools: made on demand from a lock with hashes, in the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console, locked_env, paths
from llm_serving.settings.errors import Unavailable

ENGINE = paths.ROOT / ".venv-engine"

_LATEST_MINOR = 14


@dataclass(frozen=True, kw_only=True)
class Tool:
    """What an environment is for."""

    name: str
    title: str
    """Its own name."""

    python: tuple[int, int] = (3, 11)
    """Least version of Python that it runs on."""

    download_mib: int = 0
    """Wheels of its lock, in MiB."""

    @property
    def lock(self) -> Path:
        """File with its packages and their hashes."""
        return paths.ROOT / "requirements" / f"{self.name}.txt"


def locate_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "llm-serving-blueprints"


def ensure(tool: Tool) -> Path:
    """Make the tool's environment if there is none of its lock; return the directory of its executables.

    Raises:
        Unavailable: it cannot be made; the message says why.
    """
    return _ToolEnv(tool).ensure()


def find_engine(title: str, executable: str) -> Path:
    """Return the directory of executables of the engine's own environment; raises `Unavailable` without one."""
    if not (ENGINE / "bin" / executable).exists():
        raise Unavailable(
            f"{title} comes with the engine, and {ENGINE} is not set up. "
            "Fix: run .venv/bin/python -m llm_serving.targets.local.engine_setups vllm."
        )
    return ENGINE / "bin"


class _ToolEnv(locked_env.LockedEnv):
    stamp = ".complete"

    def __init__(self, tool: Tool) -> None:
        digest = locked_env.compute_digest([tool.lock])
        folder = locate_cache() / f"{tool.name}-{digest[:12]}"
        super().__init__(folder, [tool.lock])
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.guard = folder.with_suffix(".lock")
        self.name = f"the environment of {tool.title}"
        self._tool = tool

    def _build(self, on_progress: Callable[[str], None]) -> None:
        self.python = _find_python(self._tool)
        with console.step(f"Install {self._tool.title}: up to {self._tool.download_mib:,} MiB to download") as step:
            super()._build(on_progress)
            step.note = str(self.folder)

    def _compute_stamp(self) -> str:
        return ""  # the folder's name has the lock's digest


def _find_python(tool: Tool) -> str:
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
