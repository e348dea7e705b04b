"""Waits until processes answer a real completion; names the one that failed, with its cause, if one ends instead."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence

from llm_serving import console
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import probe
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import log_diagnosis
from llm_serving.targets.local.supervisor import ProcessState, Supervisor

_RESPONSE_TIMEOUT_S = 60.0
"""Longest wait for one answer, in seconds; the first one on a busy machine takes several."""

_POLL_INTERVAL_S, _SERVER_POLL_S = 0.5, 0.2

_REFUSED = "connect() failed"
"""What nginx logs of requests that come before the program behind it has started, such as a probe's."""

_SIGNAL_EXIT_BASE = 128
"""An exit status above it is this and the signal that ended a process, as with shells and `subreaper`."""


class RoleFailed(Unavailable):
    """A process of the deployment ended, or never became ready."""

    def __init__(self, directory: DeploymentDir, name: str, failure: str) -> None:
        path = directory.get_log_path(name)
        log = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        diagnosis = log_diagnosis.find_cause(log)
        lines = "\n".join(f"    {line}" for line in log_diagnosis.extract_tail(log))
        message = f"{name} {failure}{f': {diagnosis}' if diagnosis else ''}"
        super().__init__(f"{message}\n  last lines of {console.shorten_path(path)}:\n{lines}")


def wait(
    supervisor: Supervisor, processes: Sequence[Service], on_progress: Callable[[str], None] = lambda _: None
) -> None:
    """Wait until each of `processes` has answered its probe.

    Args:
        on_progress: called with the state of each, and the last line of the slowest.

    Raises:
        RoleFailed: one ended, or had not answered by its probe's deadline.
    """
    start = time.monotonic()
    pending = {process.name: process for process in processes if process.probe}
    answers = supervisor.directory.load_first_answers()
    initial_restarts = {state.name: state.restarts for state in supervisor.list_states()}
    while pending:
        states = {state.name: state for state in supervisor.list_states()}
        for name, process in list(pending.items()):
            raise_if_failed(supervisor.directory, states[name], initial_restarts[name])
            if is_answering(process):
                del pending[name]
                if answers.get(name, (0, 0.0))[0] != states[name].pid:
                    answers[name] = (states[name].pid, supervisor.read_state(name).uptime_s)
            elif process.probe and time.monotonic() - start > process.probe.deadline_s:
                raise RoleFailed(supervisor.directory, name, f"was not ready within {process.probe.deadline_s:.0f} s")
        on_progress(_describe_progress(supervisor.directory, processes, pending))
        if pending:
            time.sleep(_POLL_INTERVAL_S)
    supervisor.directory.save_first_answers(answers)


def wait_for(supervisor: Supervisor, name: str, is_ready: Callable[[], bool], limit_s: float) -> None:
    """Wait until a server that was started is ready."""
    deadline, restarts = time.monotonic() + limit_s, supervisor.read_state(name).restarts
    while not is_ready():
        raise_if_failed(supervisor.directory, supervisor.read_state(name), restarts)
        if time.monotonic() > deadline:
            raise RoleFailed(supervisor.directory, name, f"was not ready within {limit_s:.0f} s")
        time.sleep(_SERVER_POLL_S)


def is_answering(process: Service, timeout_s: float = _RESPONSE_TIMEOUT_S) -> bool:
    """Return whether a process answers a completion within `timeout_s` seconds."""
    if process.probe is None or not is_listening(process):
        return False
    url = f"http://{process.host}:{process.port}{process.probe.path}"
    body = json.dumps(process.probe.body) if process.probe.body else ""  # then a page is asked for
    return not probe.request_answer(url, body, timeout_s)


def raise_if_failed(directory: DeploymentDir, state: ProcessState, restarts: int) -> None:
    """Check that a process has not ended again since it had ended `restarts` times.

    Raises:
        RoleFailed: it ended, even if the supervisor restarts it already; has its exit code or signal and last lines.
    """
    if state.failed or state.restarts > restarts:
        status = re.fullmatch(r"exit status (\d+)", state.ended)
        signal_number = int(status[1]) - _SIGNAL_EXIT_BASE if status else 0
        failure = f"was ended by signal {signal_number}" if signal_number > 0 else f"ended with {state.ended}"
        hint = " (did the machine run out of memory?)" if signal_number == signal.SIGKILL else ""
        raise RoleFailed(directory, state.name, failure + hint)


def is_listening(process: Service) -> bool:
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex((process.host, process.port)) == 0


def _describe_progress(directory: DeploymentDir, processes: Sequence[Service], pending: dict[str, Service]) -> str:
    parts = ", ".join(f"{process.name} {'starting' if process.name in pending else 'ready'}" for process in processes)
    path = directory.get_log_path(next(iter(pending))) if pending else None
    if path is None or not path.exists():
        return parts
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if line.strip() and _REFUSED not in line]
    return f"{parts}; {telling[-1][:100]}" if telling else parts
