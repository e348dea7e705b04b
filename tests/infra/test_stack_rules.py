"""The rules that every stack keeps: kept by all example fleets, and each broken on purpose."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import stack_rules
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import AnswerIsNo
from tests.infra.conftest import EXAMPLES, FLEETS

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

BLOCK = "spanning-p6-b200-48xlarge-c-cb"
"""EFA machines of ads-scale."""


def fleet(synthesized: Path, shape: str) -> Fleet:
    return load(synthesized / shape / "fleet.yaml", Fleet).value


@pytest.mark.parametrize("shape", [*EXAMPLES, *FLEETS])
def test_every_stack_of_every_fleet_keeps_every_rule(synthesized: Path, stacks: Stacks, shape: str) -> None:
    made = {name: stack for (of, name), stack in stacks.items() if of == shape}
    assert len(made) >= 3
    assert list(stack_rules.broken(fleet(synthesized, shape), made)) == []


def of(stack: Stack, kind: str) -> Stack:
    found: Stack = stack["resource"][kind]
    return found


def wrong_card(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"][3]["network_card_index"] = 7


def lost_interface(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"].pop()


def no_efa_at_all(stack: Stack) -> None:
    del of(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"]


def no_ingress(stack: Stack) -> None:
    del of(stack, "aws_vpc_security_group_ingress_rule")["efa-ingress"]


def no_egress(stack: Stack) -> None:
    del of(stack, "aws_vpc_security_group_egress_rule")["efa-egress"]


def egress_to_everybody(stack: Stack) -> None:
    """Which does not stand in for the rule that names the group."""
    rule = of(stack, "aws_vpc_security_group_egress_rule")["efa-egress"]
    del rule["referenced_security_group_id"]
    rule["cidr_ipv4"] = "0.0.0.0/0"


def outside_the_efa_group(stack: Stack) -> None:
    for one in of(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"]:
        one["security_groups"] = ["${aws_security_group.machines.id}"]


def second_zone(stack: Stack) -> None:
    zones = of(stack, "aws_autoscaling_group")[f"{BLOCK}-machines"]["vpc_zone_identifier"]
    zones.append("${data.aws_subnet.private-us-east-1a.id}")


def wildcard_action(stack: Stack) -> None:
    allow(stack, "logs:*", "arn:aws:logs:::*")


def wildcard_resource(stack: Stack) -> None:
    allow(stack, "iam:PassRole", "*")


def allow(stack: Stack, action: str, resource: str) -> None:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    of(stack, "aws_iam_role_policy")["instance-role-policy"]["policy"] = text


def anybody(stack: Stack) -> None:
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
    text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    of(stack, "aws_iam_role")["instance-role"]["assume_role_policy"] = text


def seventh_provider(stack: Stack) -> None:
    default = of(stack, "aws_ecs_cluster_capacity_providers")["capacity-providers"][
        "default_capacity_provider_strategy"
    ]
    default += [default[0]] * (7 - len(default))


def seventh_in_a_service(stack: Stack) -> None:
    service = stack["output"]["strategies"]["value"]["ranking"][0]
    service += [service[0]] * (7 - len(service))


def empty_struct(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["block_device_mappings"].append({})


def without_token(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["metadata_options"]["http_tokens"] = "optional"


def two_hops(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["metadata_options"]["http_put_response_hop_limit"] = 2


def in_the_clear(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["block_device_mappings"][0]["ebs"]["encrypted"] = "false"


def untagged_machines(stack: Stack) -> None:
    of(stack, "aws_autoscaling_group")[f"{BLOCK}-machines"]["tag"] = []


def untagged_volumes(stack: Stack) -> None:
    of(stack, "aws_launch_template")[f"{BLOCK}-template"]["tag_specifications"][1]["tags"] = {}


def untagged_provider(stack: Stack) -> None:
    stack["provider"]["aws"][0]["default_tags"] = []


TEMPLATE = f"aws_launch_template.{BLOCK}-template"
BROKEN: dict[Callable[[Stack], None], str] = {
    wrong_card: f"{TEMPLATE} asks for the interfaces [(0, 0, 'interface'), (0, 1, 'efa-only'), (1, 0, 'efa-only'), (7, 0",
    lost_interface: f"{TEMPLATE} asks for the interfaces",
    no_efa_at_all: f"{TEMPLATE} asks for the interfaces [], and the layout of its type is [(0, 0, 'interface')",
    no_ingress: f"{TEMPLATE}: an EFA interface has no group with an ingress rule for the group itself",
    no_egress: f"{TEMPLATE}: an EFA interface has no group with an egress rule for the group itself",
    egress_to_everybody: f"{TEMPLATE}: an EFA interface has no group with an egress rule for the group itself",
    outside_the_efa_group: f"{TEMPLATE}: an EFA interface has no group with an ingress rule for the group itself",
    second_zone: f"aws_autoscaling_group.{BLOCK}-machines has EFA and stands in 2 zones",
    wildcard_action: "aws_iam_role_policy.instance-role-policy allows ['logs:*']",
    wildcard_resource: "aws_iam_role_policy.instance-role-policy allows ['iam:PassRole'] on every resource",
    anybody: "aws_iam_role.instance-role allows everybody",
    seventh_provider: "aws_ecs_cluster_capacity_providers.capacity-providers has 7 providers in its default strategy",
    seventh_in_a_service: "output.strategies: ranking has a strategy of 7, and ECS takes 6",
    empty_struct: f"resource.{TEMPLATE}.block_device_mappings[",
    without_token: f"{TEMPLATE} gives its role's keys to more than the machine itself",
    two_hops: f"{TEMPLATE} gives its role's keys to more than the machine itself",
    in_the_clear: f"{TEMPLATE} has a volume that is not encrypted",
    untagged_machines: f"aws_autoscaling_group.{BLOCK}-machines does not hand the fleet's tags to its machines",
    untagged_volumes: f"{TEMPLATE} does not tag what EC2 makes from it",
    untagged_provider: "provider.aws does not tag with the fleet's tags",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_stack_that_is_broken_on_purpose_is_caught(
    synthesized: Path, stacks: Stacks, change: Callable[[Stack], None]
) -> None:
    stack = copy.deepcopy(stacks["ads-scale", "ecs"])
    change(stack)
    found = list(stack_rules.broken(fleet(synthesized, "ads-scale"), {"ecs": stack}))
    assert any(line.startswith(f"ecs: {BROKEN[change]}") for line in found), found


def overlap(stack: Stack) -> None:
    subnets = of(stack, "aws_subnet")
    subnets["private-us-east-1b"]["cidr_block"] = subnets["private-us-east-1a"]["cidr_block"]


def outside(stack: Stack) -> None:
    of(stack, "aws_subnet")["private-us-east-1a"]["cidr_block"] = "192.168.0.0/24"


def open_door(stack: Stack) -> None:
    of(stack, "aws_vpc_security_group_ingress_rule")["endpoints-https"]["cidr_ipv4"] = "0.0.0.0/0"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (overlap, "aws_subnet.private-us-east-1a and aws_subnet.private-us-east-1b overlap"),
        (outside, "aws_subnet.private-us-east-1a is outside the VPC"),
        (open_door, "aws_vpc_security_group_ingress_rule.endpoints-https lets the internet in"),
    ],
    ids=["overlap", "outside", "open_door"],
)
def test_a_network_that_is_broken_on_purpose_is_caught(
    synthesized: Path, stacks: Stacks, change: Callable[[Stack], None], line: str
) -> None:
    stack = copy.deepcopy(stacks["ads-scale", "network"])
    change(stack)
    assert list(stack_rules.broken(fleet(synthesized, "ads-scale"), {"network": stack})) == [f"network: {line}"]


def test_an_efa_node_group_in_a_second_zone_is_caught(synthesized: Path, stacks: Stacks) -> None:
    stack = copy.deepcopy(stacks["p5-efa", "eks"])
    of(stack, "aws_eks_node_group")["h100-p5-48xlarge-b-cb"]["subnet_ids"].append("subnet-1")
    assert list(stack_rules.broken(fleet(synthesized, "p5-efa"), {"eks": stack})) == [
        "eks: aws_eks_node_group.h100-p5-48xlarge-b-cb has EFA and stands in 2 zones"
    ]


def test_a_broken_stack_is_not_handed_on_and_the_file_is_not_blamed(synthesized: Path, tmp_path: Path) -> None:
    text = (synthesized / "ads-scale/stacks/ecs/cdk.tf.json").read_text()
    (tmp_path / "cdk.tf.json").write_text(text.replace('"http_tokens": "required"', '"http_tokens": "optional"', 1))
    document = load(synthesized / "ads-scale/fleet.yaml", Fleet)
    stack_rules.require(document, {"ecs": synthesized / "ads-scale/stacks/ecs"})
    with pytest.raises(
        AnswerIsNo,
        match=r"fleet\.yaml: the stacks made from it break rules that every stack keeps\. The mistake is in a construct, "
        r"not in the file; do not apply them:\n  ecs: aws_launch_template\.[a-z0-9-]+ gives its role's keys to more",
    ):
        stack_rules.require(document, {"ecs": tmp_path})
