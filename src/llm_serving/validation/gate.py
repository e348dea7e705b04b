"""Hold a load against its SLO: each objective is met, missed, or not shown by this load. No input or output.

An objective on a latency or a share is met where its bound is within the limit, and missed where the estimate itself is
beyond it; between the two the load was too short to tell. An objective without a sample is missed: nothing proves it.
`errors: 0%` is of this load alone, since no number of requests shows that none will ever fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from llm_serving.validation import sample_statistics
from llm_serving.validation.answer import Sample
from llm_serving.validation.distribution import Distribution, Estimate
from llm_serving.validation.sample_statistics import CONFIDENCE, Metric
from llm_serving.workloads.serving.traffic import Percentiles, Slo

LATENCIES: tuple[Metric, ...] = get_args(Metric)


class MissedObjective(BaseModel):
    """One objective that the deployment missed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
        """Their share of all requests; None without one."""
        return self.good / self.total if self.total else None


class Judgement(NamedTuple):
    """Every objective that is not met."""

    missed: list[MissedObjective]

    not_shown: list[str]
    """What the load does not show, a sentence each, with the load that would."""


def judge(
    slo: Slo,
    distributions: Mapping[Metric, Distribution],
    total: int,
    failed: int,
    throughput: Mapping[str, float],
    goodput: Goodput,
    *,
    stall_s: float = 0.0,
    unmeasured: Mapping[str, str] | None = None,
    score: float | None = None,
) -> Judgement:
    """Judge a load.

    Args:
        distributions: latencies of all requests, by metric.
        total: counted requests, of them `failed`.
        throughput: `requests_per_s`, `output_tokens_per_s` and `inputs_per_s`.
        stall_s: longest time without any token while requests were in flight.
        score: mean score of the expected answers.
        unmeasured: objectives that the driver does not measure, with what it has instead.
    """
    judgement, unmeasured = Judgement([], []), unmeasured or {}
    if total == 0:
        judgement.missed.append(MissedObjective(metric="requests", value=0, limit=1, why="no requests were counted"))
    for metric in LATENCIES:
        limits = getattr(slo, metric).model_dump(exclude_none=True)
        for statistic, limit in limits.items():
            if reason := unmeasured.get(f"{metric}.{statistic}"):
                judgement.not_shown.append(f"{metric}.{statistic} within {limit:g} ms: not measured, {reason}")
                continue
            _judge_latency(judgement, f"{metric}.{statistic}", distributions[metric], limit, failed)
    if total:
        _judge_errors(judgement, slo.errors, total, failed)
    judgement.missed.extend(_check_throughput(slo, throughput))
    if slo.stall is not None and (reason := unmeasured.get("stall")):
        judgement.not_shown.append(f"stall within {slo.stall:g} s: not measured, {reason}")
    elif slo.stall is not None and stall_s > slo.stall:
        reason = f"no token for {stall_s:.1f} s while requests were in flight; the limit is {slo.stall:g} s"
        judgement.missed.append(MissedObjective(metric="stall", value=round(stall_s, 3), limit=slo.stall, why=reason))
    if slo.score is not None and (score is None or score < slo.score):
        outcome = "no answer was expected" if score is None else f"{score:.2%} on average"
        reason = f"{outcome}; the minimum is {slo.score * 100:g}%"
        judgement.missed.append(MissedObjective(metric="score", value=score, limit=slo.score, why=reason))
    if slo.goodput is not None and total:
        _judge_goodput(judgement, slo.goodput, goodput)
    return judgement


def _judge_latency(judgement: Judgement, name: str, distribution: Distribution, limit: float, failed: int) -> None:
    statistic = name.partition(".")[2]
    estimate = distribution.estimate(statistic)
    if estimate.value is None:
        reason = f"no samples; the limit is {limit:g} ms"
        judgement.missed.append(MissedObjective(metric=name, value=None, limit=limit, why=reason))
    elif math.isinf(estimate.value):
        reason = f"{failed} failed requests make it infinite; the limit is {limit:g} ms"
        judgement.missed.append(MissedObjective(metric=name, value=None, limit=limit, why=reason))
    elif estimate.value > limit:
        reason = f"{estimate.value:.1f} ms; the limit is {limit:g} ms"
        judgement.missed.append(MissedObjective(metric=name, value=estimate.value, limit=limit, why=reason))
    elif estimate.upper is None or estimate.upper > limit:
        judgement.not_shown.append(_describe_need(name, distribution, statistic, estimate, limit))


