"""Ends every process that the tests started once pytest has ended, in whatever way: passed, interrupted or killed.

A pytest plugin, and the program that it starts. Fixtures clean up after themselves, but nothing of a killed pytest does,
and a detached supervisord, which is what `blueprint deploy` leaves on purpose, has no parent that could end it. All that
tests start inherits a variable with this session's own value; the guardian, in a session of its own so that no Ctrl-C
reaches it, waits until pytest is gone and ends what has that value.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid

import psutil
import pytest

VARIABLE = "LLM_SERVING_TEST_SESSION"
GRACE_S = 20.0
"""Seconds for processes to end after SIGTERM; supervisord stops its own ones meanwhile."""

_LIMIT_S = 120.0
_POLL_INTERVAL_S = 0.5


def pytest_configure(config: pytest.Config) -> None:
    """Start the guardian of this session; workers of pytest-xdist and nested sessions inherit that of the first."""
    if VARIABLE in os.environ:
        return
    session = uuid.uuid4().hex
    subprocess.Popen(
        [sys.executable, __file__, session, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[VARIABLE] = session


def find_processes(session: str) -> list[psutil.Process]:
    """Find all processes that a session started."""
    matches = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(VARIABLE) == session and process.status() != psutil.STATUS_ZOMBIE:
                matches.append(process)
        except (psutil.Error, OSError):
            continue
    return matches


def end_processes(session: str) -> None:
    """End all processes that a session started, and what these start meanwhile."""
    deadline = time.monotonic() + _LIMIT_S
    while (processes := find_processes(session)) and time.monotonic() < deadline:
        for process in processes:
            _send(process, kill=False)
        _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
        for process in alive:
            _send(process, kill=True)
        psutil.wait_procs(alive, timeout=5)


def _send(process: psutil.Process, *, kill: bool) -> None:
    with contextlib.suppress(psutil.Error):  # it may have ended
        if kill:
            process.kill()
        else:
            process.terminate()


def main(session: str, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_INTERVAL_S)
    end_processes(session)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
