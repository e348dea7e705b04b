"""The directory of a deployment: logs, ports, sockets and what is deployed; `destroy` removes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_serving import paths, processes
from llm_serving.services import deployments
from llm_serving.services.deployment import Deployment
from llm_serving.settings.errors import Unavailable

FOLDER = ".blueprint"

SUPERVISOR_SOCKET = "supervisor.sock"
"""Name of the supervisor's socket; templates/local.conf.j2 has it too."""

_OWNER = "owner"
"""Name of the file beside the sockets with the path of the deployment that they belong to."""

_MAX_SOCKET_PATH_BYTES = 107
"""Most bytes of a Unix socket's path on Linux (unix(7), sun_path)."""

_MAX_SOCKET_NAME_BYTES = 45
"""Longest name in the directory for sockets: the engine's are UUIDs, multiprocessing's have a subdirectory."""


@dataclass(frozen=True)
class DeploymentDir:
    """The files of the deployment `name` below the directory `root`, from which it was deployed."""

    name: str
    root: Path

    @property
    def data(self) -> Path:
        return self.root / FOLDER / self.name

    @property
    def logs(self) -> Path:
        """A log for each process, PROCESS.log, and supervisord.log."""
        return self.data / "logs"

    @property
    def reports(self) -> Path:
        return self.root / paths.RUNS

    @property
    def config(self) -> Path:
        """The supervisor's configuration as deployed."""
        return self.data / "supervisord.conf"

    @property
    def sockets(self) -> Path:
        """Directory for Unix sockets: inside `data` if that path is short enough, else a private one in /tmp."""
        inner = self.data / "tmp"
        if _fits_socket_path(inner):
            return inner
        key = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return next(filter(_fits_socket_path, (root / key for root in _list_socket_roots())))

    def get_rendered_path(self, target: str) -> Path:
        """Return the directory of the files rendered for a target, which people read before a deploy."""
        return self.root / "rendered" / self.name / target

    def get_log_path(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def get_cache_path(self, process: str) -> Path:
        """Return the cache directory of an engine process; the resolver passes the same one to it."""
        return self.data / "cache" / process

    def create(self) -> None:
        """Create the directories, for this user only, and remove sockets that others left in /tmp.

        Raises:
            Unavailable: the data belongs to another user, or others can change the directory for sockets.
        """
        _remove_stale_sockets()
        for folder in (self.data, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.data.stat().st_uid != os.getuid():
            raise Unavailable(f"{self.data} belongs to another user. Fix: remove it, or work in another directory.")
        self.data.chmod(0o700)
        if self.sockets.is_relative_to(self.data):
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            return
        # Anybody may create these names in /tmp, and who owns the upper directory can swap the lower one.
        for folder in (self.sockets.parent, self.sockets):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            _require_private(folder)
        (self.sockets / _OWNER).write_bytes(os.fsencode(self.data))

    def remove_sockets(self) -> None:
        """Remove the sockets and temporary files; call it when no process uses them."""
        shutil.rmtree(self.sockets, ignore_errors=True)
        if not self.sockets.is_relative_to(self.data):
            with contextlib.suppress(OSError):  # other deployments may have theirs beside it
                self.sockets.parent.rmdir()

    def remove(self) -> None:
        """Remove the deployment's data."""
        self.remove_sockets()
        shutil.rmtree(self.data, ignore_errors=True)
        with contextlib.suppress(OSError):  # other deployments have theirs beside it
            self.data.parent.rmdir()

    def load_deployment(self) -> Deployment | None:
        """Load what is deployed; None if nothing is, or if another version of this program wrote it."""
        return deployments.read(self.data / deployments.FILE)

    def save_deployment(self, deployment: Deployment) -> None:
        processes.write_whole(self.data / deployments.FILE, deployment.model_dump_json(indent=2) + "\n")

    def clear_deployment(self) -> None:
        """Remove the record of what is deployed; logs and ports stay."""
        (self.data / deployments.FILE).unlink(missing_ok=True)

    def load_ports(self) -> dict[str, int]:
        """Load the saved ports, by process; empty if there are none."""
        try:
            return {str(name): int(port) for name, port in json.loads((self.data / "ports.json").read_text()).items()}
        except (OSError, ValueError):
            return {}

    def save_ports(self, ports: dict[str, int]) -> None:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        processes.write_whole(self.data / "ports.json", json.dumps(ports, indent=2) + "\n")

    def load_first_answers(self) -> dict[str, tuple[int, float]]:
        """Load each process's id when it first answered, and the seconds from its start; empty if none has."""
        try:
            saved = json.loads((self.data / "first-answers.json").read_text())
            return {str(name): (int(pid), float(seconds)) for name, (pid, seconds) in saved.items()}
        except (OSError, ValueError):
            return {}

    def save_first_answers(self, answers: dict[str, tuple[int, float]]) -> None:
        """Save when processes first answered."""
        (self.data / "first-answers.json").write_text(json.dumps(answers) + "\n")

    def load_secret(self) -> str:
        """Load what other users of this machine cannot guess of the deployment; draw it the first time."""
        file = self.data / "secret"
        if not file.exists():
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_name(f"{file.name}.{os.getpid()}")  # a full disk would leave an empty secret
            draft.touch(mode=0o600)
            draft.write_text(secrets.token_hex(16))
            draft.replace(file)
        return file.read_text()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second `deploy` or `destroy` of the same deployment out.

        Raises:
            Unavailable: one runs.
        """
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with processes.lock_file(self.data / ".busy", f"another command is deploying or destroying {self.name}"):
            yield


def _list_socket_roots() -> list[Path]:
    """List where directories for sockets may be, by preference: the path of a system's own may be too long."""
    return [Path(root) / f"blueprint-{os.getuid()}" for root in dict.fromkeys((tempfile.gettempdir(), "/tmp"))]


def _require_private(folder: Path) -> None:
    """Check that only this user can list and change a directory."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        reason = "is no directory"
    elif status.st_uid != os.getuid():
        reason = "belongs to another user"
    elif status.st_mode & 0o077:
        reason = f"has the mode {stat.S_IMODE(status.st_mode):04o}, so that other users can enter it"
    else:
        return
    raise Unavailable(
        f"{folder} {reason}; a deployment's sockets need a directory of your own. Fix: remove it, or set TMPDIR to a "
        "directory of your own with a short path."
    )


def _remove_stale_sockets() -> None:
    """Remove sockets in /tmp whose deployment was killed or removed without `destroy`."""
    for root in _list_socket_roots():
        try:
            _require_private(root)
        except (OSError, Unavailable):
            continue
        for owner in root.glob(f"*/{_OWNER}"):
            with contextlib.suppress(OSError):
                if not Path(os.fsdecode(owner.read_bytes())).exists() and not _is_in_use(owner.parent):
                    shutil.rmtree(owner.parent)


def _is_in_use(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(folder / SUPERVISOR_SOCKET)) == 0


def _fits_socket_path(folder: Path) -> bool:
    return len(os.fsencode(folder)) + 1 + _MAX_SOCKET_NAME_BYTES <= _MAX_SOCKET_PATH_BYTES
