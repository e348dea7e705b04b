"""The EKS stack's machines, identities and rules, in the synthesized text; each rule with its negative control."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from infra import stack_rules
from llm_serving.catalog import eks, instances
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator_gaps

Stacks = dict[tuple[str, str], dict[str, Any]]
Stack = dict[str, Any]


@pytest.fixture(scope="module")
def machines(stacks: Stacks) -> Stack:
    return stacks["machines", "eks"]


def get_template(stack: Stack, name: str) -> dict[str, Any]:
    launch_template: dict[str, Any] = stack["resource"]["aws_launch_template"][f"{name}-template"]
    return launch_template


def test_the_fleet_has_efa_in_both_layouts(machines: Stack) -> None:
    wide_interfaces = get_template(machines, "wide-p5-48xlarge-a-od")["network_interfaces"]
    block = get_template(machines, "block-p5en-48xlarge-c-cb")["network_interfaces"]
    assert [
        sum(interface["interface_type"] == kind for interface in wide_interfaces) for kind in ("efa-only", "interface")
    ] == [32, 8]
    assert [sum(interface["interface_type"] == kind for interface in block) for kind in ("efa-only", "interface")] == [
        16,
        1,
    ]


def test_volumes_have_the_throughput_that_image_pulls_need(machines: Stack) -> None:
    [root] = get_template(machines, "odcr-g6e-12xlarge-a-cr")["block_device_mappings"]
    assert (root["ebs"]["throughput"], root["ebs"]["iops"]) == (1000, 16_000)
    os, data = get_template(machines, "rocket-g6e-2xlarge-a-od")["block_device_mappings"]
    assert (os["device_name"], os["ebs"]["volume_size"], data["device_name"]) == ("/dev/xvda", 4, "/dev/xvdb")
    [template_name] = [name for name in machines["resource"]["aws_launch_template"] if name.startswith("pulled-")]
    _, images = machines["resource"]["aws_launch_template"][template_name]["block_device_mappings"]
    assert images["ebs"]["snapshot_id"] == "snap-0123456789abcdef0"


def test_images_are_pinned_or_the_users(machines: Stack) -> None:
    for _, parameter in stack_rules.list_resources({"resource": machines["data"]}, "aws_ssm_parameter"):
        assert f"-1.36-{eks.AL2023}/image_id" in parameter["name"]
    assert get_template(machines, "rocket-g6e-2xlarge-a-od")["image_id"] == "ami-0123456789abcdef0"


def test_every_add_on_is_pinned_for_the_clusters_version(machines: Stack) -> None:
    add_ons = machines["resource"]["aws_eks_addon"]
    assert {name: add_on["addon_version"] for name, add_on in add_ons.items()} == {
        row.name: row.versions["1.36"] for row in eks.ADD_ONS
    }


def test_every_caller_of_aws_has_a_role_for_this_cluster_alone(stacks: Stacks) -> None:
    stack = stacks["eks", "eks"]
    trusted = [
        statement
        for address, statement in stack_rules.list_statements(stack)
        if address.startswith("aws_iam_role.") and statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    ]
    assert len(trusted) == 9  # five add-ons, Karpenter, the load balancer controller, the autoscaler, the engines
    for statement in trusted:
        assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        assert statement["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(":cluster/demo")


def test_every_node_group_limits_parallel_repairs(machines: Stack) -> None:
    calls = machines["resource"]["aws_lambda_invocation"].values()
    events = {event["group"]: event["repair"] for event in (json.loads(call["input"]) for call in calls)}
    assert set(events) == set(machines["resource"]["aws_eks_node_group"])
    assert all(repair["enabled"] and repair["maxParallelNodesRepairedCount"] == 1 for repair in events.values())


@pytest.mark.parametrize(
    ("most", "stops"),
    [
        (1, {"maxUnhealthyNodeThresholdCount": 1}),
        (8, {"maxUnhealthyNodeThresholdCount": 1}),
        (9, {"maxUnhealthyNodeThresholdPercentage": 20}),
    ],
)
def test_repair_stops_at_a_fifth_of_the_nodes_or_at_the_second_of_few(most: int, stops: dict[str, int]) -> None:
    from infra.constructs import node_repair

    fleet = Fleet(
        name="demo",
        region="us-west-2",
        zones=("us-west-2a",),
        pools={"aa": {"types": "g6e.2xlarge", "size": f"1..{most}", "by": "node-groups"}},
    )
    (group,) = groups.resolve_all(fleet, instances.load())
    assert node_repair.build_repair_config(group) == {"enabled": True, **stops, "maxParallelNodesRepairedCount": 1}


def test_names_of_roles_fit_with_the_longest_fleet_and_region(stacks: Stacks) -> None:
    longest = len("f" * 32) + len("ap-southeast-2") - len("demo") - len("us-west-2")
    for _, role in stack_rules.list_resources(stacks["eks", "eks"], "aws_iam_role"):
        assert len(role["name"]) + longest <= 64, role["name"]


def find_references(stack: Stack) -> set[str]:
    """Kinds that a rehearsal leaves out, and whose attributes something reads: `count = 0` would break that.

    A splat reads what is there, and nothing where nothing is.
    """
    kinds = "|".join(emulator_gaps.REASONS)
    return set(re.findall(rf"\$\{{[^}}]*?({kinds})\.[A-Za-z0-9_-]+(?!\[\*\]|[A-Za-z0-9_-])", str(stack)))


def test_reading_an_attribute_that_is_not_emulated_is_reported() -> None:
    assert find_references({"a": "${aws_placement_group.close.name}"}) == {"aws_placement_group"}
    assert find_references({"depends_on": ["aws_placement_group.close"]}) == set()
    assert find_references({"a": "${one(aws_placement_group.close[*].name)}"}) == set()


@pytest.mark.parametrize("shape", ["eks", "existing", "machines"])
def test_no_stack_reads_an_attribute_that_is_not_emulated(stacks: Stacks, shape: str) -> None:
    assert find_references(stacks[shape, "eks"]) == set()


def test_users_of_a_role_depend_on_its_policies(machines: Stack) -> None:
    resources = machines["resource"]
    assert set(resources["aws_eks_cluster"]["cluster"]["depends_on"]) == {
        "aws_cloudwatch_log_group.cluster-logs",
        "aws_iam_role_policy_attachment.cluster-role-AmazonEKSClusterPolicy",
        "aws_iam_role_policy.cluster-role-policy",
    }
    for group in resources["aws_eks_node_group"].values():
        rights = {
            dependency
            for dependency in group["depends_on"]
            if dependency.startswith("aws_iam_role_policy_attachment.node-role-")
        }
        assert len(rights) == 3
    assert (
        "aws_iam_role_policy_attachment.vpc-cni-role-AmazonEKS_CNI_Policy"
        in resources["aws_eks_addon"]["vpc-cni"]["depends_on"]
    )
