"""supervisord over its socket: starts, watches and stops a deployment's processes; restarts and logs are its own."""

from __future__ import annotations

import configparser
import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from llm_serving import console, processes
from llm_serving.services.deployment import Deployment
from llm_serving.settings.errors import Mistake, Unavailable, quote_value
from llm_serving.targets.deployment_dir import SUPERVISOR_SOCKET, DeploymentDir

_RPC_TIMEOUT_S = 60.0
"""Longest that supervisord takes to answer, in seconds: a process has 20 s to stop."""

_ACTIONS = {
    "getAllConfigInfo": "avail",
    "getAllProcessInfo": "status",
    "startProcess": "start",
    "stopAllProcesses": "stop",
    "stopProcess": "stop",
    "stopProcessGroup": "stop",
    "addProcessGroup": "add",
    "removeProcessGroup": "remove",
    "reloadConfig": "reread",
    "shutdown": "shutdown",
}
"""supervisorctl's names of the calls."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 90.0

FAILED_STATES = ("BACKOFF", "EXITED", "FATAL", "UNKNOWN")
"""supervisord's states of a process that ended by itself."""


_OWN_SECTIONS = ("unix_http_server", "supervisord", "rpcinterface:supervisor")
"""Sections without which supervisord does not start, or cannot be reached."""


def find_mistakes(deployment: Deployment, text: str) -> Iterator[Mistake]:
    """Yield the lines of a rendered configuration that supervisord cannot read, or the sections that it lacks."""
    from supervisor.options import UnhosedConfigParser  # starts slowly

    parser, file = UnhosedConfigParser(), Path("local.conf")
    try:
        parser.read_string(text)
    except configparser.ParsingError as error:
        # One that ends the reading has `lineno`, others are gathered in `errors`.
        numbers = [error.lineno] if hasattr(error, "lineno") else [line for line, _ in error.errors]
        for number in numbers:
            line = quote_value(text.splitlines()[number - 1])
            fix = "write NAME = VALUE below a [SECTION], or start it with ;"
            yield Mistake(file, number, 1, "", line, "supervisord cannot read this line", fix)
        return
    sections = (*_OWN_SECTIONS, *(f"program:{service.name}" for service in deployment.all_services))
    if missing_sections := [f"[{section}]" for section in sections if not parser.has_section(section)]:
        reason = f"the rendered file lacks {', '.join(missing_sections)}"
        yield Mistake(file, 0, 0, "", "", reason, "write these sections as the pattern's template does")


@dataclass(frozen=True)
class ProcessState:
    """One process as supervisord sees it; whether it answers is `status`'s to find out."""

    name: str
    state: str
    """STARTING, RUNNING, STOPPED or another of supervisord's; in `status` that of the service."""

    pid: int
    uptime_s: float
    restarts: int
    """How often it ended by itself since supervisord started."""

    ended: str
    """The last end of it, in supervisord's words, such as `exit status 1`; empty if it never ended."""

    @property
    def failed(self) -> bool:
        return self.state in FAILED_STATES


class Supervisor:
    """The supervisord of one deployment. Its methods raise Unavailable where that does not answer, or refuses."""

    def __init__(self, directory: DeploymentDir) -> None:
        self.directory = directory
        self.socket = directory.sockets / SUPERVISOR_SOCKET
        self._rpc: Any = xmlrpc.client.ServerProxy(
            "http://127.0.0.1", transport=_UnixTransport(self.socket), allow_none=True
        ).supervisor

    @property
    def pid(self) -> int | None:
        """supervisord's process id; None if none answers."""
        try:
            return int(self._rpc.getPID())
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return None

    def list_states(self) -> list[ProcessState]:
        """Return the states of all processes.

        Raises:
            Unavailable: supervisord does not answer.
        """
        infos = self._call("getAllProcessInfo")
        # Read after the answer: by then the log has the end of each process that the answer counts as ended.
        log = self.directory.logs / "supervisord.log"
        exits = re.findall(r" exited: (\S+) \(([^;)]+)", log.read_text(errors="replace") if log.exists() else "")
        return [
            _parse_state(process, [reason for name, reason in exits if name == process["name"]]) for process in infos
        ]

    def read_state(self, name: str) -> ProcessState:
        """Return the state of one process.

        Raises:
            Unavailable: supervisord does not answer.
        """
        return next(state for state in self.list_states() if state.name == name)

    def start(self, name: str) -> None:
        """Start a process unless it runs; does not wait until it is ready."""
        if self.read_state(name).state not in ("STARTING", "RUNNING"):
            self._call("startProcess", name, False)

    def stop(self, name: str) -> None:
        """Stop a process; returns when it has ended."""
        if self.read_state(name).state in ("STARTING", "RUNNING", "BACKOFF"):
            self._call("stopProcess", name, True)

    def update(self) -> list[str]:
        """Apply a changed configuration: stop what changed or was removed; return what changed or is new, by name."""
        ((added, changed, removed),) = self._call("reloadConfig")
        for name in [*changed, *removed]:
            self._call("stopProcessGroup", name, True)
            self._call("removeProcessGroup", name)
        for name in [*changed, *added]:
            self._call("addProcessGroup", name)
        return [*changed, *added]

    def shut_down(self) -> None:
        """Stop the router, then all other processes and supervisord itself; returns when they have ended."""
        pid = self.pid
        if pid is None:
            return

        def request_shutdown() -> None:
            # A shutdown alone stops them one by one, and looks only once a second whether it is the next one's turn.
            with contextlib.suppress(Unavailable):
                priorities = {process["group"]: process["group_prio"] for process in self._call("getAllConfigInfo")}
                for name in (name for name, priority in priorities.items() if priority == max(priorities.values())):
                    self._call("stopProcessGroup", name, True)
                self._call("stopAllProcesses", True)
            with contextlib.suppress(Unavailable):
                self._call("shutdown")

        with contextlib.suppress(psutil.NoSuchProcess):
            _end_daemon(psutil.Process(pid), request_shutdown)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._rpc, name)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            reason = error.faultString if isinstance(error, xmlrpc.client.Fault) else str(error)
            raise Unavailable(f"supervisord: {_ACTIONS[name]} failed for {self.directory.name}: {reason}") from None


