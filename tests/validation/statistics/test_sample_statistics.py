from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.validation.statistics import sample_statistics


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.0, 1.0]))
def test_percentiles_match_numpy(values: list[float], share: float) -> None:
    expected = float(np.percentile(values, share * 100))
    assert sample_statistics.compute_percentile(sorted(values), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_latency_has_percentiles_mean_minimum_and_maximum() -> None:
    latency = sample_statistics.summarize_latency([float(value) for value in range(100, -1, -1)])
    assert (latency.count, latency.p50, latency.p90, latency.p95, latency.p99, latency.mean) == (
        101,
        50,
        90,
        95,
        99,
        50,
    )
    assert (latency.min, latency.max) == (0, 100)


def test_a_latency_without_samples_is_null_throughout() -> None:
    latency = sample_statistics.summarize_latency([])
    assert latency.count == 0
    assert latency.p50 is latency.p99 is latency.mean is None


@pytest.mark.parametrize(("share", "least"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_percentile_is_bounded_from_the_least_number_of_samples_on(share: float, least: int) -> None:
    """By 1 - share ** n >= 95%."""
    assert sample_statistics.compute_min_samples(share) == least
    assert sample_statistics.compute_upper_bound(list(range(least)), share) == least - 1
    assert sample_statistics.compute_upper_bound(list(range(least - 1)), share) is None


def test_a_bound_of_many_samples_is_close_to_the_percentile() -> None:
    rank = sample_statistics.compute_upper_rank(1_000_000, 0.95)
    # 1.645 standard deviations of the binomial.
    assert rank == pytest.approx(950_000 + 1.645 * 218, abs=2)


def test_more_samples_are_needed_the_more_of_them_exceed_the_limit() -> None:
    counts = [sample_statistics.compute_min_samples(0.99, exceeding) for exceeding in (0.0, 0.002, 0.005)]
    assert all(count is not None for count in counts)
    assert counts == sorted(counts, key=lambda count: count or 0)
    assert sample_statistics.compute_min_samples(0.99, 0.02) is None


@pytest.mark.parametrize(
    ("count", "total", "bounds"),
    [(0, 300, (0.0, 0.009936)), (300, 300, (0.990064, 1.0)), (5, 100, (0.019906, 0.102254))],
)
def test_bounds_of_a_share_are_clopper_and_pearsons(count: int, total: int, bounds: tuple[float, float]) -> None:
    assert sample_statistics.compute_share_bounds(count, total) == pytest.approx(bounds, abs=1e-6)


@pytest.mark.parametrize(("count", "share"), [(300, 0.5), (300, 0.95), (2000, 0.99)])
def test_a_bound_covers_the_true_percentile_as_often_as_it_says(count: int, share: float) -> None:
    """2,000 runs; docs/validation.md has 10,000 of several distributions."""
    rng = random.Random(1)
    covered = sum(_draw_bound(rng, count, share) >= -math.log(1 - share) for _ in range(2000))
    # Never below what it says but by chance (three standard errors), and above by less than one rank's probability.
    assert 0.935 <= covered / 2000 <= 0.985


def _draw_bound(rng: random.Random, count: int, share: float) -> float:
    bound = sample_statistics.compute_upper_bound(sorted(rng.expovariate(1) for _ in range(count)), share)
    assert bound is not None
    return bound


def test_a_bound_that_took_tokens_for_independent_would_be_too_narrow() -> None:
    """Answers are fast or slow as a whole: 60 answers of 100 tokens say as much as 60 values, not as 6,000."""
    rng = random.Random(2)
    clusters = [[rng.choice([10.0, 50.0])] * 100 for _ in range(60)]
    clusters[:2] = [[80.0] * 100] * 2
    ordered = sorted(value for values in clusters for value in values)
    naive = sample_statistics.compute_upper_bound(ordered, 0.95)
    clustered = sample_statistics.compute_clustered_bound(clusters, 0.95)
    assert naive == 50.0
    assert clustered == 80.0
    assert sample_statistics.compute_clustered_bound(clusters[:30], 0.95) is None


@pytest.mark.parametrize(
    ("confidence", "degrees", "quantile"),
    [
        (0.95, 1, 6.314),
        (0.975, 4, 2.776),
        (0.99, 9, 2.821),
        (0.995, 10, 3.169),
        (0.95, 59, 1.671),
        (0.975, 10_000, 1.962),
    ],
)
def test_t_quantiles_are_those_of_the_tables(confidence: float, degrees: int, quantile: float) -> None:
    assert sample_statistics.compute_t_quantile(confidence, degrees) == pytest.approx(quantile, abs=0.001)
