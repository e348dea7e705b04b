"""The SLO as alerts measure it: limits on latencies at the edges of the engine's histograms.

Prometheus knows how many requests took no longer than a bucket's edge, and nothing between two edges. A limit between
two is measured at the lower one: an alert comes early rather than late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from llm_serving.catalog.engines import EngineMetric
from llm_serving.services.traffic import Percentiles, Slo
from llm_serving.settings.plain import PlainData

LATENCIES: Mapping[EngineMetric, Literal["ttft_ms", "itl_ms", "e2e_ms"]] = {
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "e2e": "e2e_ms",
}
"""Fields of the SLO by the catalog's names of the histograms."""


class LatencyObjective(PlainData):
    """A limit that at most a share of requests may miss."""

    role: str
    name: str
    """Such as `ttft p95`."""

    metric: str
    """The engine's histogram, in seconds."""

    edge: str
    """The label `le` of the bucket."""

    measured: str
    """The edge as people write it, and the limit where they differ."""

    allowed: str
    """Share of requests that may take longer."""


def list_latencies(
    slo: Slo,
    metrics: Mapping[EngineMetric, str],
    buckets: Mapping[EngineMetric, Sequence[float]],
    roles: Mapping[EngineMetric, Sequence[str]],
) -> Iterator[LatencyObjective]:
    """Yield the objective of each limit that the engine's histograms can measure.

    Args:
        metrics: the engine's names.
        roles: whose requests have the latency, by histogram.
    """
    for metric, field in LATENCIES.items():
        for name, limit_ms in getattr(slo, field):
            if limit_ms is None or name == "mean":  # which has no share that may miss it
                continue
            percentile = int(name[1:])
            edges = [edge for edge in buckets.get(metric, ()) if edge * 1000 <= limit_ms]
            for role in roles[metric] if edges and metric in metrics else ():
                yield LatencyObjective(
                    role=role,
                    name=f"{metric} p{percentile}",
                    metric=metrics[metric],
                    edge=str(float(edges[-1])),
                    measured=_describe_edge(edges[-1] * 1000, limit_ms),
                    allowed=f"{(100 - percentile) / 100:g}",
                )


def find_lowest_limit(slo: Slo, field: Literal["ttft_ms", "itl_ms", "e2e_ms"]) -> float | None:
    """Return the lowest of a latency's limits, in milliseconds; None where it has none."""
    limits: Percentiles = getattr(slo, field)
    return min((limit_ms for _, limit_ms in limits if limit_ms is not None), default=None)


def list_unmeasured(slo: Slo, objectives: Sequence[LatencyObjective]) -> Iterator[str]:
    """Yield the limits on latencies that no objective measures."""
    measured_names = {objective.name for objective in objectives}
    for metric, field in LATENCIES.items():
        for name, limit_ms in getattr(slo, field):
            if limit_ms is not None and f"{metric} {name}" not in measured_names:
                yield f"slo.{field}.{name}"


def _describe_edge(edge_ms: float, limit_ms: float) -> str:
    if edge_ms == limit_ms:
        return f"{limit_ms:g} ms"
    return f"{edge_ms:g} ms (the limit of {limit_ms:g} ms is not a bucket edge)"
