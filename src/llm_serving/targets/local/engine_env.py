"""The engine's own environment: vLLM on CPU, the router and the weight streamer, as requirements/engine.txt locks them.

It is separate from the command line's, so that its 5 GB of dependencies cannot break the command line.
`python -m llm_serving.targets.local.engine_env` sets it up by hand.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from llm_serving import console, locked_env, paths, processes, program
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import vllm_metadata

ROOT = paths.ROOT
FOLDER = ".venv-engine"
LOCK = "requirements/engine.txt"
MODELINFOS = "modelinfos"
"""Directory in the environment with the engine's descriptions of architectures, which engine_imports writes."""

BUILD_RECIPE_VERSION = 5
"""Increases with each change of the steps that build another environment from the same lock."""

_STAMP = ".locked"
_IMPORTS_SCRIPT = Path(__file__).with_name("engine_imports.py")
_PLUGINS_FILE = Path(__file__).with_name("engine_plugins.py")
_STARTUP_FILE = Path(__file__).with_name("engine_startup.py")
_STARTUP_CODE = "import engine_startup; engine_startup.main()\n"
"""One line, which Python runs when it starts."""
_PLUGIN_NAMES = ("ask_for_tiles", "read_odd_objects", "go_on_without_lmcache", "let_transfers_sleep", "fork_processes")


class VllmEnv(NamedTuple):
    """One environment with vLLM: the engine's own, or of a framework that pins another version."""

    folder: str = FOLDER
    lock: str = LOCK
    modules: tuple[str, ...] = ()
    """Modules that a start imports; those of the engine's own where empty."""


OWN = VllmEnv()

_OFFLINE_ENVIRONMENT: dict[str, str] = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def is_ready(root: Path = ROOT, env: VllmEnv = OWN) -> bool:
    """Whether the environment exists, complete and of the current lock."""
    stamp = root / env.folder / _STAMP
    return stamp.is_file() and stamp.read_text() == _compute_stamp(root, env)


def ensure(root: Path = ROOT, on_progress: Callable[[str], None] = lambda _: None, env: VllmEnv = OWN) -> Path:
    """Set the environment up if it is not ready, and return the directory of its executables.

    Rebuilt if its stamp is missing or of another lock, so an interrupted set-up never counts as complete; downloads are
    in uv's cache. Two at once wait for each other.

    Args:
        on_progress: called with the progress, in a few words.

    Raises:
        Unavailable: uv is missing, or the packages do not install or import; the message names the log.
    """
    with processes.lock_file(root / env.lock):  # two set-ups would build over each other
        if not is_ready(root, env):
            try:
                _build(root, on_progress, env)
            except console.CommandFailed as error:
                raise Unavailable(
                    f"the engine's environment could not be set up: {error}\n{locked_env.NETWORK_HINT}"
                ) from None
    return root / env.folder / "bin"


def copy_model_infos(caches: Iterable[Path], env: VllmEnv = OWN) -> None:
    """Copy the engine's descriptions of architectures to the caches of processes that are about to start."""
    for cache in caches:
        shutil.copytree(ROOT / env.folder / MODELINFOS, cache / MODELINFOS, dirs_exist_ok=True)


def _build(root: Path, on_progress: Callable[[str], None], env: VllmEnv) -> None:
    folder, log = root / env.folder, root / f"{env.folder}.log"
    python = locked_env.create(folder, [root / env.lock], log, on_progress=on_progress)
    site_packages = next(folder.glob("lib/python3*/site-packages"))
    vllm_metadata.write(site_packages, _PLUGINS_FILE, _PLUGIN_NAMES)
    shutil.copy(_STARTUP_FILE, site_packages)
    (site_packages / "engine_start.pth").write_text(_STARTUP_CODE)
    on_progress(locked_env.IMPORTING)
    console.run(
        [str(python), str(_IMPORTS_SCRIPT), str(folder), *env.modules],
        log=log,
        # An empty value counts as unset: without byte code each start would compile its modules again.
        environment={
            **_OFFLINE_ENVIRONMENT,
            "PYTHONDONTWRITEBYTECODE": "",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # by default in /tmp
        },
    )
    (folder / _STAMP).write_text(_compute_stamp(root, env))


def _compute_stamp(root: Path, env: VllmEnv) -> str:
    """Compute a finished environment's stamp: lock, recipe and path, since its scripts hold absolute paths."""
    digest = hashlib.sha256()
    for file in (root / env.lock, _IMPORTS_SCRIPT, _PLUGINS_FILE, _STARTUP_FILE):
        digest.update(file.read_bytes())
    return f"{root / env.folder} {BUILD_RECIPE_VERSION} {digest.hexdigest()}\n"


def main() -> None:
    """Set the environment up, with progress."""
    if is_ready():
        return
    with console.step("Set up the engine's environment") as step:
        ensure(on_progress=lambda text: setattr(step, "note", text))
        step.note = f"{FOLDER}, from {LOCK}"


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(program.run(main))
