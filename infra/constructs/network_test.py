"""A task definition for each pool with EFA: `blueprint fleet test-network` runs nccl-tests with it on the instances."""

from __future__ import annotations

import json
from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import iam, registry, task_roles
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_log_group
from infra.constructs.task import LogDestination
from llm_serving.catalog import images
from llm_serving.fleet import image_cache as image_names
from llm_serving.fleet import network_test
from llm_serving.fleet.groups import Group

ROLE = "network-test"


def add_network_tests(stack: FleetStack, groups: Sequence[Group], *, key: aws.kms_key.KmsKey) -> None:
    """Add the task definitions, their log group and the role that starts them.

    Args:
        groups: the first group of each pool.
        key: encrypts the log; allows the log group of `fleet.network_test.format_log_group`.
    """
    group_name = network_test.format_log_group(stack.fleet)
    log_group = add_log_group(stack, "network-test-logs", group_name, key, keep_days=30)
    start_role = iam.add_role(
        stack,
        ROLE,
        description="Starts nccl-tests",
        trust=task_roles.build_trust_policy(stack.account),
        statements=(
            *iam.read_statements(stack, "task-start", log_group=log_group.arn),
            *registry.build_statements(stack),
        ),
    )
    image = image_names.rewrite(images.pin(images.NCCL_TESTS), registry.build_prefixes(stack.fleet, stack.account))
    logs = LogDestination(log_group.name, stack.account.region).build_configuration("pool")
    for group in groups:
        aws.ecs_task_definition.EcsTaskDefinition(
            stack,
            f"{group.pool}-network-test",
            family=network_test.format_task_family(stack.fleet, group.pool),
            network_mode="awsvpc",
            requires_compatibilities=["EC2"],
            execution_role_arn=start_role.arn,
            container_definitions=json.dumps([network_test.build_task_container(group, image=image, logs=logs)]),
            depends_on=iam.list_policies(start_role),
        )
