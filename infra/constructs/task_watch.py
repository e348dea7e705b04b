"""Alarms of a deployment, which read the engine's and the router's own metrics in CloudWatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.constructs import alarm
from infra.constructs.alarm import reckoned
from infra.constructs.collector import Stream
from infra.constructs.task_scaling import metric
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import Service, Serving

_LEAST_ERRORS = 0.01
"""Share of requests whose failure is nobody's night's sleep."""

_MOST_SLEEPERS = 8
"""An alarm reckons with ten metrics at the most. Models sleep and wake together, so that some speak for all."""

_QUEUE = 16
"""Requests that one replica has waiting, on average, where nothing says how many are too many."""


def errors_alarm(serving: Serving, fleet: Fleet) -> str:
    """Name of the alarm on failed requests, which takes a deployment back."""
    return f"{fleet.name}-{serving.name}-errors"


def errors(stack: Any, fleet: Fleet, serving: Serving, stream: Stream) -> Any:
    """Adds the alarm on the share of requests that the router answers with an error."""
    router = serving.router
    # What finds no engine at all is an error, and no request of any.
    share = "FILL(errors, 0) / (FILL(requests, 0) + FILL(errors, 0) + 0.001)"
    sleepers = {f"up{number}": one for number, one in enumerate(serving.sleepers[:_MOST_SLEEPERS])}
    awake = " AND ".join(f"{up} > 0" for up in sleepers)
    return alarm.alarm(
        stack,
        "errors-alarm",
        topic=fleet.alarms_to,
        name=errors_alarm(serving, fleet),
        description=f"Requests to {serving.name} fail",
        threshold=max(serving.errors, _LEAST_ERRORS),
        metric_query=[
            metric("requests", stream, router, "requests", "Sum"),
            metric("errors", stream, router, "errors", "Sum"),
            *(metric(up, stream, one, "up", "Sum") for up, one in sleepers.items()),
            # Who is refused while a role sleeps wakes it: that is no failure.
            reckoned("share", f"IF({awake}, {share}, 0)" if awake else share, "Share of requests that failed"),
        ],
    )


def queue(stack: Any, fleet: Fleet, serving: Serving, stream: Stream, service: Service) -> None:
    """Adds the alarm on requests that wait longer than scaling takes to help."""
    own = service.scale.target if service.scale and service.scale.metric == "queue" else _QUEUE / 4
    alarm.alarm(
        stack,
        f"{service.role}-queue-alarm",
        topic=fleet.alarms_to,
        name=f"{fleet.name}-{serving.name}-{service.role}-queue",
        description=f"Requests wait for {serving.name}'s {service.role}",
        threshold=4 * own,
        periods=10,
        metric_query=[metric("queue", stream, service, "queue", "Average", returned=True)],
    )


def running(stack: Any, fleet: Fleet, serving: Serving, service: Service, ecs_names: Sequence[str]) -> None:
    """Adds the alarm on tasks that are missing: they do not start, or are ended for not answering."""
    each = [
        alarm.metric(
            f"choice{number}",
            namespace="ECS/ContainerInsights",
            name="RunningTaskCount",
            dimensions={"ClusterName": names.cluster(fleet), "ServiceName": name},
            stat="Minimum",
        )
        for number, name in enumerate(ecs_names)
    ]
    total = " + ".join(f"FILL(choice{number}, 0)" for number in range(len(ecs_names)))
    alarm.alarm(
        stack,
        f"{service.name}-running-alarm",
        topic=fleet.alarms_to,
        name=f"{fleet.name}-{serving.name}-{service.name}-running",
        description=f"Tasks of {serving.name}'s {service.name} are missing",
        threshold=service.count,
        comparison="LessThanThreshold",
        periods=15,
        missing="breaching",
        metric_query=[*each, reckoned("all", total, "Tasks that run")],
    )
