"""Hold a load against its SLO: each objective is met, missed, or not shown by this load. No input or output.

An objective on a latency or a share is met where its bound is within the limit, and missed where the estimate itself is
beyond it; between the two the load was too short to tell. An objective without a sample is missed: nothing proves it.
`errors: 0%` is of this load only, since no number of requests shows that none will ever fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from llm_serving.services.traffic import Slo
from llm_serving.settings.plain import PublishedData
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import sample_statistics
from llm_serving.validation.statistics.distribution import Distribution, Estimate
from llm_serving.validation.statistics.sample_statistics import CONFIDENCE, METRICS, Metric


class MissedObjective(PublishedData):
    """One objective that the deployment missed."""

    metric: str
    """The SLO's field, such as `ttft_ms.p95`, `errors` or `output_tokens_per_s`."""

    value: float | None
    """Measured value; null without a sample, and where failed requests make it infinite."""

    limit: float
    """The SLO's limit, in the same unit; `errors` and `goodput` are shares from 0 to 1."""

    why: str
    """Value and limit in words."""


class Goodput(NamedTuple):
    """Requests that meet every limit at once."""

    good: int
    total: int
    requests_per_s: float

    @property
    def share(self) -> float | None:
        return self.good / self.total if self.total else None


class Outcome(NamedTuple):
    """What a load shows of its objectives."""

    distributions: Mapping[Metric, Distribution]
    goodput: Goodput
    failed: int
    rates: Mapping[str, float]
    """By the SLO's field."""

    stall_s: float = 0.0
    score: float | None = None
    unmeasured: Mapping[str, str] = {}
    """Objectives that it does not measure, each with the reason."""

    rate_doubt: str = ""
    """Why a rate below its minimum is not missed, and which load would show it."""


class Judgement(NamedTuple):
    """Every objective that is not met."""

    missed: list[MissedObjective]

    not_shown: list[str]
    """What the load does not show, a sentence each, with the load that would."""


Findings = Iterator[MissedObjective | str]
"""An objective that is missed, or a sentence of one that is not shown."""


def judge(slo: Slo, outcome: Outcome) -> Judgement:
    nothing = MissedObjective(metric="requests", value=0, limit=1, why="no requests were counted")
    findings = [
        *([] if outcome.goodput.total else [nothing]),
        *_judge_latencies(slo, outcome),
        *_judge_errors(slo.errors, outcome),
        *_judge_rates(slo, outcome),
        *_judge_stall(slo.stall, outcome),
        *_judge_score(slo.score, outcome),
        *_judge_goodput(slo.goodput, outcome.goodput),
    ]
    return sort_findings(findings)


def sort_findings(findings: Iterable[MissedObjective | str]) -> Judgement:
    """Tell what is missed from what is not shown."""
    all_findings = list(findings)
    missed = [finding for finding in all_findings if isinstance(finding, MissedObjective)]
    return Judgement(missed, [finding for finding in all_findings if isinstance(finding, str)])


def _judge_latencies(slo: Slo, outcome: Outcome) -> Findings:
    for metric in METRICS:
        limits = getattr(slo, metric).model_dump(exclude_none=True)
        for statistic, limit in limits.items():
            name = f"{metric}.{statistic}"
            if reason := outcome.unmeasured.get(name):
                yield f"{name} within {limit:g} ms: not measured, {reason}"
            else:
                yield from _judge_latency(name, outcome.distributions[metric], statistic, limit, outcome.failed)


def _judge_latency(name: str, distribution: Distribution, statistic: str, limit: float, failed: int) -> Findings:
    estimate = distribution.estimate(statistic)
    if estimate.value is None:
        yield MissedObjective(metric=name, value=None, limit=limit, why=f"no samples; the limit is {limit:g} ms")
    elif math.isinf(estimate.value):
        reason = f"{_name_infinite(distribution, failed)} make it infinite; the limit is {limit:g} ms"
        yield MissedObjective(metric=name, value=None, limit=limit, why=reason)
    elif estimate.value > limit:
        reason = f"{estimate.value:.1f} ms; the limit is {limit:g} ms"
        yield MissedObjective(metric=name, value=estimate.value, limit=limit, why=reason)
    elif estimate.upper is None or estimate.upper > limit:
        yield _describe_need(name, distribution, statistic, estimate, limit, failed)


def _name_infinite(distribution: Distribution, failed: int) -> str:
    """Name the requests without a time: those that failed, and those whose answer has no text to time."""
    infinite = sum(any(map(math.isinf, values)) for values in distribution.clusters)
    counts = {"failed requests": failed, "answers without text": infinite - failed}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count > 0)


def _describe_need(
    name: str, distribution: Distribution, statistic: str, estimate: Estimate, limit: float, failed: int
) -> str:
    count = len(distribution.clusters)
    if estimate.upper is None:
        reason = f"{count} requests do not bound it"
    elif math.isinf(estimate.upper):
        reason = f"{estimate.value:.1f} ms, and {_name_infinite(distribution, failed)} leave it unbounded"
    else:
        reason = f"{estimate.value:.1f} ms, and with {CONFIDENCE:.0%} confidence at most {estimate.upper:.1f}"
    need = _describe_requests(distribution.count_required(statistic, limit), count)
    return f"{name} within {limit:g} ms: {reason}; {need}"


