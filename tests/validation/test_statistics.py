from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.validation import statistics


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.0, 1.0]))
def test_percentiles_match_numpy(values: list[float], share: float) -> None:
    expected = float(np.percentile(values, share * 100))
    assert statistics.compute_percentile(sorted(values), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_latency_has_percentiles_mean_minimum_and_maximum() -> None:
    latency = statistics.summarize_latency([float(value) for value in range(100, -1, -1)])
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
    latency = statistics.summarize_latency([])
    assert latency.count == 0
    assert latency.p50 is latency.p99 is latency.mean is None
