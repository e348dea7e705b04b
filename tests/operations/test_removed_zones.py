"""A zone that the fleet file has no more: its subnets go last, and not while something is in them. EC2 is moto's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import apply, removed_zones
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.terraform.runner import Terraform

REGION = "us-west-2"
FLEET = """\
name: left
region: us-west-2
zones: [us-west-2a]
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 0..2}
"""
SUBNET = "aws_subnet.private-us-west-2b"


@pytest.fixture
def context(tmp_path: Path) -> FleetContext:
    folders = {}
    for name, needs in {"network": [], "storage": [], "ecs": ["network"]}.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "cdk.tf.json").write_text(json.dumps({"//": {"needs": needs}}))
    (tmp_path / "fleet.yaml").write_text(FLEET)
    document = load(tmp_path / "fleet.yaml", Fleet)
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(document, tmp_path, folders, program, AwsSession(REGION), "123456789012")


def build_plans(action: str, *, deferred: str = "") -> Mapping[str, StackPlan]:
    network = StackPlan("network", 1, Plan({SUBNET: ResourceChange(SUBNET, (action,))}))
    return {"network": network, "ecs": StackPlan("ecs", 1, deferred_reason=deferred)}


def name_waves(context: FleetContext, plans: Mapping[str, StackPlan]) -> list[set[str]]:
    return [set(wave) for wave in removed_zones.order_waves(context, plans)]


def test_the_network_comes_last_where_it_loses_a_zone_and_first_where_it_gets_one(context: FleetContext) -> None:
    assert name_waves(context, build_plans("create")) == [{"network", "storage"}, {"ecs"}]
    assert name_waves(context, build_plans("delete")) == [{"storage"}, {"ecs"}, {"network"}]


def test_a_stack_without_its_network_is_refused(context: FleetContext) -> None:
    with pytest.raises(CheckFailed) as error:
        apply.apply(context, [StackPlan("storage", 1), StackPlan("ecs", 1, deferred_reason="needs stack network")])
    assert str(error.value) == (
        f"{context.document.path}: ecs: the network is not there, or lacks a zone of the file. Nothing was changed. "
        "Fix: apply it too: `blueprint fleet apply network ecs`"
    )


def test_one_zone_in_place_of_another_is_refused(context: FleetContext) -> None:
    with pytest.raises(CheckFailed) as error:
        name_waves(context, build_plans("delete", deferred="needs stack network"))
    assert str(error.value) == (
        f"{context.document.path}: zones: one is added and another removed, whose subnets are in use until the new one "
        "is. Nothing was changed. Fix: add the zone, apply and deploy each blueprint; then remove the other, deploy, "
        "and apply again."
    )


def test_a_zone_that_a_cluster_of_eks_was_made_in_stays(context: FleetContext, aws: str) -> None:
    file = context.document.path
    file.write_text(FLEET.replace("orchestrator: ecs", "orchestrator: eks"))
    context = replace(context, document=load(file, Fleet))
    removed_zones.require_clusters_zones(context, build_plans("delete"))  # there is no cluster
    ec2, eks = context.aws.client("ec2"), context.aws.client("eks")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, AvailabilityZone=f"us-west-2{zone}", CidrBlock=f"10.8.{number}.0/24")["Subnet"]
        for number, zone in enumerate("ab")
    ]
    ids = [subnet["SubnetId"] for subnet in subnets]
    eks.create_cluster(name="left", roleArn=f"arn:aws:iam::{'1' * 12}:role/x", resourcesVpcConfig={"subnetIds": ids})
    try:
        removed_zones.require_clusters_zones(context, build_plans("create"))
        with pytest.raises(CheckFailed) as error:
            removed_zones.require_clusters_zones(context, build_plans("delete"))
        assert str(error.value) == (
            f"{file}: zones: the cluster of EKS was made in us-west-2b, and EKS moves no cluster to other zones. Nothing "
            "was changed. Fix: add it to `zones` again; pools leave a zone by `zones` of their own."
        )
        file.write_text(file.read_text().replace("[us-west-2a]", "[us-west-2a, us-west-2b]"))
        both = replace(context, document=load(file, Fleet))
        removed_zones.require_clusters_zones(both, build_plans("delete"))  # of another zone, added later
    finally:
        eks.delete_cluster(name="left")
        for subnet_id in ids:
            ec2.delete_subnet(SubnetId=subnet_id)
        ec2.delete_vpc(VpcId=vpc)


def test_a_subnet_that_something_is_in_is_not_deleted(context: FleetContext, aws: str) -> None:
    ec2 = context.aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    tags = [{"Key": "fleet", "Value": "left"}, {"Key": "stack", "Value": "network"}]
    subnets = {
        zone: ec2.create_subnet(
            VpcId=vpc,
            AvailabilityZone=f"us-west-2{zone}",
            CidrBlock=f"10.7.{number}.0/24",
            TagSpecifications=[{"ResourceType": "subnet", "Tags": tags}],
        )["Subnet"]["SubnetId"]
        for number, zone in enumerate("ab")
    }
    kept, left = (
        ec2.create_network_interface(SubnetId=subnets[zone], Description="a router's task")["NetworkInterface"]
        for zone in "ab"
    )
    try:
        removed_zones.require_empty(context, build_plans("create"))
        with pytest.raises(CheckFailed) as error:
            removed_zones.require_empty(context, build_plans("delete"))
        assert str(error.value) == (
            f"{context.document.path}: zones: still in subnets of a zone that is removed: a router's task "
            "(us-west-2b). The network is unchanged. Fix: deploy each blueprint with this file; on EKS run `blueprint "
            "platform install` and drain the nodes there. Then run this again."
        )
        ec2.delete_network_interface(NetworkInterfaceId=left["NetworkInterfaceId"])
        removed_zones.require_empty(context, build_plans("delete"))
    finally:
        ec2.delete_network_interface(NetworkInterfaceId=kept["NetworkInterfaceId"])
        for subnet in subnets.values():
            ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=vpc)
