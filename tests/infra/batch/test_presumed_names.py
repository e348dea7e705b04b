"""The names that a batch's stack takes for granted are those of its own resources or of the fleet's."""

from __future__ import annotations

import copy

from tests.infra.deployments import Stack
from tests.infra.presumed_names import find_missing


def test_what_a_batch_names_is_made_by_its_own_stack_or_the_fleets(all_stacks: dict[str, Stack]) -> None:
    assert find_missing(all_stacks) == []


def test_a_cluster_without_fargates_capacity_providers_is_reported(all_stacks: dict[str, Stack]) -> None:
    stacks = {name: copy.deepcopy(all_stacks[name]) for name in ("outside", "ecs", "network", "storage")}
    [association] = stacks["ecs"]["resource"]["aws_ecs_cluster_capacity_providers"].values()
    association["capacity_providers"].remove("FARGATE_SPOT")
    assert find_missing(stacks) == []  # its workers take no spot capacity
    association["capacity_providers"].remove("FARGATE")
    assert find_missing(stacks) == ['outside: capacity provider "FARGATE"']
