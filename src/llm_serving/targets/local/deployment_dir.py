"""Where a run of the local target keeps what it writes: all of it in one folder, which `destroy` removes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from llm_serving import processes
from llm_serving.settings.errors import Unavailable
from llm_serving.workloads.serving import measured_prompts
from llm_serving.workloads.serving.deployment import Deployment

FOLDER = ".blueprint"

_MAX_SOCKET_PATH_BYTES = 107
"""Most bytes of a Unix socket's path on Linux (unix(7), sun_path)."""

_MAX_SOCKET_NAME_BYTES = 45
"""Longest name below the folder for sockets: the engine's are UUIDs, multiprocessing's have a folder of their own."""


@dataclass(frozen=True)
class DeploymentDir:
    """The files of the deployment `name` below the folder `root`, where the user stands."""

    name: str
    root: Path

    @property
    def data(self) -> Path:
        """All that the run writes."""
        return self.root / FOLDER / self.name

    @property
    def logs(self) -> Path:
        """A log for each process, PROCESS.log, and the supervisor's own."""
        return self.data / "logs"

    @property
    def reports(self) -> Path:
        """Where validations keep their reports, below it by the deployment's name."""
        return self.root / measured_prompts.RUNS

    @property
    def config(self) -> Path:
        """The supervisor's configuration as it was deployed."""
        return self.data / "supervisord.conf"

    @property
    def rendered(self) -> Path:
        """Where the blueprint is rendered to, for a person to read before it is deployed."""
        return self.root / "rendered" / self.name / "local"

    @property
    def sockets(self) -> Path:
        """Folder for Unix sockets: in the run's own where its path is short enough, else a private one in /tmp."""
        inner = self.data / "tmp"
        if _fits_socket_path(inner):
            return inner
        key = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        roots = [Path(tempfile.gettempdir()), Path("/tmp")]
        return next(filter(_fits_socket_path, (root / f"blueprint-{os.getuid()}" / key for root in roots)))

    def get_log_path(self, process: str) -> Path:
        """The log of one process."""
        return self.logs / f"{process}.log"

    def get_cache_path(self, process: str) -> Path:
        """What one process of the engine caches; the resolver names the same folder to it."""
        return self.data / "cache" / process

    def create(self) -> None:
        """Makes the folders, for this user alone.

        Raises:
            Unavailable: the folder for sockets belongs to somebody else.
        """
        for folder in (self.data, self.logs, self.sockets.parent, self.sockets):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.data, self.sockets):
            if folder.stat().st_uid != os.getuid():
                raise Unavailable(f"{folder} belongs to another user; remove it, or work in another folder")
            folder.chmod(0o700)

    def remove_sockets(self) -> None:
        """Removes the sockets and temporary files, when no process is left to use them."""
        shutil.rmtree(self.sockets, ignore_errors=True)
        if not self.sockets.is_relative_to(self.data):
            with contextlib.suppress(OSError):  # other runs may have theirs beside it
                self.sockets.parent.rmdir()

    def remove(self) -> None:
        """Removes all that the run wrote."""
        self.remove_sockets()
        shutil.rmtree(self.rendered, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)
        for parent in (self.rendered.parent, self.rendered.parent.parent, self.data.parent):
            with contextlib.suppress(OSError):  # others may use it still
                parent.rmdir()

    def load_deployment(self) -> Deployment | None:
        """What is deployed; None where nothing is, or a version of this program that knew other fields wrote it."""
        try:
            return Deployment.model_validate_json((self.data / "deployment.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None

    def save_deployment(self, deployment: Deployment) -> None:
        """Writes down what is deployed."""
        (self.data / "deployment.json").write_text(deployment.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def clear_deployment(self) -> None:
        """Nothing is deployed any more; logs and ports stay."""
        (self.data / "deployment.json").unlink(missing_ok=True)

    def load_ports(self) -> dict[str, int]:
        """The ports that were written down, by process."""
        try:
            return {str(name): int(port) for name, port in json.loads((self.data / "ports.json").read_text()).items()}
        except (OSError, ValueError):
            return {}

    def save_ports(self, ports: dict[str, int]) -> None:
        """Writes the ports down."""
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.data / "ports.json").write_text(json.dumps(ports, indent=2) + "\n")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second `deploy` or `destroy` of the same deployment out.

        Raises:
            Unavailable: one is at work.
        """
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with processes.lock_file(self.data / ".busy", f"another command is deploying or destroying {self.name}"):
            yield


def _fits_socket_path(folder: Path) -> bool:
    return len(os.fsencode(folder)) + 1 + _MAX_SOCKET_NAME_BYTES <= _MAX_SOCKET_PATH_BYTES
