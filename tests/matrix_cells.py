"""Cells of the matrix, built and rendered once for all of pytest's processes: the tests of charts are listed by them.

A pytest plugin; the cells lie in a folder that the first of the processes makes and removes.
"""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from llm_serving import paths, processes
from llm_serving.targets import matrix, registry, render
from llm_serving.targets.matrix import Cell

_VARIABLE = "LLM_SERVING_TEST_CELLS"

_Made = TypeVar("_Made")


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
    return _make_once(target, lambda: tuple(matrix.build_cells(target)))


def render_text(cell: Cell) -> str:
    """Return what the template of a cell's pattern makes of its deployment."""
    deployment = cell.deployment
    assert deployment
    source = render.find_template(paths.PATTERNS / cell.pattern, cell.target)
    name = "-".join((cell.target, cell.pattern, cell.fleet, cell.engine, cell.framework))
    return _make_once(name, lambda: render.render_text(deployment, source))


def _make_once(name: str, make: Callable[[], _Made]) -> _Made:
    """Return what another of pytest's processes has made under a name, or else make it."""
    folder = Path(os.environ[_VARIABLE])
    file = folder / name
    with processes.lock_file(folder / f"{name}.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(make()))
    made: _Made = pickle.loads(file.read_bytes())
    return made
