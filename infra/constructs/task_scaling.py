"""What makes a role's tasks come and go: between one and many by the engine's own load, to none and back by requests.

Target tracking cannot scale from zero: it multiplies the running tasks, and without one measures no load. So a role
whose least is 0 has alarms and steps beside it: requests that find no replica bring the first, and replicas that nobody
asked for a while go. What they read is counted by the router's and the replicas' collectors
(infra/constructs/sidecars.py).

Source: Application Auto Scaling user guide, "Target tracking scaling policies" and "Step scaling policies"; EC2 Auto
Scaling user guide, "Target tracking scaling policies" (a capacity of 0 is not scaled); 2026-11. Never seen on AWS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs import alarm, sidecars
from infra.constructs.alarm import Expression, Metric
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.sidecars import INTERVAL_S, MetricStream
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.services.service import Service

_MIN_IDLE_S = 120
"""A replica is not sent away for a pause shorter than that."""

_MAX_SCALE_OUT_COOLDOWN_S = 300
"""Longest that tracking waits for a replica that was just asked for: it loads its weights, and takes nothing off the
others until then."""

_LATE_ALARM_PERIOD_S = 300


@dataclass(frozen=True)
class _Scaling:
    """What the parts of a role's scaling share."""

    stack: FleetStack
    router: Service
    service: Service
    stream: MetricStream
    name: str
    """Of the ECS service whose number of tasks is scaled."""

    target: aws.appautoscaling_target.AppautoscalingTarget

    @property
    def target_settings(self) -> dict[str, Any]:
        """What each policy and each scheduled action says of the target."""
        return {**_describe_target(self.stack, self.name), "depends_on": [self.target]}


def add_scaling(stack: FleetStack, router: Service, service: Service, stream: MetricStream, ecs_name: str) -> None:
    """Add the scaling of a role's first choice; the fallback moves tasks that get no instance there."""
    target = aws.appautoscaling_target.AppautoscalingTarget(
        stack,
        f"{service.name}-scaling",
        **_describe_target(stack, ecs_name),
        min_capacity=service.replicas.min,
        max_capacity=service.replicas.max,
    )
    scaling = _Scaling(stack, router, service, stream, ecs_name, target)
    _add_peaks(scaling)
    _add_target_tracking(scaling)
    if service.replicas.min == 0:
        _add_wake_up(scaling)
        _add_sleep(scaling)
        _add_late_alarm(scaling)
    else:
        assert service.replicas.scale
        description = f"{stream.deployment}'s {service.role} does not scale: its engines' metrics do not come"
        add_unmeasured_alarm(stack, service, stream, service.replicas.scale.signal, description)


def _describe_target(stack: FleetStack, name: str) -> dict[str, Any]:
    return {
        "service_namespace": "ecs",
        "scalable_dimension": "ecs:service:DesiredCount",
        "resource_id": f"service/{stack.cluster_name}/{name}",
    }


def _add_peaks(scaling: _Scaling) -> None:
    """Add what raises the least at a peak's start, and lowers it at its end; tracking goes on between the bounds.

    Source: Application Auto Scaling user guide, "Scheduled scaling", 2026-11.
    """
    service = scaling.service
    assert service.replicas.scale
    for number, peak in enumerate(service.replicas.scale.peaks):
        for part, minute, least in (("start", peak.start, peak.replicas), ("end", peak.end, service.replicas.min)):
            aws.appautoscaling_scheduled_action.AppautoscalingScheduledAction(
                scaling.stack,
                f"{service.name}-peak-{number}-{part}",
                name=f"{scaling.name}-peak-{number}-{part}",
                schedule=f"cron({minute % 60} {minute // 60} * * ? *)",
                timezone=peak.time_zone,
                scalable_target_action={"min_capacity": str(least), "max_capacity": str(service.replicas.max)},
                **scaling.target_settings,
            )
    if service.replicas.scale.peaks:
        # By day it is a peak's, and no plan may take it back.
        scaling.target.add_override("lifecycle.ignore_changes", ["min_capacity"])


def build_task_metric(metric_id: str, stream: MetricStream, service: Service, name: str, stat: str) -> Metric:
    program_name = sidecars.select_metrics(service, stream)[name]
    return Metric(metric_id, stream.namespace, program_name, build_dimensions(stream, service), stat)


def build_errors(stream: MetricStream, router: Service) -> tuple[list[Metric], str]:
    """Return what a router counts of requests that failed, under one name or several, and their sum."""
    names, dimensions = sidecars.select_metrics(router, stream)["errors"].split("|"), build_dimensions(stream, router)
    metrics = [
        Metric(f"errors{number}", stream.namespace, name, dimensions, "Sum") for number, name in enumerate(names)
    ]
    return metrics, " + ".join(f"FILL({metric.id}, 0)" for metric in metrics)


