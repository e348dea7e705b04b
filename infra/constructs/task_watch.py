"""Alarms and graphs of a deployment, which read the engine's and the router's own metrics in CloudWatch."""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import alarm, sidecars, task_service
from infra.constructs.alarm import Expression, Metric
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.sidecars import MetricStream
from infra.constructs.task_scaling import build_dimensions, build_errors, build_task_metric
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.stack import ServingStack
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service
from llm_serving.services.slo import MIN_ERROR_SHARE

_TRANSFERS_PERIOD_S = 600
"""A failure rings for so long: those of one cause need not come each minute."""

_DEFAULT_QUEUE_LIMIT = 16
"""Waiting requests of one replica, on average, that ring the alarm unless `scale` has a target."""


def add_errors_alarm(
    stack: FleetStack, serving: Rendered[ServingStack], stream: MetricStream
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add the alarm on the share of requests that the router answers with an error, which takes a deployment back."""
    router = serving.entry
    errors, error_count = build_errors(stream, router)
    # What finds no engine at all is an error, and no request of any.
    share = f"({error_count}) / (FILL(requests, 0) + {error_count} + 0.001)"
    # Models scale together, so those roles for which there is room stand for all.
    room = alarm.MAX_METRICS - len(errors) - 1
    scale_to_zero_services = {
        f"up{number}": service for number, service in enumerate(serving.scale_to_zero_services[:room])
    }
    awake_condition = " AND ".join(f"{metric_id} > 0" for metric_id in scale_to_zero_services)
    return alarm.add_alarm(
        stack,
        stream.owner,
        "errors",
        build_task_metric("requests", stream, router, "requests", "Sum"),
        *errors,
        *(
            build_task_metric(metric_id, stream, service, "up", "Sum")
            for metric_id, service in scale_to_zero_services.items()
        ),
        # A 503 while a role is scaled to zero starts a replica, and is no error.
        Expression(
            "share",
            f"IF({awake_condition}, {share}, 0)" if awake_condition else share,
            "Share of requests that failed",
        ),
        description=f"Requests to {stream.deployment} fail",
        signal="errors",
        condition=alarm.Condition(max(serving.stack.errors, MIN_ERROR_SHARE)),
    )


def add_queue_alarm(stack: FleetStack, stream: MetricStream, service: Service) -> None:
    """Add the alarm on requests that wait longer than scaling takes to help."""
    scale = service.replicas.scale
    queue_length = scale.target if scale and scale.signal == "queue" else _DEFAULT_QUEUE_LIMIT / 4
    alarm.add_alarm(
        stack,
        stream.owner,
        f"{service.role}-queue",
        build_task_metric("queue", stream, service, "queue", "Average"),
        description=f"Requests wait for {stream.deployment}'s {service.role}",
        signal="queue",
        condition=alarm.Condition(4 * queue_length, periods=10),
    )


def add_transfer_alarm(stack: FleetStack, stream: MetricStream, service: Service) -> None:
    """Add the alarm on transfers of KV caches that fail: the engine sends the metric from the first failure on."""
    alarm.add_alarm(
        stack,
        stream.owner,
        f"{service.role}-transfers",
        build_task_metric("failed", stream, service, sidecars.TRANSFERS, "Sum"),
        description=f"Transfers of KV caches to {stream.deployment}'s {service.role} fail",
        signal=sidecars.TRANSFERS,
        condition=alarm.Condition(0, period_s=_TRANSFERS_PERIOD_S, periods=1),
    )


def add_running_alarm(stack: FleetStack, deployment: str, service: Service, ecs_names: Sequence[str]) -> None:
    """Add the alarm on tasks that are missing: they do not start, or are ended for not answering."""
    metrics, total = _sum_running(stack.fleet, ecs_names, "Minimum")
    alarm.add_alarm(
        stack,
        f"{stack.fleet.name}-{deployment}",
        f"{service.name}-running",
        *metrics,
        total,
        description=f"Tasks of {deployment}'s {service.name} are missing",
        signal="running-tasks",
        condition=alarm.Condition(
            service.replicas.min, comparison="LessThanThreshold", periods=15, missing="breaching"
        ),
    )


def add_maximum_alarm(stack: FleetStack, deployment: str, service: Service, ecs_names: Sequence[str]) -> None:
    """Add the alarm on a role that has run as many tasks as it may for long: more load can only wait."""
    metrics, total = _sum_running(stack.fleet, ecs_names, "Maximum")
    alarm.add_alarm(
        stack,
        f"{stack.fleet.name}-{deployment}",
        f"{service.name}-maximum",
        *metrics,
        total,
        description=f"{deployment}'s {service.name} runs as many tasks as it may",
        signal="replicas-max",
        condition=alarm.Condition(service.replicas.max, comparison="GreaterThanOrEqualToThreshold", periods=15),
    )


def _sum_running(fleet: Fleet, ecs_names: Sequence[str], stat: str) -> tuple[list[Metric], Expression]:
    metrics = [
        alarm.find_metric(f"choice{number}", "running-tasks", _build_service_dimensions(fleet, name), stat)
        for number, name in enumerate(ecs_names)
    ]
    total = " + ".join(f"FILL({metric.id}, 0)" for metric in metrics)
    return metrics, Expression("all", total, "Tasks that run")


def _build_service_dimensions(fleet: Fleet, ecs_name: str) -> dict[str, str]:
    return {"ClusterName": names.format_cluster_name(fleet), "ServiceName": ecs_name}


def list_graphs(fleet: Fleet, serving: Rendered[ServingStack], stream: MetricStream) -> dict[str, list[Metric]]:
    """List the graphs of a deployment: what its collectors send, by role, and the tasks that run, by ECS service."""
    services = {service.role: service for service in reversed(serving.services)}  # nodes of a role send the same
    sent = {role: sidecars.select_metrics(service, stream) for role, service in services.items()}
    graphs = {}
    for signal in [*sidecars.METRICS["router"], *sidecars.METRICS["engine"]]:
        stat = "Sum" if signal in sidecars.METRICS["router"] else "Average"
        curves = [
            Metric(role, stream.namespace, name, build_dimensions(stream, services[role]), stat)
            for role, metrics in sent.items()
            for name in metrics.get(signal, "").split("|")
            if name
        ]
        if curves:
            graphs[signal] = curves
    graphs["running-tasks"] = [
        alarm.find_metric(name, "running-tasks", _build_service_dimensions(fleet, name), "Minimum")
        for service in serving.services
        for name in task_service.list_names(fleet, serving.name, service)
    ]
    return graphs
