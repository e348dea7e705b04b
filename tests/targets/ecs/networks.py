"""What a fleet's stacks give tasks that run once: a network with private subnets, and an ECS cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_serving.aws.session import AwsSession


def create(session: AwsSession, fleet: str, zones: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Create them in the embedded AWS; return the ids of security groups of these names."""
    ec2 = session.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    for number, zone in enumerate(zones):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=zone)["Subnet"]
        tags = [{"Key": "fleet", "Value": fleet}, {"Key": "Name", "Value": f"{fleet}-private-{zone}"}]
        ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=tags)
    session.client("ecs").create_cluster(clusterName=fleet)
    return [create_group(ec2, fleet, vpc, name) for name in groups]


def create_group(ec2: Any, fleet: str, vpc: str, name: str) -> str:
    """Create a security group, with the tag that the fleet's stacks give all that they make."""
    tags = [{"ResourceType": "security-group", "Tags": [{"Key": "fleet", "Value": fleet}]}]
    group = ec2.create_security_group(GroupName=name, Description="Drivers", VpcId=vpc, TagSpecifications=tags)
    return str(group["GroupId"])
