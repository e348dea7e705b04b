"""Statistics of samples. No input or output.

A percentile is the linear interpolation between the two closest ranks (numpy's default, type 7 of Hyndman and Fan): of
the sorted values x[0] to x[n-1], the share q lies at rank q * (n - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

Metric = Literal["ttft_ms", "itl_ms", "e2e_ms"]
"""Time to first token, inter-token latency, end to end; all in milliseconds."""

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class Latency(BaseModel):
    """A latency in milliseconds over all samples; null without samples."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    count: int
    """Samples: answered requests, or for inter-token latency the tokens after each answer's first."""

    p50: float | None = None
    """Median."""

    p90: float | None = None
    """90th percentile."""

    p95: float | None = None
    """95th percentile."""

    p99: float | None = None
    """99th percentile."""

    mean: float | None = None
    """Arithmetic mean."""

    min: float | None = None
    """Minimum."""

    max: float | None = None
    """Maximum."""


def compute_percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile `share` (0 to 1) of sorted values, of which there is at least one."""
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarize_latency(values: Sequence[float]) -> Latency:
    """Return mean and percentiles of milliseconds in any order."""
    if not values:
        return Latency(count=0)
    ordered = sorted(values)
    percentiles = {name: round(compute_percentile(ordered, share), 3) for name, share in PERCENTILES.items()}
    mean = round(sum(ordered) / len(ordered), 3)
    return Latency(count=len(ordered), mean=mean, min=round(ordered[0], 3), max=round(ordered[-1], 3), **percentiles)