def find_running(directory: DeploymentDir) -> Supervisor | None:
    supervisor = Supervisor(directory)
    return supervisor if supervisor.pid is not None else None


def find_orphan(directory: DeploymentDir) -> psutil.Process | None:
    """Find a supervisord whose directory was removed while it ran, by its command line; None if there is none.

    Without the files in it nobody can reach it, and it would run until the machine restarts.
    """
    is_starting = time.time() - _START_TIMEOUT_S  # its socket comes a moment after it
    for process in psutil.process_iter(["cmdline", "create_time"]):
        if process.info["cmdline"] and process.info["cmdline"][1:] == _build_arguments(directory):
            has_socket = Supervisor(directory).socket.exists() or process.info["create_time"] > is_starting
            return None if directory.config.exists() and has_socket else process
    return None


def end_orphan(process: psutil.Process) -> None:
    """End what `find_orphan` found, with all its processes; returns when they have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _end_daemon(process, process.terminate)


def _end_daemon(daemon: psutil.Process, request_end: Callable[[], object]) -> None:
    descendants = daemon.children(recursive=True)
    request_end()
    # A request comes first; what still runs at the end of its time hangs.
    _, alive = psutil.wait_procs([daemon, *descendants], timeout=_STOP_TIMEOUT_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=10)


@contextlib.contextmanager
def start_attached(directory: DeploymentDir, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[Supervisor]:
    """Run a supervisor for the time of the block; it never outlives this process, even if that is killed.

    Args:
        env: variables of all its processes, on top of this one's.

    Raises:
        Unavailable: supervisord did not start.
    """
    with _get_output(directory).open("wb") as output:
        child = processes.spawn(_build_command(directory), environment=env, output=output)
    try:
        yield _wait_until_up(directory, child)
    finally:
        Supervisor(directory).shut_down()
        processes.stop(child, grace_s=_STOP_TIMEOUT_S)
        directory.remove_sockets()


def start_detached(directory: DeploymentDir, env: Mapping[str, str] = MappingProxyType({})) -> Supervisor:
    """Start a supervisor that outlives this process.

    Args:
        env: variables of all its processes, on top of this one's.

    Raises:
        Unavailable: supervisord did not start.
    """
    with _get_output(directory).open("wb") as output:
        child = subprocess.Popen(
            _build_command(directory),
            env={**os.environ, **env},
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
    command = [sys.executable, *_build_arguments(directory)]
    console.show_command(command)
    return command


def _build_arguments(directory: DeploymentDir) -> list[str]:
    return ["-m", "supervisor.supervisord", "--nodaemon", "--configuration", str(directory.config)]


def _get_output(directory: DeploymentDir) -> Path:
    return directory.logs / "supervisord.out"


def _wait_until_up(directory: DeploymentDir, child: subprocess.Popen[bytes]) -> Supervisor:
    supervisor = Supervisor(directory)

    def is_up() -> bool:
        if child.poll() is not None:
            # Below what is wrong it says how to get help.
            output = _get_output(directory).read_text(errors="replace").partition("\nFor help")[0]
            reason = " ".join(output.split()) or f"exit code {child.returncode}"
            raise Unavailable(f"supervisord: start failed for {directory.name}: {reason}")
        return supervisor.pid is not None

    processes.wait_until(is_up, "supervisord", _START_TIMEOUT_S)
    return supervisor


def _parse_state(process: dict[str, Any], exits: list[str]) -> ProcessState:
    """Build the state of a process from supervisord's answer and its log, which alone has how a process ended."""
    is_alive = process["statename"] in ("STARTING", "RUNNING", "STOPPING")
    return ProcessState(
        name=process["name"],
        state=process["statename"],
        pid=process["pid"],
        uptime_s=max(0.0, process["now"] - process["start"]) if is_alive else 0.0,
        restarts=len(exits),
        ended=exits[-1] if exits else process["spawnerr"],
    )


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a Unix socket, with a timeout."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:  # noqa: ARG002 - a path takes its place
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_RPC_TIMEOUT_S)
        connection.sock.connect(str(self._path))
        return connection
