"""What lets roles on ECS fall back between a pool's choices: the function, and when it is called."""

from __future__ import annotations

import json
from typing import Any

from infra.bindings import aws
from infra.constructs.account import Account
from infra.constructs.function import function, invoked_by
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

NAME = "ecs-fallback"

_TIMEOUT_S = 55
"""Less than the minute in which it is called again."""


def fallback(stack: Any, fleet: Fleet, *, key: Any, account: Account) -> None:
    """Adds the function and its two rules."""
    made = function(
        stack,
        NAME,
        fleet=fleet,
        account=account,
        key=key,
        source="ecs_fallback",
        description="Moves tasks that find no machine to the next choice of their pool",
        statements=_statements(fleet, account),
        timeout_s=_TIMEOUT_S,
    )
    cluster = names.cluster(fleet)
    rule = aws.cloudwatch_event_rule.CloudwatchEventRule
    each_minute = rule(
        stack,
        f"{NAME}-minute",
        name=f"{fleet.name}-{NAME}-minute",
        description="Each minute: tasks that wait too long, and those that are served again",
        schedule_expression="rate(1 minute)",
    )
    invoked_by(
        stack, f"{NAME}-minute", function=made, rule=each_minute, event={"input": json.dumps({"cluster": cluster})}
    )
    failed = rule(
        stack,
        f"{NAME}-failed",
        name=f"{fleet.name}-{NAME}-failed",
        description="At once: a group could not start a machine",
        event_pattern=json.dumps(
            {
                "source": ["aws.autoscaling"],
                "detail-type": ["EC2 Instance Launch Unsuccessful"],
                "detail": {"AutoScalingGroupName": [{"prefix": f"{fleet.name}-"}]},
            }
        ),
    )
    transformer = aws.cloudwatch_event_target.CloudwatchEventTargetInputTransformer(
        input_paths={"group": "$.detail.AutoScalingGroupName"},
        # EventBridge puts the quotes of a text itself.
        input_template=f'{{"cluster": {json.dumps(cluster)}, "failed_group": <group>}}',
    )
    invoked_by(stack, f"{NAME}-failed", function=made, rule=failed, event={"input_transformer": transformer})


def _statements(fleet: Fleet, account: Account) -> list[dict[str, Any]]:
    """Reads this cluster, and changes services that are somebody's fallback: never a first choice.

    Source: service authorization reference, "Amazon Elastic Container Service", 2026-11.
    """
    cluster = names.cluster(fleet)
    in_cluster = {"ArnEquals": {"ecs:cluster": account.arn("ecs", f"cluster/{cluster}")}}
    services = account.arn("ecs", f"service/{cluster}/*")
    return [
        # AWS takes no resource for the first, and none that names a service for the second.
        {
            "Sid": "List",
            "Effect": "Allow",
            "Action": ["ecs:ListServices", "ecs:ListTasks"],
            "Resource": "*",
            "Condition": in_cluster,
        },
        {
            "Sid": "Read",
            "Effect": "Allow",
            "Action": ["ecs:DescribeServices", "ecs:DescribeTasks"],
            "Resource": [services, account.arn("ecs", f"task/{cluster}/*")],
        },
        # AWS takes no resource.
        {"Sid": "ReadDefinitions", "Effect": "Allow", "Action": ["ecs:DescribeTaskDefinition"], "Resource": "*"},
        {
            "Sid": "Move",
            "Effect": "Allow",
            "Action": ["ecs:UpdateService"],
            "Resource": services,
            "Condition": {
                "StringNotEquals": {"aws:ResourceTag/choice": "0"},
                "Null": {"aws:ResourceTag/fallback": "false"},
            },
        },
    ]
