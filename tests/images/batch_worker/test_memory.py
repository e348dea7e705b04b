"""Threads share heaps, where the C library can be told so, and garbage is collected less often."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from typing import Any

import pytest
from batch import memory

from tests.images.batch_worker.conftest import IMAGE

COUNT_HEAPS = """
import ctypes, sys, threading
sys.path.insert(0, sys.argv[1])
from batch import memory
if sys.argv[2] == "limited":
    memory.limit_arenas()
barrier = threading.Barrier(6)
def hold_memory():
    block = bytes(100_000)
    barrier.wait(60)
threads = [threading.Thread(target=hold_memory) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
c = ctypes.CDLL(None)
c.fdopen.restype = ctypes.c_void_p
out = c.fdopen(1, b"w")
c.malloc_info(0, ctypes.c_void_p(out))
c.fflush(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has heaps of threads")
@pytest.mark.parametrize(("limit", "heaps"), [("limited", 2), ("usual", 7)])
def test_threads_share_two_heaps_with_glibc(limit: str, heaps: int) -> None:
    command = [sys.executable, "-c", COUNT_HEAPS, str(IMAGE), limit]
    report = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert report.count("<heap ") == heaps


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_library(_: Any) -> object:
        return object()  # musl has no mallopt

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    memory.limit_arenas()


def test_what_is_imported_is_looked_at_no_more_and_cycles_are_still_collected() -> None:
    program = """
import gc, sys, weakref
sys.path.insert(0, sys.argv[1])
from batch import memory
memory.collect_garbage_rarely()
class Node: pass
def make_cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)
first = make_cycle()
nodes = [[] for _ in range(30_000)]
print(gc.get_freeze_count() > 5_000, first() is None)
"""
    command = [sys.executable, "-c", program, str(IMAGE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "True True\n"