def _add_target_tracking(scaling: _Scaling) -> None:
    """Track the measure of one replica, on average, so that more replicas bring it down."""
    service, stream, scale = scaling.service, scaling.stream, scaling.service.replicas.scale
    assert scale
    aws.appautoscaling_policy.AppautoscalingPolicy(
        scaling.stack,
        f"{service.name}-scaling-policy",
        name=f"{scaling.name}-{scale.signal}",
        policy_type="TargetTrackingScaling",
        **scaling.target_settings,
        target_tracking_scaling_policy_configuration={
            "target_value": scale.target,
            "scale_in_cooldown": scale.cool_down_s,
            "scale_out_cooldown": min(scale.cool_down_s, _MAX_SCALE_OUT_COOLDOWN_S),
            "customized_metric_specification": _build_metric(service, stream),
        },
    )


_METRIC = "AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecification"


def _build_item(part: str, **settings: Any) -> Any:
    """Build an item of a list in what is tracked, by the end of its class's name, which alone would fill a line."""
    return getattr(aws.appautoscaling_policy, f"{_METRIC}{part}")(**settings)


def _build_metric(service: Service, stream: MetricStream) -> dict[str, Any]:
    """Return what is tracked: the measure, or of a role that scales to zero at least one replica's while requests come.

    One that works off its requests at once has an empty queue. Tracking would take that for nothing to do, and end it.
    """
    scale, names = service.replicas.scale, sidecars.select_metrics(service, stream)
    assert scale
    dimensions = build_dimensions(stream, service).items()

    def build_metric(part: str, concept: str) -> dict[str, Any]:
        return {
            "namespace": stream.namespace,
            "metric_name": names[concept],
            "dimensions": [_build_item(f"{part}Dimensions", name=key, value=value) for key, value in dimensions],
        }

    if service.replicas.min:
        return {**build_metric("", scale.signal), "statistic": "Average"}

    def query(query_id: str, concept: str, stat: str) -> Any:
        metric_stat = {"metric": build_metric("MetricsMetricStatMetric", concept), "stat": stat}
        return _build_item("Metrics", id=query_id, metric_stat=metric_stat, return_data=False)

    def evaluate(query_id: str, expression: str, label: str, *, returned: bool) -> Any:
        return _build_item("Metrics", id=query_id, expression=expression, label=label, return_data=returned)

    # Each replica reports `up` this often in a period, give or take one.
    load_of_single_replica = f"{scale.target:g} / FLOOR(up / {alarm.PERIOD_S // INTERVAL_S} + 0.5)"
    return {
        "metrics": [
            query("load", scale.signal, "Average"),
            query("up", "up", "Sum"),
            evaluate("one", load_of_single_replica, "What one replica of them all would measure", returned=False),
            evaluate("measure", "IF(load > one, load, one)", "Load", returned=True),
        ]
    }


def _add_wake_up(scaling: _Scaling) -> None:
    """Scale from zero to one on a request that found no replica.

    The router refuses it where it knows no engine at all, and passes it on where another model's is there. One is
    added, in place of setting the count: replicas whose metrics nobody can read, as of engines at their limit, stay. No
    second one is added while the first takes its minutes to come. Source: Application Auto Scaling API reference,
    StepScalingPolicyConfiguration, Cooldown, 2026-11.
    """
    router, service, stream = scaling.router, scaling.service, scaling.stream
    start_s = math.ceil(INSTANCE_START_S + service.answers_after_s)
    policy = _add_step_policy(scaling, "wake", "ChangeInCapacity", 1, start_s, metric_interval_lower_bound="0")
    requests = [build_task_metric("requests", stream, router, "requests", "Sum")], "requests"
    for metric_name, (metrics, total) in (("errors", build_errors(stream, router)), ("requests", requests)):
        wake_alarm = alarm.add_alarm(
            scaling.stack,
            scaling.stream.owner,
            f"{service.role}-wake-{metric_name}",
            build_task_metric("up", stream, service, "up", "Sum"),
            *metrics,
            Expression("asked", f"IF(up == 0, {total}, 0)", "Requests that found no replica"),
            construct_id=f"{service.role}-wake-{metric_name}",
            notifies=False,
            description=f"Requests come to {stream.deployment}, and {service.role} sleeps",
            condition=alarm.Condition(0, periods=1),
        )
        wake_alarm.add_override("alarm_actions", policy)


