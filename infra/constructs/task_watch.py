"""Alarms of a deployment, and what makes its tasks come and go: both read the engine's own metrics in CloudWatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra import names
from infra.bindings import aws
from infra.constructs.collector import METRICS, Stream
from infra.fleet import Fleet
from infra.serving import Service, Serving

_PERIOD_S = 60
_LEAST_ERRORS = 0.01
"""Share of requests whose failure is nobody's night's sleep."""

_QUEUE = 16
"""Requests that one replica has waiting, on average, where nothing says how many are too many."""


def errors_alarm(serving: Serving, fleet: Fleet) -> str:
    """Name of the alarm on failed requests, which takes a deployment back."""
    return f"{fleet.name}-{serving.name}-errors"


def errors(stack: Any, fleet: Fleet, serving: Serving, stream: Stream) -> Any:
    """Adds the alarm on the share of requests that the router answers with an error."""
    router = serving.router
    return _alarm(
        stack,
        "errors-alarm",
        name=errors_alarm(serving, fleet),
        description=f"Requests to {serving.name} fail",
        threshold=max(serving.errors, _LEAST_ERRORS),
        metric_query=[
            _metric("requests", stream, router, METRICS["router"]["requests"], "Sum"),
            _metric("errors", stream, router, METRICS["router"]["errors"], "Sum"),
            aws.cloudwatch_metric_alarm.CloudwatchMetricAlarmMetricQuery(
                id="share",
                # What finds no engine at all is an error, and no request of any.
                expression="FILL(errors, 0) / (FILL(requests, 0) + FILL(errors, 0) + 0.001)",
                label="Share of requests that failed",
                return_data=True,
            ),
        ],
    )


def queue(stack: Any, fleet: Fleet, serving: Serving, stream: Stream, service: Service) -> None:
    """Adds the alarm on requests that wait longer than scaling takes to help."""
    own = service.scale.target if service.scale and service.scale.metric == "queue" else _QUEUE / 4
    _alarm(
        stack,
        f"{service.role}-queue-alarm",
        name=f"{fleet.name}-{serving.name}-{service.role}-queue",
        description=f"Requests wait for {serving.name}'s {service.role}",
        threshold=4 * own,
        periods=10,
        metric_query=[_metric("queue", stream, service, METRICS["engine"]["queue"], "Average", returned=True)],
    )


def running(stack: Any, fleet: Fleet, serving: Serving, service: Service, ecs_names: Sequence[str]) -> None:
    """Adds the alarm on tasks that are missing: they do not start, or are ended for not answering."""
    q = aws.cloudwatch_metric_alarm
    each = [
        q.CloudwatchMetricAlarmMetricQuery(
            id=f"choice{number}",
            metric=q.CloudwatchMetricAlarmMetricQueryMetric(
                namespace="ECS/ContainerInsights",
                metric_name="RunningTaskCount",
                dimensions={"ClusterName": names.cluster(fleet), "ServiceName": name},
                period=_PERIOD_S,
                stat="Minimum",
            ),
        )
        for number, name in enumerate(ecs_names)
    ]
    total = " + ".join(f"FILL(choice{number}, 0)" for number in range(len(ecs_names)))
    _alarm(
        stack,
        f"{service.name}-running-alarm",
        name=f"{fleet.name}-{serving.name}-{service.name}-running",
        description=f"Tasks of {serving.name}'s {service.name} are missing",
        threshold=service.count,
        comparison="LessThanThreshold",
        periods=15,
        missing="breaching",
        metric_query=[
            *each,
            q.CloudwatchMetricAlarmMetricQuery(id="all", expression=total, label="Tasks that run", return_data=True),
        ],
    )


def scaling(stack: Any, fleet: Fleet, service: Service, stream: Stream, ecs_service: Any) -> None:
    """Adds the target tracking of a role's first choice; the fallback moves what finds no machine there.

    The measure is of one replica, on average, so that more replicas bring it down.
    """
    scale = service.scale
    assert scale
    scaled = {
        "service_namespace": "ecs",
        "scalable_dimension": "ecs:service:DesiredCount",
        "resource_id": f"service/{names.cluster(fleet)}/{ecs_service.name}",
    }
    target = aws.appautoscaling_target.AppautoscalingTarget(
        stack,
        f"{service.name}-scaling",
        **scaled,
        min_capacity=service.count,
        max_capacity=scale.most,
    )
    p = aws.appautoscaling_policy
    configuration = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfiguration
    measure = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecification
    dimension = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecificationDimensions
    p.AppautoscalingPolicy(
        stack,
        f"{service.name}-scaling-policy",
        name=f"{ecs_service.name}-{scale.metric}",
        policy_type="TargetTrackingScaling",
        **scaled,
        target_tracking_scaling_policy_configuration=configuration(
            target_value=scale.target,
            scale_in_cooldown=scale.cool_down,
            # A replica that was just asked for loads its weights, and takes nothing off the others until then.
            scale_out_cooldown=min(scale.cool_down, 300),
            customized_metric_specification=measure(
                namespace=stream.namespace,
                metric_name=METRICS["engine"][scale.metric],
                statistic="Average",
                dimensions=[dimension(name=name, value=value) for name, value in _dimensions(stream, service).items()],
            ),
        ),
        depends_on=[target],
    )


def _dimensions(stream: Stream, service: Service) -> dict[str, str]:
    return {"deployment": stream.deployment, "role": service.role}


def _metric(identity: str, stream: Stream, service: Service, name: str, stat: str, returned: bool = False) -> Any:
    q = aws.cloudwatch_metric_alarm
    return q.CloudwatchMetricAlarmMetricQuery(
        id=identity,
        metric=q.CloudwatchMetricAlarmMetricQueryMetric(
            namespace=stream.namespace,
            metric_name=name,
            dimensions=_dimensions(stream, service),
            period=_PERIOD_S,
            stat=stat,
        ),
        return_data=returned or None,
    )


def _alarm(
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
) -> Any:
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
    )
