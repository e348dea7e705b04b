from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.validation import statistics


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.0, 1.0]))
def test_a_percentile_is_numpys(values: list[float], share: float) -> None:
    expected = float(np.percentile(values, share * 100))
    assert statistics.percentile(sorted(values), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_latency_holds_percentiles_mean_and_ends() -> None:
    found = statistics.latency([float(value) for value in range(100, -1, -1)])
    assert (found.count, found.p50, found.p90, found.p95, found.p99, found.mean) == (101, 50, 90, 95, 99, 50)
    assert (found.min, found.max) == (0, 100)


def test_a_latency_without_samples_is_null_throughout() -> None:
    found = statistics.latency([])
    assert found.count == 0
    assert found.p50 is found.p99 is found.mean is None
