"""The EKS stack's machines, identities and rules, in the synthesized text; each rule with its negative control."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from infra import groups
from infra.catalog import eks, instances
from infra.fleet import Fleet
from infra.settings import load
from scripts.rehearsal import unheld
from tests.infra.stacks import rules

Stacks = dict[tuple[str, str], dict[str, Any]]
Stack = dict[str, Any]


@pytest.fixture(scope="module")
def machines(stacks: Stacks) -> Stack:
    return stacks["machines", "eks"]


@pytest.fixture(scope="module")
def kept(synthesized: Any) -> dict[str, groups.Group]:
    fleet = load(synthesized / "machines" / "fleet.yaml", Fleet).value
    return {one.name: one for one in groups.groups(fleet, instances.load()) if one.kind == "node-group"}


def template(stack: Stack, name: str) -> dict[str, Any]:
    made: dict[str, Any] = stack["resource"]["aws_launch_template"][f"{name}-template"]
    return made


def wrong_interfaces(stack: Stack, kept: dict[str, groups.Group]) -> Iterator[str]:
    """EFA groups whose template asks for other interfaces than the catalogue's layout."""
    for name, group in kept.items():
        asked = [
            (one["network_card_index"], one["device_index"], one["interface_type"])
            for one in template(stack, name).get("network_interfaces", [])
        ]
        if group.efa and asked != [(one.card, one.device, one.kind) for one in group.interfaces]:
            yield name


def test_efa_interfaces_lie_on_the_cards_that_the_catalogue_names(
    machines: Stack, kept: dict[str, groups.Group]
) -> None:
    assert list(wrong_interfaces(machines, kept)) == []
    wide = template(machines, "wide-p5-48xlarge-a-od")["network_interfaces"]
    block = template(machines, "block-p5en-48xlarge-c-cb")["network_interfaces"]
    assert [sum(one["interface_type"] == kind for one in wide) for kind in ("efa-only", "interface")] == [32, 8]
    assert [sum(one["interface_type"] == kind for one in block) for kind in ("efa-only", "interface")] == [16, 1]


def test_an_interface_on_the_wrong_card_is_caught(machines: Stack, kept: dict[str, groups.Group]) -> None:
    wrong = copy.deepcopy(machines)
    template(wrong, "block-p5en-48xlarge-c-cb")["network_interfaces"][3]["network_card_index"] = 7
    assert list(wrong_interfaces(wrong, kept)) == ["block-p5en-48xlarge-c-cb"]


def over_zones(stack: Stack, kept: dict[str, groups.Group]) -> list[str]:
    """EFA groups that may stand in several zones."""
    made = stack["resource"]["aws_eks_node_group"]
    return [name for name, group in kept.items() if group.efa and len(made[name]["subnet_ids"]) != 1]


def test_an_efa_group_stands_in_one_zone(machines: Stack, kept: dict[str, groups.Group]) -> None:
    assert sum(group.efa > 0 for group in kept.values()) == 4
    assert over_zones(machines, kept) == []


def test_a_second_zone_is_caught(machines: Stack, kept: dict[str, groups.Group]) -> None:
    wrong = copy.deepcopy(machines)
    wrong["resource"]["aws_eks_node_group"]["wide-p5-48xlarge-a-od"]["subnet_ids"].append("subnet-1")
    assert over_zones(wrong, kept) == ["wide-p5-48xlarge-a-od"]


def self_rules(stack: Stack) -> set[str]:
    """Directions in which EFA's group lets through everything of its own."""
    return {
        direction
        for direction in ("ingress", "egress")
        for _, rule in rules.resources(stack, f"aws_vpc_security_group_{direction}_rule")
        if rule["security_group_id"] == rule["referenced_security_group_id"] == "${aws_security_group.efa.id}"
        and rule["ip_protocol"] == "-1"
    }


def test_efas_group_lets_its_own_in_and_out(machines: Stack) -> None:
    assert self_rules(machines) == {"ingress", "egress"}


def test_a_missing_self_rule_is_caught(machines: Stack) -> None:
    wrong = copy.deepcopy(machines)
    del wrong["resource"]["aws_vpc_security_group_egress_rule"]
    assert self_rules(wrong) == {"ingress"}


def open_machines(stack: Stack) -> list[str]:
    """Templates whose machines hand their role to containers, or answer without a token, or write in the clear."""
    return [
        address
        for address, settings in rules.resources(stack, "aws_launch_template")
        if settings["metadata_options"]["http_tokens"] != "required"
        or settings["metadata_options"]["http_put_response_hop_limit"] != 1
        or any(one["ebs"]["encrypted"] != "true" for one in settings["block_device_mappings"])
    ]


def test_machines_keep_their_role_to_themselves_and_encrypt(machines: Stack) -> None:
    assert open_machines(machines) == []


def test_a_machine_that_answers_containers_is_caught(machines: Stack) -> None:
    wrong = copy.deepcopy(machines)
    template(wrong, "system")["metadata_options"]["http_put_response_hop_limit"] = 2
    assert open_machines(wrong) == ["aws_launch_template.system-template"]


