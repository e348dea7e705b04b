"""Child processes that never outlive their parent, and waits that always have a timeout."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from llm_serving.settings.errors import Unavailable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(death_signal: signal.Signals = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when its parent ends, even if that is killed."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, death_signal)


def spawn(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    output: IO[bytes] | int = subprocess.DEVNULL,
    orphan_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start `command` in a new process group that ends when this process does.

    Call it from a thread that lives as long as the child: Linux ties the child to the thread.

    Args:
        orphan_signal: sent to it if this process is killed.
    """
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=functools.partial(end_with_parent, orphan_signal),
    )


def allow_many_files() -> None:
    """Raise this process's limit of open files, and that of its children, to the most that it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def stop(child: subprocess.Popen[Any], grace_s: float = 20.0) -> None:
    """Stop a child's whole process group: with SIGTERM, and SIGKILL after `grace_s` seconds."""
    stop_all([child], grace_s)


def stop_all(
    children: Sequence[subprocess.Popen[Any]], grace_s: float = 20.0, *, stop_signal: signal.Signals = signal.SIGTERM
) -> None:
    """Stop the process groups of several children, all within the same `grace_s` seconds.

    Args:
        stop_signal: sent first; SIGKILL follows.
    """
    deadline = time.monotonic() + grace_s
    for child in children:
        if child.poll() is None:
            _signal_group(child.pid, stop_signal)
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        _signal_group(child.pid, signal.SIGKILL)
        child.wait()


def _signal_group(group: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def wait_until(is_ready: Callable[[], bool], subject: str, timeout_s: float, interval_s: float = 0.1) -> None:
    """Poll `is_ready` until it is true.

    Raises:
        Unavailable: it was not within `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if time.monotonic() > deadline:
            raise Unavailable(f"{subject}: not ready within {timeout_s:.0f} s")
        time.sleep(interval_s)


_PORTS = range(20000, 32000)
"""Below the ephemeral ports, so that no outgoing connection takes a chosen port."""


_claims: dict[int, socket.socket] = {}


def claim_free_ports(count: int) -> list[int]:
    """Claim `count` different ports of the loopback interface, on which nobody listens, for this process."""
    unclaimed = [port for port in _PORTS if port not in _claims]
    return list(itertools.islice(filter(claim, random.sample(unclaimed, len(unclaimed))), count))


def claim(port: int) -> bool:
    """Claim `port` of the loopback interface until this process ends; return False if it is in use or claimed.

    Servers may start to listen minutes after their ports were chosen, and other processes must choose other ports
    meanwhile. A claim is a name in Linux's abstract socket namespace, which has the scope of the port itself and is
    released with the process.
    """
    if not is_free(port):
        return False
    if port not in _claims:
        claim_socket = socket.socket(socket.AF_UNIX)
        try:
            claim_socket.bind(f"\0llm-serving-blueprints/{port}")
        except OSError:
            claim_socket.close()
            return False
        _claims[port] = claim_socket
    return True


def is_free(port: int) -> bool:
    """Return whether `port` of the loopback interface is free to listen on."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def lock_file(file: Path, busy_message: str | None = None) -> Iterator[None]:
    """Lock `file` for the time of the block; the lock ends with this process, however that ends.

    Args:
        file: created if it does not exist; its content stays as it is.
        busy_message: of the error if another process has the lock; waits for it if None.

    Raises:
        Unavailable: another process has the lock.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy_message else 0))
        except BlockingIOError:
            raise Unavailable(f"{busy_message}. Fix: wait until it ends.") from None
        yield
    finally:
        os.close(descriptor)


def write_whole(file: Path, text: str) -> None:
    """Write a file of which no other process ever reads a part, and which a full disk leaves as it was."""
    file = file.resolve()  # a link stays one
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
    try:
        draft.touch(mode=0o666 if mode is None else 0o600)
        draft.write_text(text, encoding="utf-8")
        if mode is not None:
            draft.chmod(mode)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def handle_interrupts() -> contextlib.AbstractContextManager[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that all interruptions clean up in the same way."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    return _handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP)


def ignore_signals() -> contextlib.AbstractContextManager[None]:
    """Ignore signals for the time of the block, a clean-up of limited length."""
    return _handle_signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handle_signals(handler: Callable[..., None] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, its_handler in previous.items():
            signal.signal(number, its_handler)
