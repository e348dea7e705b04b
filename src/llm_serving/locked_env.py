"""Python environments with the packages of locks with hashes, made by uv."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llm_serving import console, processes
from llm_serving.settings.errors import Unavailable

NETWORK_HINT = (
    "Fix: correct what it names. If the package index cannot be reached, set HTTPS_PROXY behind a proxy, "
    "UV_DEFAULT_INDEX for a mirror, SSL_CERT_FILE for your own certificate; if a directory is full or not writable, "
    "UV_CACHE_DIR."
)


class LockedEnv(ABC):
    """An environment with the packages of locks, and with what a subclass adds to them.

    It is made anew if its stamp is missing or of other pins, so an interrupted set-up never counts as complete.
    """

    name = "the engine's environment"
    """Its name in messages."""

    stamp = ".locked"
    """File in it, which is written last."""

    python = sys.executable
    """Python that it is made with."""

    def __init__(self, folder: Path, locks: Sequence[Path]) -> None:
        self.folder = folder
        self.locks = locks
        self.guard = locks[0]
        """File that a set-up locks, since two would build over each other."""
        self.executables = folder / "bin"
        """Folder of its programs, whether it is set up or not."""
        self.log = folder.with_name(f"{folder.name}.log")
        """Log of the set-up."""

    def is_ready(self) -> bool:
        """Return whether it is set up, complete and of the current pins."""
        stamp = self.folder / self.stamp
        return stamp.is_file() and stamp.read_text() == self._compute_stamp()

    def ensure(self, on_progress: Callable[[str], None] = lambda _: None) -> Path:
        """Set it up if it is not ready, and return `executables`; two at once wait for each other.

        Args:
            on_progress: called with the progress, in a few words.

        Raises:
            Unavailable: uv is missing, or something cannot be downloaded, installed or imported.
        """
        with processes.lock_file(self.guard):
            if not self.is_ready():
                self._build(on_progress)
        return self.executables

    def _build(self, on_progress: Callable[[str], None]) -> None:
        self.log.unlink(missing_ok=True)
        if self.folder.is_symlink():  # to another clone's, which stays
            self.folder.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self._install_packages(on_progress)
            self._complete(on_progress)
        except console.CommandFailed as error:
            raise Unavailable(f"{self.name} could not be set up: {error}\n{NETWORK_HINT}") from None
        (self.folder / self.stamp).write_text(self._compute_stamp())

    def _install_packages(self, on_progress: Callable[[str], None]) -> None:
        uv = find_uv()
        on_progress("creating the environment")
        console.run([uv, "venv", "--quiet", "--python", self.python, str(self.folder)], log=self.log)
        # Locks are complete; packages themselves may ask for a torch build that no index has (engine-overrides.txt).
        requirements = ["--no-deps", "--require-hashes", *(word for lock in self.locks for word in ("-r", str(lock)))]
        console.run(
            [uv, "pip", "install", "--python", str(self.executables / "python"), *requirements],
            log=self.log,
            on_poll=lambda: on_progress(describe_download(self.log.read_text(errors="replace"))),
        )

    def _complete(self, on_progress: Callable[[str], None]) -> None:  # noqa: B027 - some have packages only
        """Add what is no package."""

    @abstractmethod
    def _compute_stamp(self) -> str:
        """Compute a finished environment's stamp: its path, as its scripts hold it, and all that pins its content."""


def compute_digest(files: Iterable[Path], words: str = "") -> str:
    digest = hashlib.sha256(words.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def find_uv() -> str:
    """Return the path of uv.

    Raises:
        Unavailable: it is missing.
    """
    sibling = Path(sys.executable).with_name("uv")
    path = str(sibling) if sibling.exists() else shutil.which("uv")
    if path is None:
        raise Unavailable("uv is missing. Fix: run scripts/setup, which installs it.")
    return path


IMPORTING = "importing the engine and writing its byte code"
_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def describe_download(log: str) -> str:
    """Describe the progress of a set-up from uv's output, which has each large package at its start and its end."""
    if re.search(r"^Installed ", log, re.MULTILINE):
        return IMPORTING
    started = re.findall(r"^Downloading (\S+) \(([\d.]+)([KMG]iB)\)", log, re.MULTILINE)
    done = set(re.findall(r"^ ?Downloaded (\S+)", log, re.MULTILINE))
    if re.search(r"^Prepared ", log, re.MULTILINE):
        return "installing packages"
    if not started:
        return "resolving packages"
    sizes = {name: float(number) * _UNIT_BYTES[unit] for name, number, unit in started}
    done_bytes = sum(bytes_ for name, bytes_ in sizes.items() if name in done)
    return f"downloaded {done_bytes / 2**20:.0f} of {sum(sizes.values()) / 2**20:.0f} MiB of large packages"
