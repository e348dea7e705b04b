"""Waits until processes answer a real completion, and says which one failed where one ends instead."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from llm_serving import console
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import log_diagnosis
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.targets.local.supervisor import State, Supervisor
from llm_serving.workloads.serving.deployment import Process

_ANSWER_S = 60.0
"""Longest wait for one answer; the first one on a busy machine takes seconds."""

_EVERY_S = 0.5

_SIGNAL = 128
"""An exit status above it tells of the signal that ended a process, as shells and `keep` say it."""


class RoleFailed(Unavailable):
    """A process of the deployment ended, or never answered."""

    def __init__(self, run: Run, name: str, how: str) -> None:
        path = run.log(name)
        log = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        because = log_diagnosis.find(log)
        lines = "\n".join(f"    {line}" for line in log_diagnosis.tail(log))
        said = f"{name} {how}{f': {because}' if because else ''}"
        super().__init__(f"{said}\n  its last lines, all of them in {console.near(path)}:\n{lines}")


def wait(supervisor: Supervisor, wanted: Sequence[Process], note: Callable[[str], None] = lambda _: None) -> None:
    """Returns when each of `wanted` has answered its probe.

    Args:
        note: told how far each is, and what the slowest wrote last.

    Raises:
        RoleFailed: one ended, or had not answered by its probe's deadline.
    """
    start = time.monotonic()
    waiting = {process.name: process for process in wanted if process.probe}
    before = {state.name: state.restarts for state in supervisor.states()}
    while waiting:
        states = {state.name: state for state in supervisor.states()}
        for name, process in list(waiting.items()):
            refuse_failed(supervisor.run, states[name], before[name])
            if answers(process):
                del waiting[name]
            elif process.probe and time.monotonic() - start > process.probe.deadline_s:
                raise RoleFailed(supervisor.run, name, f"did not answer within {process.probe.deadline_s:.0f} s")
        note(_progress(supervisor.run, wanted, waiting))
        if waiting:
            time.sleep(_EVERY_S)


def answers(process: Process) -> bool:
    """Whether a process gives a completion now."""
    if process.probe is None or not _listens(process.port):
        return False
    request = urllib.request.Request(
        f"http://127.0.0.1:{process.port}{process.probe.path}",
        data=json.dumps(process.probe.body).encode(),
        headers={"Content-Type": "application/json"},
    )
    # No proxy: a user's own settings may name one even for this machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_ANSWER_S) as answer:
            return bool(json.load(answer)["choices"])
    except (OSError, ValueError, KeyError):
        return False


def refuse_failed(run: Run, state: State, restarts: int) -> None:
    """Lets a process pass that has not ended since it had ended `restarts` times.

    Raises:
        RoleFailed: it has, even where the supervisor is trying it again already; says how, and what it wrote last.
    """
    if state.failed or state.restarts > restarts:
        status = re.fullmatch(r"exit status (\d+)", state.ended)
        number = int(status[1]) - _SIGNAL if status else 0
        how = f"was ended by signal {number}" if number > 0 else f"ended with {state.ended}"
        hint = " (did the machine run out of memory?)" if number == signal.SIGKILL else ""
        raise RoleFailed(run, state.name, how + hint)


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex(("127.0.0.1", port)) == 0


def _progress(run: Run, wanted: Sequence[Process], waiting: dict[str, Process]) -> str:
    parts = [f"{process.name} {'starting' if process.name in waiting else 'answers'}" for process in wanted]
    path = run.log(next(iter(waiting))) if waiting else None
    if path is None or not path.exists():
        return ", ".join(parts)
    last = log_diagnosis.tail(path.read_text(encoding="utf-8", errors="replace"), 1)
    return f"{', '.join(parts)}; {last[0][:100]}" if last else ", ".join(parts)
