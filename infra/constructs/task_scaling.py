"""What makes a role's tasks come and go: between one and many by the engine's own load, to none and back by requests.

Tracking a target neither leaves 0, since it multiplies the tasks that there are, nor sees a role without a task, which
has no load. So a role whose least is 0 has alarms and steps beside it: requests that find no replica bring the first,
and replicas that nobody asked for a while go. What they read is counted by the router's and the replicas' collectors
(infra/constructs/collector.py).

Source: Application Auto Scaling user guide, "Target tracking scaling policies" and "Step scaling policies"; EC2 Auto
Scaling user guide, "Target tracking scaling policies" (a capacity of 0 is not scaled); 2026-11. Never seen on AWS.
"""

from __future__ import annotations

import math
from typing import Any

from infra.bindings import aws
from infra.constructs import alarm, collector
from infra.constructs.alarm import reckoned
from infra.constructs.collector import EVERY_S, Stream
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import MACHINES_S, Service, Serving

_LEAST_QUIET_S = 120
"""A replica is not sent away for a pause shorter than that."""

_MOST_S = 300
"""Longest that tracking waits for a replica that was just asked for: it loads its weights, and takes nothing off the
others until then."""

_LATE_S = 300


def scaling(stack: Any, fleet: Fleet, serving: Serving, service: Service, stream: Stream, ecs_service: Any) -> None:
    """Adds the scaling of a role's first choice; the fallback moves what finds no machine there."""
    assert service.scale
    scaled: dict[str, Any] = {
        "service_namespace": "ecs",
        "scalable_dimension": "ecs:service:DesiredCount",
        "resource_id": f"service/{names.cluster(fleet)}/{ecs_service.name}",
    }
    target = aws.appautoscaling_target.AppautoscalingTarget(
        stack, f"{service.name}-scaling", **scaled, min_capacity=service.count, max_capacity=service.scale.most
    )
    scaled["depends_on"] = [target]
    _track(stack, service, stream, scaled, ecs_service.name)
    if service.sleeps:
        whose = f"{fleet.name}-{serving.name}-{service.role}"
        _wake(stack, serving, service, stream, scaled, whose)
        _sleep(stack, serving, service, stream, scaled, whose)
        _late(stack, serving, service, stream, whose, fleet.alarms_to)


def metric(identity: str, stream: Stream, service: Service, name: str, stat: str, **more: Any) -> Any:
    """A metric that the service's tasks send, by our name of it."""
    return alarm.metric(
        identity,
        namespace=stream.namespace,
        name=collector.sent(service, stream)[name],
        dimensions=_dimensions(stream, service),
        stat=stat,
        **more,
    )


def _track(stack: Any, service: Service, stream: Stream, scaled: dict[str, Any], name: str) -> None:
    """The measure is of one replica, on average, so that more replicas bring it down."""
    scale = service.scale
    assert scale
    p = aws.appautoscaling_policy
    configuration = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfiguration
    specification = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecification
    dimension = p.AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecificationDimensions
    load = specification(
        namespace=stream.namespace,
        metric_name=collector.sent(service, stream)[scale.metric],
        statistic="Average",
        dimensions=[dimension(name=key, value=value) for key, value in _dimensions(stream, service).items()],
    )
    p.AppautoscalingPolicy(
        stack,
        f"{service.name}-scaling-policy",
        name=f"{name}-{scale.metric}",
        policy_type="TargetTrackingScaling",
        **scaled,
        target_tracking_scaling_policy_configuration=configuration(
            target_value=scale.target,
            scale_in_cooldown=scale.cool_down,
            scale_out_cooldown=min(scale.cool_down, _MOST_S),
            customized_metric_specification=_down_to_one(service, stream) if service.sleeps else load,
        ),
    )


def _down_to_one(service: Service, stream: Stream) -> Any:
    """The measure of a role that may sleep, which asks for one replica at the least.

    One that works off its requests at once has an empty queue. Tracking would take that for nothing to do, and end it.
    """
    assert service.scale
    p = aws.appautoscaling_policy
    prefix = "AppautoscalingPolicyTargetTrackingScalingPolicyConfigurationCustomizedMetricSpecification"
    query = getattr(p, f"{prefix}Metrics")

    def read(identity: str, name: str, stat: str) -> Any:
        made = getattr(p, f"{prefix}MetricsMetricStatMetric")(
            namespace=stream.namespace,
            metric_name=collector.sent(service, stream)[name],
            dimensions=[
                getattr(p, f"{prefix}MetricsMetricStatMetricDimensions")(name=key, value=value)
                for key, value in _dimensions(stream, service).items()
            ],
        )
        stat_of = getattr(p, f"{prefix}MetricsMetricStat")(metric=made, stat=stat)
        return query(id=identity, metric_stat=stat_of, return_data=False)

    # Each replica is seen so often in a minute, give or take one.
    one = f"{service.scale.target:g} / FLOOR(up / {alarm.PERIOD_S // EVERY_S} + 0.5)"
    return getattr(p, prefix)(
        metrics=[
            read("load", service.scale.metric, "Average"),
            read("up", "up", "Sum"),
            query(id="one", expression=one, label="What one replica of them all would measure", return_data=False),
            query(id="measure", expression="IF(load > one, load, one)", label="Load", return_data=True),
        ]
    )


