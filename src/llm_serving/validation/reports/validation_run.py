"""Saved validations, and what comparisons read of them: each number with its bounds. No input or output.

Requests of one moment depend on each other, by a queue that they share, so that a run is cut into batches of time, as
in the method of batch means; a batch is the unit of every interval. What a machine does differently from run to run is
in no interval of one run: with several runs of the same deployment, a run is the unit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from llm_serving.services.traffic import Slo
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import distribution, gate, sample_statistics
from llm_serving.validation.statistics.distribution import Distribution
from llm_serving.validation.statistics.sample_statistics import METRICS, PERCENTILES, Interval, Metric

BATCHES = 10
"""Batches of one run: fewer do not tell its spread, more are too short to be independent."""

COMPARED = ("p50", "p95")
"""Percentiles of each latency that are compared."""

GOODPUT, ERRORS = "goodput", "errors"
"""Metrics that are shares of requests."""

MORE_IS_BETTER = {"output_tokens_per_s", "inputs_per_s", GOODPUT}


@dataclass(frozen=True)
class ValidationRun:
    """One validation, read from its folder, or several of the same deployment under the same load."""

    title: str
    report: Mapping[str, Any]
    samples: Sequence[Sample]
    repeats: Sequence[ValidationRun] = ()
    """Further validations that count with this one."""

    def require_fields(self) -> None:
        """Refuse, by an error of Python's own, a report without what a comparison reads, as of another version."""
        if not isinstance(self.report["settings"]["traffic"], dict):
            raise ValueError("settings.traffic is no mapping")
        Slo.model_validate(self.report["settings"]["slo"])
        steady = self.report.get("steady") or {"from_s": 0, "to_s": 0}
        for number in (self.report["duration_s"], self.waiting_share, steady["from_s"], steady["to_s"]):
            float(number)
        select_measures((self,))

    @property
    def answered(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.error is None]

    @property
    def duration_s(self) -> float:
        return float(self.report["duration_s"])

    @property
    def waiting_share(self) -> float:
        """Share of the load's time in which a process of the driver waited for a core; of all runs the most."""
        watched = [process for run in (self, *self.repeats) for process in run.report.get("driver", ())]
        return max((process["queue_share"] or 0.0 for process in watched), default=0.0)

    def split(self) -> list[Sequence[Sample]]:
        """Return the requests of each unit: the runs, or of a single one its batches of as many requests by start."""
        if self.repeats:
            return [run.samples for run in (self, *self.repeats)]
        ordered, count = sorted(self.samples, key=lambda sample: sample.start_s), len(self.samples)
        return [ordered[count * index // BATCHES : count * (index + 1) // BATCHES] for index in range(BATCHES)]

    @functools.cached_property
    def latencies(self) -> list[dict[Metric, Distribution]]:
        """Latencies of each unit, which every percentile of each reads."""
        return [distribution.collect(samples) for samples in self.split()]

    def compute_rates(self, count: Callable[[Sample], int]) -> list[float]:
        """Return what answered requests count a second in each unit: the runs, or equal parts of one run's time.

        Without ramp and drain: they are the longer, the longer an answer takes, and the shorter the load.
        """
        if self.repeats:
            return [fmean(run.compute_batch_rates(count)) for run in (self, *self.repeats)]
        return self.compute_batch_rates(count)

    def compute_batch_rates(self, count: Callable[[Sample], int]) -> list[float]:
        """Return the rates in equal parts of this run's own time."""
        ended = [(sample.start_s + sample.e2e_ms / 1000, sample) for sample in self.answered if sample.e2e_ms]
        whole = {"from_s": 0.0, "to_s": max([self.duration_s, *(end_s for end_s, _ in ended)])}
        steady = self.report.get("steady") or whole
        start, end = steady["from_s"], steady["to_s"]
        counts, width = [0.0] * BATCHES, (end - start) / BATCHES
        for end_s, sample in ended:
            if start < end_s <= end:
                counts[min(BATCHES - 1, int((end_s - start) / width))] += count(sample) / width
        return counts


Measure = Callable[[ValidationRun, float], Interval]
"""Measures one number of a run, each bound with a confidence."""


def select_measures(runs: Sequence[ValidationRun]) -> dict[str, Measure]:
    reports = [entry.report for entry in runs]
    latencies = [
        metric
        for metric in METRICS
        if all(metric in report.get("metrics", {}) or not report.get("metrics") for report in reports)
    ]
    is_pooled = all("task" in report["settings"] for report in reports)
    rate = (
        {"inputs_per_s": _measure_rate(lambda sample: sample.inputs)}
        if is_pooled
        else {"output_tokens_per_s": _measure_rate(lambda sample: sample.output_tokens or 0)}
    )
    is_priced = all((report.get("cost") or {}).get("per_million_tokens") for report in reports)
    return {
        **{f"{metric}.{name}": _measure_latency(metric, name) for metric in latencies for name in COMPARED},
        **rate,
        GOODPUT: _measure_goodput,
        ERRORS: _measure_errors,
        **({"usd_per_million_tokens": _measure_cost} if is_priced else {}),
    }


def _measure_latency(metric: Metric, percentile: str) -> Measure:
    def measure(run: ValidationRun, confidence: float) -> Interval:
        units = [latencies[metric].ordered for latencies in run.latencies]
        if sum(map(bool, units)) < 2:
            return Interval(-math.inf, math.nan, math.inf)
        return sample_statistics.compute_clustered_interval(units, PERCENTILES[percentile], confidence)

    return measure


def _measure_rate(count: Callable[[Sample], int]) -> Measure:
    return lambda run, confidence: _estimate_mean(run.compute_rates(count), confidence)


def _measure_cost(run: ValidationRun, confidence: float) -> Interval:
    """US dollars per million tokens, as the reports have it, with the bounds of the rate of tokens."""
    rates = run.compute_rates(lambda sample: (sample.input_tokens or 0) + (sample.output_tokens or 0))
    rate = _estimate_mean(rates, confidence)
    usd = fmean(entry.report["cost"]["per_million_tokens"] for entry in (run, *run.repeats))
    return Interval(
        *(usd * rate.value / bound if bound > 0 else math.inf for bound in (rate.high, rate.value, rate.low))
    )


def _measure_goodput(run: ValidationRun, confidence: float) -> Interval:
    slo = Slo.model_validate(run.report["settings"]["slo"])
    shares = [gate.count_goodput(slo, samples, 0.0).share or 0.0 for samples in run.split()]
    return _clip_share(_estimate_mean(shares, confidence))


def _measure_errors(run: ValidationRun, confidence: float) -> Interval:
    """Measure the share of failed requests; where there are none, only the number of requests bounds it."""
    units = [[sample.error is not None for sample in samples] for samples in run.split() if samples]
    total = sum(map(len, units))
    if len(units) < 2:
        return Interval(0.0, 0.0, 1.0)
    value = sum(map(sum, units)) / total
    low, high = sample_statistics.compute_share_bounds(round(value * total), total, confidence)
    spread = _clip_share(_estimate_mean([sum(failed) / len(failed) for failed in units], confidence))
    return Interval(min(low, spread.low), value, max(high, spread.high))


def _estimate_mean(values: Sequence[float], confidence: float) -> Interval:
    error = sample_statistics.compute_t_quantile(confidence, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values) - error, fmean(values), fmean(values) + error)


def _clip_share(interval: Interval) -> Interval:
    return Interval(max(0.0, interval.low), interval.value, min(1.0, interval.high))
