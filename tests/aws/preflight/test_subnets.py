from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws.preflight import subnets
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import capacity

POOL = "  general:\n    types: g6e.xlarge\n    size: {size}\n"
HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\n"


def _collect_lines(document: Any, aws: Any = None, *, check_name: str = "subnets") -> list[CheckResult]:
    fleet_capacity = capacity.compute(document.value)
    return [
        line
        for check in subnets.list_checks(aws, document.value, fleet_capacity)
        for line in check.list_results()
        if check.name == check_name
    ]


def test_a_new_vpc_that_is_too_small_fails_before_anything_is_asked(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL.format(size="0..40"), f"{HEAD}network: {{cidr: 10.0.0.0/20}}\n"))
    assert line.status == "fail"
    assert line.message.startswith("10.0.0.0/23 has 507 addresses; the fleet needs up to 1,")
    assert line.usage_ratio and line.usage_ratio > 1


def test_a_new_vpc_that_is_large_enough_passes(read_fleet: Any) -> None:
    (line,) = _collect_lines(read_fleet(POOL.format(size="0..4"), HEAD))
    assert line.status == "pass"
    assert "of 8,187 addresses" in line.message


def _create_subnet(
    account: AwsSession, cidr: str, zone: str = "us-west-2a", *, public: bool = False
) -> tuple[str, str]:
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet_id = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch={"Value": public})
    return vpc, subnet_id


def _format_network(vpc: str, subnet: str) -> str:
    return f"{HEAD}network: {{vpc: {vpc}, private_subnets: {subnet}}}\n"


@pytest.mark.terraform
def test_an_existing_subnet_that_is_too_small_fails(account: AwsSession, read_fleet: Any) -> None:
    (line,) = _collect_lines(
        read_fleet(POOL.format(size="0..4"), _format_network(*_create_subnet(account, "10.1.0.0/28"))), account
    )
    assert line.status == "fail"
    assert line.message.startswith("10.1.0.0/28 has 11 free addresses; the fleet needs up to ")
    assert line.fix == "use a larger subnet, or smaller pools"


@pytest.mark.terraform
def test_an_existing_subnet_that_is_large_enough_passes(account: AwsSession, read_fleet: Any) -> None:
    (line,) = _collect_lines(
        read_fleet(POOL.format(size="0..4"), _format_network(*_create_subnet(account, "10.1.0.0/20"))), account
    )
    assert line.status == "pass"
    assert "of 4,091 free addresses" in line.message


@pytest.mark.terraform
def test_a_subnet_of_another_zone_vpc_or_kind_fails(account: AwsSession, read_fleet: Any) -> None:
    vpc, other_zone_subnet = _create_subnet(account, "10.1.0.0/20", "us-west-2b")
    (line,) = _collect_lines(read_fleet(POOL.format(size=1), _format_network(vpc, other_zone_subnet)), account)
    assert (line.status, line.message) == ("fail", "it is in us-west-2b, not in us-west-2a")
    other, _ = _create_subnet(account, "10.1.0.0/20")
    (line,) = _collect_lines(read_fleet(POOL.format(size=1), _format_network(other, other_zone_subnet)), account)
    assert (line.status, line.message) == ("fail", f"it is in {vpc}, not in {other}")
    (line,) = _collect_lines(
        read_fleet(POOL.format(size=1), _format_network(*_create_subnet(account, "10.1.0.0/20", public=True))), account
    )
    assert (line.status, line.message) == ("fail", "it gives public addresses")
    (line,) = _collect_lines(read_fleet(POOL.format(size=1), _format_network(vpc, "subnet-0123456789abcdef0")), account)
    assert (line.status, line.message) == ("fail", "there is no such subnet in this account and region")


@pytest.mark.terraform
def test_an_existing_vpc_needs_both_dns_switches(account: AwsSession, read_fleet: Any) -> None:
    vpc, subnet_id = _create_subnet(account, "10.1.0.0/20")
    document, ec2 = read_fleet(POOL.format(size=1), _format_network(vpc, subnet_id)), account.client("ec2")

    (line,) = _collect_lines(document, account, check_name="DNS")
    assert (line.status, line.message, line.fix) == (
        "fail",
        "enableDnsHostnames is off: nodes and tasks do not find EKS, AWS's endpoints and each other by name",
        "turn it on",
    )
    command = f'aws ec2 modify-vpc-attribute --vpc-id {vpc} --enable-dns-hostnames {{"Value":true}}'
    assert " ".join(line.command) == command

    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    (line,) = _collect_lines(document, account, check_name="DNS")
    assert (line.status, line.message) == ("pass", "names are resolved")

    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsSupport={"Value": False})
    (line,) = _collect_lines(document, account, check_name="DNS")
    assert line.message.startswith("enableDnsSupport is off: ")


@pytest.mark.terraform
def test_a_vpc_that_is_not_there_is_reported(account: AwsSession, read_fleet: Any) -> None:
    _, subnet_id = _create_subnet(account, "10.1.0.0/20")
    document = read_fleet(POOL.format(size=1), _format_network("vpc-0123456789abcdef0", subnet_id))
    (line,) = _collect_lines(document, account, check_name="DNS")
    assert (line.status, line.message) == ("fail", "there is no such VPC in this account and region")
