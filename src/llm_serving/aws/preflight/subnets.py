"""Whether the subnets have addresses enough for all machines at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_serving.aws import session as clients
from llm_serving.aws.preflight.check import Line, Question
from llm_serving.aws.session import Aws
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import capacity
from llm_serving.fleet.capacity import Scale, Subnet
from llm_serving.fleet.model import ExistingNetwork, Fleet


def questions(aws: Aws, fleet: Fleet, catalogue: Catalogue, met: Scale) -> list[Question]:
    """The subnets that are there; or, without asking, those that will be made."""
    if not isinstance(fleet.network, ExistingNetwork):
        return [Question("subnets", "subnets", lambda: [_new(one) for one in met.subnets])]
    network = fleet.network
    needed = {zone: capacity.needed_in(zone, fleet, catalogue) for zone in fleet.zones}
    return [Question("subnets", "subnets", lambda: _existing(aws, network, needed), ("ec2:DescribeSubnets",))]


def _new(subnet: Subnet) -> Line:
    about, share = f"private {subnet.zone}", subnet.needed / subnet.there
    if subnet.needed > subnet.there:
        said = f"{subnet.cidr} has {subnet.there:,} addresses; the fleet needs up to {subnet.needed:,} there"
        return Line(about, "fail", said, "a wider network.cidr, smaller pools, or pools over more zones", share=share)
    return Line(about, "pass", f"{subnet.cidr}: {subnet.needed:,} of {subnet.there:,} addresses", share=share)


def _existing(aws: Aws, network: ExistingNetwork, needed: Mapping[str, int]) -> list[Line]:
    """By zone: the subnets stand in the order of the zones."""
    return [
        _subnet(network, zone, name, _asked(aws, name), needed[zone])
        for zone, name in zip(needed, network.private_subnets, strict=True)
    ]


def _asked(aws: Aws, name: str) -> Mapping[str, Any] | None:
    """One by one: a call for several says only that one of them is missing."""
    from botocore.exceptions import ClientError

    try:
        found: list[Mapping[str, Any]] = aws.client("ec2").describe_subnets(SubnetIds=[name])["Subnets"]
    except ClientError as error:
        if clients.code(error).startswith("InvalidSubnetID"):
            return None
        raise
    return found[0] if found else None


def _subnet(network: ExistingNetwork, zone: str, name: str, found: Mapping[str, Any] | None, need: int) -> Line:
    about = f"{name} in {zone}"
    if found is None:
        return Line(about, "fail", "there is no such subnet in this account and region", "the id of one that is there")
    if found["VpcId"] != network.vpc:
        return Line(about, "fail", f"it is in {found['VpcId']}, not in {network.vpc}", "a private subnet of that VPC")
    if found["AvailabilityZone"] != zone:
        said = f"it is in {found['AvailabilityZone']}, not in {zone}"
        return Line(about, "fail", said, "private_subnets in the order of `zones`")
    if found.get("MapPublicIpOnLaunch"):
        return Line(about, "fail", "it gives public addresses", "a private subnet")
    free = found["AvailableIpAddressCount"]
    share = need / free if free else math.inf
    if need > free:
        said = f"{found['CidrBlock']} has {free:,} free addresses; the fleet needs up to {need:,} there"
        return Line(about, "fail", said, "a larger subnet, or smaller pools", share=share)
    return Line(about, "pass", f"{found['CidrBlock']}: {need:,} of {free:,} free addresses", share=share)
