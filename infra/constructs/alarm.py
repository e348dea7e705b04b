"""What the fleet's topic hears of: alarms of CloudWatch, and events, if its policy lets EventBridge publish."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from llm_serving.catalog import signals
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

PERIOD_S = 60


def add_alarm(
    stack: FleetStack,
    construct_id: str,
    *,
    name: str,
    description: str,
    signal: str = "",
    threshold: float,
    metric_query: Sequence[aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery],
    comparison: str = "GreaterThanThreshold",
    periods: int = 5,
    breaching: int | None = None,
    missing: str = "notBreaching",
    notifies: bool = True,
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add an alarm, which rings after so many periods of `metric_query` in a row.

    Args:
        breaching: of the periods, how many must breach; all where left out.
        signal: whose action the description ends with.
        notifies: whether the fleet's topic hears of ALARM and OK.
    """
    actions = [stack.fleet.alarms_to] if stack.fleet.alarms_to and notifies else None
    return aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm(
        stack,
        construct_id,
        alarm_name=name,
        alarm_description=f"{description}. To do: {signals.load()[signal].action}" if signal else description,
        comparison_operator=comparison,
        threshold=threshold,
        evaluation_periods=periods,
        datapoints_to_alarm=breaching,
        treat_missing_data=missing,
        metric_query=metric_query,
        alarm_actions=actions,
        ok_actions=actions,
    )


def build_cluster_dimensions(fleet: Fleet) -> dict[str, str]:
    """Return the dimensions of what the fleet's functions send of its ECS cluster."""
    return {"cluster": names.format_cluster_name(fleet)}


def add_cluster_alarm(
    stack: FleetStack, construct_id: str, signal_name: str, *, name: str, description: str, threshold: float
) -> None:
    """Add an alarm on a signal of the fleet's ECS cluster: its greatest value of a minute."""
    query = build_signal_query("greatest", signal_name, build_cluster_dimensions(stack.fleet), "Maximum", returned=True)
    add_alarm(
        stack,
        construct_id,
        name=f"{stack.fleet.name}-{name}",
        description=description,
        signal=signal_name,
        threshold=threshold,
        metric_query=[query],
    )


def build_signal_query(
    query_id: str,
    signal_name: str,
    dimensions: Mapping[str, str],
    stat: str,
    *,
    period_s: int = PERIOD_S,
    returned: bool = False,
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery:
    """Return a metric that an alarm reads, by our name of its signal.

    Args:
        returned: it is what the alarm goes by.
    """
    signal = signals.load()[signal_name]
    return build_metric_query(
        query_id, signal.program, signal.name, dimensions, stat, period_s=period_s, returned=returned
    )


def build_metric_query(
    query_id: str,
    namespace: str,
    name: str,
    dimensions: Mapping[str, str],
    stat: str,
    *,
    period_s: int = PERIOD_S,
    returned: bool = False,
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery:
    """Return a metric that an alarm reads.

    Args:
        returned: it is what the alarm goes by.
    """
    q = aws.cloudwatch_metric_alarm
    return q.CloudwatchMetricAlarmMetricQuery(
        id=query_id,
        metric=q.CloudwatchMetricAlarmMetricQueryMetric(
            namespace=namespace, metric_name=name, dimensions=dict(dimensions), period=period_s, stat=stat
        ),
        return_data=returned or None,
    )


def build_expression_query(
    query_id: str, expression: str, label: str
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery:
    """Return the expression over other metrics that the alarm evaluates."""
    return aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery(
        id=query_id, expression=expression, label=label, return_data=True
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
    rule = aws.cloudwatch_event_rule.CloudwatchEventRule(
        stack, purpose, name=f"{stack.fleet.name}-{purpose}", description=description, event_pattern=json.dumps(pattern)
    )
    t = aws.cloudwatch_event_target
    t.CloudwatchEventTarget(
        stack,
        f"{purpose}-target",
        rule=rule.name,
        arn=stack.fleet.alarms_to,
        target_id="topic",
        # Text is in quotes. Source: EventBridge user guide, "Amazon EventBridge input transformation", 2026-11.
        input_transformer=t.CloudwatchEventTargetInputTransformer(
            input_paths=dict(fields), input_template=json.dumps(f"{stack.fleet.name}: {description}: {detail}")
        ),
    )
