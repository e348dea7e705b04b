"""The engine's own account of the load, from its Prometheus metrics before and after, set beside what the client
measured.

Metric names are vLLM's. No input or output.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from llm_serving.validation.statistics import Latency, Metric

TOLERANCE = 0.10
"""A larger difference between client and engine is said."""

HISTOGRAMS: dict[Metric, str] = {
    "ttft_ms": "vllm:time_to_first_token_seconds",
    "itl_ms": "vllm:inter_token_latency_seconds",
    "e2e_ms": "vllm:e2e_request_latency_seconds",
}

_FINISHED = "vllm:request_success_total"
_CACHE = {"asked": "vllm:prefix_cache_queries_total", "found": "vllm:prefix_cache_hits_total"}
_UNANSWERED = ("abort", "error")
"""Reasons for which a request ends without its answer; despite its name the counter has them too."""

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass
class Histogram:
    """A Prometheus histogram: how many samples are at or below each bound, in seconds."""

    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    total: float = 0.0
    count: float = 0.0

    def add(self, other: Histogram, sign: int = 1) -> Histogram:
        bounds = self.buckets.keys() | other.buckets.keys()
        buckets = {bound: self.buckets.get(bound, 0.0) + sign * other.buckets.get(bound, 0.0) for bound in bounds}
        return Histogram(buckets, self.total + sign * other.total, self.count + sign * other.count)

    def compute_mean_ms(self) -> float | None:
        return self.total / self.count * 1000 if self.count > 0 else None

    def find_bucket_ms(self, share: float) -> tuple[float, float] | None:
        """The bucket, in milliseconds, that the percentile `share` (0 to 1) lies in; the last has no upper end."""
        if self.count <= 0:
            return None
        low = 0.0
        for bound in sorted(self.buckets):
            if self.buckets[bound] >= share * self.count:
                return low * 1000, bound * 1000
            low = bound
        return low * 1000, math.inf


@dataclass
class EngineMetrics:
    """One replica's metrics at one time."""

    histograms: dict[Metric, Histogram]
    finished: dict[str, float]
    """Requests by the reason for which they ended."""
    cache: dict[str, float]
    """Prompt tokens that were looked for in the cache, and found there."""

    def subtract(self, before: EngineMetrics) -> EngineMetrics:
        """What came after `before`; all of it where the counters began anew in between."""
        if self.has_restarted_since(before):
            return self
        histograms = {name: current.add(before.histograms[name], -1) for name, current in self.histograms.items()}
        finished = {reason: count - before.finished.get(reason, 0.0) for reason, count in self.finished.items()}
        cache = {name: count - before.cache[name] for name, count in self.cache.items()}
        return EngineMetrics(histograms, finished, cache)

    def has_restarted_since(self, before: EngineMetrics) -> bool:
        return any(self.finished.get(reason, 0.0) < count for reason, count in before.finished.items()) or any(
            current.count < before.histograms[name].count for name, current in self.histograms.items()
        )


def parse(text: str) -> EngineMetrics:
    """Reads a page of Prometheus text; what it does not name counts as nothing."""
    page = EngineMetrics({name: Histogram() for name in HISTOGRAMS}, defaultdict(float), dict.fromkeys(_CACHE, 0.0))
    counters = {metric_name: name for name, metric_name in _CACHE.items()}
    names = {metric_name: name for name, metric_name in HISTOGRAMS.items()}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match or not match[1].startswith("vllm:"):
            continue
        metric_name, labels, value = match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
        base, _, part = metric_name.rpartition("_")
        if metric_name == _FINISHED:
            page.finished[labels.get("finished_reason", "")] += value
        elif metric_name in counters:
            page.cache[counters[metric_name]] += value
        elif base in names and part == "bucket":
            page.histograms[names[base]].buckets[float(labels["le"])] += value
        elif base in names and part == "sum":
            page.histograms[names[base]].total += value
        elif base in names and part == "count":
            page.histograms[names[base]].count += value
    return page


class Replica(BaseModel):
    """One replica's part of the load, by the engine's own counters."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name of the process."""

    requests: int | None
    """Counted requests that it answered; null where its metrics could not be read after the load."""

    unanswered: int = 0
    """Requests that ended in it without an answer: their client went away, or an error."""

    restarted: bool = False
    """Whether it started anew during the load; `requests` is then what it answered since."""


