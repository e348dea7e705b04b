"""One model on unlike accelerators: what each role did of the load, by its engines' own metrics. No input or output.

No answer says which replica it is of: neither routers nor engines name themselves in one. So a role's times are those
of its engines' histograms, without the router and the network. A histogram has no percentile, but the bucket of one: a
limit is missed where all of that bucket is beyond it, and met where the share of requests within it is surely enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from llm_serving.services.traffic import Slo
from llm_serving.settings.plain import PublishedData
from llm_serving.validation.load.load_plan import TargetRole
from llm_serving.validation.statistics import engine_metrics, sample_statistics
from llm_serving.validation.statistics.engine_metrics import LATENCIES, EngineMetrics, Histogram, Replica
from llm_serving.validation.statistics.gate import MissedObjective
from llm_serving.validation.statistics.sample_statistics import PERCENTILES, Metric


class EngineLatency(PublishedData):
    """A statistic of an engine's histogram, in milliseconds."""

    from_ms: float
    """Lower end of the percentile's bucket; of a mean, the mean."""

    to_ms: float | None
    """Upper end; null where the bucket has none."""

    limit: float | None = None
    """The SLO's limit; null without one."""

    state: Literal["met", "missed", "not shown"] | None = None
    """What the histogram shows of the limit; null without one."""


class UnlikeWorkers(PublishedData):
    """What the replicas of one role did of a load that roles on other accelerators shared."""

    role: str
    """Name of the role."""

    accelerators: str
    """Accelerators of each replica."""

    replicas: int
    """Replicas whose metrics were read."""

    weight: int
    """Requests that the router gives each of them, for one to a replica of weight 1."""

    requests: int
    """Counted requests that they answered."""

    unanswered: int
    """Requests that ended without an answer."""

    share: float | None
    """Of all answered requests, from 0 to 1; null without one."""

    weight_share: float
    """What the weights would give them."""

    latencies: dict[Metric, dict[str, EngineLatency]]
    """Percentiles and mean of each latency of which their engines have a histogram with samples."""

    @property
    def place(self) -> str:
        return f"on {self.role} ({self.accelerators})"


def summarize(
    roles: Mapping[TargetRole, Iterable[str]],
    replicas: Iterable[Replica],
    before: Mapping[str, EngineMetrics],
    after: Mapping[str, EngineMetrics],
    metrics: Sequence[Metric],
    slo: Slo,
) -> list[UnlikeWorkers]:
    """Return what each role on unlike accelerators did of a load, by latencies that engines measure of requests."""
    counted = {replica.name: replica for replica in replicas}
    read = {role: [counted[name] for name in names if name in after] for role, names in roles.items()}
    weights = sum(role.weight * len(workers) for role, workers in read.items())
    total = sum(worker.requests or 0 for workers in read.values() for worker in workers)
    rows = []
    for role, workers in read.items():
        requests = sum(worker.requests or 0 for worker in workers)
        added = [after[worker.name].subtract(before.get(worker.name)) for worker in workers]
        histograms = {metric: engine_metrics.sum_histograms(added, LATENCIES[metric]) for metric in metrics}
        rows.append(
            UnlikeWorkers(
                role=role.name,
                accelerators=role.accelerators,
                replicas=len(workers),
                weight=role.weight,
                requests=requests,
                unanswered=sum(worker.unanswered for worker in workers),
                share=round(requests / total, 4) if total else None,
                weight_share=round(role.weight * len(workers) / weights, 4) if weights else 0.0,
                latencies={
                    metric: _summarize_latency(histogram, getattr(slo, metric).model_dump(), requests)
                    for metric, histogram in histograms.items()
                    if histogram.count > 0
                },
            )
        )
    return rows


def _summarize_latency(
    histogram: Histogram, limits: Mapping[str, float | None], requests: int
) -> dict[str, EngineLatency]:
    rows = {}
    for name, share in PERCENTILES.items():
        low, high = histogram.find_bucket_ms(share) or (0.0, math.inf)
        limit = limits[name]
        rows[name] = EngineLatency(
            from_ms=round(low, 3),
            to_ms=None if math.isinf(high) else round(high, 3),
            limit=limit,
            state=None if limit is None else _judge_percentile(histogram, share, limit, requests),
        )
    mean, limit = histogram.compute_mean_ms() or 0.0, limits["mean"]
    state: Literal["met", "missed"] | None = None if limit is None else "missed" if mean > limit else "met"
    rows["mean"] = EngineLatency(from_ms=round(mean, 3), to_ms=round(mean, 3), limit=limit, state=state)
    return rows


def _judge_percentile(
    histogram: Histogram, share: float, limit_ms: float, requests: int
) -> Literal["met", "missed", "not shown"]:
    edges = sorted(histogram.buckets)
    within = max((histogram.buckets[edge] for edge in edges if edge * 1000 <= limit_ms), default=0.0)
    beyond = histogram.count - min(
        (histogram.buckets[edge] for edge in edges if edge * 1000 >= limit_ms), default=histogram.count
    )
    if beyond / histogram.count > 1 - share:
        return "missed"
    # Tokens of one answer depend on each other: they bound a share no closer than as many requests would.
    trials = min(int(histogram.count), requests)
    exceeding = math.ceil((1 - within / histogram.count) * trials)
    _, upper = sample_statistics.compute_share_bounds(exceeding, trials)
    return "met" if upper <= 1 - share else "not shown"


def list_missed(rows: Iterable[UnlikeWorkers], errors: float) -> Iterator[MissedObjective]:
    """Yield each limit that one of the roles misses, that on the share of failed requests first."""
    for row in rows:
        ended = row.requests + row.unanswered
        if ended and row.unanswered / ended > errors:
            share = row.unanswered / ended
            reason = f"{row.unanswered} of {ended} requests ended without an answer ({share:.2%})"
            why = f"{reason}; the limit is {errors * 100:g}%"
            yield MissedObjective(metric=f"errors {row.place}", value=share, limit=errors, why=why)
        for name, latency, limit in _list_limited(row, "missed"):
            comparison = "" if name.endswith(".mean") else "more than "
            why = f"{comparison}{latency.from_ms:g} ms by the engines' own histogram; the limit is {limit:g} ms"
            yield MissedObjective(metric=f"{name} {row.place}", value=latency.from_ms, limit=limit, why=why)


def list_unclear(rows: Iterable[UnlikeWorkers]) -> Iterator[str]:
    """Yield a sentence for each limit that lies within the bucket of its percentile, so that no load shows it."""
    for row in rows:
        for name, latency, limit in _list_limited(row, "not shown"):
            low, high = latency.from_ms, math.inf if latency.to_ms is None else latency.to_ms
            if low < limit < high:
                bucket = f"{low:g} to {high:g} ms" if high < math.inf else f"over {low:g} ms"
                yield (
                    f"{name} {row.place} is {bucket} by the engines' own histogram, and its limit of {limit:g} ms lies "
                    "between."
                )


def _list_limited(row: UnlikeWorkers, state: str) -> Iterator[tuple[str, EngineLatency, float]]:
    for metric, latencies in row.latencies.items():
        for statistic, latency in latencies.items():
            if latency.limit is not None and latency.state == state:
                yield f"{metric}.{statistic}", latency, latency.limit
