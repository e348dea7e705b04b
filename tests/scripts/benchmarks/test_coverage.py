from __future__ import annotations

import numpy as np
import pytest

from scripts.benchmarks import coverage


def build_rng() -> np.random.Generator:
    return np.random.default_rng(coverage.SEED)


def test_bounds_over_tokens_of_answers_hold_as_often_as_they_say() -> None:
    """300 runs, so within four standard errors; 10,000 by the benchmark itself."""
    assert coverage.measure_tokens(build_rng(), 300, 60, 0.5) == pytest.approx(0.95, abs=0.05)


def test_bounds_of_a_share_hold_at_least_as_often_as_they_say() -> None:
    assert coverage.measure_share(build_rng(), 500, 300, 0.95) >= 0.93


def test_a_bound_of_one_rank_less_would_hold_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what the simulation sees of the estimate itself, in place of its bound."""
    draw, find_truth = coverage.DISTRIBUTIONS["exponential"]
    assert coverage.measure(build_rng(), 1000, 300, 0.95, draw, find_truth(0.95)) > 0.93
    monkeypatch.setattr(coverage.sample_statistics, "compute_upper_rank", lambda count, share: round(count * share))
    assert coverage.measure(build_rng(), 1000, 300, 0.95, draw, find_truth(0.95)) < 0.7


def test_a_bound_of_equal_values_holds_more_often() -> None:
    draw, find_truth = coverage.DISTRIBUTIONS["steps"]
    assert coverage.measure(build_rng(), 1000, 300, 0.5, draw, find_truth(0.5)) > 0.97


def test_a_bound_of_requests_that_wait_for_each_other_holds_less_often() -> None:
    """As docs/validation.md says; with hardly any load they do not wait, and it holds."""
    busy, idle = (coverage.measure_queue(build_rng(), 500, 300, 0.95, load) for load in (0.5, 0.001))
    assert busy.share == pytest.approx(0.69, abs=0.08)
    assert busy.factor == pytest.approx(1.2, abs=0.08)
    assert idle.share > 0.93
    assert idle.factor < 1.02
