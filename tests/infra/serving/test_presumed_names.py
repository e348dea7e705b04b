"""The names that a deployment's stack takes for granted are those of its own resources or of the fleet's."""

from __future__ import annotations

import copy

import pytest

from tests.infra.deployments import Stack
from tests.infra.presumed_names import find_missing


def test_what_a_deployment_names_is_made_by_its_own_stack_or_the_fleets(all_stacks: dict[str, Stack]) -> None:
    assert find_missing(all_stacks) == []


@pytest.mark.parametrize(
    ("owner", "resource_type", "missing"),
    [
        ("single", "aws_cloudwatch_log_group", 'single: log group "/aws/ecs/fabric/serving/single"'),
        ("storage", "aws_ecr_repository", 'single: repository "fabric/vllm"'),
        ("storage", "aws_ecr_pull_through_cache_rule", 'single: repository "fabric-ecr/aws-observability/'),
        ("ecs", "aws_ecs_cluster_capacity_providers", 'single: capacity provider "cp-fabric-alone-g6e-a-od"'),
        ("ecs", "aws_ecs_cluster", 'single: cluster "fabric"'),
        ("ecs", "aws_kms_alias", 'single: key alias "alias/fabric-ecs"'),
        ("ecs", "aws_service_discovery_private_dns_namespace", 'single: namespace "fabric.internal"'),
        ("network", "aws_subnet", 'single: subnet "fabric-private-us-west-2a"'),
        ("network", "aws_vpc", 'single: vpc "fabric"'),
    ],
)
def test_a_name_that_no_stack_makes_is_reported(
    all_stacks: dict[str, Stack], owner: str, resource_type: str, missing: str
) -> None:
    stacks = copy.deepcopy(all_stacks)
    del stacks[owner]["resource"][resource_type]
    assert any(line.startswith(missing) for line in find_missing(stacks))
