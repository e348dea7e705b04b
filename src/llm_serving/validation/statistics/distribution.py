"""The latencies that an SLO is held against: over all requests, of which those that failed count as infinite.

Without the failures a percentile looks the better the more requests hang. No input or output.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import sample_statistics
from llm_serving.validation.statistics.sample_statistics import PERCENTILES, Metric

MEAN = "mean"


class Estimate(NamedTuple):
    """A statistic in milliseconds with its upper bound."""

    value: float | None
    """Infinite where failures reach it; None without a sample."""

    upper: float | None
    """None where too few samples bound it."""


@dataclass(frozen=True)
class Distribution:
    """A latency of all requests."""

    clusters: tuple[tuple[float, ...], ...]
    """Milliseconds by request: one value, or one for each token after the first."""

    @functools.cached_property
    def ordered(self) -> list[float]:
        return sorted(value for values in self.clusters for value in values)

    def estimate(self, statistic: str) -> Estimate:
        """Estimate a percentile or the mean."""
        if not self.ordered:
            return Estimate(None, None)
        if statistic == MEAN:
            return self._estimate_mean()
        share = PERCENTILES[statistic]
        value = sample_statistics.compute_percentile(self.ordered, share)
        if len(self.ordered) == len(self.clusters):
            return Estimate(value, sample_statistics.compute_upper_bound(self.ordered, share))
        return Estimate(value, sample_statistics.compute_clustered_bound(self.clusters, share))

    def _estimate_mean(self) -> Estimate:
        """Estimate the mean with the bound of Student's t; exact for normal values, and close to it for many."""
        means = [fmean(values) for values in self.clusters if values]
        value = fmean(self.ordered)
        if len(means) < 2 or math.isinf(value):
            return Estimate(value, value if math.isinf(value) else None)
        errors = sample_statistics.compute_t_quantile(sample_statistics.CONFIDENCE, len(means) - 1)
        return Estimate(value, value + errors * stdev(means) / len(means) ** 0.5)

    def count_required(self, statistic: str, limit: float) -> int | None:
        """Return the requests that would show the statistic below a limit, if the rest were like these.

        None where no number would: too many lie above the limit.
        """
        if statistic == MEAN or not self.ordered:
            return None
        exceeding = sum(value > limit for value in self.ordered) / len(self.ordered)
        return sample_statistics.compute_share_samples(1 - PERCENTILES[statistic], exceeding)


def collect(samples: Sequence[Sample]) -> dict[Metric, Distribution]:
    return {
        "ttft_ms": Distribution(tuple((_get_latency(sample, sample.ttft_ms),) for sample in samples)),
        "itl_ms": Distribution(tuple(_collect_gaps(samples))),
        "e2e_ms": Distribution(tuple((_get_latency(sample, sample.e2e_ms),) for sample in samples)),
    }


def _get_latency(sample: Sample, value: float | None) -> float:
    return math.inf if sample.error is not None or value is None else value


def _collect_gaps(samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return the gaps of each answer; of a failed one also the average number of those that never came."""
    answered = [sample for sample in samples if sample.error is None]
    typical = 1
    if 0 < len(answered) < len(samples):  # only a failed one needs it
        typical = round(fmean(sum(gap.tokens for gap in sample.gaps) for sample in answered))
    return [
        (
            *itertools.chain.from_iterable(itertools.repeat(gap.ms, gap.tokens) for gap in sample.gaps),
            *([math.inf] * _count_missing(sample, typical) if sample.error is not None else []),
        )
        for sample in samples
    ]


def _count_missing(sample: Sample, typical: int) -> int:
    expected = typical if sample.asked_output is None else max(0, sample.asked_output - 1)
    return max(1, expected - sum(gap.tokens for gap in sample.gaps))
