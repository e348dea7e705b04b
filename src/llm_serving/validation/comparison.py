"""Compare validations with the first of them: what differs by more than chance. No input or output.

Requests of one moment depend on each other, by a queue that they share, so that each run is cut into batches of time,
as in the method of batch means; a batch is the unit of every interval. The interval of a change comes from those of
both runs (G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures", 2008). The confidence is
shared among all changes of a comparison: two equal loads differ anywhere in one of twenty comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple, get_args

from llm_serving.validation import distribution, gate, sample_statistics
from llm_serving.validation.answer import Sample
from llm_serving.validation.distribution import Distribution
from llm_serving.validation.sample_statistics import CONFIDENCE, PERCENTILES, Interval, Metric
from llm_serving.workloads.serving.traffic import Slo

BATCHES = 10
"""Batches of one run: fewer do not tell its spread, more are too short to be independent."""

MIN_REQUESTS = 10 * BATCHES
"""Requests of a run that is compared."""

MARGIN = 0.05
"""Change that matters, as a share of the baseline."""

COMPARED_LATENCIES: tuple[Metric, ...] = get_args(Metric)

COMPARED = ("p50", "p95")
"""Percentiles of each latency that are compared."""

LOAD_SETTINGS = ("traffic", "slo", "target", "model", "task")
"""Settings of a report that two comparable loads share."""

COMPARED_SETTINGS = ("pattern", "engine", "tuning", "context", "replicas", "roles", "accelerators", "fleet")
"""Settings of a report that may be what is compared."""

GOODPUT, ERRORS = "goodput", "errors"
"""Metrics that are shares of requests."""

Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class ValidationRun:
    """One validation, read from its folder."""

    title: str
    report: Mapping[str, Any]
    """report.json."""

    samples: Sequence[Sample]

    def require_fields(self) -> None:
        """Check that the report has what a comparison reads.

        Raises:
            ValueError: it has not, as where another version wrote it; pydantic's among them.
            KeyError: a field is missing.
        """
        if not isinstance(self.report["settings"]["traffic"], dict):
            raise ValueError("settings.traffic is no mapping")
        Slo.model_validate(self.report["settings"]["slo"])
        float(self.report["duration_s"])


class Change(NamedTuple):
    """One number of a run beside the baseline's."""

    metric: str
    """The report's name of it, such as `ttft_ms.p95`."""

    baseline: float
    value: float
    low: float
    """Lower bound of the change, as a share of the baseline: 0.1 is 10% more."""

    change: float
    high: float
    verdict: Verdict


class Comparison(NamedTuple):
    """A run beside the baseline."""

    title: str
    verdict: Verdict
    """`worse` if anything is, else `better` if anything is."""

    changes: list[Change]
    notes: list[str]
    """What speaks against comparing the two loads, a sentence each."""

    differences: list[str]
    """What else is not the same, a sentence each: the engine, its settings, replicas, accelerators, versions."""


def compare(baseline: ValidationRun, run: ValidationRun, margin: float = MARGIN) -> Comparison:
    """Compare a run with the baseline.

    Args:
        margin: the least change that counts, as a share of the baseline.
    """
    measures, latencies = _select_measures(baseline, run), _select_latencies(baseline, run)
    confidence = 1 - (1 - CONFIDENCE) / (2 * (len(latencies) * len(COMPARED) + len(measures)))
    before, after = (_measure_run(entry, latencies, measures, confidence) for entry in (baseline, run))
    changes = [_build_change(name, before[name], after[name], margin, name in _MORE_IS_BETTER) for name in before]
    verdicts = {change.verdict for change in changes}
    verdict: Verdict = "worse" if "worse" in verdicts else "better" if "better" in verdicts else "no difference shown"
    return Comparison(run.title, verdict, changes, _list_notes(baseline, run), _list_differences(baseline, run))


