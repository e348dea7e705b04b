"""Whether the subnets have addresses enough for all machines at once, and an existing VPC resolves names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_serving.aws import session as session
from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import capacity
from llm_serving.fleet.capacity import Capacity, Subnet
from llm_serving.fleet.model import ExistingNetwork, Fleet

_DNS_SWITCHES = {"enableDnsSupport": "--enable-dns-support", "enableDnsHostnames": "--enable-dns-hostnames"}
"""Option of the AWS CLI by VPC attribute."""


def list_checks(aws: AwsSession, fleet: Fleet, requirements: Capacity) -> list[Check]:
    """Return the subnets that are there; or, without asking, those that will be made."""
    if not isinstance(fleet.network, ExistingNetwork):
        return [Check("subnets", "subnets", lambda: [_check_new(subnet) for subnet in requirements.subnets])]
    network = fleet.network
    addresses_by_zone = {zone: capacity.count_zone_addresses(zone, fleet) for zone in fleet.zones}
    return [
        Check("subnets", "subnets", lambda: _check_existing(aws, network, addresses_by_zone), ("ec2:DescribeSubnets",)),
        Check("subnets", "DNS", lambda: _check_dns(aws, network), ("ec2:DescribeVpcAttribute",)),
    ]


def _check_new(subnet: Subnet) -> CheckResult:
    check_name, usage_ratio = f"private {subnet.zone}", subnet.needed / subnet.available
    if subnet.needed > subnet.available:
        message = f"{subnet.cidr} has {subnet.available:,} addresses; the fleet needs up to {subnet.needed:,} there"
        fix = "use a wider network.cidr, smaller pools, or pools over more zones"
        return CheckResult(check_name, "fail", message, fix, usage_ratio=usage_ratio)
    message = f"{subnet.cidr}: {subnet.needed:,} of {subnet.available:,} addresses"
    return CheckResult(check_name, "pass", message, usage_ratio=usage_ratio)


def _check_existing(
    aws: AwsSession, network: ExistingNetwork, addresses_by_zone: Mapping[str, int]
) -> list[CheckResult]:
    """By zone: the subnets stand in the order of the zones."""
    return [
        _check_subnet(network, zone, subnet_id, _fetch_subnet(aws, subnet_id), addresses_by_zone[zone])
        for zone, subnet_id in zip(addresses_by_zone, network.private_subnets, strict=True)
    ]


def _check_dns(aws: AwsSession, network: ExistingNetwork) -> CheckResult:
    """Check both switches, which private names of endpoints, of EKS's API server and of Cloud Map need.

    Source: VPC user guide, "DNS attributes in your VPC", 2026-11.
    """
    check_name = f"DNS in {network.vpc}"
    with session.ignore_errors("InvalidVpcID.NotFound"):
        for attribute, option in _DNS_SWITCHES.items():
            answer = aws.client("ec2").describe_vpc_attribute(VpcId=network.vpc, Attribute=attribute)
            if not answer[attribute[0].upper() + attribute[1:]]["Value"]:
                message = f"{attribute} is off: nodes and tasks do not find EKS, AWS's endpoints and each other by name"
                command = ("aws", "ec2", "modify-vpc-attribute", "--vpc-id", network.vpc, option, '{"Value":true}')
                return CheckResult(check_name, "fail", message, "turn it on", command)
        return CheckResult(check_name, "pass", "names are resolved")
    message = "there is no such VPC in this account and region"
    return CheckResult(check_name, "fail", message, "set network.vpc to the id of an existing one")


def _fetch_subnet(aws: AwsSession, subnet_id: str) -> Mapping[str, Any] | None:
    """One by one: a call for several says only that one of them is missing."""
    with session.ignore_errors("InvalidSubnetID"):
        subnets: list[Mapping[str, Any]] = aws.client("ec2").describe_subnets(SubnetIds=[subnet_id])["Subnets"]
        return subnets[0] if subnets else None
    return None


def _check_subnet(
    network: ExistingNetwork, zone: str, subnet_id: str, subnet: Mapping[str, Any] | None, needed_addresses: int
) -> CheckResult:
    check_name = f"{subnet_id} in {zone}"
    if subnet is None:
        message = "there is no such subnet in this account and region"
        return CheckResult(check_name, "fail", message, "use the id of an existing one")
    if subnet["VpcId"] != network.vpc:
        message = f"it is in {subnet['VpcId']}, not in {network.vpc}"
        return CheckResult(check_name, "fail", message, "use a private subnet of that VPC")
    if subnet["AvailabilityZone"] != zone:
        message = f"it is in {subnet['AvailabilityZone']}, not in {zone}"
        return CheckResult(check_name, "fail", message, "list private_subnets in the order of `zones`")
    if subnet.get("MapPublicIpOnLaunch"):
        return CheckResult(check_name, "fail", "it gives public addresses", "use a private subnet")
    free = subnet["AvailableIpAddressCount"]
    usage_ratio = needed_addresses / free if free else math.inf
    if needed_addresses > free:
        message = f"{subnet['CidrBlock']} has {free:,} free addresses; the fleet needs up to {needed_addresses:,} there"
        fix = "use a larger subnet, or smaller pools"
        return CheckResult(check_name, "fail", message, fix, usage_ratio=usage_ratio)
    return CheckResult(
        check_name,
        "pass",
        f"{subnet['CidrBlock']}: {needed_addresses:,} of {free:,} free addresses",
        usage_ratio=usage_ratio,
    )
