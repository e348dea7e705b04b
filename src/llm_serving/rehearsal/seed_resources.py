"""Resources that a fleet expects in its account, created in the embedded AWS."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.rehearsal import emulator

_RANGE = ipaddress.IPv4Network("10.0.0.0/16")
_TAG_KEY = "stand-in"
_AMI = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


def seed_network(fleet: Fleet, network: ExistingNetwork, endpoint: str) -> dict[str, Any]:
    """Create a VPC with one subnet in each zone, once.

    Returns:
        the part of an override that replaces the ids of the fleet file, which the embedded AWS cannot assign.
    """
    ec2 = emulator.create_client("ec2", endpoint, fleet.region)
    tag = {"Key": _TAG_KEY, "Value": network.vpc}
    tags = [{"ResourceType": "vpc", "Tags": [tag]}]
    vpc_ids = [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if tag in vpc.get("Tags", [])]
    vpc = vpc_ids[0] if vpc_ids else ec2.create_vpc(CidrBlock=str(_RANGE), TagSpecifications=tags)["Vpc"]["VpcId"]
    subnets = {
        subnet["AvailabilityZone"]: subnet["SubnetId"]
        for subnet in ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    }
    for zone, cidr in zip(fleet.zones, _RANGE.subnets(prefixlen_diff=3), strict=False):
        if zone not in subnets:
            response = ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=str(cidr))
            subnets[zone] = response["Subnet"]["SubnetId"]
    return {
        "aws_vpc": {"vpc": {"id": vpc}},
        "aws_subnet": {f"private-{zone}": {"id": subnets[zone]} for zone in fleet.zones},
    }


def seed_cluster(fleet: Fleet, name: str, endpoint: str) -> None:
    """Create the cluster of EKS that the fleet file names, once."""
    eks = emulator.create_client("eks", endpoint, fleet.region)
    if name not in eks.list_clusters()["clusters"]:
        role = f"arn:aws:iam::{emulator.ACCOUNT}:role/{_TAG_KEY}"
        eks.create_cluster(name=name, roleArn=role, resourcesVpcConfig={}, tags={_TAG_KEY: name})


def build_image_override(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an override that replaces EKS's AMIs, which the embedded AWS lacks, by one that it has."""
    return {"aws_ssm_parameter": {name: {"name": _AMI} for name in parameters}}
