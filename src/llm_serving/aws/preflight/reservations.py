"""Whether the reservations that the pools name are there, hold the right machines, and hold enough of them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from llm_serving.aws import session as clients
from llm_serving.aws.preflight.check import Line, Question
from llm_serving.aws.session import Aws
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import groups, names
from llm_serving.fleet.checks import listed
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet, Pool, Reservation

_COMING = ("scheduled", "pending", "assessing", "payment-pending", "delayed")
_SOON = datetime.timedelta(days=1)
_BEFORE_END = datetime.timedelta(minutes=30)
"""EC2 ends a Capacity Block's instances this long before the block ends; EC2 user guide, "Capacity Blocks", 2026-11."""


def questions(aws: Aws, fleet: Fleet, catalogue: Catalogue) -> list[Question]:
    """One for each reservation that a pool names, or that the fleet makes."""
    named = [
        _question(aws, fleet, name, way)
        for name, pool in fleet.pools.items()
        for way in pool.buy
        if isinstance(way, Reservation) and not way.reserve
    ]
    known = all(kind in catalogue for pool in fleet.pools.values() for kind in pool.types)
    made = [group for group in groups.groups(fleet, catalogue) if group.reserve] if known else []
    return [*named, *(_question_of_own(aws, fleet, group, catalogue) for group in made)]


_ACTIONS = ("ec2:DescribeCapacityReservations",)


def _question(aws: Aws, fleet: Fleet, name: str, way: Reservation) -> Question:
    about = f"{way.capacity_block or way.reservation} for {name}"
    return Question("reservations", about, lambda: [_line(aws, fleet, name, way, about)], _ACTIONS)


def _question_of_own(aws: Aws, fleet: Fleet, group: Group, catalogue: Catalogue) -> Question:
    about = f"{group.reserve} reserved for {group.pool}"
    return Question("reservations", about, lambda: [_own(aws, fleet, group, catalogue, about)], _ACTIONS)


def _own(aws: Aws, fleet: Fleet, group: Group, catalogue: Catalogue, about: str) -> Line:
    """A reservation that the fleet makes: what it costs, and whether it is there already."""
    kind, zone = group.types[0], group.zones[0]
    price = catalogue[kind].price_usd_h(fleet.region)
    each_hour = "at a price that is not known" if price is None else f"for {group.reserve * price:,.2f} USD/h"
    filters = {"tag:fleet": fleet.name, "tag:Name": names.reservation(fleet.name, group.name), "state": "active"}
    answer = aws.client("ec2").describe_capacity_reservations(
        Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()]
    )
    held = sum(one["TotalInstanceCount"] for one in answer["CapacityReservations"])
    if held:
        free = sum(one["AvailableInstanceCount"] for one in answer["CapacityReservations"])
        return Line(about, "pass", f"{held} × {kind} in {zone}, {free} free, {each_hour}, used or not")
    said = f"the apply makes it: {group.reserve} × {kind} in {zone}, {each_hour} from then on, used or not"
    # EC2 tells nobody what it has left but by an answer to the request itself.
    return Line(about, "pass", f"{said}; where EC2 has too few, the apply says so")


def _line(aws: Aws, fleet: Fleet, name: str, way: Reservation, about: str) -> Line:
    found = _asked(aws, str(way.capacity_block or way.reservation))
    if found is None:
        said = f"there is no such reservation in this account and {aws.region}"
        command = ("aws", "ec2", "describe-capacity-reservations", "--region", aws.region)
        return Line(about, "fail", said, "its id from the list of those that are there, in `buy`", command)
    pool = fleet.pools[name]
    return _mismatch(fleet, pool, way, found, about) or _state(pool, found, about)


def _asked(aws: Aws, name: str) -> Mapping[str, Any] | None:
    from botocore.exceptions import ClientError

    try:
        answer = aws.client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])
    except ClientError as error:
        if clients.code(error).startswith("InvalidCapacityReservationId"):
            return None
        raise
    found: list[Mapping[str, Any]] = answer["CapacityReservations"]
    return found[0] if found else None


def _mismatch(fleet: Fleet, pool: Pool, way: Reservation, found: Mapping[str, Any], about: str) -> Line | None:
    """The first thing that makes it another reservation than the pool takes it for."""
    block = found.get("ReservationType") == "capacity-block"
    if block != (way.capacity_block is not None):
        kind, key = ("a Capacity Block", "capacity-block") if block else ("an on-demand reservation", "reservation")
        return Line(about, "fail", f"it is {kind}", f"buy: {{{key}: {found['CapacityReservationId']}}}")
    kind, zone = found["InstanceType"], found["AvailabilityZone"]
    if kind not in pool.types:
        return Line(about, "fail", f"it holds {kind}, and the pool takes {listed(pool.types)}", f"types: {kind}")
    if zone not in fleet.zones_of(pool):
        said = f"it is in {zone}, and the pool in {listed(fleet.zones_of(pool))}"
        return Line(about, "fail", said, f"zones: {zone} in the pool (and in the fleet)")
    if found.get("Tenancy", "default") != "default":
        return Line(about, "fail", f"its tenancy is {found['Tenancy']}", "a reservation of default tenancy")
    if not found.get("InstancePlatform", "Linux/UNIX").startswith("Linux/UNIX"):
        return Line(about, "fail", f"its platform is {found['InstancePlatform']}", "a reservation for Linux/UNIX")
    return None


def _state(pool: Pool, found: Mapping[str, Any], about: str) -> Line:
    state, total, free = found["State"], found["TotalInstanceCount"], found["AvailableInstanceCount"]
    if state in _COMING:
        start = found.get("StartDate")
        when = f", and begins {_date(start)}" if start else ""
        return Line(about, "warn", f"it is {state}{when}", "wait: machines come when it is active")
    if state != "active":
        ended = f" since {_date(found['EndDate'])}" if found.get("EndDate") else ""
        return Line(about, "fail", f"it is {state}{ended}", "another reservation, or another way in `buy`")
    held = f"{free} of {total} × {found['InstanceType']} free in {found['AvailabilityZone']}"
    end = found.get("EndDate")
    until = f", until {_date(end)}" if end else ""
    alone = len(pool.buy) == 1
    if total < pool.size.least or (alone and total < pool.size.most):
        need = pool.size.least if total < pool.size.least else pool.size.most
        said = f"it holds {total}, and the pool takes {'at least' if need == pool.size.least else 'up to'} {need}"
        return Line(about, "fail", said, f"size: {min(pool.size.least, total)}..{total}, or a larger reservation")
    if end and end - datetime.datetime.now(datetime.UTC) < _SOON:
        last = _date(end - _BEFORE_END) if found.get("ReservationType") == "capacity-block" else _date(end)
        return Line(about, "warn", f"{held}; it ends soon", f"machines run until {last}: renew it in time")
    if free < pool.size.most:
        why = "what is taken may be this fleet's own"
        return Line(about, "warn", f"{held}, and the pool takes up to {pool.size.most}{until}", why)
    return Line(about, "pass", f"{held}{until}")


def _date(when: datetime.datetime) -> str:
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
