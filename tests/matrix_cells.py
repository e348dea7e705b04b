"""Cells of the matrix, built once for all of pytest's processes: the tests of charts are listed by them.

A pytest plugin; the cells lie in a folder that the first of the processes makes and removes.
"""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.targets import matrix, registry
from llm_serving.targets.matrix import Cell

_VARIABLE = "LLM_SERVING_TEST_CELLS"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder; workers of pytest-xdist and nested sessions inherit it."""
    if _VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="blueprint-cells-")
        os.environ[_VARIABLE] = folder.name
        config.add_cleanup(folder.cleanup)


def build_all() -> list[Cell]:
    """Return the cells of all targets."""
    return [cell for target in registry.list_targets() for cell in build(target)]


@functools.cache
def build(target: str) -> tuple[Cell, ...]:
    """Return the cells of a target."""
    folder = Path(os.environ[_VARIABLE])
    file = folder / target
    with processes.lock_file(folder / f"{target}.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(tuple(matrix.build_cells(target))))
    cells: tuple[Cell, ...] = pickle.loads(file.read_bytes())
    return cells
