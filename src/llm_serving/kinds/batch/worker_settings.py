"""Settings of workers and Batch API: one JSON document in one variable, which images/batch-worker reads.

`batch/settings.py` of the image is its schema. It holds no secret; what a container alone knows has its own variable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, get_args

from pydantic import JsonValue

from llm_serving.catalog import engines
from llm_serving.catalog.engines import EngineMetric
from llm_serving.kinds.batch.blueprint import Blueprint, Cache, Limits, Priority, Team, resolve_deadline
from llm_serving.services.deployment import FoundDeployment

VARIABLE = "BATCH_SETTINGS"

VERSION = 1
"""Version of the document; an image that reads another refuses it."""

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""Priorities of jobs: rows of one run before those of every one after it."""

LOAD_METRICS: tuple[EngineMetric, ...] = ("queue", "running", "kv-usage", "preemptions")
"""Metrics of an engine that workers follow."""

_MAX_DEADLINE_S = 365 * 86_400.0
"""An execution runs for a year at most. Source: Step Functions developer guide, "Quotas", 2026-11."""

LOCAL_DRAIN_S = 12
"""How long rows in flight may finish after SIGTERM on this machine."""


class Limit(NamedTuple):
    """A limit of the SLO of the deployment that answers the rows."""

    name: str
    """Such as `ttft p95`."""

    metric: str
    """Its histogram in the engines' metrics."""

    ms: float
    allowed: float
    """Share of samples that may be above, 0 to 1: what the percentile allows."""


class Place(NamedTuple):
    """Where the programs run, and what they have there."""

    name: str
    """Of the state machine, and the prefix of the queues' names."""

    bucket: str
    prefix: str
    """Of all objects in the bucket."""

    drain_s: int = LOCAL_DRAIN_S
    """How long rows in flight may finish after SIGTERM."""

    kept_s: float = math.inf
    """How long S3 keeps what a job has saved."""

    has_secrets: bool = False
    """Whether the target has AWS's secrets; variables take their place elsewhere."""


class QueueNames(NamedTuple):
    """Names of a batch's queues."""

    control: str
    """Queue of the steps of jobs that are not chunks."""

    inbox: str
    """Queue of S3's events of the inboxes."""

    uncached: str
    """Queue with a message for each chunk whose answers the results cache lacks."""

    runs: Mapping[str, Mapping[str, str]]
    """Queues of chunks, by team and priority."""


def build_prefix(name: str) -> str:
    """Return the prefix of all objects of a batch in the bucket."""
    return f"batch/{name}"


def name_queues(prefix: str, teams: Iterable[str]) -> QueueNames:
    """Return the names of a batch's queues, which begin with `prefix`."""
    runs: dict[str, dict[str, str]] = {
        team: {priority: f"{prefix}-{team}-{priority}" for priority in PRIORITIES} for team in teams
    }
    return QueueNames(f"{prefix}-control", f"{prefix}-inbox", f"{prefix}-uncached", runs)


def build(settings: Blueprint, answering: FoundDeployment, place: Place) -> dict[str, JsonValue]:
    """Build the document.

    Args:
        answering: what answers the rows.
    """
    limits, queues, endpoint = settings.limits, name_queues(place.name, settings.teams), settings.endpoint
    api_key = endpoint.api_key if place.has_secrets else None
    return {
        "version": VERSION,
        "name": place.name,
        "bucket": place.bucket,
        "prefix": place.prefix,
        "priorities": list(PRIORITIES),
        "teams": {name: _build_team(team, limits, queues.runs[name]) for name, team in settings.teams.items()},
        "control_queue": queues.control,
        "inbox_queue": queues.inbox,
        "workers": settings.workers.count,
        "min_concurrency": settings.workers.concurrency.min,
        "max_concurrency": settings.workers.concurrency.max,
        "drain_s": place.drain_s,
        "bad_rows": limits.bad_rows,
        "long_inputs": limits.long_inputs,
        "attempts": limits.attempts,
        "request_timeout_s": limits.request_timeout,
        "chunk_bytes": limits.chunk,
        "failed_chunks": limits.failed_chunks,
        "max_deadline_s": min(_MAX_DEADLINE_S, place.kept_s),
        "takeover_s": limits.takeover,
        "endpoint": answering.url,
        "is_shared": endpoint.deployment is not None or endpoint.priority,  # gets other requests than the workers' too
        "has_priority": answering.traits.has_priority,
        "headers": {**find_headers(answering)},
        "api_key": {"secret": api_key.secret, "field": api_key.field or ""} if api_key else None,
        "team_keys": None,  # of the Batch API only
        "metrics_urls": list(answering.metrics_urls),
        "metrics": {metric: list(_list_names(metric, answering.metrics)) for metric in LOAD_METRICS},
        "objectives": [
            {"metric": limit.metric, "limit_s": limit.ms / 1000, "allowed": limit.allowed}
            for limit in list_limits(answering)
        ],
        "has_parquet": settings.results.parquet,
        "cache": _build_cache(settings.results.cache, queues.uncached, has_secrets=place.has_secrets),
        "usd_h": answering.usd_h,
        "logs": settings.logs,
    }


def _build_team(team: Team, limits: Limits, queues: Mapping[str, str]) -> JsonValue:
    return {
        "weight": team.weight,
        "priority": team.priority,
        "deadline_s": resolve_deadline(team, limits),
        "tokens_per_day": team.tokens_per_day,
        "queues": {**queues},
    }


def format_variables(document: dict[str, JsonValue]) -> dict[str, str]:
    return {VARIABLE: json.dumps(document, separators=(",", ":"))}


def _list_names(metric: EngineMetric, own: Mapping[EngineMetric, str]) -> Iterator[str]:
    """List the names of a metric on the pages of the endpoint's engine, or of every engine if that is unknown."""
    for names in [own] if own else [row.metrics for row in engines.load_engines().values()]:
        if metric in names:
            yield names[metric]


def _build_cache(cache: Cache | None, queue: str, *, has_secrets: bool) -> JsonValue:
    if cache is None:
        return None
    return {
        "url": cache.url,
        "ttl_s": cache.ttl,
        "is_cluster": cache.cluster,
        "queue": queue if has_secrets else "",
        "login_secret": cache.login.secret if cache.login and has_secrets else "",
    }


def find_headers(deployment: FoundDeployment) -> Mapping[str, str]:
    """Find what a request has by which it comes after people's; empty where nothing reads any."""
    return deployment.traits.classes.get("low", {})


def list_limits(deployment: FoundDeployment) -> Iterator[Limit]:
    """List the percentile limits on latencies in the metrics of the deployment's engines, which workers keep to.

    End-to-end latency is left out: it depends on the length of a row's answer, which does not slow down people's
    answers.
    """
    if deployment.slo is None or not deployment.metrics_urls:
        return
    for latency, limits in (("ttft", deployment.slo.ttft_ms), ("itl", deployment.slo.itl_ms)):
        for name, ms in limits:
            if latency in deployment.metrics and ms is not None and name != "mean":
                allowed = 1 - int(name.removeprefix("p")) / 100
                yield Limit(f"{latency} {name}", deployment.metrics[latency], ms, allowed)
