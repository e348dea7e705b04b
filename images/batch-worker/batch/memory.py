"""Keeps memory constant in a program that handles large blocks in many threads."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""Constant of glibc's malloc.h."""

_ARENAS = 2


def limit_arenas() -> None:
    """Let all threads share two heaps; call it before the first thread starts.

    glibc gives each thread its own heap, and a heap that held large blocks keeps most of their memory: with some thirty
    threads a worker grew with every row. With Python's lock, more heaps have no benefit. No effect with other C
    libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, _ARENAS)
