"""Keeps the memory of a program flat that works with large blocks in many threads."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""

_ARENAS = 2


def limit_arenas() -> None:
    """Let all threads share two heaps; call it before the first thread starts.

    glibc gives each thread a heap of its own, and a heap that held large blocks keeps most of their memory: with some
    thirty threads a worker grew with every row. Python's lock leaves more heaps without a use. Where the C library
    is another one, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, _ARENAS)
