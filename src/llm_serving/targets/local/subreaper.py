"""Runs one command and leaves no process of it behind, however it ends: `python subreaper.py COMMAND...`.

vLLM's API server starts an engine process and ends it itself, which it cannot after a kill -9: the engine process
stays, with the memory of a whole replica, and a supervisor that sees only the API server starts a second one. This
process runs between the two. It adopts all orphans of the command (Linux calls that a subreaper) and kills them when
the command has ended; the command gets SIGTERM when this process ends. The exit code is the command's own, or 128 and
the signal's number if a signal ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

GRACE_S = 15
"""Seconds for the command to end after a signal; then it is killed."""

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str]) -> int:
    """Run `command`; return its exit code when none of its processes is left."""
    _die_with_parent()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until there is somebody to forward them to
    try:
        # In the same process group, so that a supervisor that kills the group reaches all of it.
        child = subprocess.Popen(command, preexec_fn=_prepare)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def forward(signum: int, _frame: object) -> None:
        child.send_signal(signum)
        signal.alarm(GRACE_S)

    for signum in _FORWARDED:
        signal.signal(signum, forward)
    signal.signal(signal.SIGALRM, lambda _number, _frame: child.kill())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = child.wait()
    _kill_descendants()
    return code if code >= 0 else 128 - code


def _prepare() -> None:
    _die_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _kill_descendants() -> None:
    """Kill what the command left, and what that starts meanwhile, until nothing is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # no process is left, as after most commands
        return

    import psutil  # its import takes a quarter of this program's time

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
