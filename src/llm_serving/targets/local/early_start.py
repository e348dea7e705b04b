"""Uploads weights and starts workers while Terraform still waits, so that neither takes extra time.

The AWS provider (5.100.0) waits most of a minute for a bucket's lifecycle rules after it has created them, and this
machine is idle meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

POLL_INTERVAL_S = 0.5
"""Between two checks whether the steps can start, in seconds."""

OnProgress = Callable[[str], None]


class _Cancelled(Exception):
    """The steps are no longer needed."""


@contextlib.contextmanager
def run_in_background(is_ready: Callable[[], bool], *steps: Callable[[OnProgress], object]) -> Iterator[None]:
    """Run `steps` in a thread once `is_ready`, one after the other, and end them with the block.

    Failures are ignored: each step must be safe to run again. The caller runs all of them after the block; a step that
    is done then costs nothing, and one that failed fails there, with its message.

    Args:
        is_ready: polled until it is true.
        steps: each gets a function to report progress to, which ends the step if the block has ended.
    """
    cancelled = threading.Event()

    def raise_if_cancelled(_: str) -> None:
        if cancelled.is_set():
            raise _Cancelled

    def run_steps() -> None:
        with contextlib.suppress(Exception):  # the caller runs the step again, and it fails again
            while not is_ready():
                if cancelled.wait(POLL_INTERVAL_S):
                    return
            for step in steps:
                step(raise_if_cancelled)

    thread = threading.Thread(target=run_steps, name="early-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        cancelled.set()
        thread.join()
