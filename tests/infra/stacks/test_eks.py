"""The EKS stack's machines, identities and rules, in the synthesized text; each rule with its negative control."""

from __future__ import annotations

import json
import re
from ipaddress import IPv4Network
from typing import Any

import botocore.session
import pytest

from infra import stack_rules
from llm_serving.catalog import eks
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import override

Stacks = dict[tuple[str, str], dict[str, Any]]
Stack = dict[str, Any]


@pytest.fixture(scope="module")
def machines(stacks: Stacks) -> Stack:
    return stacks["machines", "eks"]


def get_template(stack: Stack, name: str) -> dict[str, Any]:
    launch_template: dict[str, Any] = stack["resource"]["aws_launch_template"][f"{name}-template"]
    return launch_template


def test_an_existing_cluster_gets_the_engines_role_and_nothing_that_runs(stacks: Stacks) -> None:
    stack = stacks["cluster", "eks"]
    assert {kind: list(rows) for kind, rows in stack["resource"].items() if kind != "aws_cloudwatch_event_target"} == {
        "aws_iam_role": ["engines-role"],
        "aws_iam_role_policy": ["engines-role-policy"],
        "aws_eks_pod_identity_association": ["engines-identity"],
        "aws_cloudwatch_event_rule": ["certificate-ends"],
    }
    assert stack["data"]["aws_eks_cluster"]["cluster"]["name"] == "platform"
    trust = json.dumps(stack["resource"]["aws_iam_role"]["engines-role"]["assume_role_policy"])
    assert ":cluster/platform" in trust
    assert stack["resource"]["aws_eks_pod_identity_association"]["engines-identity"]["cluster_name"] == (
        "${data.aws_eks_cluster.cluster.name}"
    )


def test_a_node_with_efa_has_one_address_and_efa_on_every_card(machines: Stack) -> None:
    for name, cards in (("wide-p5-48xlarge-a-od", 32), ("block-p5en-48xlarge-c-cb", 16)):
        kinds = [interface["interface_type"] for interface in get_template(machines, name)["network_interfaces"]]
        assert (kinds.count("efa-only"), kinds.count("interface")) == (cards, 1)


