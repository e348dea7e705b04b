from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws.preflight import subnets
from llm_serving.aws.preflight.check import Line
from llm_serving.aws.session import Aws
from llm_serving.catalog import instances
from llm_serving.fleet import capacity

POOL = "  general:\n    types: g6e.xlarge\n    size: {size}\n"
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\n"


def _lines(document: Any, aws: Any = None) -> list[Line]:
    catalogue = instances.load()
    met = capacity.of(document.value, catalogue)
    return [line for one in subnets.questions(aws, document.value, catalogue, met) for line in one.ask()]


def test_a_new_vpc_that_is_too_small_fails_before_anything_is_asked(fleet: Any) -> None:
    (line,) = _lines(fleet(POOL.format(size="0..40"), f"{HEAD}network: {{cidr: 10.0.0.0/20}}\n"))
    assert line.status == "fail"
    assert line.said.startswith("10.0.0.0/23 has 507 addresses; the fleet needs up to 1,")
    assert line.share and line.share > 1


def test_a_new_vpc_that_is_large_enough_passes(fleet: Any) -> None:
    (line,) = _lines(fleet(POOL.format(size="0..4"), HEAD))
    assert line.status == "pass"
    assert "of 8,187 addresses" in line.said


def _existing(account: Aws, cidr: str, zone: str = "us-west-2a", *, public: bool = False) -> tuple[str, str]:
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=made, MapPublicIpOnLaunch={"Value": public})
    return vpc, made


def _network(vpc: str, subnet: str) -> str:
    return f"{HEAD}network: {{vpc: {vpc}, private_subnets: {subnet}}}\n"


@pytest.mark.terraform
def test_a_subnet_that_is_there_and_too_small_fails(account: Aws, fleet: Any) -> None:
    (line,) = _lines(fleet(POOL.format(size="0..4"), _network(*_existing(account, "10.1.0.0/28"))), account)
    assert line.status == "fail"
    assert line.said.startswith("10.1.0.0/28 has 11 free addresses; the fleet needs up to ")
    assert line.remedy == "a larger subnet, or smaller pools"


@pytest.mark.terraform
def test_a_subnet_that_is_there_and_large_enough_passes(account: Aws, fleet: Any) -> None:
    (line,) = _lines(fleet(POOL.format(size="0..4"), _network(*_existing(account, "10.1.0.0/20"))), account)
    assert line.status == "pass"
    assert "of 4,091 free addresses" in line.said


@pytest.mark.terraform
def test_a_subnet_of_another_zone_vpc_or_kind_fails(account: Aws, fleet: Any) -> None:
    vpc, elsewhere = _existing(account, "10.1.0.0/20", "us-west-2b")
    (line,) = _lines(fleet(POOL.format(size=1), _network(vpc, elsewhere)), account)
    assert (line.status, line.said) == ("fail", "it is in us-west-2b, not in us-west-2a")
    other, _ = _existing(account, "10.1.0.0/20")
    (line,) = _lines(fleet(POOL.format(size=1), _network(other, elsewhere)), account)
    assert (line.status, line.said) == ("fail", f"it is in {vpc}, not in {other}")
    (line,) = _lines(fleet(POOL.format(size=1), _network(*_existing(account, "10.1.0.0/20", public=True))), account)
    assert (line.status, line.said) == ("fail", "it gives public addresses")
    (line,) = _lines(fleet(POOL.format(size=1), _network(vpc, "subnet-0123456789abcdef0")), account)
    assert (line.status, line.said) == ("fail", "there is no such subnet in this account and region")
