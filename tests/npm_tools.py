"""Programs of npm that tests need, each installed once from a lock with hashes, in the user's cache."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_serving import console, processes
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import on_demand

_INSTALL_S = 120.0


def install(name: str, source: Path, files: Sequence[str], prepare: Callable[[Path], None] | None = None) -> Path:
    """Return the folder with the files of `source` and what their lock names, installed if it is not.

    Args:
        prepare: adds to the folder before the installation.

    Raises:
        BlueprintError: Node or npm is missing, or npm failed.
    """
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise Unavailable(f"{program}: not found on PATH. Fix: install Node.js 20 or later.")
    pins = b"".join((source / file).read_bytes() for file in files)
    folder = on_demand.locate_cache() / f"{name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(folder.with_suffix(".lock")):
        if not folder.is_dir():
            partial = folder.with_suffix(".part")  # renamed when complete
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for file in files:
                shutil.copy(source / file, partial)
            if prepare:
                prepare(partial)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            console.run(command, log=folder.with_suffix(".log"), cwd=partial, timeout_s=_INSTALL_S)
            partial.rename(folder)
    return folder
