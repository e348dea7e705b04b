"""The programs of each engine on this machine: found, and set up if they are missing.

The default engine's are in `engine_env`. Another engine's row of the catalog says what its own environment holds:
Python packages by a lock with hashes, the router among them, and programs that a script of images/ unpacks.

`python -m llm_serving.targets.local.engine_setups ENGINE [FRAMEWORK]` sets one up by hand.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

from llm_serving import console, locked_env, processes, program
from llm_serving.catalog import engines
from llm_serving.catalog.engines import LocalSetup
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env
from llm_serving.targets.local.engine_env import VllmEnv

_STAMP = ".set-up"
_UNPACKED = "programs"
"""Folder in an environment with the programs that are no Python packages."""

_PIP_FOLDER = "bin"


class EngineSetup(ABC):
    """One engine's programs on this machine."""

    has_shortcuts: bool
    """Whether its processes take those of `engine_plugins`."""

    def __init__(self, folder: str) -> None:
        self._root = engine_env.ROOT
        self._folder = self._root / folder
        self.executables = self._folder / _PIP_FOLDER
        """Folder of the engine's and the router's programs, whether it is set up or not."""
        self.log = self._root / f"{folder}.log"
        """Log of the set-up."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is set up, complete and of the current pins."""

    @abstractmethod
    def ensure(self, on_progress: Callable[[str], None] = lambda _: None) -> Path:
        """Set it up if it is not ready, and return `executables`.

        Raises:
            Unavailable: the programs cannot be had.
        """

    def prepare(self, caches: Iterable[Path]) -> None:  # noqa: B027 - most engines keep no cache between starts
        """Fill the caches of processes that are about to start."""


def find(engine: str = "", framework: str = "") -> EngineSetup:
    """Return the set-up of an engine; of the default one where left out, as for a kind without engines.

    Args:
        framework: that runs it; one with programs of its own has an environment with them and the engine.
    """
    framed = engines.load_frameworks()[framework].engines.get(engine) if framework else None
    if framed and framed.local:
        return _VllmSetup(VllmEnv(framed.local.folder, framed.local.lock, framed.local.modules))
    row = engines.load_engines().get(engine)
    return _PackagedSetup(row.local) if row and row.local else _VllmSetup(engine_env.OWN)


class _VllmSetup(EngineSetup):
    """The default engine's, or that of a framework with it: `engine_env`."""

    has_shortcuts = True

    def __init__(self, env: VllmEnv) -> None:
        super().__init__(env.folder)
        self._env = env

    def is_ready(self) -> bool:
        return engine_env.is_ready(env=self._env)

    def ensure(self, on_progress: Callable[[str], None] = lambda _: None) -> Path:
        return engine_env.ensure(on_progress=on_progress, env=self._env)

    def prepare(self, caches: Iterable[Path]) -> None:
        engine_env.copy_model_infos(caches, env=self._env)


class _PackagedSetup(EngineSetup):
    """An engine whose row says what its environment holds."""

    has_shortcuts = False

    def __init__(self, row: LocalSetup) -> None:
        super().__init__(row.folder)
        self._row = row

    def is_ready(self) -> bool:
        stamp, program = self._folder / _STAMP, self.executables / self._row.program
        return stamp.is_file() and stamp.read_text() == self._compute_stamp() and program.exists()

    def ensure(self, on_progress: Callable[[str], None] = lambda _: None) -> Path:
        with processes.lock_file(self._root / self._row.locks[0]):
            if not self.is_ready():
                self._build(on_progress)
        return self.executables

    def _build(self, on_progress: Callable[[str], None]) -> None:
        locks = [self._root / lock for lock in self._row.locks]
        try:
            python = locked_env.create(self._folder, locks, self.log, on_progress=on_progress)
            if self._row.modules:
                on_progress(locked_env.IMPORTING)
                imports = "".join(f"import {module}\n" for module in self._row.modules)
                # An empty value counts as unset: without byte code each start would compile its modules again.
                console.run([str(python), "-c", imports], log=self.log, environment={"PYTHONDONTWRITEBYTECODE": ""})
        except console.CommandFailed as error:
            raise Unavailable(
                f"the engine's environment could not be set up: {error}\n{locked_env.NETWORK_HINT}"
            ) from None
        if self._row.packages:
            self._add_program(on_progress)
        else:
            self._install()
        (self._folder / _STAMP).write_text(self._compute_stamp())

    def _add_program(self, on_progress: Callable[[str], None]) -> None:
        """Unpack the pinned packages; where they cannot be had, take the user's own program."""
        unpacked, name = self._folder / _UNPACKED, self._row.program
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
        """Return the environment's path, since its scripts hold it, and a digest of all that pins its content."""
        digest = hashlib.sha256(f"{self._row.launcher} {self._row.environment} {self._row.modules}".encode())
        files = [self._root / lock for lock in self._row.locks]
        if self._row.packages:
            packages = self._root / self._row.packages
            files += [packages, packages.with_name("packages.json")]
        for file in files:
            digest.update(file.read_bytes())
        return f"{self._folder} {digest.hexdigest()}\n"


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
