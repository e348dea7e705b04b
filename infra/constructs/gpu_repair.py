"""What replaces ECS instances whose GPUs fail or whose agent is lost, and drains those of Capacity Blocks that end: the
function, its queue, and what fills that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from infra.bindings import aws
from infra.constructs import alarm, iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.function import add_failure_alarm, add_function
from infra.functions.gpu_repair import STOP_TAG
from llm_serving.fleet import groups, names
from llm_serving.fleet.groups import Group

NAME = "gpu-repair"

_TIMEOUT_S = 30


def add_gpu_repair(stack: FleetStack, machine_groups: Sequence[Group], *, key: aws.kms_key.KmsKey) -> None:
    """Add the function and its queue, the rules that fill it, and the alarm on replacements that wait."""
    # The function sets the tag, and only a person takes it away, not the next apply.
    provider = cast(aws.provider.AwsProvider, stack.node.find_child("aws"))
    provider.ignore_tags = [aws.provider.AwsProviderIgnoreTags(keys=[STOP_TAG])]
    rules = _add_rules(stack)
    blocks = [
        {
            "id": group.reservation,
            "pool": group.pool,
            "group": groups.format_scaling_group_name(stack.fleet, group),
        }
        for group in machine_groups
        if group.purchase_option == "capacity-block"
    ]
    policies = ["gpu-repair", *(("capacity-blocks", "ecs-capacity-blocks") if blocks else ())]
    queue = _add_queue(stack, rules, {"cluster": stack.cluster_name, **({"blocks": blocks} if blocks else {})})
    repair_function = add_function(
        stack,
        NAME,
        key=key,
        source="gpu_repair",
        description="Replaces instances whose GPUs fail or whose agent is lost",
        statements=[
            statement
            for name in policies
            for statement in iam.read_statements(stack, name, queue=queue.arn, stop_tag=STOP_TAG)
        ],
        timeout_s=_TIMEOUT_S,
    )
    aws.lambda_event_source_mapping.LambdaEventSourceMapping(
        stack, f"{NAME}-calls", event_source_arn=queue.arn, function_name=repair_function.arn, batch_size=10
    )
    add_failure_alarm(stack, NAME)
    # Rings where broken instances wait: for the limits, or for a person after a storm.
    alarm.add_cluster_alarm(
        stack,
        f"{NAME}-waiting-alarm",
        "waiting-repairs",
        name="repairs-waiting",
        description=f"Broken instances wait to be replaced; see the log of {NAME} for what they wait for",
        threshold=0,
    )


def _add_rules(stack: FleetStack) -> dict[str, aws.cloudwatch_event_rule.CloudwatchEventRule]:
    """Call when ECS finds an instance impaired, and each minute: an event may be lost, and a lost agent has none."""
    health_pattern = {
        "source": ["aws.ecs"],
        "detail-type": ["ECS Container Instance Health Change"],
        "detail": {
            "clusterArn": [stack.account.build_arn("ecs", f"cluster/{stack.cluster_name}")],
            "overallStatus": ["IMPAIRED"],
        },
    }
    minutely = "Each minute: lost agents, instances that wait to be replaced, and drains without end"
    return {
        "health": alarm.add_rule(stack, f"{NAME}-health", "At once: ECS finds an instance impaired", health_pattern),
        "minute": alarm.add_rule(stack, f"{NAME}-minute", minutely, schedule="rate(1 minute)"),
    }


def _add_queue(
    stack: FleetStack, rules: Mapping[str, aws.cloudwatch_event_rule.CloudwatchEventRule], call: Mapping[str, object]
) -> aws.sqs_queue.SqsQueue:
    """Add the queue, by which the function is called once at a time, and have the rules fill it."""
    name = f"{names.format_function_name(stack.fleet, NAME)}.fifo"
    arn = stack.account.build_arn("sqs", name)
    from_rules = iam.allow_rules("FromRules", arn, [rule.arn for rule in rules.values()])
    queue = aws.sqs_queue.SqsQueue(
        stack,
        f"{NAME}-queue",
        name=name,
        fifo_queue=True,
        # Events of one second are one call.
        content_based_deduplication=True,
        message_retention_seconds=300,  # each minute brings another
        # A call that failed comes again after that; no two run at once.
        visibility_timeout_seconds=_TIMEOUT_S + 15,
        sqs_managed_sse_enabled=True,
        policy=iam.build_document(from_rules, iam.require_tls("sqs:*", arn)),
    )
    for purpose, rule in rules.items():
        aws.cloudwatch_event_target.CloudwatchEventTarget(
            stack,
            f"{NAME}-{purpose}-target",
            rule=rule.name,
            arn=queue.arn,
            target_id="queue",
            sqs_target={"message_group_id": stack.cluster_name},
            input_transformer={
                "input_paths": {"at": "$.time"},
                "input_template": f'{json.dumps(call)[:-1]}, "at": <at>}}',
            },
        )
    return queue