def _wake(stack: Any, serving: Serving, service: Service, stream: Stream, scaled: dict[str, Any], whose: str) -> None:
    """From none to one: a request came, and no replica is there.

    The router refuses it where it knows no engine at all, and passes it on where another model's is there. If several
    replicas are gone at once, this leaves one of them, and tracking brings the others back.
    """
    policy = _step(stack, service, scaled, f"{whose}-wake", "wake", count=1, metric_interval_lower_bound="0")
    for counted in ("errors", "requests"):
        made = alarm.alarm(
            stack,
            f"{service.role}-wake-{counted}",
            name=f"{whose}-wake-{counted}",
            description=f"Requests come to {serving.name}, and {service.role} sleeps",
            threshold=0,
            periods=1,
            metric_query=[
                metric("up", stream, service, "up", "Sum"),
                metric("came", stream, serving.router, counted, "Sum"),
                reckoned("asked", "IF(up == 0, came, 0)", "Requests that found no replica"),
            ],
        )
        made.add_override("alarm_actions", policy)


def _sleep(stack: Any, serving: Serving, service: Service, stream: Stream, scaled: dict[str, Any], whose: str) -> None:
    """From any number to none: a replica was there all the time, the router too, and nobody asked."""
    assert service.scale
    router = serving.router
    policy = _step(stack, service, scaled, f"{whose}-sleep", "sleep", count=0, metric_interval_upper_bound="0")
    asked = "FILL(requests, 0) + FILL(errors, 0) + FILL(running, 0)"
    made = alarm.alarm(
        stack,
        f"{service.role}-sleep-alarm",
        name=f"{whose}-sleep",
        description=f"Nobody asks {serving.name}: {service.role} may sleep",
        threshold=1,
        comparison="LessThanThreshold",
        periods=math.ceil(max(_LEAST_QUIET_S, service.scale.cool_down) / alarm.PERIOD_S),
        metric_query=[
            metric("up", stream, service, "up", "Sum"),
            metric("running", stream, service, "running", "Sum"),
            metric("alive", stream, router, "up", "Sum"),
            metric("requests", stream, router, "requests", "Sum"),
            metric("errors", stream, router, "errors", "Sum"),
            # What is not known is no quiet: with the router's collector gone, every minute would look so.
            reckoned("asked", f"IF(up > 0 AND alive > 0, {asked}, 1)", "Requests that came or are under way"),
        ],
    )
    made.add_override("alarm_actions", policy)


def _late(stack: Any, serving: Serving, service: Service, stream: Stream, whose: str, topic: str | None) -> None:
    """The alarm on a role that is asked and does not wake: no machine comes, or the engine does not start."""
    start_s = MACHINES_S + service.fetch_s + (service.probe.deadline_s if service.probe else 0)
    alarm.alarm(
        stack,
        f"{service.role}-late-alarm",
        topic=topic,
        name=f"{whose}-late",
        description=f"{serving.name}'s {service.role} is asked, and does not wake",
        threshold=0,
        periods=math.ceil(start_s / _LATE_S),
        metric_query=[
            metric("up", stream, service, "up", "Sum", period_s=_LATE_S),
            metric("requests", stream, serving.router, "requests", "Sum", period_s=_LATE_S),
            metric("errors", stream, serving.router, "errors", "Sum", period_s=_LATE_S),
            reckoned("asked", "IF(up == 0, FILL(requests, 0) + FILL(errors, 0), 0)", "Requests that found no replica"),
        ],
    )


def _step(
    stack: Any, service: Service, scaled: dict[str, Any], name: str, part: str, *, count: int, **bound: str
) -> str:
    """Adds a policy that sets the count, and returns what an alarm names it by.

    A count that is set is the same however often it is asked for, while the first replica takes its minutes to come.
    """
    p = aws.appautoscaling_policy
    configuration = p.AppautoscalingPolicyStepScalingPolicyConfiguration
    adjustment = p.AppautoscalingPolicyStepScalingPolicyConfigurationStepAdjustment
    made = p.AppautoscalingPolicy(
        stack,
        f"{service.name}-{part}-policy",
        name=name,
        policy_type="StepScaling",
        **scaled,
        step_scaling_policy_configuration=configuration(
            adjustment_type="ExactCapacity",
            metric_aggregation_type="Maximum",
            cooldown=alarm.PERIOD_S,
            step_adjustment=[adjustment(scaling_adjustment=count, **bound)],
        ),
    )
    # A splat: a rehearsal leaves the policy out.
    return f"${{{made.terraform_resource_type}.{made.friendly_unique_id}[*].arn}}"


def _dimensions(stream: Stream, service: Service) -> dict[str, str]:
    return {"deployment": stream.deployment, "role": service.role}
