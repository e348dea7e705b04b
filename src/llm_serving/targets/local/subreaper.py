"""Runs one command, and leaves nothing of it behind, however it ends: `python keep.py COMMAND...`.

vLLM's API server starts an engine process and trusts itself to end it. Killed with -9 it cannot: the engine process
stays for good, with the memory of a whole replica, and a supervisor that sees only the API server starts a second one.
This process stands between the two. Whatever the command started is adopted by it (Linux calls that a subreaper) and
is killed when the command itself has ended; the command in turn is told to end when this process is gone. The exit
code is the command's own, 128 and the signal's number where a signal ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil

GRACE_S = 15
"""How long the command has to end when it is told to; then it is killed."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str]) -> int:
    """Runs `command`; returns its exit code when nothing of it is left."""
    _die_with_parent()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        # In the same process group, so that a supervisor's last resort, killing the group, reaches all of it.
        child = subprocess.Popen(command, preexec_fn=_die_with_parent)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def forward(signum: int, _frame: object) -> None:
        child.send_signal(signum)
        signal.alarm(GRACE_S)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, forward)
    signal.signal(signal.SIGALRM, lambda _number, _frame: child.kill())
    code = child.wait()
    _kill_descendants()
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _kill_descendants() -> None:
    """Kills what the command left, and what that started meanwhile, until there is nothing."""
    current_process = psutil.Process()
    while descendants := current_process.children(recursive=True):
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