def test_the_autoscaler_knows_what_a_node_has_before_the_first_one_runs(machines: Stack) -> None:
    tags = {name: group.get("tags", {}) for name, group in machines["resource"]["aws_eks_node_group"].items()}
    prefix = "k8s.io/cluster-autoscaler/node-template/resources/"
    assert (
        tags["wide-p5-48xlarge-a-od"].items()
        >= {
            f"{prefix}ephemeral-storage": "22649Gi",
            f"{prefix}nvidia.com/gpu": "8",
            f"{prefix}vpc.amazonaws.com/efa": "32",
            f"{prefix}hugepages-2Mi": "10256Mi",
        }.items()
    )
    assert tags["odcr-g6e-12xlarge-a-cr"][f"{prefix}ephemeral-storage"] == "400Gi"
    assert f"{prefix}vpc.amazonaws.com/efa" not in tags["odcr-g6e-12xlarge-a-cr"]
    assert not any(prefix in key for key in tags["system"])


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
    assert len(trusted) == 6  # two add-ons, Karpenter, the load balancer controller, the autoscaler, the engines
    for statement in trusted:
        assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        assert statement["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(":cluster/demo")


def test_who_applies_has_an_entry_of_its_own_in_place_of_eks_s(machines: Stack) -> None:
    resources = machines["resource"]
    access = resources["aws_eks_cluster"]["cluster"]["access_config"]
    assert access == {"authentication_mode": "API", "bootstrap_cluster_creator_admin_permissions": False}
    session = "data.aws_iam_session_context.caller.issuer_arn"
    roles = [f"arn:aws:iam::123456789012:role/{name}" for name in ("platform", "deployer")]
    principals = f'${{toset([{session}, "{roles[0]}", "{roles[1]}"])}}'
    assert resources["aws_eks_access_entry"]["admin"]["for_each"] == principals
    assert resources["aws_eks_access_policy_association"]["admin-policy"]["for_each"] == principals


def test_the_role_that_applies_keeps_its_entry_whoever_plans(stacks: Stacks) -> None:
    eks = stacks["s3", "eks"]
    roles = [f"arn:aws:iam::123456789012:role/{name}" for name in ("apply", "platform")]
    entries = eks["resource"]["aws_eks_access_entry"]["admin"]["for_each"]
    assert entries == f'${{toset(["{roles[0]}", "{roles[1]}"])}}'
    assert "aws_iam_session_context" not in eks["data"], "who plans is not asked"
    assert "aws_iam_session_context" in stacks["machines", "eks"]["data"]


def test_named_networks_and_groups_reach_the_private_endpoint(stacks: Stacks, machines: Stack) -> None:
    rules = machines["resource"]["aws_vpc_security_group_ingress_rule"]
    # By their names, not their places: a client that goes leaves the others' rules alone.
    clients = [rules[f"api-client-{client}"] for client in ("10-8-0-0-16", "sg-0123456789abcdef0")]
    assert [(rule["from_port"], rule["to_port"], rule["ip_protocol"]) for rule in clients] == [(443, 443, "tcp")] * 2
    assert clients[0]["cidr_ipv4"] == "10.8.0.0/16"
    assert clients[1]["referenced_security_group_id"] == "sg-0123456789abcdef0"
    vpc_config = machines["resource"]["aws_eks_cluster"]["cluster"]["vpc_config"]
    assert vpc_config["security_group_ids"] == ["${aws_security_group.api-clients.id}"]
    assert "security_group_ids" not in stacks["eks", "eks"]["resource"]["aws_eks_cluster"]["cluster"]["vpc_config"]


def list_events(stack: Stack) -> dict[str, dict[str, Any]]:
    calls = stack["resource"]["aws_lambda_invocation"].values()
    return {event["group"]: event for event in (json.loads(call["input"]) for call in calls)}


def test_every_node_group_limits_parallel_repairs(machines: Stack) -> None:
    repairs = {name: event["config"]["nodeRepairConfig"] for name, event in list_events(machines).items()}
    assert set(repairs) == set(machines["resource"]["aws_eks_node_group"])
    assert all(repair["enabled"] and repair["maxParallelNodesRepairedCount"] == 1 for repair in repairs.values())


def test_an_update_of_a_node_group_without_spare_capacity_ends_a_node_first(machines: Stack) -> None:
    minimal = {
        name
        for name, event in list_events(machines).items()
        if event["config"].get("updateConfig") == {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}
    }
    assert {"block-p5en-48xlarge-c-cb", "wide-p5-48xlarge-a-od", "odcr-g6e-12xlarge-a-cr"} <= minimal
    assert minimal.isdisjoint({"system", "odcr-g6e-12xlarge-a-spot", "rocket-g6e-2xlarge-a-od"})


def test_the_apply_waits_for_an_update_of_every_node_one_after_the_other(stacks: Stacks) -> None:
    node_groups = [
        group for stack in stacks.values() for group in stack.get("resource", {}).get("aws_eks_node_group", {}).values()
    ]
    for group in node_groups:
        minutes = int(group["timeouts"]["update"].removesuffix("m"))
        assert group["update_config"]["max_unavailable"] == 1
        assert minutes >= max(60, 30 * group["scaling_config"]["max_size"]), (
            "a drain and a start of a quarter of an hour"
        )
    assert max(group["scaling_config"]["max_size"] for group in node_groups) > 2, "more than the hour of by itself"


def test_a_capacity_block_has_no_machine_before_it_starts(machines: Stack) -> None:
    groups_of_nodes = machines["resource"]["aws_eks_node_group"]
    block = groups_of_nodes["block-p5en-48xlarge-c-cb"]
    assert block["scaling_config"] == {"desired_size": 0, "min_size": 0, "max_size": 2}
    assert groups_of_nodes["wide-p5-48xlarge-a-od"]["scaling_config"]["desired_size"] == 2
    events = list_events(machines)
    event = events["block-p5en-48xlarge-c-cb"]
    assert (event["block"], event["scaling"]) == ("cr-0123456789abcdef0", {"minSize": 2, "maxSize": 2})
    assert [name for name, event in events.items() if event["block"]] == ["block-p5en-48xlarge-c-cb"]


def test_terraform_leaves_the_number_of_nodes_alone_and_the_function_hears_of_a_pools_size(machines: Stack) -> None:
    events = list_events(machines)
    for name, group in machines["resource"]["aws_eks_node_group"].items():
        assert "scaling_config" in group["lifecycle"]["ignore_changes"], "EKS refuses a least above what runs"
        if not events[name]["block"]:
            scaling = {"minSize": group["scaling_config"]["min_size"], "maxSize": group["scaling_config"]["max_size"]}
            assert events[name]["scaling"] == scaling


def test_another_zone_moves_neither_the_cluster_nor_the_systems_nodes(machines: Stack) -> None:
    """EKS would refuse the one, and Terraform replace the other: all of CoreDNS and Karpenter at once."""
    resources = machines["resource"]
    assert resources["aws_eks_cluster"]["cluster"]["lifecycle"] == {"ignore_changes": ["vpc_config[0].subnet_ids"]}
    rooted = {
        name
        for name, group in resources["aws_eks_node_group"].items()
        if "subnet_ids" in group["lifecycle"]["ignore_changes"]
    }
    assert rooted == {"system"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("aws_security_group", "api-clients"),  # `private_from` may go
        ("aws_security_group", "efa"),  # so may a pool's `efa`
        ("aws_placement_group", "placement-wide-a"),  # and its `placement_group`
    ],
)
def test_what_aws_does_not_delete_while_it_is_in_use_goes_after_its_users(
    machines: Stack, kind: str, name: str
) -> None:
    assert machines["resource"][kind][name]["lifecycle"] == {"create_before_destroy": True}


