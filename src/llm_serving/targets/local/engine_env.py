"""Environments with an engine's programs on this machine: vLLM's on CPU, with the router and the weight streamer.

They are separate from the command line's, so that their 5 GB of dependencies cannot break the command line.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from llm_serving import console, locked_env, paths
from llm_serving.targets.local import vllm_metadata

ROOT = paths.ROOT
FOLDER = ".venv-engine"
LOCK = "requirements/engine.txt"
MODELINFOS = "modelinfos"
"""Directory in the environment with the engine's descriptions of architectures, which engine_imports writes."""

BUILD_RECIPE_VERSION = 5
"""Increases with each change of the steps that build another environment from the same lock."""

_IMPORTS_SCRIPT = Path(__file__).with_name("engine_imports.py")
_PLUGINS_FILE = Path(__file__).with_name("engine_plugins.py")
_STARTUP_FILE = Path(__file__).with_name("engine_startup.py")
_STARTUP_CODE = "import engine_startup; engine_startup.main()\n"
"""One line, which Python runs when it starts."""
_PLUGIN_NAMES = ("ask_for_tiles", "read_odd_objects", "go_on_without_lmcache", "let_transfers_sleep", "fork_processes")


_OFFLINE_ENVIRONMENT: dict[str, str] = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

# An empty value counts as unset: without byte code each start would compile its modules again.
WRITE_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}


class EngineEnv(locked_env.LockedEnv):
    """One engine's programs on this machine."""

    has_shortcuts = False
    """Whether its processes take those of `engine_plugins`."""

    def prepare(self, caches: Iterable[Path]) -> None:
        """Fill the caches of processes that are about to start; most engines keep none between starts."""


class VllmEnv(EngineEnv):
    """vLLM's own environment, or that of a framework that pins another version.

    Args:
        modules: that a start imports; those of the engine's own where empty.
    """

    has_shortcuts = True

    def __init__(
        self, folder: str = FOLDER, lock: str = LOCK, modules: Iterable[str] = (), *, root: Path | None = None
    ) -> None:
        root = root or ROOT
        super().__init__(root / folder, [root / lock])
        self._modules = modules

    def prepare(self, caches: Iterable[Path]) -> None:
        """Copy the engine's descriptions of architectures."""
        for cache in caches:
            shutil.copytree(self.folder / MODELINFOS, cache / MODELINFOS, dirs_exist_ok=True)

    def _complete(self, on_progress: Callable[[str], None]) -> None:
        site_packages = next(self.folder.glob("lib/python3*/site-packages"))
        vllm_metadata.write(site_packages, _PLUGINS_FILE, _PLUGIN_NAMES)
        shutil.copy(_STARTUP_FILE, site_packages)
        (site_packages / "engine_start.pth").write_text(_STARTUP_CODE)
        on_progress(locked_env.IMPORTING)
        console.run(
            [str(self.executables / "python"), str(_IMPORTS_SCRIPT), str(self.folder), *self._modules],
            log=self.log,
            environment={
                **_OFFLINE_ENVIRONMENT,
                **WRITE_BYTE_CODE,
                "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),  # by default in /tmp
            },
        )

    def _compute_stamp(self) -> str:
        files = (*self.locks, _IMPORTS_SCRIPT, _PLUGINS_FILE, _STARTUP_FILE)
        return f"{self.folder} {BUILD_RECIPE_VERSION} {locked_env.compute_digest(files)}\n"
