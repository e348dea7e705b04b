"""Alarms of CloudWatch on several metrics and what is reckoned from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.bindings import aws

PERIOD_S = 60


def alarm(
    stack: Any,
    id_: str,
    *,
    name: str,
    description: str,
    threshold: float,
    metric_query: list[Any],
    comparison: str = "GreaterThanThreshold",
    periods: int = 5,
    missing: str = "notBreaching",
    topic: str | None = None,
) -> Any:
    """Adds an alarm, which rings after so many periods of `metric_query` in a row.

    Args:
        topic: ARN of the SNS topic that is told when it rings, and when that is over.
    """
    told = [topic] if topic else None
    return aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm(
        stack,
        id_,
        alarm_name=name,
        alarm_description=description,
        comparison_operator=comparison,
        threshold=threshold,
        evaluation_periods=periods,
        treat_missing_data=missing,
        metric_query=metric_query,
        alarm_actions=told,
        ok_actions=told,
    )


def metric(
    identity: str,
    *,
    namespace: str,
    name: str,
    dimensions: Mapping[str, str],
    stat: str,
    period_s: int = PERIOD_S,
    returned: bool = False,
) -> Any:
    """A metric that an alarm reads.

    Args:
        returned: it is what the alarm goes by.
    """
    q = aws.cloudwatch_metric_alarm
    return q.CloudwatchMetricAlarmMetricQuery(
        id=identity,
        metric=q.CloudwatchMetricAlarmMetricQueryMetric(
            namespace=namespace, metric_name=name, dimensions=dict(dimensions), period=period_s, stat=stat
        ),
        return_data=returned or None,
    )


def reckoned(identity: str, expression: str, label: str) -> Any:
    """What the alarm goes by, reckoned from its metrics."""
    return aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery(
        id=identity, expression=expression, label=label, return_data=True
    )
