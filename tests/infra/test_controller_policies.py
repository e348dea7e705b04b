"""Each controller may do what its maker publishes for the pinned version, or the data says why not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from llm_serving.catalog import eks
from llm_serving.fleet import add_ons
from tests.infra import controller_policies
from tests.infra.controller_policies import Comparison, compare, list_actions

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

POLICIES = controller_policies.load_policies()

OWN_ROLES = {"eks": {"engines", "cluster", "node-groups"}, "ecs": {"ecs-fallback", "gpu-repair", "network-test"}}
"""Roles that no maker publishes permissions for, by stack: our engines, tests and Lambdas, and EKS's own."""


def compare_all(stacks: Stacks, name: str) -> Comparison:
    """All differences in any fleet."""
    policy = POLICIES[name]
    comparisons = [compare(policy, permissions) for permissions in controller_policies.list_permissions(stacks, policy)]
    assert comparisons, f"no fleet has the role of {name}"
    return Comparison(
        missing={action for comparison in comparisons for action in comparison.missing},
        narrower={action for comparison in comparisons for action in comparison.narrower},
        extra={action for comparison in comparisons for action in comparison.extra},
    )


@pytest.mark.parametrize("name", POLICIES)
def test_a_controller_may_do_what_its_maker_lists_or_the_data_says_why_not(stacks: Stacks, name: str) -> None:
    policy, differences = POLICIES[name], compare_all(stacks, name)
    assert differences.missing - list_actions(policy.left_out) == set(), "not allowed, and not explained"
    assert list_actions(policy.left_out) - differences.missing == set(), "allowed, and said to be left out"
    assert differences.narrower == list_actions(policy.narrowed)
    assert differences.extra == list_actions(policy.added)


@pytest.mark.parametrize("stack_name", OWN_ROLES)
def test_every_role_that_a_stack_gives_out_is_held_against_its_maker(stacks: Stacks, stack_name: str) -> None:
    roles = {
        role.removesuffix("-role")
        for (_, name), stack in stacks.items()
        if name == stack_name
        for role in stack["resource"]["aws_iam_role"]
    }
    published = {role for policy in POLICIES.values() if policy.stack == stack_name for role in policy.roles}
    assert roles - OWN_ROLES[stack_name] == published


@pytest.mark.parametrize("name", POLICIES)
def test_the_facts_are_of_the_version_that_is_pinned(name: str) -> None:
    pin = POLICIES[name].pinned
    if pin.chart:
        assert {row.version for row in add_ons.load_add_ons() if row.name == pin.chart} == {pin.version}
    elif pin.add_on:
        [row] = [row for row in eks.ADD_ONS if row.name == pin.add_on]
        assert {version.removeprefix("v").partition("-")[0] for version in row.versions.values()} == {pin.version}


def edit_statement(stack: Stack, role: str, action: str, edit: Any) -> Stack:
    """A copy of the stack, with each of the role's statements that allow the action edited."""
    edited_stack = copy.deepcopy(stack)
    [policy] = [
        item
        for item in edited_stack["resource"]["aws_iam_role_policy"].values()
        if item["role"] == f"${{aws_iam_role.{role}-role.name}}"
    ]
    document = json.loads(policy["policy"])
    for statement in document["Statement"]:
        if action in statement["Action"]:
            edit(statement)
    policy["policy"] = json.dumps(document)
    return edited_stack


def test_a_missing_action_a_missing_kind_and_a_new_condition_are_reported(stacks: Stacks) -> None:
    stack = stacks["eks", "eks"]

    def drop_action(statement: Stack) -> None:
        statement["Action"] = [action for action in statement["Action"] if action != "iam:ListInstanceProfiles"]

    def drop_listeners(statement: Stack) -> None:
        statement["Resource"] = [resource for resource in statement["Resource"] if "listener" not in resource]

    def add_condition(statement: Stack) -> None:
        statement["Condition"] = {"StringEquals": {"aws:ResourceTag/team": "serving"}}

    edits: list[tuple[str, str, str, Any]] = [
        ("karpenter", "karpenter", "iam:ListInstanceProfiles", drop_action),
        ("aws-load-balancer-controller", "load-balancers", "elasticloadbalancing:AddTags", drop_listeners),
        ("karpenter", "karpenter", "iam:GetInstanceProfile", add_condition),
    ]
    for name, role, action, edit in edits:
        policy = POLICIES[name]
        edited_stack = edit_statement(stack, role, action, edit)
        permissions = controller_policies.read_permissions(edited_stack, role, "demo")
        assert permissions
        differences = compare(policy, permissions)
        unexplained = (differences.missing - list_actions(policy.left_out)) | (
            differences.narrower - list_actions(policy.narrowed)
        )
        assert action in unexplained, f"{edit.__name__} went unseen"


def test_listeners_and_rules_may_be_tagged_as_they_are_created(stacks: Stacks) -> None:
    permissions = controller_policies.read_permissions(stacks["eks", "eks"], "load-balancers", "demo")
    assert permissions
    kinds = {
        kind
        for statement in permissions.statements
        if "elasticloadbalancing:AddTags" in statement.actions
        and statement.keys == ("aws:RequestTag/elbv2.k8s.aws/cluster",)  # what is created has no tag of its own yet
        for kind in statement.resources
    }
    assert kinds == {"loadbalancer", "targetgroup", "listener", "listener-rule"}


def test_the_table_has_a_line_for_each_controller(stacks: Stacks) -> None:
    table = controller_policies.format_table(stacks)
    assert len(table.splitlines()) == len(POLICIES) + 2
    assert "| Karpenter | 1.14.1 | 32 | 26 | iam:CreateInstanceProfile" in table