def _add_sleep(scaling: _Scaling) -> None:
    """Scale to zero after a period without requests, in which a replica and the router ran."""
    router, service, stream = scaling.router, scaling.service, scaling.stream
    assert service.replicas.scale
    policy = _add_step_policy(scaling, "sleep", "ExactCapacity", 0, alarm.PERIOD_S, metric_interval_upper_bound="0")
    errors, error_count = build_errors(stream, router)
    requests = f"FILL(requests, 0) + {error_count} + FILL(running, 0)"
    sleep_alarm = alarm.add_alarm(
        scaling.stack,
        scaling.stream.owner,
        f"{service.role}-sleep",
        build_task_metric("up", stream, service, "up", "Sum"),
        build_task_metric("running", stream, service, "running", "Sum"),
        build_task_metric("alive", stream, router, "up", "Sum"),
        build_task_metric("requests", stream, router, "requests", "Sum"),
        *errors,
        # What is not known is no quiet: with the router's collector gone, every minute would look so.
        Expression("asked", f"IF(up > 0 AND alive > 0, {requests}, 1)", "Requests that came or are under way"),
        notifies=False,
        description=f"Nobody asks {stream.deployment}: {service.role} may sleep",
        condition=alarm.Condition(
            1,
            comparison="LessThanThreshold",
            periods=math.ceil(max(_MIN_IDLE_S, service.replicas.scale.cool_down_s) / alarm.PERIOD_S),
        ),
    )
    sleep_alarm.add_override("alarm_actions", policy)


def _add_late_alarm(scaling: _Scaling) -> None:
    """Alarm on a role that receives requests and does not start: no instance, or a failing engine."""
    router, service, stream = scaling.router, scaling.service, scaling.stream
    errors, error_count = build_errors(stream, router)
    alarm.add_alarm(
        scaling.stack,
        scaling.stream.owner,
        f"{service.role}-late",
        build_task_metric("up", stream, service, "up", "Sum"),
        build_task_metric("requests", stream, router, "requests", "Sum"),
        *errors,
        Expression("asked", f"IF(up == 0, FILL(requests, 0) + {error_count}, 0)", "Requests that found no replica"),
        description=f"{stream.deployment}'s {service.role} is asked, and does not wake",
        signal="running-tasks",
        condition=alarm.Condition(
            0,
            period_s=_LATE_ALARM_PERIOD_S,
            periods=math.ceil((INSTANCE_START_S + service.answers_after_s) / _LATE_ALARM_PERIOD_S),
        ),
    )


def add_unmeasured_alarm(
    stack: FleetStack, service: Service, stream: MetricStream, metric_name: str, description: str
) -> None:
    """Alarm on a role of which nothing is known: what reads its metrics does nothing, however many requests come.

    Source: ECS developer guide, "Use a target metric to scale Amazon ECS services", insufficient data, 2026-11.
    """
    alarm.add_alarm(
        stack,
        stream.owner,
        f"{service.role}-unmeasured",
        build_task_metric("load", stream, service, metric_name, "Average"),
        description=description,
        signal="up",
        condition=alarm.Condition(
            0,
            comparison="LessThanThreshold",  # no measure is: it rings for missing ones
            period_s=_LATE_ALARM_PERIOD_S,
            periods=math.ceil((INSTANCE_START_S + service.answers_after_s) / _LATE_ALARM_PERIOD_S),
            missing="breaching",
        ),
    )


def _add_step_policy(
    scaling: _Scaling, part: str, adjustment_type: str, change: int, cooldown_s: int, **bounds: str
) -> str:
    """Add a policy that changes the count by one step, and return what an alarm names it by."""
    adjustment = aws.appautoscaling_policy.AppautoscalingPolicyStepScalingPolicyConfigurationStepAdjustment
    step_policy = aws.appautoscaling_policy.AppautoscalingPolicy(
        scaling.stack,
        f"{scaling.service.name}-{part}-policy",
        name=f"{scaling.stream.owner}-{scaling.service.role}-{part}",
        policy_type="StepScaling",
        **scaling.target_settings,
        step_scaling_policy_configuration={
            "adjustment_type": adjustment_type,
            "metric_aggregation_type": "Maximum",
            "cooldown": cooldown_s,
            "step_adjustment": [adjustment(scaling_adjustment=change, **bounds)],
        },
    )
    # A splat: a rehearsal leaves the policy out.
    return f"${{{step_policy.terraform_resource_type}.{step_policy.friendly_unique_id}[*].arn}}"


def build_dimensions(stream: MetricStream, service: Service) -> dict[str, str]:
    return {"deployment": stream.deployment, "role": service.role}
