"""Which zones there are for this account, and which of the pools' types each offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_serving.aws import session
from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.catalog.registry import format_endpoint_service
from llm_serving.fleet import endpoints
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.fleet.system_group import build_system_group

ZONES_WITHOUT_EKS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Zones, by their ids, in which an EKS control plane cannot have a subnet.

Source: EKS user guide, "Subnet requirements for clusters", read 2026-11. Names differ between accounts, ids do not.
"""


ZONES_WITH_FARGATE = {
    "us-west-1": frozenset({"usw1-az1", "usw1-az3"}),
    "ap-northeast-1": frozenset({"apne1-az1", "apne1-az2", "apne1-az4"}),
    "cn-north-1": frozenset({"cnn1-az1", "cnn1-az2"}),
}
"""Zones, by their ids, that can run Fargate tasks, of the regions where not every zone can.

Source: ECS developer guide, "Supported Regions for Amazon ECS on AWS Fargate", read 2026-11.
"""


def list_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
    return [
        Check("zones", "zones", lambda: _check_zones(aws, fleet), ("ec2:DescribeAvailabilityZones",)),
        Check(
            "zones", "endpoints in zones", lambda: _check_endpoints(aws, fleet), ("ec2:DescribeVpcEndpointServices",)
        ),
        Check("zones", "types in zones", lambda: _check_types(aws, fleet), ("ec2:DescribeInstanceTypeOfferings",)),
    ]


def _check_zones(aws: AwsSession, fleet: Fleet) -> CheckResult:
    described = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    available_zones = {details["ZoneName"]: details for details in described}
    missing_zones = [zone for zone in fleet.zones if zone not in available_zones]
    if missing_zones:
        message = f"this account has no {join_words(missing_zones)}; it has {join_words(sorted(available_zones))}"
        fix = f"set zones: [{', '.join(sorted(available_zones)[: len(fleet.zones)])}]"
        return CheckResult("zones", "fail", message, fix)
    ids = {zone: available_zones[zone]["ZoneId"] for zone in fleet.zones}
    reasons = {zone: _find_missing_service(details["ZoneId"], fleet) for zone, details in available_zones.items()}
    if unsupported := [f"{zone} ({ids[zone]}) {reasons[zone]}" for zone in fleet.zones if reasons[zone]]:
        other_zones = sorted(zone for zone, reason in reasons.items() if not reason)
        return CheckResult("zones", "fail", join_words(unsupported), f"use zones of {join_words(other_zones)}")
    impaired_zones = [zone for zone in fleet.zones if available_zones[zone].get("State") not in ("available", None)]
    if impaired_zones:
        message = join_words(f"{zone} is {available_zones[zone]['State']}" for zone in impaired_zones)
        return CheckResult("zones", "warn", message, "wait, or remove it from zones")
    return CheckResult("zones", "pass", ", ".join(f"{zone} ({ids[zone]})" for zone in fleet.zones))


def _find_missing_service(zone_id: str, fleet: Fleet) -> str:
    if fleet.creates_eks and zone_id in ZONES_WITHOUT_EKS:
        return "takes no subnet of an EKS cluster"
    if "ecs" in fleet.orchestrators and zone_id not in ZONES_WITH_FARGATE.get(fleet.region, {zone_id}):
        return "runs no Fargate tasks, which routers and load drivers are"
    return ""


def _check_endpoints(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    """Ask which zones have the services' interface endpoints: a new network has one of each in every zone."""
    services = endpoints.list_own(fleet) if isinstance(fleet.network, NewNetwork) else []
    if not services:
        return []
    names = {format_endpoint_service(endpoint.service, fleet.region): endpoint.service for endpoint in services}
    details = aws.client("ec2").describe_vpc_endpoint_services(ServiceNames=list(names))["ServiceDetails"]
    missing_endpoints = [
        f"{names[row['ServiceName']]} in {zone}"
        for row in details
        for zone in fleet.zones
        if zone not in row["AvailabilityZones"]
    ]
    if missing_endpoints:
        message = f"AWS has no interface endpoint of {join_words(missing_endpoints)}"
        return [CheckResult("endpoints", "fail", message, "use other zones, or a network of your own: {vpc: vpc-...}")]
    return [CheckResult("endpoints", "pass", f"{len(names)} interface endpoints in {join_words(fleet.zones)}")]


@dataclass(frozen=True)
class _Members:
    """Instances of a pool, or the cluster's own."""

    name: str
    types: Sequence[str]
    zones: Sequence[str]
    owner: str
    """What has the key `zones` to change."""


def _check_types(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    """Asked of the account that pays: zone names stand for other places in another account."""
    members = [_Members(name, pool.types, fleet.get_zones(pool), "the pool") for name, pool in fleet.pools.items()]
    if fleet.creates_eks:
        system = build_system_group(fleet)
        members.append(_Members("the cluster's own nodes", system.types, system.zones, "the fleet"))
    instance_types = sorted({instance_type for row in members for instance_type in row.types})
    query = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": instance_types}]}
    operation, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
    zones_by_type: dict[str, set[str]] = {}
    for offering in session.list_all(aws.client("ec2"), operation, key, **query):
        zones_by_type.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return [result for row in members for result in _check_members(fleet, row, zones_by_type)]


def _check_members(fleet: Fleet, row: _Members, zones_by_type: Mapping[str, set[str]]) -> Sequence[CheckResult]:
    zones = row.zones
    results = []
    for instance_type in row.types:
        offering_zones = [zone for zone in zones if zone in zones_by_type.get(instance_type, ())]
        check_name = f"{instance_type} for {row.name}"
        if not offering_zones:
            others = sorted(zones_by_type.get(instance_type, ()))
            results.append(_build_missing_result(fleet, check_name, zones, others))
        elif len(offering_zones) < len(zones):
            results.append(_build_partial_result(row, check_name, offering_zones, zones_by_type))
        else:
            results.append(CheckResult(check_name, "pass", f"offered in {join_words(zones)}"))
    return results


def _build_missing_result(
    fleet: Fleet, check_name: str, zones: Sequence[str], other_zones: Sequence[str]
) -> CheckResult:
    region_zones = [zone for zone in other_zones if zone[:-1] == fleet.region]
    if not region_zones:
        message = f"{fleet.region} does not offer it to this account"
        return CheckResult(check_name, "fail", message, "use another type, or region")
    message = f"offered in {join_words(region_zones)}, and not in {join_words(zones)}"
    fix = f"set zones: [{', '.join(region_zones)}] in the pool (and in the fleet)"
    return CheckResult(check_name, "fail", message, fix)


def _build_partial_result(
    row: _Members, check_name: str, offering_zones: Sequence[str], zones_by_type: Mapping[str, set[str]]
) -> CheckResult:
    """Report a type that some of the pool's zones lack: bad only where such a zone offers none of the pool's types."""
    missing_zones = [zone for zone in row.zones if zone not in offering_zones]
    empty_zones = [
        zone
        for zone in missing_zones
        if not any(zone in zones_by_type.get(instance_type, ()) for instance_type in row.types)
    ]
    message = f"offered in {join_words(offering_zones)}, not in {join_words(missing_zones)}"
    if not empty_zones:
        return CheckResult(check_name, "warn", f"{message}; the pool's other types are", "keep it if that is intended")
    remaining_zones = ", ".join(zone for zone in row.zones if zone not in empty_zones)
    verb = "offers" if len(empty_zones) == 1 else "offer"
    message = f"{message}, and {join_words(empty_zones)} {verb} none of {row.owner}'s types"
    return CheckResult(check_name, "fail", message, f"set zones: [{remaining_zones}] in {row.owner}")
