"""Which zones there are for this account, and which of the pools' types each offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_serving.aws.preflight.check import Line, Question
from llm_serving.aws.session import Aws
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet, Pool

WITHOUT_EKS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Zones, by their ids, in which an EKS control plane cannot have a subnet.

Source: EKS user guide, "Subnet requirements for clusters", read 2026-11. Names differ between accounts, ids do not.
"""


def questions(aws: Aws, fleet: Fleet) -> list[Question]:
    """The zones, and the types."""
    return [
        Question("zones", "zones", lambda: _zones(aws, fleet), ("ec2:DescribeAvailabilityZones",)),
        Question("zones", "types in zones", lambda: _types(aws, fleet), ("ec2:DescribeInstanceTypeOfferings",)),
    ]


def _zones(aws: Aws, fleet: Fleet) -> list[Line]:
    there = {one["ZoneName"]: one for one in aws.client("ec2").describe_availability_zones()["AvailabilityZones"]}
    missing = [zone for zone in fleet.zones if zone not in there]
    if missing:
        said = f"this account has no {listed(missing)}; it has {listed(sorted(there))}"
        return [Line("zones", "fail", said, f"zones: [{', '.join(sorted(there)[: len(fleet.zones)])}]")]
    ids = {zone: there[zone]["ZoneId"] for zone in fleet.zones}
    without = [zone for zone in fleet.zones if ids[zone] in WITHOUT_EKS and "eks" in fleet.orchestrators]
    if without:
        said = f"{listed(f'{zone} ({ids[zone]})' for zone in without)} takes no subnet of an EKS cluster"
        others = sorted(zone for zone, one in there.items() if one["ZoneId"] not in WITHOUT_EKS)
        return [Line("zones", "fail", said, f"zones of {listed(others)}")]
    troubled = [zone for zone in fleet.zones if there[zone].get("State") not in ("available", None)]
    if troubled:
        said = listed(f"{zone} is {there[zone]['State']}" for zone in troubled)
        return [Line("zones", "warn", said, "wait, or leave it out of zones")]
    return [Line("zones", "pass", ", ".join(f"{zone} ({ids[zone]})" for zone in fleet.zones))]


def _types(aws: Aws, fleet: Fleet) -> list[Line]:
    """Asked of the account that pays: zone names stand for other places in another account."""
    kinds = sorted({kind for pool in fleet.pools.values() for kind in pool.types})
    pages = (
        aws.client("ec2")
        .get_paginator("describe_instance_type_offerings")
        .paginate(LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": kinds}])
    )
    offered: dict[str, set[str]] = {}
    for page in pages:
        for one in page["InstanceTypeOfferings"]:
            offered.setdefault(one["InstanceType"], set()).add(one["Location"])
    return [line for name, pool in fleet.pools.items() for line in _pool(fleet, name, pool, offered)]


def _pool(fleet: Fleet, name: str, pool: Pool, offered: Mapping[str, set[str]]) -> Sequence[Line]:
    zones = fleet.zones_of(pool)
    lines = []
    for kind in pool.types:
        here = [zone for zone in zones if zone in offered.get(kind, ())]
        about = f"{kind} for {name}"
        if not here:
            lines.append(_nowhere(fleet, about, zones, sorted(offered.get(kind, ()))))
        elif len(here) < len(zones):
            lines.append(_partly(pool, about, zones, here, offered))
        else:
            lines.append(Line(about, "pass", f"offered in {listed(zones)}"))
    return lines


def _nowhere(fleet: Fleet, about: str, zones: Sequence[str], elsewhere: Sequence[str]) -> Line:
    own = [zone for zone in elsewhere if zone[:-1] == fleet.region]
    if not own:
        return Line(about, "fail", f"{fleet.region} does not offer it to this account", "another type, or region")
    said = f"offered in {listed(own)}, and not in {listed(zones)}"
    return Line(about, "fail", said, f"zones: [{', '.join(own)}] in the pool (and in the fleet)")


def _partly(pool: Pool, about: str, zones: Sequence[str], here: Sequence[str], offered: Mapping[str, set[str]]) -> Line:
    """A type that some of the pool's zones lack: bad only where such a zone offers none of the pool's types."""
    lacking = [zone for zone in zones if zone not in here]
    empty = [zone for zone in lacking if not any(zone in offered.get(kind, ()) for kind in pool.types)]
    said = f"offered in {listed(here)}, not in {listed(lacking)}"
    if not empty:
        return Line(about, "warn", f"{said}; the pool's other types are", "nothing, where that is meant")
    rest = ", ".join(zone for zone in zones if zone not in empty)
    said = f"{said}, and {listed(empty)} {'offers' if len(empty) == 1 else 'offer'} none of the pool's types"
    return Line(about, "fail", said, f"zones: [{rest}] in the pool")
