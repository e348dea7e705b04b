"""The programs of each engine on this machine: found, and set up if they are missing.

The default engine's are in `engine_env`. Another engine's row of the catalog says what its own environment holds:
Python packages by a lock with hashes, the router among them, and programs that a script of images/ unpacks.

`python -m llm_serving.targets.local.engine_setups ENGINE [FRAMEWORK]` sets one up by hand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from llm_serving import console, locked_env, program
from llm_serving.catalog import engines, frameworks
from llm_serving.catalog.engines import LocalSetup
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env
from llm_serving.targets.local.engine_env import EngineEnv, VllmEnv

_UNPACKED = "programs"
"""Folder in an environment with the programs that are no Python packages."""


def find(engine: str = "", framework: str = "") -> EngineEnv:
    """Return the set-up of an engine; of the default one where left out, as for a kind without engines.

    Args:
        framework: that runs it; one with programs of its own has an environment with them and the engine.
    """
    framed = frameworks.load_frameworks()[framework].engines.get(engine) if framework else None
    if framed and framed.local:
        return VllmEnv(framed.local.folder, framed.local.lock, framed.local.modules)
    row = engines.load_engines().get(engine)
    return _PackagedEnv(row.local) if row and row.local else VllmEnv()


class _PackagedEnv(EngineEnv):
    """Of an engine whose row says what it holds."""

    stamp = ".set-up"

    def __init__(self, row: LocalSetup) -> None:
        self._root, self._row = engine_env.ROOT, row
        super().__init__(self._root / row.folder, [self._root / lock for lock in row.locks])

    def is_ready(self) -> bool:
        return super().is_ready() and (self.executables / self._row.program).exists()

    def _complete(self, on_progress: Callable[[str], None]) -> None:
        if self._row.modules:
            on_progress(locked_env.IMPORTING)
            imports = "".join(f"import {module}\n" for module in self._row.modules)
            python = str(self.executables / "python")
            console.run([python, "-c", imports], log=self.log, environment=engine_env.WRITE_BYTE_CODE)
        if self._row.packages:
            self._add_program(on_progress)
        else:
            self._install()

    def _add_program(self, on_progress: Callable[[str], None]) -> None:
        """Unpack the pinned packages; where they cannot be had, take the user's own program."""
        unpacked, name = self.folder / _UNPACKED, self._row.program
        on_progress(f"unpacking {name}")
        try:
            console.run([sys.executable, str(self._root / self._row.packages), str(unpacked)], log=self.log)
            program = unpacked / name
        except console.CommandFailed:
            own = shutil.which(name)
            if own is None:
                cause = self.log.read_text(errors="replace").strip().splitlines()[-1]
                raise Unavailable(
                    f"{name} is neither to be had as a package nor on PATH. "
                    f"{cause.rstrip('.')}, or install {name} yourself."
                ) from None
            program = Path(own)
        self._install(program)

    def _install(self, program: Path | None = None) -> None:
        """Put the program beside the router, behind its launcher where it has one."""
        installed = self.executables / self._row.program
        if program and not self._row.launcher:
            installed.symlink_to(program)
            return
        variables = [f"{name}={value}" for name, value in self._row.environment.items()]
        words = (
            "env",
            *variables,
            self.executables / "python",
            self._root / self._row.launcher,
            *([program] if program else []),
        )
        installed.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n', encoding="utf-8")
        installed.chmod(0o755)

    def _compute_stamp(self) -> str:
        files = [*self.locks]
        if self._row.packages:
            packages = self._root / self._row.packages
            files += [packages, packages.with_name("packages.json")]
        words = f"{self._row.launcher} {self._row.environment} {self._row.modules}"
        return f"{self.folder} {locked_env.compute_digest(files, words)}\n"


def main(engine: str, framework: str = "") -> None:
    """Set an engine's programs up, with progress."""
    setup = find(engine, framework)
    if setup.is_ready():
        return
    with console.step(f"Set up the engine {engine}{f' under {framework}' if framework else ''}") as step:
        setup.ensure(on_progress=lambda text: setattr(step, "note", text))
        step.note = str(setup.executables)


if __name__ == "__main__":
    os.chdir(engine_env.ROOT)
    sys.exit(program.run(lambda: main(*sys.argv[1:])))