def count_replica_requests(names: Iterable[str], before: Mapping[str, str], after: Mapping[str, str]) -> list[Replica]:
    """Each replica's share, from the pages before and after the load."""
    replicas = []
    for name in names:
        if name not in after:
            replicas.append(Replica(name=name, requests=None))
            continue
        current, previous = parse(after[name]), parse(before.get(name, ""))
        finished = current.subtract(previous).finished
        answered = sum(count for reason, count in finished.items() if reason not in _UNANSWERED)
        unanswered = sum(finished.get(reason, 0.0) for reason in _UNANSWERED)
        restarted = current.has_restarted_since(previous)
        replicas.append(Replica(name=name, requests=int(answered), unanswered=int(unanswered), restarted=restarted))
    return replicas


def compute_cached_share(before: Mapping[str, str], after: Mapping[str, str]) -> float | None:
    """Share of the prompt tokens that all replicas together found in their caches; None where none was looked for."""
    caches = [parse(text).subtract(parse(before.get(name, ""))).cache for name, text in after.items()]
    queried = sum(cache["asked"] for cache in caches)
    return sum(cache["found"] for cache in caches) / queried if queried > 0 else None


class Agreement(BaseModel):
    """One of the client's numbers beside the engine's."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metric: Metric
    """Which latency."""

    statistic: str
    """`mean`, `p50` or `p95`."""

    client_ms: float
    """What the client measured."""

    engine_ms: float | None
    """The engine's mean; null for a percentile, of which a histogram tells only the bucket."""

    engine_from_ms: float | None = None
    """Lower end of the bucket that the engine's percentile lies in."""

    engine_to_ms: float | None = None
    """Upper end of that bucket; null where it has none."""

    agrees: bool
    """Whether they differ by at most a tenth: from the mean, or from the nearer end of the bucket."""

    said: str = ""
    """Where they do not agree: by how much, and what may be the reason."""


def compare(metrics: Mapping[Metric, Latency], before: Mapping[str, str], after: Mapping[str, str]) -> list[Agreement]:
    """Sets the client's numbers beside those of all replicas together; only what both have."""
    rows = []
    pages = {name: parse(after[name]).subtract(parse(before.get(name, ""))) for name in after}
    for metric, measured in metrics.items():
        total = Histogram()
        for page in pages.values():
            total = total.add(page.histograms[metric])
        mean = total.compute_mean_ms()
        if mean is None or measured.mean is None or mean <= 0:
            continue
        rows.append(_compare_mean(metric, measured.mean, mean))
        for statistic, share in (("p50", 0.50), ("p95", 0.95)):
            client, bucket = getattr(measured, statistic), total.find_bucket_ms(share)
            if client is not None and bucket is not None:
                rows.append(_compare_percentile(metric, statistic, client, bucket))
    return rows


def _compare_mean(metric: Metric, client: float, engine: float) -> Agreement:
    deviation = client / engine - 1
    agrees = abs(deviation) <= TOLERANCE
    message = ""
    if not agrees:
        difference = f"{client - engine:+.1f} ms ({deviation:+.0%})"
        message = (
            f"{metric}: the client's mean is {difference} from the engine's; {_explain_deviation(metric, deviation)}"
        )
    return Agreement(
        metric=metric, statistic="mean", client_ms=client, engine_ms=round(engine, 3), agrees=agrees, said=message
    )


def _compare_percentile(metric: Metric, statistic: str, client: float, bucket: tuple[float, float]) -> Agreement:
    low, high = bucket
    agrees = low * (1 - TOLERANCE) <= client <= high * (1 + TOLERANCE)
    message = ""
    if not agrees:
        deviation = client / high - 1 if client > high else client / low - 1
        message = f"{metric}: the client's {statistic} is {deviation:+.0%} from the engine's bucket; {_explain_deviation(metric, deviation)}"
    return Agreement(
        metric=metric,
        statistic=statistic,
        client_ms=client,
        engine_ms=None,
        engine_from_ms=round(low, 3),
        engine_to_ms=None if math.isinf(high) else round(high, 3),
        agrees=agrees,
        said=message,
    )


def _explain_deviation(metric: Metric, deviation: float) -> str:
    """What may make the client's number differ from the engine's."""
    if deviation < 0:
        return (
            "the engine also counts requests that failed or that others sent, and its times end when a token is made, "
            "not when it is sent"
        )
    if metric == "itl_ms":
        return "the engine's steps end before a token is turned to text, sent, and passed on by the router"
    return "the client's time holds what lies before the engine's: connecting, the router and its queue, parsing"