def _select_latencies(baseline: ValidationRun, run: ValidationRun) -> tuple[Metric, ...]:
    """The latencies that the answers of both have: without tokens, end to end alone."""
    reports = [entry.report.get("metrics", {}) for entry in (baseline, run)]
    return tuple(metric for metric in COMPARED_LATENCIES if all(not row or metric in row for row in reports))


def _measure_run(
    run: ValidationRun, latencies: Sequence[Metric], measures: Mapping[str, _Measure], confidence: float
) -> dict[str, Interval]:
    """Each number of a run with its bounds."""
    batches = [distribution.collect(batch) for batch in _split_by_time(run.samples)]
    intervals = {
        f"{metric}.{percentile}": _measure_latency([batch[metric] for batch in batches], percentile, confidence)
        for metric in latencies
        for percentile in COMPARED
    }
    return {**intervals, **{name: measure(run, confidence) for name, measure in measures.items()}}


def _measure_latency(batches: Sequence[Distribution], percentile: str, confidence: float) -> Interval:
    clusters = [[value for values in batch.clusters for value in values] for batch in batches]
    if sum(map(bool, clusters)) < 2:
        return Interval(-math.inf, math.nan, math.inf)
    return sample_statistics.compute_clustered_interval(clusters, PERCENTILES[percentile], confidence)


def _split_by_time(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The requests of each batch, as many in each, in the order of their starts."""
    ordered = sorted(samples, key=lambda sample: sample.start_s)
    return [
        ordered[len(ordered) * index // BATCHES : len(ordered) * (index + 1) // BATCHES] for index in range(BATCHES)
    ]


def _measure_throughput(run: ValidationRun, confidence: float) -> Interval:
    """Output tokens a second."""
    return _measure_rate(run, confidence, lambda sample: sample.output_tokens or 0)


def _measure_inputs(run: ValidationRun, confidence: float) -> Interval:
    """Answered texts a second."""
    return _measure_rate(run, confidence, lambda sample: sample.inputs)


def _measure_rate(run: ValidationRun, confidence: float, count: Callable[[Sample], int]) -> Interval:
    """What answered requests count a second, over equal parts of the load's time."""
    width = run.report["duration_s"] / BATCHES
    counts = [0.0] * BATCHES
    for sample in run.samples:
        if sample.error is None and sample.e2e_ms is not None and width:
            end_s = sample.start_s + sample.e2e_ms / 1000
            counts[min(BATCHES - 1, int(end_s / width))] += count(sample)
    return _estimate_mean([total / width for total in counts] if width else counts, confidence)


def _estimate_mean(values: Sequence[float], confidence: float) -> Interval:
    """The mean of batches with its bounds."""
    error = sample_statistics.compute_t_quantile(confidence, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values) - error, fmean(values), fmean(values) + error)


def _measure_cost(run: ValidationRun, confidence: float) -> Interval:
    """US dollars per million tokens, input and output, at the measured rate."""
    rate = _measure_rate(run, confidence, lambda sample: (sample.input_tokens or 0) + (sample.output_tokens or 0))
    usd = run.report["cost"]["usd_h"] / 3600 * 1e6
    return Interval(*(usd / value if value > 0 else math.inf for value in (rate.high, rate.value, rate.low)))


def _measure_goodput(run: ValidationRun, confidence: float) -> Interval:
    """The share of requests that meet every limit of the run's SLO at once."""
    slo = Slo.model_validate(run.report["settings"]["slo"])
    shares = [gate.count_goodput(slo, batch, 0.0).share or 0.0 for batch in _split_by_time(run.samples)]
    estimate = _estimate_mean(shares, confidence)
    return Interval(max(0.0, estimate.low), estimate.value, min(1.0, estimate.high))


def _measure_errors(run: ValidationRun, confidence: float) -> Interval:
    """Share of failed requests."""
    failed, total = sum(sample.error is not None for sample in run.samples), len(run.samples)
    low, high = sample_statistics.compute_share_bounds(failed, total, confidence)
    return Interval(low, failed / total if total else 0.0, high)


