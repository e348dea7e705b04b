"""supervisord over its socket: starts, watches and stops a run's processes. Restarts and logs are its own work."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from llm_serving import console, processes
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local.deployment_dir import DeploymentDir

_RPC_TIMEOUT_S = 60.0
"""Longest that supervisord takes to answer: a process has 20 s to stop."""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 90.0

FAILED_STATES = ("BACKOFF", "EXITED", "FATAL", "UNKNOWN")
"""States of a process that ended without being told to."""


@dataclass(frozen=True)
class ProcessState:
    """One process as supervisord sees it."""

    name: str
    state: str
    pid: int
    uptime_s: float
    restarts: int
    """How often it ended by itself since supervisord started."""

    ended: str
    """How it ended last, in supervisord's words, such as `exit status 1`; empty where it never did."""

    @property
    def failed(self) -> bool:
        """Whether it ended without being told to."""
        return self.state in FAILED_STATES


class Supervisor:
    """The supervisord of one run."""

    def __init__(self, directory: DeploymentDir) -> None:
        self.directory = directory
        self._rpc: Any = xmlrpc.client.ServerProxy(
            "http://127.0.0.1", transport=_UnixTransport(directory.sockets / "supervisor.sock"), allow_none=True
        ).supervisor

    @property
    def pid(self) -> int | None:
        """supervisord's process id; None where none answers."""
        try:
            return int(self._rpc.getPID())
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return None

    def list_states(self) -> list[ProcessState]:
        """All processes, by name.

        Raises:
            Unavailable: supervisord does not answer.
        """
        infos = self._call("getAllProcessInfo")
        # Read after the answer, so that the end of each process that it tells of stands there.
        log = self.directory.logs / "supervisord.log"
        exits = re.findall(r" exited: (\S+) \(([^;)]+)", log.read_text(errors="replace") if log.exists() else "")
        return [_parse_state(info, [reason for name, reason in exits if name == info["name"]]) for info in infos]

    def read_state(self, name: str) -> ProcessState:
        """One process.

        Raises:
            Unavailable: supervisord does not answer.
        """
        return next(state for state in self.list_states() if state.name == name)

    def start(self, name: str) -> None:
        """Starts a process where it does not run; does not wait for it to be ready."""
        if self.read_state(name).state not in ("STARTING", "RUNNING"):
            self._call("startProcess", name, False)

    def stop(self, name: str) -> None:
        """Stops a process, and returns when it is gone."""
        if self.read_state(name).state in ("STARTING", "RUNNING", "BACKOFF"):
            self._call("stopProcess", name, True)

    def update(self) -> list[str]:
        """Takes up a changed configuration: stops what is changed or gone, and returns what is changed or new."""
        ((added, changed, removed),) = self._call("reloadConfig")
        for name in [*changed, *removed]:
            self._call("stopProcessGroup", name, True)
            self._call("removeProcessGroup", name)
        for name in [*changed, *added]:
            self._call("addProcessGroup", name)
        return [*changed, *added]

    def shut_down(self) -> None:
        """Stops all processes, the last started first, and supervisord itself; returns when they are gone."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(pid)
            descendants = daemon.children(recursive=True)
            with contextlib.suppress(Unavailable):
                self._call("shutdown")
            # It is asked first; what then still runs has hung.
            _, alive = psutil.wait_procs([daemon, *descendants], timeout=_STOP_TIMEOUT_S)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, timeout=10)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._rpc, name)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            reason = error.faultString if isinstance(error, xmlrpc.client.Fault) else str(error)
            raise Unavailable(f"supervisord of {self.directory.name} does not do as asked ({name}): {reason}") from None


def find_running(directory: DeploymentDir) -> Supervisor | None:
    """The supervisor of a run; None where none is up."""
    supervisor = Supervisor(directory)
    return supervisor if supervisor.pid is not None else None


@contextlib.contextmanager
def start_attached(directory: DeploymentDir) -> Iterator[Supervisor]:
    """A supervisor that lives as long as the block, and never longer than this process, killed or not.

    Raises:
        Unavailable: it did not start.
    """
    with _open_output(directory) as output:
        child = processes.spawn(_build_command(directory), output=output)
    try:
        yield _wait_until_up(directory, child)
    finally:
        Supervisor(directory).shut_down()
        processes.stop(child, grace_s=_STOP_TIMEOUT_S)
        directory.remove_sockets()


def start_detached(directory: DeploymentDir) -> Supervisor:
    """A supervisor that stays up when this process ends.

    Raises:
        Unavailable: it did not start.
    """
    with _open_output(directory) as output:
        child = subprocess.Popen(
            _build_command(directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return _wait_until_up(directory, child)
    except BaseException:
        Supervisor(directory).shut_down()
        processes.stop(child)
        raise


def _build_command(directory: DeploymentDir) -> list[str]:
    command = [sys.executable, "-m", "supervisor.supervisord", "--nodaemon", "--configuration", str(directory.config)]
    console.show_command(command)
    return command


@contextlib.contextmanager
def _open_output(directory: DeploymentDir) -> Iterator[Any]:
    with (directory.logs / "supervisord.out").open("wb") as output:
        yield output


def _wait_until_up(directory: DeploymentDir, child: subprocess.Popen[bytes]) -> Supervisor:
    supervisor = Supervisor(directory)

    def is_up() -> bool:
        if child.poll() is not None:
            output_lines = (directory.logs / "supervisord.out").read_text(errors="replace").strip().splitlines()
            raise Unavailable(
                f"supervisord did not start: {output_lines[-1] if output_lines else f'it ended with {child.returncode}'}"
            )
        return supervisor.pid is not None

    processes.wait_until(is_up, "supervisord", _START_TIMEOUT_S)
    return supervisor


def _parse_state(info: dict[str, Any], exits: list[str]) -> ProcessState:
    """One process from what supervisord answers, and from its log, which alone tells how a process ended."""
    is_alive = info["statename"] in ("STARTING", "RUNNING", "STOPPING")
    return ProcessState(
        name=info["name"],
        state=info["statename"],
        pid=info["pid"],
        uptime_s=max(0.0, info["now"] - info["start"]) if is_alive else 0.0,
        restarts=len(exits),
        ended=exits[-1] if exits else info["spawnerr"],
    )


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a Unix socket, with a limit to each wait."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:  # noqa: ARG002 - it has a path, no host
        return _UnixConnection(self._path)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("127.0.0.1", timeout=_RPC_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
