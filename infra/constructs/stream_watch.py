"""Alarms of a stream, on what its users feel: events that wait, answers that are missing, a job that stands still."""

from __future__ import annotations

import math
from collections.abc import Mapping

from infra.constructs import alarm, valkey
from infra.constructs.gateway import MAX_PERCENT
from infra.constructs.stream import StreamContext
from llm_serving.kinds.streaming.stack import CACHE_NODES

_MAX_METRICS = 10
"""Of an alarm. Source: CloudWatch user guide, "Create a CloudWatch alarm based on a metric math expression",
2026-11."""


_FAILED_CHECKPOINTS, _CHECKPOINT_TIMEOUT_S = 3, 600
"""How many fail one after the other, and how long one takes that does not end. Source: Flink 1.20,
execution.checkpointing.timeout, which Managed Service for Apache Flink leaves as it is."""


def add_alarms(context: StreamContext) -> None:
    """Add the alarms.

    Kafka knows as read what a checkpoint has committed, so the lag contains the age of the last checkpoint.
    """
    stream = context.stream
    lag = {"Cluster Name": stream.name, "Consumer Group": context.name, "Topic": stream.events_topic}
    job = {"Application": stream.name}
    _add_alarm(context, "lag", {"m": ("stream-lag", lag)}, "m", stream.lag_alarm_s, "Events wait")
    failed = {"m": ("failed-checkpoints", job)}
    longest_s = stream.checkpoint_ms / 1000 + _CHECKPOINT_TIMEOUT_S
    periods = math.ceil(_FAILED_CHECKPOINTS * longest_s / alarm.PERIOD_S)
    description = "Checkpoints fail"
    _add_alarm(
        context, "checkpoints", failed, "RATE(m)", 0, description, periods=periods, breaching=_FAILED_CHECKPOINTS
    )
    outage = {"m": ("job-outage", job)}
    # A job that is stopped reports nothing. Source: AWS's agent-toolkit-for-aws, monitoring-and-metrics.md, 2026-11.
    _add_alarm(context, "down", outage, "m", 0, "The job does not run", missing="breaching")
    for name, signal, description in (
        ("dead-letters", "dead-letters", "Events have no answer"),
        ("deadlines", "missed-deadlines", "Answers are late"),
    ):
        metrics = {"m": (signal, job), "n": ("stream-events", job)}
        _add_alarm(context, name, metrics, "RATE(m) / RATE(n)", stream.dead_alarm, description)

    nodes = valkey.list_node_dimensions(stream.name, CACHE_NODES)
    memory = {f"m{number}": ("cache-memory", dict([node])) for number, node in enumerate(nodes)}
    _add_alarm(context, "cache", memory, "MAX(METRICS())", MAX_PERCENT, "The cache is nearly full")
    for first in range(1, stream.brokers + 1, _MAX_METRICS):
        brokers = range(first, min(first + _MAX_METRICS, stream.brokers + 1))
        disks = {
            f"m{number}": ("broker-disk", {"Cluster Name": stream.name, "Broker ID": str(number)}) for number in brokers
        }
        name = "disk" if first == 1 else f"disk-{first}"
        _add_alarm(context, name, disks, "MAX(METRICS())", MAX_PERCENT, "Kafka's storage is nearly full")


def _add_alarm(
    context: StreamContext,
    name: str,
    metrics: Mapping[str, tuple[str, Mapping[str, str]]],
    expression: str,
    threshold: float,
    description: str,
    missing: str = "notBreaching",
    periods: int = 5,
    breaching: int | None = None,
) -> None:
    """Add an alarm; `metrics` has signal and dimensions by the metric's name in the expression."""
    # The sum of a minute's samples grows with their number, too, which a ratio of two sums takes off.
    stat = "Sum" if "n" in metrics else "Maximum"
    alarm.add_alarm(
        context.stack,
        context.stream.name,
        name,
        *(alarm.find_metric(key, signal, dimensions, stat) for key, (signal, dimensions) in metrics.items()),
        expression=alarm.Expression("e", expression, description),
        description=f"{description}: {context.name}",
        signal=next(iter(metrics.values()))[0],
        threshold=threshold,
        missing=missing,
        periods=periods,
        breaching=breaching,
    )
