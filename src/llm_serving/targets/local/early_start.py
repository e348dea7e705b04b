"""Weights and workers on their way while Terraform still waits, so that neither costs time of its own.

The AWS provider (5.100.0) waits most of a minute for the lifecycle rules of a bucket that is there already, and this
machine stands idle meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

POLL_INTERVAL_S = 0.5
"""Between two looks whether it can begin."""

OnProgress = Callable[[str], None]


class _Cancelled(Exception):
    """What was begun is not needed any more."""


@contextlib.contextmanager
def run_in_background(is_ready: Callable[[], bool], *steps: Callable[[OnProgress], object]) -> Iterator[None]:
    """Takes `steps` beside the block as soon as `ready`, one after the other, and ends them with the block.

    Nothing is said of how that went: each step must be such that it can be taken again afterwards, which then costs
    nothing where it was done, and says what is wrong where it was not.

    Args:
        steps: each is given what tells its progress, and is broken off there when the block has ended.
    """
    cancelled = threading.Event()

    def raise_if_cancelled(_: str) -> None:
        if cancelled.is_set():
            raise _Cancelled

    def run_steps() -> None:
        with contextlib.suppress(Exception):  # who takes the step again meets it again
            while not is_ready():
                if cancelled.wait(POLL_INTERVAL_S):
                    return
            for step in steps:
                step(raise_if_cancelled)

    thread = threading.Thread(target=run_steps, name="ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        cancelled.set()
        thread.join()
