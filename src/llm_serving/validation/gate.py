"""Find the objectives of the SLO that a load missed. An objective without a sample is missed: nothing proves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict

from llm_serving.validation.statistics import Latency, Metric
from llm_serving.workloads.serving.traffic import Slo

LATENCIES: tuple[Metric, ...] = get_args(Metric)


class MissedObjective(BaseModel):
    """One objective that the deployment missed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metric: str
    """The SLO's field, such as `ttft_ms.p95`, `errors` or `output_tokens_per_s`."""

    value: float | None
    """Measured value; null without a sample."""

    limit: float
    """The SLO's limit, in the same unit; `errors` is a share from 0 to 1."""

    why: str
    """Value and limit in words."""


def find_missed_objectives(
    slo: Slo, latencies: Mapping[Metric, Latency], total: int, failed: int, throughput: Mapping[str, float]
) -> list[MissedObjective]:
    """Return every objective of `slo` that was missed.

    Args:
        latencies: by metric, in milliseconds.
        total: counted requests, of them `failed`.
        throughput: `requests_per_s` and `output_tokens_per_s`.
    """
    missed = []
    if total == 0:
        missed.append(MissedObjective(metric="requests", value=0, limit=1, why="no requests were counted"))
    for metric in LATENCIES:
        limits = getattr(slo, metric).model_dump(exclude_none=True)
        for statistic, limit in limits.items():
            missed += _check_latency(f"{metric}.{statistic}", getattr(latencies[metric], statistic), limit)
    share = failed / total if total else None
    if share is not None and share > slo.errors:
        reason = f"{failed} of {total} requests failed ({share:.2%}); the limit is {slo.errors * 100:g}%"
        missed.append(MissedObjective(metric="errors", value=share, limit=slo.errors, why=reason))
    for name, minimum in (("output_tokens_per_s", slo.output_tokens_per_s), ("requests_per_s", slo.requests_per_s)):
        if minimum is not None and throughput[name] < minimum:
            reason = f"{throughput[name]:.2f}/s; the minimum is {minimum:g}/s"
            missed.append(MissedObjective(metric=name, value=throughput[name], limit=minimum, why=reason))
    return missed


def _check_latency(name: str, value: float | None, limit: float) -> list[MissedObjective]:
    if value is None:
        return [MissedObjective(metric=name, value=None, limit=limit, why=f"no samples; the limit is {limit:g} ms")]
    if value > limit:
        return [
            MissedObjective(metric=name, value=value, limit=limit, why=f"{value:.1f} ms; the limit is {limit:g} ms")
        ]
    return []
