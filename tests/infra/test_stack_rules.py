"""The rules of all stacks: every example fleet follows them, and each violation is reported."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import stack_rules
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from tests.infra.conftest import EXAMPLES, FLEETS

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

BLOCK = "spanning-p6-b200-48xlarge-c-cb"
"""EFA machines of ads-scale."""


def load_fleet(synthesized: Path, shape: str) -> Fleet:
    return load(synthesized / shape / "fleet.yaml", Fleet).value


@pytest.mark.parametrize("shape", [*EXAMPLES, *FLEETS])
def test_every_stack_of_every_fleet_follows_every_rule(synth_folder: Path, stacks: Stacks, shape: str) -> None:
    shape_stacks = {name: stack for (stack_shape, name), stack in stacks.items() if stack_shape == shape}
    assert len(shape_stacks) >= 3
    assert list(stack_rules.find_violations(load_fleet(synth_folder, shape), shape_stacks)) == []


def filter_by_type(stack: Stack, kind: str) -> Stack:
    resources: Stack = stack["resource"][kind]
    return resources


def quote_reference(stack: Stack) -> None:
    text = '${jsonencode({"account": "data.aws_caller_identity.account.account_id"})}'
    filter_by_type(stack, "aws_ecs_cluster")["cluster"]["name"] = text


def use_wrong_card(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"][3]["network_card_index"] = 7


def drop_interface(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"].pop()


def drop_all_efa(stack: Stack) -> None:
    del filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"]


def drop_ingress(stack: Stack) -> None:
    del filter_by_type(stack, "aws_vpc_security_group_ingress_rule")["efa-ingress"]


def describe_with_apostrophe(stack: Stack) -> None:
    filter_by_type(stack, "aws_security_group")["machines"]["description"] = "The fleet's machines"


def describe_rule_at_length(stack: Stack) -> None:
    filter_by_type(stack, "aws_vpc_security_group_egress_rule")["machines-https"]["description"] = "a" * 256


def drop_egress(stack: Stack) -> None:
    del filter_by_type(stack, "aws_vpc_security_group_egress_rule")["efa-egress"]


def open_egress(stack: Stack) -> None:
    """Replace the rule to the group itself with one to any address."""
    rule = filter_by_type(stack, "aws_vpc_security_group_egress_rule")["efa-egress"]
    del rule["referenced_security_group_id"]
    rule["cidr_ipv4"] = "0.0.0.0/0"


def leave_efa_group(stack: Stack) -> None:
    for interface in filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["network_interfaces"]:
        interface["security_groups"] = ["${aws_security_group.machines.id}"]


def add_second_zone(stack: Stack) -> None:
    zones = filter_by_type(stack, "aws_autoscaling_group")[f"{BLOCK}-machines"]["vpc_zone_identifier"]
    zones.append("${data.aws_subnet.private-us-east-1a.id}")


def allow_any_action(stack: Stack) -> None:
    allow(stack, "logs:*", "arn:aws:logs:::*")


def allow_any_resource(stack: Stack) -> None:
    allow(stack, "iam:PassRole", "*")


def allow_neighbors(stack: Stack) -> None:
    allow(stack, "ecs:StopTask", "arn:aws:ecs:us-east-1:123456789012:task/ads-scale-*")


def hear_neighbors(stack: Stack) -> None:
    rule = filter_by_type(stack, "aws_cloudwatch_event_rule")["ecs-fallback-failed"]
    rule["event_pattern"] = json.dumps({"detail": {"AutoScalingGroupName": [{"prefix": "ads-scale-"}]}})


def allow(stack: Stack, action: str, resource: str) -> None:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    filter_by_type(stack, "aws_iam_role_policy")["instance-role-policy"]["policy"] = text


def allow_anybody(stack: Stack) -> None:
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
    text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    filter_by_type(stack, "aws_iam_role")["instance-role"]["assume_role_policy"] = text


def fill_queue_for_anybody(stack: Stack) -> None:
    queue = filter_by_type(stack, "aws_sqs_queue")["gpu-repair-queue"]
    policy = json.loads(queue["policy"])
    for statement in policy["Statement"]:
        statement.pop("Condition" if statement["Effect"] == "Allow" else "", None)
    queue["policy"] = json.dumps(policy)


def add_seventh_provider(stack: Stack) -> None:
    default = filter_by_type(stack, "aws_ecs_cluster_capacity_providers")["capacity-providers"][
        "default_capacity_provider_strategy"
    ]
    default += [default[0]] * (7 - len(default))


def add_seventh_to_service(stack: Stack) -> None:
    service = stack["output"]["strategies"]["value"]["ranking"][0]
    service += [service[0]] * (7 - len(service))


def clear_struct(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["block_device_mappings"].append({})


def drop_token(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["metadata_options"]["http_tokens"] = "optional"


def allow_two_hops(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["metadata_options"][
        "http_put_response_hop_limit"
    ] = 2


def disable_encryption(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["block_device_mappings"][0]["ebs"][
        "encrypted"
    ] = "false"


def untag_machines(stack: Stack) -> None:
    filter_by_type(stack, "aws_autoscaling_group")[f"{BLOCK}-machines"]["tag"] = []


def untag_volumes(stack: Stack) -> None:
    filter_by_type(stack, "aws_launch_template")[f"{BLOCK}-template"]["tag_specifications"][1]["tags"] = {}


def untag_provider(stack: Stack) -> None:
    stack["provider"]["aws"][0]["default_tags"] = []


TEMPLATE = f"aws_launch_template.{BLOCK}-template"
BROKEN: dict[Callable[[Stack], None], str] = {
    use_wrong_card: f"{TEMPLATE}: interfaces [(0, 0, 'efa'), (1, 0, 'efa-only'), (2, 0, 'efa-only'), (7, 0",
    drop_interface: f"{TEMPLATE}: interfaces [(0, 0, 'efa')",
    drop_all_efa: f"{TEMPLATE}: interfaces []: the instance type has another layout. Fix: [(0, 0, 'efa')",
    drop_ingress: f"{TEMPLATE}: an EFA interface without ingress from its own group: ",
    drop_egress: f"{TEMPLATE}: an EFA interface without egress to its own group: ",
    open_egress: f"{TEMPLATE}: an EFA interface without egress to its own group: ",
    describe_with_apostrophe: 'aws_security_group.machines: description "The fleet\'s machines": EC2 refuses it. ',
    describe_rule_at_length: "aws_vpc_security_group_egress_rule.machines-https: description 'aaa",
    leave_efa_group: f"{TEMPLATE}: an EFA interface without ingress from its own group: ",
    add_second_zone: f"aws_autoscaling_group.{BLOCK}-machines: 2 zones: EFA works within one zone. Fix: keep one subnet.",
    allow_any_action: "aws_iam_role_policy.instance-role-policy: Action ['logs:*']: ",
    allow_any_resource: "aws_iam_role_policy.instance-role-policy: Resource * for ['iam:PassRole']: ",
    allow_neighbors: "aws_iam_role_policy.instance-role-policy: Resource arn:aws:ecs:us-east-1:123456789012:task/ads-",
    hear_neighbors: "aws_cloudwatch_event_rule.ecs-fallback-failed: it matches events of a fleet ads-scale-dev. ",
    allow_anybody: "aws_iam_role.instance-role: Principal {'AWS': '*'}: it allows every AWS account. ",
    fill_queue_for_anybody: "aws_sqs_queue.gpu-repair-queue: Principal events.amazonaws.com: other accounts' rules fill ",
    add_seventh_provider: "aws_ecs_cluster_capacity_providers.capacity-providers: 7 capacity providers: ECS takes at ",
    add_seventh_to_service: "output.strategies.ranking: 7 capacity providers: ECS takes at most 6. ",
    quote_reference: "resource.aws_ecs_cluster.cluster.name: data.aws_caller_identity.account.account_id: Terraform ",
    clear_struct: f"resource.{TEMPLATE}.block_device_mappings[1]: empty: ",
    drop_token: f"{TEMPLATE}: http_tokens optional and http_put_response_hop_limit 1: ",
    allow_two_hops: f"{TEMPLATE}: http_tokens required and http_put_response_hop_limit 2: ",
    disable_encryption: f"{TEMPLATE}: a volume in plain text: ",
    untag_machines: f"aws_autoscaling_group.{BLOCK}-machines: tags that leave the fleet's off its instances. ",
    untag_volumes: f"{TEMPLATE}: tag_specifications without the fleet's tags. ",
    untag_provider: "provider.aws: default_tags without the fleet's tags. ",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_deliberately_broken_stack_is_reported(
    synth_folder: Path, stacks: Stacks, change: Callable[[Stack], None]
) -> None:
    stack = copy.deepcopy(stacks["ads-scale", "ecs"])
    change(stack)
    errors = list(stack_rules.find_violations(load_fleet(synth_folder, "ads-scale"), {"ecs": stack}))
    assert any(line.startswith(f"ecs: {BROKEN[change]}") for line in errors), errors


def overlap_subnets(stack: Stack) -> None:
    subnets = filter_by_type(stack, "aws_subnet")
    subnets["private-us-east-1b"]["cidr_block"] = subnets["private-us-east-1a"]["cidr_block"]


def move_subnet_outside(stack: Stack) -> None:
    filter_by_type(stack, "aws_subnet")["private-us-east-1a"]["cidr_block"] = "192.168.0.0/24"


def open_security_group(stack: Stack) -> None:
    filter_by_type(stack, "aws_vpc_security_group_ingress_rule")["endpoints-https"]["cidr_ipv4"] = "0.0.0.0/0"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            overlap_subnets,
            r"aws_subnet\.private-us-east-1\w: (\S+): it overlaps aws_subnet\.private-us-east-1\w, \1\. Fix: ",
        ),
        (move_subnet_outside, r"aws_subnet\.private-us-east-1a: 192\.168\.0\.0/24: it is outside the VPC\. Fix: "),
        (open_security_group, r"aws_vpc_security_group_ingress_rule\.endpoints-https: open to any address: "),
    ],
    ids=["overlap", "outside", "open_door"],
)
def test_a_deliberately_broken_network_is_reported(
    synth_folder: Path, stacks: Stacks, change: Callable[[Stack], None], line: str
) -> None:
    stack = copy.deepcopy(stacks["ads-scale", "network"])
    change(stack)
    [violation] = stack_rules.find_violations(load_fleet(synth_folder, "ads-scale"), {"network": stack})
    assert re.match(f"network: {line}", violation), violation


def test_an_efa_node_group_in_a_second_zone_is_reported(synth_folder: Path, stacks: Stacks) -> None:
    stack = copy.deepcopy(stacks["p5-efa", "eks"])
    filter_by_type(stack, "aws_eks_node_group")["h100-p5-48xlarge-b-cb"]["subnet_ids"].append("subnet-1")
    assert list(stack_rules.find_violations(load_fleet(synth_folder, "p5-efa"), {"eks": stack})) == [
        "eks: aws_eks_node_group.h100-p5-48xlarge-b-cb: 2 zones: EFA works within one zone. Fix: keep one subnet."
    ]


def test_every_role_has_the_fleets_boundary_or_is_reported(synth_folder: Path, stacks: Stacks) -> None:
    fleet, stack = load_fleet(synth_folder, "s3"), copy.deepcopy(stacks["s3", "ecs"])
    roles = filter_by_type(stack, "aws_iam_role")
    assert {role["permissions_boundary"] for role in roles.values()} == {fleet.permissions_boundary}
    first = next(iter(roles))
    del roles[first]["permissions_boundary"]
    assert list(stack_rules.find_violations(fleet, {"ecs": stack})) == [
        f"ecs: aws_iam_role.{first}: not the fleet's permissions_boundary. Fix: iam.add_role."
    ]


def test_a_broken_stack_fails_and_the_message_does_not_blame_the_file(synth_folder: Path, tmp_path: Path) -> None:
    text = (synth_folder / "ads-scale/stacks/ecs/cdk.tf.json").read_text()
    (tmp_path / "cdk.tf.json").write_text(text.replace('"http_tokens": "required"', '"http_tokens": "optional"', 1))
    document = load(synth_folder / "ads-scale/fleet.yaml", Fleet)
    stack_rules.validate_stacks(document, {"ecs": synth_folder / "ads-scale/stacks/ecs"})
    with pytest.raises(
        CheckFailed,
        match=r"fleet\.yaml: its stacks break rules of infra/stack_rules\.py\. The bug is in a construct below infra/, not in "
        r"this file; nothing was applied:\n  ecs: aws_launch_template\.[a-z0-9-]+: http_tokens optional and",
    ):
        stack_rules.validate_stacks(document, {"ecs": tmp_path})
