"""Which zones there are for this account, and which of the pools' types each offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet, Pool

ZONES_WITHOUT_EKS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Zones, by their ids, in which an EKS control plane cannot have a subnet.

Source: EKS user guide, "Subnet requirements for clusters", read 2026-11. Names differ between accounts, ids do not.
"""


def list_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
    """Return the zones, and the types."""
    return [
        Check("zones", "zones", lambda: _check_zones(aws, fleet), ("ec2:DescribeAvailabilityZones",)),
        Check("zones", "types in zones", lambda: _check_types(aws, fleet), ("ec2:DescribeInstanceTypeOfferings",)),
    ]


def _check_zones(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    available_zones = {
        details["ZoneName"]: details for details in aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    }
    missing = [zone for zone in fleet.zones if zone not in available_zones]
    if missing:
        message = f"this account has no {join_words(missing)}; it has {join_words(sorted(available_zones))}"
        return [
            CheckResult("zones", "fail", message, f"zones: [{', '.join(sorted(available_zones)[: len(fleet.zones)])}]")
        ]
    ids = {zone: available_zones[zone]["ZoneId"] for zone in fleet.zones}
    unsupported_zones = [
        zone for zone in fleet.zones if ids[zone] in ZONES_WITHOUT_EKS and "eks" in fleet.orchestrators
    ]
    if unsupported_zones:
        message = (
            f"{join_words(f'{zone} ({ids[zone]})' for zone in unsupported_zones)} takes no subnet of an EKS cluster"
        )
        other_zones = sorted(
            zone for zone, details in available_zones.items() if details["ZoneId"] not in ZONES_WITHOUT_EKS
        )
        return [CheckResult("zones", "fail", message, f"zones of {join_words(other_zones)}")]
    impaired_zones = [zone for zone in fleet.zones if available_zones[zone].get("State") not in ("available", None)]
    if impaired_zones:
        message = join_words(f"{zone} is {available_zones[zone]['State']}" for zone in impaired_zones)
        return [CheckResult("zones", "warn", message, "wait, or remove it from zones")]
    return [CheckResult("zones", "pass", ", ".join(f"{zone} ({ids[zone]})" for zone in fleet.zones))]


def _check_types(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    """Asked of the account that pays: zone names stand for other places in another account."""
    instance_types = sorted({instance_type for pool in fleet.pools.values() for instance_type in pool.types})
    pages = (
        aws.client("ec2")
        .get_paginator("describe_instance_type_offerings")
        .paginate(LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": instance_types}])
    )
    zones_by_type: dict[str, set[str]] = {}
    for page in pages:
        for offering in page["InstanceTypeOfferings"]:
            zones_by_type.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return [result for name, pool in fleet.pools.items() for result in _check_pool(fleet, name, pool, zones_by_type)]


def _check_pool(fleet: Fleet, name: str, pool: Pool, zones_by_type: Mapping[str, set[str]]) -> Sequence[CheckResult]:
    zones = fleet.get_zones(pool)
    results = []
    for instance_type in pool.types:
        offering_zones = [zone for zone in zones if zone in zones_by_type.get(instance_type, ())]
        check_name = f"{instance_type} for {name}"
        if not offering_zones:
            results.append(
                _build_missing_result(fleet, check_name, zones, sorted(zones_by_type.get(instance_type, ())))
            )
        elif len(offering_zones) < len(zones):
            results.append(_build_partial_result(pool, check_name, zones, offering_zones, zones_by_type))
        else:
            results.append(CheckResult(check_name, "pass", f"offered in {join_words(zones)}"))
    return results


def _build_missing_result(
    fleet: Fleet, check_name: str, zones: Sequence[str], other_zones: Sequence[str]
) -> CheckResult:
    region_zones = [zone for zone in other_zones if zone[:-1] == fleet.region]
    if not region_zones:
        return CheckResult(
            check_name, "fail", f"{fleet.region} does not offer it to this account", "another type, or region"
        )
    message = f"offered in {join_words(region_zones)}, and not in {join_words(zones)}"
    return CheckResult(
        check_name, "fail", message, f"zones: [{', '.join(region_zones)}] in the pool (and in the fleet)"
    )


def _build_partial_result(
    pool: Pool,
    check_name: str,
    zones: Sequence[str],
    offering_zones: Sequence[str],
    zones_by_type: Mapping[str, set[str]],
) -> CheckResult:
    """Report a type that some of the pool's zones lack: bad only where such a zone offers none of the pool's types."""
    missing_zones = [zone for zone in zones if zone not in offering_zones]
    empty_zones = [
        zone
        for zone in missing_zones
        if not any(zone in zones_by_type.get(instance_type, ()) for instance_type in pool.types)
    ]
    message = f"offered in {join_words(offering_zones)}, not in {join_words(missing_zones)}"
    if not empty_zones:
        return CheckResult(check_name, "warn", f"{message}; the pool's other types are", "none needed if intended")
    remaining_zones = ", ".join(zone for zone in zones if zone not in empty_zones)
    verb = "offers" if len(empty_zones) == 1 else "offer"
    message = f"{message}, and {join_words(empty_zones)} {verb} none of the pool's types"
    return CheckResult(check_name, "fail", message, f"zones: [{remaining_zones}] in the pool")
