from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from llm_serving.validation.knee import Point
from scripts.benchmarks import knee as benchmark
from tests.validation.test_knee import build_point


class KnownLoader:
    """Keeps loads up to a capacity, but for one that is missed by chance."""

    def __init__(self, capacity: float, unlucky: float = 0.0) -> None:
        self.capacity, self.unlucky = capacity, unlucky

    def measure(self, load: float) -> Point:
        passed = load <= self.capacity and load != pytest.approx(self.unlucky, rel=0.01)
        return build_point(load, "pass" if passed else "fail")


def _measure_grid(loader: KnownLoader, knee_load: float) -> dict[str, Any]:
    return benchmark.measure_grid(cast(Any, loader), knee_load)


def test_the_grid_covers_the_knee_in_steps_as_fine_as_the_sweeps() -> None:
    grid = _measure_grid(KnownLoader(20), knee_load=20)
    assert grid["kept"] == 20
    loads = [load for load, *_ in grid["loads"]]
    assert min(loads) < 12 and max(loads) > 34
    assert all(after / before == pytest.approx(1.1, rel=0.01) for before, after in itertools.pairwise(loads))


def test_a_sweep_that_found_too_much_or_too_little_differs_from_the_grid() -> None:
    assert _measure_grid(KnownLoader(20), knee_load=30)["kept"] < 20.1
    assert _measure_grid(KnownLoader(20), knee_load=14)["kept"] > 18
    assert _measure_grid(KnownLoader(20, unlucky=20 / 1.1**3), knee_load=20)["kept"] < 20 / 1.1**3, (
        "a load missed by chance"
    )
