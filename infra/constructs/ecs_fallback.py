"""What lets roles on ECS fall back between a pool's choices, and fits their rollouts: the function, and its calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import alarm, iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.function import add_failure_alarm, add_function, add_trigger
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group

NAME = "ecs-fallback"

_MAX_WAITING, _WAITING_THRESHOLD = 500, 300
"""Tasks in the state PROVISIONING: what ECS allows, and what rings the alarm.

Source: ECS developer guide, "Amazon ECS service quotas", 2026-11; the quota is not adjustable.
"""


def add_fallback(stack: FleetStack, machine_groups: Sequence[Group], *, key: aws.kms_key.KmsKey) -> None:
    """Add the function and its two rules."""
    fallback_function = add_function(
        stack,
        NAME,
        key=key,
        source="ecs_fallback",
        description="Moves tasks that find no instance to the next choice of their pool, and fits rollouts",
        statements=iam.read_statements(stack, "ecs-fallback"),
        timeout_s=55,  # less than the minute in which it is called again
    )
    _add_calls(stack, machine_groups, fallback_function)
    add_failure_alarm(stack, NAME)
    # Rings before ECS starts no task of the cluster any more.
    alarm.add_cluster_alarm(
        stack,
        f"{NAME}-waiting-alarm",
        "waiting-tasks",
        name="tasks-waiting",
        description=f"Many tasks wait for an instance; ECS starts none beyond {_MAX_WAITING} in a cluster",
        threshold=_WAITING_THRESHOLD,
    )


def _add_calls(
    stack: FleetStack, machine_groups: Sequence[Group], function: aws.lambda_function.LambdaFunction
) -> None:
    """Call the function each minute, and as soon as an Auto Scaling group cannot start an instance.

    A cluster has 18 groups at the most, whose names fit in the 2,048 characters of a pattern. Source: EventBridge user
    guide, "Amazon EventBridge quotas", 2026-11.
    """
    names = [groups.format_scaling_group_name(stack.fleet, group) for group in machine_groups]
    description = "Each minute: tasks that wait too long, and those that are served again"
    minute_rule = alarm.add_rule(stack, f"{NAME}-minute", description, schedule="rate(1 minute)")
    add_trigger(stack, function, minute_rule, input=json.dumps({"cluster": stack.cluster_name, "groups": names}))
    failed_starts = {
        "source": ["aws.autoscaling"],
        "detail-type": ["EC2 Instance Launch Unsuccessful"],
        "detail": {"AutoScalingGroupName": names},
    }
    description = "At once: a group could not start an instance"
    failure_rule = alarm.add_rule(stack, f"{NAME}-failed", description, failed_starts)
    transformer = {
        "input_paths": {"group": "$.detail.AutoScalingGroupName"},
        # EventBridge adds the quotes of a string itself.
        "input_template": f'{{"cluster": {json.dumps(stack.cluster_name)}, "failed_group": <group>}}',
    }
    add_trigger(stack, function, failure_rule, input_transformer=transformer)