def test_only_a_fleet_with_a_block_lets_the_function_schedule(stacks: Stacks) -> None:
    def list_actions(shape: str) -> str:
        return str(stacks[shape, "eks"]["resource"]["aws_iam_role_policy"]["node-groups-role-policy"]["policy"])

    assert "autoscaling:PutScheduledUpdateGroupAction" in list_actions("machines")
    assert "autoscaling:PutScheduledUpdateGroupAction" not in list_actions("existing")


@pytest.mark.parametrize(
    ("most", "stops"),
    [
        (1, {"maxUnhealthyNodeThresholdCount": 1}),
        (8, {"maxUnhealthyNodeThresholdCount": 1}),
        (9, {"maxUnhealthyNodeThresholdPercentage": 20}),
    ],
)
def test_repair_stops_at_a_fifth_of_the_nodes_or_at_the_second_of_few(most: int, stops: dict[str, int]) -> None:
    from infra.constructs import node_group_settings

    fleet = Fleet(
        name="demo",
        region="us-west-2",
        zones=("us-west-2a",),
        pools={"aa": {"types": "g6e.2xlarge", "size": f"1..{most}", "by": "node-groups"}},
    )
    (group,) = groups.resolve_all(fleet)
    repair = dict(node_group_settings.build_config(group)["nodeRepairConfig"])  # type: ignore[call-overload]
    del repair["nodeRepairConfigOverrides"]
    assert repair == {"enabled": True, **stops, "maxParallelNodesRepairedCount": 1}


def test_what_no_reset_mends_is_replaced_without_eks_s_ten_minutes(machines: Stack) -> None:
    repairs = {name: event["config"]["nodeRepairConfig"] for name, event in list_events(machines).items()}
    overrides = repairs["wide-p5-48xlarge-a-od"]["nodeRepairConfigOverrides"]
    assert [row["nodeUnhealthyReason"] for row in overrides] == [
        *("NvidiaXID54Error", "NvidiaXID63Error", "NvidiaXID79Error", "NvidiaXID142Error"),
    ]
    shape = botocore.session.get_session().get_service_model("eks").shape_for("NodeRepairConfigOverrides")
    assert all(row.keys() == shape.members.keys() for row in overrides), "EKS wants all of them"
    assert "nodeRepairConfigOverrides" not in repairs["system"]


