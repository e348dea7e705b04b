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
    """A metric that an alarm reads."""

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


def find_metric(metric_id: str, signal: str, dimensions: Mapping[str, str], stat: str) -> Metric:
    """Return a metric by our name of its signal."""
    row = signals.load()[signal]
    return Metric(metric_id, row.program, row.name, dimensions, stat)


def add_alarm(
    stack: FleetStack,
    owner: str,
    purpose: str,
    *metrics: Metric,
    expression: Expression | None = None,
    description: str,
    signal: str = "",
    threshold: float,
    comparison: str = "GreaterThanThreshold",
    period_s: int = PERIOD_S,
    periods: int = 5,
    breaching: int | None = None,
    missing: str = "notBreaching",
    notifies: bool = True,
    construct_id: str = "",
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add the alarm OWNER-PURPOSE, which rings after so many periods in a row.

    Args:
        expression: over the metrics; one metric alone needs none.
        breaching: of the periods, how many must breach; all where left out.
        signal: whose action the description ends with.
        notifies: whether the fleet's topic hears of ALARM and OK.
    """
    actions = [stack.fleet.alarms_to] if stack.fleet.alarms_to and notifies else None
    metric_alarm = aws.cloudwatch_metric_alarm
    query = metric_alarm.CloudwatchMetricAlarmMetricQuery
    queries = [
        query(
            id=metric.id,
            metric=metric_alarm.CloudwatchMetricAlarmMetricQueryMetric(
                namespace=metric.namespace,
                metric_name=metric.name,
                dimensions=dict(metric.dimensions),
                period=period_s,
                stat=metric.stat,
            ),
            return_data=None if expression else True,
        )
        for metric in metrics
    ]
    if expression:
        queries.append(query(id=expression.id, expression=expression.text, label=expression.label, return_data=True))
    return metric_alarm.CloudwatchMetricAlarm(
        stack,
        construct_id or f"{purpose}-alarm",
        alarm_name=f"{owner}-{purpose}",
        alarm_description=f"{description}. To do: {signals.load()[signal].action}" if signal else description,
        comparison_operator=comparison,
        threshold=threshold,
        evaluation_periods=periods,
        datapoints_to_alarm=breaching,
        treat_missing_data=missing,
        metric_query=queries,
        alarm_actions=actions,
        ok_actions=actions,
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
        threshold=threshold,
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
    event_target = aws.cloudwatch_event_target
    event_target.CloudwatchEventTarget(
        stack,
        f"{purpose}-target",
        rule=rule.name,
        arn=stack.fleet.alarms_to,
        target_id="topic",
        # Text is in quotes. Source: EventBridge user guide, "Amazon EventBridge input transformation", 2026-11.
        input_transformer=event_target.CloudwatchEventTargetInputTransformer(
            input_paths=dict(fields), input_template=json.dumps(f"{stack.fleet.name}: {description}: {detail}")
        ),
    )