def judge_seconds(metric: str, limit: float, values_ms: Sequence[float], share: float, name: str) -> Findings:
    """Judge a percentile of independent times, infinite without an answer, against a limit in seconds."""
    ordered = sorted(value / 1000 for value in values_ms)
    value = sample_statistics.compute_percentile(ordered, share)
    upper = sample_statistics.compute_upper_bound(ordered, share)
    endless = f"{name} without an answer"
    if value > limit:
        shown = f"{endless} reach it" if math.isinf(value) else f"{value:.3f} s"
        measured = None if math.isinf(value) else round(value, 4)
        yield MissedObjective(metric=metric, value=measured, limit=limit, why=f"{shown}; the limit is {limit:g} s")
    elif upper is None or upper > limit:
        bound = (
            f"with {CONFIDENCE:.0%} confidence at most {upper:.3f}"
            if upper and math.isfinite(upper)
            else f"unbounded by {endless}"
        )
        reason = f"{len(ordered)} {name} do not bound it" if upper is None else f"{value:.3f} s, and {bound}"
        exceeding = sum(seconds > limit for seconds in ordered) / len(ordered)
        needed = sample_statistics.compute_share_samples(1 - share, exceeding)
        yield f"{metric} within {limit:g} s: {reason}; {_describe_requests(needed, len(ordered), name)}"


def _describe_requests(needed: int | None, count: int, name: str = "requests") -> str:
    """Describe the load that would show a limit to hold, if the rest were like these `count` requests."""
    if needed is None or needed <= count:
        return "needs a longer load, or a service further from its limit"
    step = int(10 ** max(0, len(str(needed)) - 2))  # more than two figures would claim what one run cannot know
    return f"needs {math.ceil(needed / step) * step:,} {name}"


def _judge_errors(limit: float, outcome: Outcome) -> Findings:
    total, failed = outcome.goodput.total, outcome.failed
    if not total:
        return
    share = failed / total
    _, upper = sample_statistics.compute_share_bounds(failed, total)
    if share > limit:
        reason = f"{failed} of {total} requests failed ({share:.2%}); the limit is {limit * 100:g}%"
        yield MissedObjective(metric="errors", value=share, limit=limit, why=reason)
    elif limit and upper > limit:
        need = _describe_requests(sample_statistics.compute_share_samples(limit, share), total)
        bound = f"{share:.2%}, and with {CONFIDENCE:.0%} confidence at most {upper:.2%}"
        yield f"errors within {limit * 100:g}%: {bound}; {need}"


def _judge_rates(slo: Slo, outcome: Outcome) -> Findings:
    for name in ("output_tokens_per_s", "requests_per_s", "inputs_per_s"):
        minimum = getattr(slo, name)
        if minimum is None or (rate := outcome.rates[name]) >= minimum:
            continue
        if outcome.rate_doubt:
            yield f"{name} of {minimum:g}: {rate:.2f}, and {outcome.rate_doubt}"
        else:
            reason = f"{rate:.2f}/s; the minimum is {minimum:g}/s"
            yield MissedObjective(metric=name, value=rate, limit=minimum, why=reason)


def _judge_stall(limit: float | None, outcome: Outcome) -> Findings:
    if limit is not None and (reason := outcome.unmeasured.get("stall")):
        yield f"stall within {limit:g} s: not measured, {reason}"
    elif limit is not None and outcome.stall_s > limit:
        reason = f"no token for {outcome.stall_s:.1f} s while requests were in flight; the limit is {limit:g} s"
        yield MissedObjective(metric="stall", value=round(outcome.stall_s, 3), limit=limit, why=reason)


def _judge_score(minimum: float | None, outcome: Outcome) -> Findings:
    score = outcome.score
    if minimum is not None and (reason := outcome.unmeasured.get("score")):
        yield f"score of {minimum * 100:g}%: not measured, {reason}"
    elif minimum is not None and (score is None or score < minimum):
        shown = "no answer was expected" if score is None else f"{score:.2%} on average"
        reason = f"{shown}; the minimum is {minimum * 100:g}%"
        yield MissedObjective(metric="score", value=score, limit=minimum, why=reason)


def _judge_goodput(minimum: float | None, goodput: Goodput) -> Findings:
    share = goodput.share
    if minimum is None or share is None:
        return
    lower, _ = sample_statistics.compute_share_bounds(goodput.good, goodput.total)
    if share < minimum:
        reason = f"{goodput.good} of {goodput.total} requests meet every limit ({share:.2%})"
        reason = f"{reason}; the minimum is {minimum * 100:g}%"
        yield MissedObjective(metric="goodput", value=share, limit=minimum, why=reason)
    elif lower < minimum:
        need = _describe_requests(sample_statistics.compute_share_samples(1 - minimum, 1 - share), goodput.total)
        bound = f"{share:.2%}, and with {CONFIDENCE:.0%} confidence at least {lower:.2%}"
        yield f"goodput of {minimum * 100:g}%: {bound}; {need}"


def count_goodput(slo: Slo, samples: Sequence[Sample], duration_s: float) -> Goodput:
    """Count the requests that meet every limit on a latency at once.

    A request's own limit is that of the highest percentile of a metric; its inter-token latency is the answer's mean.
    """
    good = sum(_is_good(slo, sample) for sample in samples)
    return Goodput(good, len(samples), round(good / duration_s, 3) if duration_s > 0 else 0.0)


def _is_good(slo: Slo, sample: Sample) -> bool:
    for metric in METRICS:
        limits = getattr(slo, metric).model_dump(exclude_none=True)
        limit = next((limits[name] for name in ("p99", "p95", "p90", "p50", "mean") if name in limits), math.inf)
        value = sample.get_latency(metric)
        # An answer of one token has no inter-token latency to exceed a limit.
        if (value is None and limit < math.inf and metric != "itl_ms") or (value is not None and value > limit):
            return False
    return sample.error is None
