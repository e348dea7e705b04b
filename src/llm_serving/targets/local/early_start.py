"""Weights and workers on their way while Terraform still waits, so that neither costs time of its own.

The AWS provider (5.100.0) waits most of a minute for the lifecycle rules of a bucket that is there already, and this
machine stands idle meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

LOOK_S = 0.5
"""Between two looks whether it can begin."""

Note = Callable[[str], None]


class _Overtaken(Exception):
    """What was begun is not needed any more."""


@contextlib.contextmanager
def begun(ready: Callable[[], bool], *steps: Callable[[Note], object]) -> Iterator[None]:
    """Takes `steps` beside the block as soon as `ready`, one after the other, and ends them with the block.

    Nothing is said of how that went: each step must be such that it can be taken again afterwards, which then costs
    nothing where it was done, and says what is wrong where it was not.

    Args:
        steps: each is given what tells its progress, and is broken off there when the block has ended.
    """
    ended = threading.Event()

    def note(_: str) -> None:
        if ended.is_set():
            raise _Overtaken

    def begin() -> None:
        with contextlib.suppress(Exception):  # who takes the step again meets it again
            while not ready():
                if ended.wait(LOOK_S):
                    return
            for step in steps:
                step(note)

    beside = threading.Thread(target=begin, name="ahead", daemon=True)
    beside.start()
    try:
        yield
    finally:
        ended.set()
        beside.join()
