from ipaddress import IPv4Network
from itertools import combinations

import pytest

from llm_serving.fleet import addresses

ZONES = [f"us-east-1{letter}" for letter in addresses.LETTERS]


def plan_subnets(cidr: str, zones: list[str]) -> list[IPv4Network]:
    return [
        IPv4Network(part(cidr, zone))
        for zone in zones
        for part in (addresses.compute_private_cidr, addresses.compute_public_cidr)
    ]


@pytest.mark.parametrize("prefix", range(16, 21))
def test_subnets_are_disjoint_and_inside_the_vpc(prefix: int) -> None:
    vpc = IPv4Network(f"10.64.0.0/{prefix}")
    planned = plan_subnets(str(vpc), ZONES)
    assert not [pair for pair in combinations(planned, 2) if pair[0].overlaps(pair[1])]
    assert all(subnet.subnet_of(vpc) for subnet in planned)


@pytest.mark.parametrize("prefix", range(16, 21))
def test_no_subnet_is_smaller_than_aws_allows(prefix: int) -> None:
    assert all(subnet.prefixlen <= 28 for subnet in plan_subnets(f"10.64.0.0/{prefix}", ZONES))


def test_a_zone_has_addresses_for_a_fleet_of_pods() -> None:
    assert IPv4Network(addresses.compute_private_cidr("10.0.0.0/16", "us-west-2a")).num_addresses == 8192


def test_a_zones_addresses_do_not_depend_on_other_zones() -> None:
    # The plan takes the VPC's range and the zone alone: that another zone moves it is not even expressible.
    assert addresses.compute_private_cidr("10.0.0.0/16", "us-west-2c") == "10.0.64.0/19"
    assert addresses.compute_public_cidr("10.0.0.0/16", "us-west-2c") == "10.0.228.0/23"
