"""Keeps memory constant in a program that handles large blocks in many threads, and collects garbage less often."""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX = -8
"""Constant of glibc's malloc.h."""

_ARENAS = 2

_GC_THRESHOLDS = 20_000, 50, 100
"""Of Python's three generations, in place of 700, 10 and 10."""


def limit_arenas() -> None:
    """Let all threads share two heaps; call it before the first thread starts.

    glibc gives each thread its own heap, and a heap that held large blocks keeps most of their memory: with some thirty
    threads a worker grew with every row. With Python's lock, more heaps have no benefit. No effect with other C
    libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, _ARENAS)


def collect_garbage_rarely() -> None:
    """Look for cycles of objects less often, and no more at what is there; call it once all is imported.

    Rows in memory are many objects without cycles: looking at them took a quarter of a worker's time.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