def test_the_topic_hears_of_certificates_that_end(stacks: Stacks, machines: Stack) -> None:
    rule = machines["resource"]["aws_cloudwatch_event_rule"]["certificate-ends"]
    pattern = json.loads(rule["event_pattern"])
    assert pattern["detail-type"] == ["ACM Certificate Approaching Expiration"]
    assert pattern["detail"] == {"DaysToExpiry": [{"numeric": ["<=", 21]}]}
    target = machines["resource"]["aws_cloudwatch_event_target"]["certificate-ends-target"]
    assert target["arn"] == "arn:aws:sns:us-west-2:123456789012:on-call"
    quiet = stacks["eks", "eks"]["resource"]["aws_cloudwatch_event_rule"]
    assert "certificate-ends" not in quiet, "the fleet names no topic"


def test_alertmanager_may_tell_the_fleets_topic_and_nobody_else(stacks: Stacks, machines: Stack) -> None:
    topic = "arn:aws:sns:us-west-2:123456789012:on-call"
    association = machines["resource"]["aws_eks_pod_identity_association"]["alerts-identity"]
    assert (association["namespace"], association["service_account"]) == ("monitoring", "alertmanager")
    statements = json.loads(machines["resource"]["aws_iam_role_policy"]["alerts-role-policy"]["policy"])["Statement"]
    publish, encrypt = sorted(statements, key=lambda statement: str(statement["Sid"]), reverse=True)
    assert (publish["Action"], publish["Resource"]) == (["sns:Publish"], topic)
    assert encrypt["Condition"]["StringEquals"]["kms:EncryptionContext:aws:sns:topicArn"] == topic
    quiet = stacks["s3", "eks"]["resource"]["aws_eks_pod_identity_association"]
    assert "alerts-identity" not in quiet, "the fleet has Prometheus, and names no topic"


def test_names_of_roles_fit_with_the_longest_fleet_and_region(stacks: Stacks) -> None:
    longest = len("f" * 32) + len("ap-southeast-2") - len("demo") - len("us-west-2")
    for _, role in stack_rules.list_resources(stacks["eks", "eks"], "aws_iam_role"):
        assert len(role["name"]) + longest <= 64, role["name"]


def find_references(stack: Stack) -> set[str]:
    """Kinds that a rehearsal leaves out, and whose attributes something reads: `count = 0` would break that.

    A splat reads what is there, and nothing where nothing is.
    """
    kinds = "|".join(override.REASONS)
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
            if dependency.startswith(("aws_iam_role_policy_attachment.node-role-", "aws_iam_role_policy.node-role-"))
        }
        assert len(rights) == 3
    assert (
        "aws_iam_role_policy_attachment.vpc-cni-role-AmazonEKS_CNI_Policy"
        in resources["aws_eks_addon"]["vpc-cni"]["depends_on"]
    )


def test_services_have_a_range_clear_of_every_new_vpc(stacks: dict[tuple[str, str], Any]) -> None:
    ranges = {}
    for (shape, name), stack in stacks.items():
        vpcs = stacks[shape, "network"].get("resource", {}).get("aws_vpc")
        if name == "eks" and vpcs:
            config = stack["resource"]["aws_eks_cluster"]["cluster"]["kubernetes_network_config"]
            ranges[shape] = (config["service_ipv4_cidr"], vpcs["vpc"]["cidr_block"])
    assert ranges["machines"] == ("10.100.0.0/16", "172.20.0.0/16"), "EKS's first choice would overlap"
    assert [
        shape for shape, (services, vpc) in ranges.items() if IPv4Network(services).overlaps(IPv4Network(vpc))
    ] == []
