"""What the fleet's topic hears of: alarms of CloudWatch, and events, if its policy lets EventBridge publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from llm_serving.catalog import signals
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

PERIOD_S = 60

MAX_METRICS = 10
"""Of an alarm. Source: CloudWatch user guide, "Create a CloudWatch alarm based on a metric math expression",
2026-11."""

MAX_PERCENT = 80.0
"""Of CPU, memory and storage."""


class Metric(NamedTuple):
    id: str
    namespace: str
    name: str
    dimensions: Mapping[str, str]
    stat: str


class Expression(NamedTuple):
    """What an alarm makes of its metrics, and goes by."""

    id: str
    text: str
    label: str


class Condition(NamedTuple):
    """When an alarm rings: what it goes by is beyond the threshold for so many periods in a row."""

    threshold: float
    comparison: str = "GreaterThanThreshold"
    period_s: int = PERIOD_S
    periods: int = 5
    breaching: int | None = None
    """How many of the periods must breach; all where left out."""

    missing: str = "notBreaching"
    """What CloudWatch takes periods without data as."""


def find_metric(metric_id: str, signal: str, dimensions: Mapping[str, str], stat: str) -> Metric:
    """Return a metric by our name of its signal."""
    row = signals.load()[signal]
    return Metric(metric_id, row.program, row.name, dimensions, stat)


def add_alarm(
    stack: FleetStack,
    owner: str,
    purpose: str,
    *queries: Metric | Expression,
    condition: Condition,
    description: str,
    signal: str = "",
    notifies: bool = True,
    construct_id: str = "",
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add the alarm OWNER-PURPOSE, which rings while the last of its queries meets the condition.

    Args:
        queries: a metric, or an expression after the metrics that it reads.
        signal: whose action the description ends with.
        notifies: whether the fleet's topic hears of ALARM and OK.
    """
    actions = [stack.fleet.alarms_to] if stack.fleet.alarms_to and notifies else None
    return aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm(
        stack,
        construct_id or f"{purpose}-alarm",
        alarm_name=f"{owner}-{purpose}",
        alarm_description=f"{description}. To do: {signals.load()[signal].action}" if signal else description,
        comparison_operator=condition.comparison,
        threshold=condition.threshold,
        evaluation_periods=condition.periods,
        datapoints_to_alarm=condition.breaching,
        treat_missing_data=condition.missing,
        metric_query=[_build_query(query, condition.period_s, is_judged=query is queries[-1]) for query in queries],
        alarm_actions=actions,
        ok_actions=actions,
    )


def _build_query(
    query: Metric | Expression, period_s: int, *, is_judged: bool
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery:
    metric_alarm, return_data = aws.cloudwatch_metric_alarm, is_judged or None
    if isinstance(query, Expression):
        return metric_alarm.CloudwatchMetricAlarmMetricQuery(
            id=query.id, expression=query.text, label=query.label, return_data=return_data
        )
    return metric_alarm.CloudwatchMetricAlarmMetricQuery(
        id=query.id,
        metric={
            "namespace": query.namespace,
            "metric_name": query.name,
            "dimensions": dict(query.dimensions),
            "period": period_s,
            "stat": query.stat,
        },
        return_data=return_data,
    )


def build_cluster_dimensions(fleet: Fleet) -> dict[str, str]:
    """Return the dimensions of what the fleet's functions send of its ECS cluster."""
    return {"cluster": names.format_cluster_name(fleet)}


def add_cluster_alarm(
    stack: FleetStack, construct_id: str, signal: str, *, name: str, description: str, threshold: float
) -> None:
    """Add an alarm on a signal of the fleet's ECS cluster: its greatest value of a minute."""
    add_alarm(
        stack,
        stack.fleet.name,
        name,
        find_metric("greatest", signal, build_cluster_dimensions(stack.fleet), "Maximum"),
        construct_id=construct_id,
        description=description,
        signal=signal,
        condition=Condition(threshold),
    )


def add_rule(
    stack: FleetStack,
    purpose: str,
    description: str,
    pattern: Mapping[str, Any] | None = None,
    *,
    schedule: str | None = None,
    name: str = "",
) -> aws.cloudwatch_event_rule.CloudwatchEventRule:
    """Add a rule of EventBridge, named FLEET-PURPOSE by itself, on events of a pattern or on a schedule."""
    return aws.cloudwatch_event_rule.CloudwatchEventRule(
        stack,
        purpose,
        name=name or f"{stack.fleet.name}-{purpose}",
        description=description,
        event_pattern=json.dumps(pattern) if pattern else None,
        schedule_expression=schedule,
    )


def add_topic_rule(
    stack: FleetStack,
    purpose: str,
    description: str,
    pattern: Mapping[str, Any],
    *,
    detail: str,
    fields: Mapping[str, str],
) -> None:
    """Add a rule that tells the topic of matching events in a sentence, where the fleet has one.

    Args:
        detail: what the sentence goes on with, with <names> of fields.
        fields: JSON paths within the event, by their names.
    """
    if not stack.fleet.alarms_to:
        return
    rule = add_rule(stack, purpose, description, pattern)
    aws.cloudwatch_event_target.CloudwatchEventTarget(
        stack,
        f"{purpose}-target",
        rule=rule.name,
        arn=stack.fleet.alarms_to,
        target_id="topic",
        # Text is in quotes. Source: EventBridge user guide, "Amazon EventBridge input transformation", 2026-11.
        input_transformer={
            "input_paths": dict(fields),
            "input_template": json.dumps(f"{stack.fleet.name}: {description}: {detail}"),
        },
    )