_Measure = Callable[[ValidationRun, float], Interval]

_MEASURES: dict[str, _Measure] = {
    GOODPUT: _measure_goodput,
    ERRORS: _measure_errors,
}
_MORE_IS_BETTER = {"output_tokens_per_s", "inputs_per_s", GOODPUT}


def _select_measures(baseline: ValidationRun, run: ValidationRun) -> dict[str, _Measure]:
    """What is measured beside latencies; cost only where both have one."""
    priced = all(entry.report.get("cost") for entry in (baseline, run))
    is_pooled = all("task" in entry.report["settings"] for entry in (baseline, run))
    rates: dict[str, _Measure] = (
        {"inputs_per_s": _measure_inputs} if is_pooled else {"output_tokens_per_s": _measure_throughput}
    )
    return {**rates, **_MEASURES, **({"usd_per_million_tokens": _measure_cost} if priced else {})}


def _build_change(name: str, before: Interval, after: Interval, margin: float, more_is_better: bool) -> Change:
    """The change with its bounds; of shares in points of the whole, of all else relative to the baseline."""
    scale = 1.0 if name in (ERRORS, GOODPUT) or not before.value else before.value
    if math.isinf(after.value) or math.isinf(before.value):
        return _build_infinite_change(name, before, after)
    change = after.value - before.value
    low = change - math.hypot(after.value - after.low, before.high - before.value)
    high = change + math.hypot(after.high - after.value, before.value - before.low)
    bounds = [value / scale for value in (low, change, high)]
    verdict: Verdict = "no difference shown"
    if bounds[0] > 0 and bounds[1] > margin:
        verdict = "better" if more_is_better else "worse"
    elif bounds[2] < 0 and bounds[1] < -margin:
        verdict = "worse" if more_is_better else "better"
    return Change(name, before.value, after.value, bounds[0], bounds[1], bounds[2], verdict)


def _build_infinite_change(name: str, before: Interval, after: Interval) -> Change:
    """A latency that failed requests make infinite: worse where only the run's is, better where only the baseline's."""
    verdict: Verdict = "no difference shown"
    if math.isinf(before.value) != math.isinf(after.value):
        verdict = "worse" if math.isinf(after.value) else "better"
    change = {"worse": math.inf, "better": -math.inf}.get(verdict, math.nan)
    return Change(name, before.value, after.value, change, change, change, verdict)


def _list_notes(baseline: ValidationRun, run: ValidationRun) -> list[str]:
    """What speaks against a comparison: settings that differ, and what each report says against its own load."""
    notes = [f"{run.title}: another {text}" for text in _compare_settings(baseline, run, LOAD_SETTINGS)]
    for entry in (baseline, run):
        if len(entry.samples) < MIN_REQUESTS:
            notes.append(f"{entry.title}: {len(entry.samples)} requests; a comparison takes {MIN_REQUESTS}")
        notes += [f"{entry.title}: {reason}" for reason in entry.report.get("not_shown", ())]
    return notes


def _list_differences(baseline: ValidationRun, run: ValidationRun) -> list[str]:
    """What was compared: everything but the load that is not the same."""
    differences = list(_compare_settings(baseline, run, COMPARED_SETTINGS))
    for part in ("versions", "images"):
        before, after = baseline.report.get(part, {}), run.report.get(part, {})
        if before != after:
            differences.append(f"{part}: {_describe_difference(before, after)}")
    return differences


def _compare_settings(baseline: ValidationRun, run: ValidationRun, parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        before, after = (entry.report["settings"].get(part) for entry in (baseline, run))
        if before != after:
            yield f"{part}: {_describe_difference(before, after)}"


def _describe_difference(before: Any, after: Any) -> str:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"{after} instead of {before}"
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return ", ".join(f"{key} {after.get(key)} instead of {before.get(key)}" for key in keys)
