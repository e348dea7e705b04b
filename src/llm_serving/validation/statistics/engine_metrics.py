"""The engines' own numbers of the load: from their Prometheus metrics before and after it, compared with the client's.

The catalog's row of the engine names the metrics. No input or output.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from llm_serving.catalog.engines import Engine, EngineMetric
from llm_serving.settings.plain import PublishedData
from llm_serving.validation.statistics.sample_statistics import Latency, Metric

TOLERANCE = 0.10
"""Largest difference at which client and engine agree."""

LATENCIES: dict[Metric, EngineMetric] = {"ttft_ms": "ttft", "itl_ms": "itl", "e2e_ms": "e2e"}

HISTOGRAMS: tuple[EngineMetric, ...] = (*LATENCIES.values(), "transfer-time", "transfer-bytes")


@dataclass
class Histogram:
    """A Prometheus histogram: the number of samples at or below each bound, in seconds."""

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
        """Return the bounds, in milliseconds, of the bucket with percentile `share` (0 to 1); the last is unbounded."""
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
    """One replica's metrics at one time; zero where its engine has no such metric, or has served nothing."""

    histograms: dict[EngineMetric, Histogram] = field(
        default_factory=lambda: {name: Histogram() for name in HISTOGRAMS}
    )
    finished: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Requests by the reason for which they ended."""

    counters: dict[EngineMetric, float] = field(default_factory=lambda: defaultdict(float))
    """What else it counts."""

    def subtract(self, before: EngineMetrics | None) -> EngineMetrics:
        """Return what was added after `before`; everything if the replica was not there, or restarted in between."""
        if before is None or self.has_restarted_since(before):
            return self
        return EngineMetrics(
            {name: current.add(before.histograms[name], -1) for name, current in self.histograms.items()},
            {reason: count - before.finished.get(reason, 0.0) for reason, count in self.finished.items()},
            defaultdict(float, {name: count - before.counters[name] for name, count in self.counters.items()}),
        )

    def has_restarted_since(self, before: EngineMetrics) -> bool:
        """Return whether a counter is lower than before."""
        histograms = ((current.count, before.histograms[name].count) for name, current in self.histograms.items())
        requests = ((self.finished.get(reason, 0.0), count) for reason, count in before.finished.items())
        return any(current < previous for current, previous in (*histograms, *requests))


def parse(text: str, engine: Engine) -> EngineMetrics:
    """Parse a page in Prometheus' text format, adding up the series of each metric; raises `ValueError` for another."""
    metrics = EngineMetrics()
    histograms = {engine.metrics[name]: metrics.histograms[name] for name in HISTOGRAMS if name in engine.metrics}
    concepts = {name: concept for concept, name in engine.metrics.items()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            base, _, part = sample.name.rpartition("_")
            if base in histograms:
                _add_to_histogram(histograms[base], part, sample)
            elif (concept := concepts.get(sample.name)) == "finished":
                metrics.finished[sample.labels.get(engine.finish_reasons.label, "")] += sample.value
            elif concept:
                metrics.counters[concept] += sample.value
    return metrics


def parse_pages(pages: Mapping[str, str], engine: Engine) -> dict[str, EngineMetrics]:
    """Parse each replica's page; leave out those that are not in Prometheus' text format."""
    parsed = {}
    for name, text in pages.items():
        try:
            parsed[name] = parse(text, engine)
        except ValueError:
            continue
    return parsed


def count_requests(text: str, pattern: str) -> float:
    """Add up the counters of a router's page whose names match a regular expression; 0 without a page."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return 0.0
    samples = (sample for family in families for sample in family.samples)
    return sum(sample.value for sample in samples if re.fullmatch(pattern, sample.name))


def _add_to_histogram(histogram: Histogram, part: str, sample: Sample) -> None:
    if part == "bucket":
        histogram.buckets[float(sample.labels.get("le", ""))] += sample.value
    elif part == "sum":
        histogram.total += sample.value
    elif part == "count":
        histogram.count += sample.value


class Replica(PublishedData):
    """One replica's share of the load, by the engine's own counters."""

    name: str
    """Name of the process."""

    requests: int | None
    """Counted requests that it answered; null if its metrics could not be read after the load."""

    unanswered: int = 0
    """Requests that ended without an answer: their client disconnected, or an error."""

    restarted: bool = False
    """Whether it restarted during the load; `requests` then counts from the restart."""


def count_replica_requests(
    names: Iterable[str],
    before: Mapping[str, EngineMetrics],
    after: Mapping[str, EngineMetrics],
    unanswered_reasons: Iterable[str],
) -> list[Replica]:
    """Return each replica's share of the load; requests that end for some reasons are without an answer."""
    replicas = []
    for name in names:
        if name not in after:
            replicas.append(Replica(name=name, requests=None))
            continue
        previous = before.get(name)
        finished = after[name].subtract(previous).finished
        unanswered = sum(finished.get(reason, 0.0) for reason in unanswered_reasons)
        answered = sum(finished.values()) - unanswered
        restarted = previous is not None and after[name].has_restarted_since(previous)
        replicas.append(Replica(name=name, requests=int(answered), unanswered=int(unanswered), restarted=restarted))
    return replicas


def compute_cached_share(before: Mapping[str, EngineMetrics], after: Mapping[str, EngineMetrics]) -> float | None:
    """Return the share of prompt tokens that the engines found in their caches; None if they looked up none."""
    added = subtract(before, after).values()
    queries, hits = (sum(metrics.counters[name] for metrics in added) for name in ("cache-queries", "cache-hits"))
    return hits / queries if queries > 0 else None


class KvTransfers(PublishedData):
    """The hand-over from prefill to decode, by the engines' own counters, and what else a first token waits for."""

    count: int
    """Transfers that arrived; each process of a split layer has its own."""

    failed: int
    """Transfers that did not arrive."""

    bytes: int
    """All that was sent."""

    mean_ms: float | None
    """Mean time of a transfer; null if none arrived."""

    share_of_ttft: float | None
    """That time as a share of the client's mean time to first token."""

    prefill_ms: float | None
    """Mean time of a request in prefill, its queue included."""

    decode_ms: float | None
    """Mean time from a request's arrival at decode to its first token there, with the transfer and its waits."""

    router_ms: float | None
    """The rest of the client's mean time to first token: the router, both its hops, and both engines' HTTP servers."""


def summarize_transfers(
    ttft_ms: float | None,
    before: Mapping[str, EngineMetrics],
    after: Mapping[str, EngineMetrics],
    prefill_names: Iterable[str],
) -> KvTransfers:
    """Return the hand-over of a load from replicas that prefill to the others, beside the client's mean TTFT."""
    prefills = set(prefill_names)
    added = subtract(before, after)
    times = sum_histograms(added.values(), "transfer-time")
    prefill = sum_histograms((added[name] for name in added if name in prefills), "e2e").compute_mean_ms()
    decode = sum_histograms((added[name] for name in added if name not in prefills), "ttft").compute_mean_ms()
    mean = times.compute_mean_ms()
    has_all = ttft_ms is not None and prefill is not None and decode is not None
    return KvTransfers(
        count=int(times.count),
        failed=int(sum(metrics.counters["failed-transfers"] for metrics in added.values())),
        bytes=int(sum_histograms(added.values(), "transfer-bytes").total),
        mean_ms=_round_ms(mean),
        share_of_ttft=round(mean / ttft_ms, 4) if mean is not None and ttft_ms else None,
        prefill_ms=_round_ms(prefill),
        decode_ms=_round_ms(decode),
        router_ms=_round_ms((ttft_ms or 0) - (prefill or 0) - (decode or 0)) if has_all else None,
    )


def _round_ms(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)


def subtract(before: Mapping[str, EngineMetrics], after: Mapping[str, EngineMetrics]) -> dict[str, EngineMetrics]:
    """Return what the metrics of each replica gained during a load."""
    return {name: metrics.subtract(before.get(name)) for name, metrics in after.items()}


def sum_histograms(parts: Iterable[EngineMetrics], name: EngineMetric) -> Histogram:
    """Return the histogram of a metric over several replicas."""
    return functools.reduce(Histogram.add, (metrics.histograms[name] for metrics in parts), Histogram())


class Agreement(PublishedData):
    """One of the client's numbers, compared with the engine's."""

    metric: Metric
    """Which latency."""

    statistic: str
    """`mean`, `p50` or `p95`."""

    client_ms: float
    """What the client measured."""

    engine_ms: float | None
    """The engine's mean; null for a percentile, of which a histogram has only the bucket."""

    engine_from_ms: float | None = None
    """Lower bound of the bucket with the engine's percentile."""

    engine_to_ms: float | None = None
    """Upper bound of that bucket; null if unbounded."""

    agrees: bool
    """Whether they differ by at most 10%: from the mean, or from the nearer bound of the bucket."""

    said: str = ""
    """If they disagree: by how much, and the likely reason."""


def compare(
    latencies: Mapping[Metric, Latency], before: Mapping[str, EngineMetrics], after: Mapping[str, EngineMetrics]
) -> list[Agreement]:
    """Compare the client's numbers with those of all replicas together, where both have the metric."""
    rows = []
    added = subtract(before, after).values()
    for metric, measured in latencies.items():
        total = sum_histograms(added, LATENCIES[metric])
        mean = total.compute_mean_ms()
        if mean is None or measured.mean is None or mean <= 0:
            continue
        rows.append(_compare(metric, "mean", measured.mean, mean, mean))
        for statistic, share in (("p50", 0.50), ("p95", 0.95)):
            client, bucket = getattr(measured, statistic), total.find_bucket_ms(share)
            if client is not None and bucket is not None:
                rows.append(_compare(metric, statistic, client, *bucket))
    return rows


def _compare(metric: Metric, statistic: str, client: float, low: float, high: float) -> Agreement:
    """Compare a number with the ends of the engine's bucket; of a mean both are the mean."""
    is_mean = statistic == "mean"
    nearer = high if client > high or is_mean else low
    deviation = client / nearer - 1 if nearer else 0.0
    agrees = abs(deviation) <= TOLERANCE if is_mean else low * (1 - TOLERANCE) <= client <= high * (1 + TOLERANCE)
    message = ""
    if not agrees:
        of_mean = f"{client - high:+.1f} ms ({deviation:+.0%}) from the engine's"
        difference = of_mean if is_mean else f"{deviation:+.0%} from the engine's bucket"
        message = f"{metric}: the client's {statistic} is {difference}; {_explain_deviation(metric, deviation)}"
    return Agreement(
        metric=metric,
        statistic=statistic,
        client_ms=client,
        engine_ms=round(high, 3) if is_mean else None,
        engine_from_ms=None if is_mean else round(low, 3),
        engine_to_ms=None if is_mean or math.isinf(high) else round(high, 3),
        agrees=agrees,
        said=message,
    )


def _explain_deviation(metric: Metric, deviation: float) -> str:
    if deviation < 0:
        return (
            "the engine also counts failed requests and other clients' requests, and its times end when a token is "
            "generated, not when it is sent"
        )
    if metric == "itl_ms":
        return "the engine's times end before a token is detokenized, sent, and forwarded by the router"
    return "the client's times include connecting, the router and its queue, and parsing"