def _describe_need(name: str, distribution: Distribution, statistic: str, estimate: Estimate, limit: float) -> str:
    """Why a limit is not shown to hold, and the requests that would show it."""
    count = len(distribution.clusters)
    if estimate.upper is None:
        reason = f"{count} requests do not bound it"
    elif math.isinf(estimate.upper):
        reason = f"{estimate.value:.1f} ms, and failed requests leave it unbounded"
    else:
        reason = f"{estimate.value:.1f} ms, and with {CONFIDENCE:.0%} confidence at most {estimate.upper:.1f}"
    need = _describe_requests(distribution.count_required(statistic, limit), count)
    return f"{name} within {limit:g} ms: {reason}; {need}"


def _describe_requests(needed: int | None, count: int) -> str:
    """The load that would show a limit to hold, if the rest were like these `count` requests."""
    if needed is None or needed <= count:
        return "needs a longer load, or a service further from its limit"
    return f"needs {_round_up(needed):,} requests"


def _round_up(count: int) -> int:
    """Two figures: more would claim what one run cannot know."""
    step = int(10 ** max(0, len(str(count)) - 2))
    return math.ceil(count / step) * step


def _judge_errors(judgement: Judgement, limit: float, total: int, failed: int) -> None:
    share = failed / total
    _, upper = sample_statistics.compute_share_bounds(failed, total)
    if share > limit:
        reason = f"{failed} of {total} requests failed ({share:.2%}); the limit is {limit * 100:g}%"
        judgement.missed.append(MissedObjective(metric="errors", value=share, limit=limit, why=reason))
    elif limit and upper > limit:
        judgement.not_shown.append(
            f"errors within {limit * 100:g}%: {share:.2%}, and with {CONFIDENCE:.0%} confidence at most {upper:.2%}; "
            + _describe_requests(sample_statistics.compute_share_samples(limit, share), total)
        )


def _check_throughput(slo: Slo, throughput: Mapping[str, float]) -> Iterator[MissedObjective]:
    for name, minimum in (
        ("output_tokens_per_s", slo.output_tokens_per_s),
        ("requests_per_s", slo.requests_per_s),
        ("inputs_per_s", slo.inputs_per_s),
    ):
        if minimum is not None and throughput[name] < minimum:
            reason = f"{throughput[name]:.2f}/s; the minimum is {minimum:g}/s"
            yield MissedObjective(metric=name, value=throughput[name], limit=minimum, why=reason)


def _judge_goodput(judgement: Judgement, minimum: float, goodput: Goodput) -> None:
    share = goodput.share or 0.0
    lower, _ = sample_statistics.compute_share_bounds(goodput.good, goodput.total)
    if share < minimum:
        reason = f"{goodput.good} of {goodput.total} requests meet every limit ({share:.2%}); the minimum is "
        judgement.missed.append(
            MissedObjective(metric="goodput", value=share, limit=minimum, why=f"{reason}{minimum * 100:g}%")
        )
    elif lower < minimum:
        judgement.not_shown.append(
            f"goodput of {minimum * 100:g}%: {share:.2%}, and with {CONFIDENCE:.0%} confidence at least {lower:.2%}; "
            + _describe_requests(sample_statistics.compute_share_samples(1 - minimum, 1 - share), goodput.total)
        )


def count_goodput(slo: Slo, samples: Sequence[Sample], duration_s: float) -> Goodput:
    """Count the requests that meet every limit on a latency at once.

    A request's own limit is that of the highest percentile of a metric; its inter-token latency is the answer's mean.
    """
    good = sum(_is_good(slo, sample) for sample in samples)
    return Goodput(good, len(samples), round(good / duration_s, 3) if duration_s > 0 else 0.0)


def _is_good(slo: Slo, sample: Sample) -> bool:
    values = {"ttft_ms": sample.ttft_ms, "itl_ms": sample.compute_mean_gap_ms(), "e2e_ms": sample.e2e_ms}
    limits = {metric: _select_request_limit(getattr(slo, metric)) for metric in LATENCIES}
    return sample.error is None and all(
        limit is None or value is None or value <= limit
        for limit, value in ((limits[metric], values[metric]) for metric in LATENCIES)
    )


def _select_request_limit(percentiles: Percentiles) -> float | None:
    """The limit of the highest percentile that has one; of the mean where there is no percentile."""
    limits = percentiles.model_dump(exclude_none=True)
    return next((limits[name] for name in ("p99", "p95", "p90", "p50", "mean") if name in limits), None)
