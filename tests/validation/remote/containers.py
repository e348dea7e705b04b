"""Processes that stand in for the containers of a load: the image's entry point, on the image's files alone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_serving import processes
from llm_serving.catalog.own_image import LOAD_DRIVER
from llm_serving.validation.remote.messages import INPUTS_VARIABLE, pack_urls

ENTRY = (sys.executable, "-m", "llm_serving.validation.remote.relay")


def copy_package(folder: Path) -> Path:
    """Copy what the image has of this package, and nothing else; return the folder for PYTHONPATH."""
    package = LOAD_DRIVER.contexts["package"]
    for file in LOAD_DRIVER.list_files():
        if not file.is_relative_to(package):
            continue
        copy = folder / "llm_serving" / file.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return folder


class ProcessContainers:
    """Containers that are processes of this machine."""

    def __init__(self, package: Path, log: Path, entry: Sequence[str] = ENTRY) -> None:
        """Take the folder with the image's files, a log, and what starts the entry point."""
        self._package, self._log, self._entry = package, log, entry
        self.started: list[subprocess.Popen[bytes]] = []

    def launch_with_urls(self, urls: Sequence[str]) -> contextlib.AbstractContextManager[ProcessContainers]:
        """Start one for each input's URL, as `launch` does."""
        return self.launch([str(index) for index in range(len(urls))], {INPUTS_VARIABLE: pack_urls(urls)})

    @contextlib.contextmanager
    def launch(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[ProcessContainers]:
        """Start one for each argument of the entry point, and stop all of them after the block."""
        environment = {"PYTHONPATH": str(self._package), "HOME": "/nonexistent", **(variables or {})}
        with self._log.open("ab") as output:
            self.started = [
                processes.spawn([*self._entry, word], environment=environment, output=output) for word in words
            ]
        try:
            yield self
        finally:
            processes.stop_all(self.started)

    def describe(self) -> str:
        return ", ".join(str(child.poll()) for child in self.started)

    def find_failure(self) -> str | None:
        failed = [child for child in self.started if child.poll()]
        return self._log.read_text() if failed else None