def test_volumes_are_as_fast_as_the_way_images_start_needs(machines: Stack) -> None:
    [root] = template(machines, "odcr-g6e-12xlarge-a-cr")["block_device_mappings"]
    assert (root["ebs"]["throughput"], root["ebs"]["iops"]) == (1000, 16_000)
    os, data = template(machines, "rocket-g6e-2xlarge-a-od")["block_device_mappings"]
    assert (os["device_name"], os["ebs"]["volume_size"], data["device_name"]) == ("/dev/xvda", 4, "/dev/xvdb")
    [pulled] = [name for name in machines["resource"]["aws_launch_template"] if name.startswith("pulled-")]
    _, images = machines["resource"]["aws_launch_template"][pulled]["block_device_mappings"]
    assert images["ebs"]["snapshot_id"] == "snap-0123456789abcdef0"


def test_images_are_pinned_or_the_users_own(machines: Stack) -> None:
    for _, parameter in rules.resources({"resource": machines["data"]}, "aws_ssm_parameter"):
        assert f"-1.36-{eks.AL2023}/image_id" in parameter["name"]
    assert template(machines, "rocket-g6e-2xlarge-a-od")["image_id"] == "ami-0123456789abcdef0"


def test_every_add_on_is_pinned_for_the_clusters_version(machines: Stack) -> None:
    made = machines["resource"]["aws_eks_addon"]
    assert {name: one["addon_version"] for name, one in made.items()} == {
        row.name: row.versions["1.36"] for row in eks.ADD_ONS
    }


def test_what_calls_aws_has_a_role_for_this_cluster_alone(stacks: Stacks) -> None:
    stack = stacks["eks", "eks"]
    trusted = [
        statement
        for address, statement in rules.statements(stack)
        if address.startswith("aws_iam_role.") and statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    ]
    assert len(trusted) == 8  # five add-ons, Karpenter, the load balancer controller, the autoscaler
    for statement in trusted:
        assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        assert statement["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(":cluster/demo")


WITHOUT_RESOURCE = ("ec2:Describe", "ec2:Get", "elasticloadbalancing:Describe", "autoscaling:Describe", "fsx:Describe")
"""Actions that take no resource."""

ALSO_WITHOUT = {"pricing:GetProducts", "acm:ListCertificates", "acm:DescribeCertificate"}


def broad(stack: Stack) -> Iterator[str]:
    """Statements that allow on every resource what takes a resource."""
    for address, statement in rules.statements(stack):
        if address.startswith("aws_iam_role_policy.") and statement["Resource"] == "*":
            wide = {action for action in statement["Action"] if not action.startswith(WITHOUT_RESOURCE)}
            if wide - ALSO_WITHOUT:
                yield f"{address} {sorted(wide - ALSO_WITHOUT)}"


@pytest.mark.parametrize("shape", ["eks", "machines"])
def test_every_resource_is_allowed_only_where_aws_knows_none(stacks: Stacks, shape: str) -> None:
    assert list(broad(stacks[shape, "eks"])) == []


def test_a_resource_too_wide_is_caught(stacks: Stacks) -> None:
    wrong = copy.deepcopy(stacks["eks", "eks"])
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["iam:PassRole"], "Resource": "*"}]}
    wrong["resource"]["aws_iam_role_policy"]["karpenter-role-policy"]["policy"] = json.dumps(policy)
    assert list(broad(wrong)) == ["aws_iam_role_policy.karpenter-role-policy ['iam:PassRole']"]


def test_names_of_roles_fit_with_the_longest_fleet_and_region(stacks: Stacks) -> None:
    longest = len("f" * 32) + len("ap-southeast-2") - len("demo") - len("us-west-2")
    for _, role in rules.resources(stacks["eks", "eks"], "aws_iam_role"):
        assert len(role["name"]) + longest <= 64, role["name"]


def references(stack: Stack) -> set[str]:
    """Kinds that a rehearsal leaves out, and whose attributes something reads: `count = 0` would break that.

    A splat reads what is there, and nothing where nothing is.
    """
    kinds = "|".join(unheld.REASONS)
    return set(re.findall(rf"\$\{{[^}}]*?({kinds})\.[A-Za-z0-9_-]+(?!\[\*\]|[A-Za-z0-9_-])", str(stack)))


def test_reading_what_is_left_out_is_caught() -> None:
    assert references({"a": "${aws_placement_group.close.name}"}) == {"aws_placement_group"}
    assert references({"depends_on": ["aws_placement_group.close"]}) == set()
    assert references({"a": "${one(aws_placement_group.close[*].name)}"}) == set()


@pytest.mark.parametrize("shape", ["eks", "existing", "machines"])
def test_nothing_reads_what_the_embedded_aws_leaves_out(stacks: Stacks, shape: str) -> None:
    assert references(stacks[shape, "eks"]) == set()


def test_who_acts_by_a_role_waits_for_its_rights_and_goes_before_them(machines: Stack) -> None:
    made = machines["resource"]
    assert set(made["aws_eks_cluster"]["cluster"]["depends_on"]) == {
        "aws_cloudwatch_log_group.cluster-logs",
        "aws_iam_role_policy_attachment.cluster-role-AmazonEKSClusterPolicy",
        "aws_iam_role_policy.cluster-role-policy",
    }
    for group in made["aws_eks_node_group"].values():
        rights = {one for one in group["depends_on"] if one.startswith("aws_iam_role_policy_attachment.node-role-")}
        assert len(rights) == 3
    assert (
        "aws_iam_role_policy_attachment.vpc-cni-role-AmazonEKS_CNI_Policy"
        in made["aws_eks_addon"]["vpc-cni"]["depends_on"]
    )
