"""Whether the reservations that the pools name are there, hold the right machines, and hold enough of them."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from typing import Any

from llm_serving.aws import session as session
from llm_serving.aws.preflight.check import Check, CheckResult, Status
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import instances
from llm_serving.fleet import groups, names
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.settings.units import format_count

_UPCOMING_STATES = ("scheduled", "pending", "assessing", "payment-pending", "delayed")
_EXPIRY_WARNING = datetime.timedelta(days=1)
_BLOCK_END_MARGIN = datetime.timedelta(minutes=40)
"""How long before a Capacity Block's end its instances drain, on EKS by itself and on ECS by
`infra.functions.gpu_repair`. EC2 ends them 10 minutes later. Sources: EC2 user guide, "Capacity Blocks"; EKS user
guide, "Create a managed node group with Capacity Blocks for ML"; 2026-11."""


def list_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
    existing = [
        (
            f"{option.capacity_block or option.reservation} for {name}",
            functools.partial(_check_named, fleet, pool, option),
        )
        for name, pool in fleet.pools.items()
        for option in pool.buy
        if isinstance(option, Reservation) and not option.reserve
    ]
    fleet_groups = groups.resolve_all(fleet) if groups.has_known_types(fleet) else ()
    own = [
        (f"{group.reserve} reserved for {group.pool}", functools.partial(_check_own, fleet, group))
        for group in fleet_groups
        if group.reserve
    ]
    actions = ("ec2:DescribeCapacityReservations",)
    return [
        Check("reservations", name, functools.partial(check, aws, name), actions) for name, check in [*existing, *own]
    ]


def _check_own(fleet: Fleet, group: Group, aws: AwsSession, check_name: str) -> CheckResult:
    """Check a reservation that the fleet makes: what it costs, and whether it is there already."""
    instance_type, zone = group.types[0], group.zones[0]
    price = instances.load()[instance_type].get_price_usd_h(fleet.region)
    hourly_cost = "at a price that is not known" if price is None else f"for {group.reserve * price:,.2f} USD/h"
    filters = {
        "tag:fleet": fleet.name,
        "tag:Name": names.format_reservation_name(fleet.name, group.name),
        "state": "active",
    }
    response = aws.client("ec2").describe_capacity_reservations(
        Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()]
    )
    total = sum(reservation["TotalInstanceCount"] for reservation in response["CapacityReservations"])
    if total:
        free = sum(reservation["AvailableInstanceCount"] for reservation in response["CapacityReservations"])
        message = f"{total} × {instance_type} in {zone}, {free} free, {hourly_cost}, used or not"
        return CheckResult(check_name, "pass", message)
    message = (
        f"created by the apply: {group.reserve} × {instance_type} in {zone}, {hourly_cost} from then on, used or not"
    )
    # EC2 tells nobody what it has left but by an answer to the request itself.
    return CheckResult(check_name, "pass", f"{message}; the apply fails where EC2 has too few")


def _check_named(fleet: Fleet, pool: Pool, option: Reservation, aws: AwsSession, check_name: str) -> CheckResult:
    reservation = fetch_reservation(aws, str(option.capacity_block or option.reservation))
    if reservation is None:
        message = f"there is no such reservation in this account and {aws.region}"
        command = ("aws", "ec2", "describe-capacity-reservations", "--region", aws.region)
        return CheckResult(check_name, "fail", message, "set the id of an existing reservation in `buy`", command)
    if mismatch := _find_mismatch(fleet, pool, option, reservation):
        return CheckResult(check_name, "fail", *mismatch)
    if reservation["State"] in _UPCOMING_STATES:
        return CheckResult(check_name, *_judge_start(fleet, pool, reservation))
    return CheckResult(check_name, *_judge_state(pool, reservation))


def fetch_reservation(aws: AwsSession, reservation_id: str) -> Mapping[str, Any] | None:
    """Return EC2's description of a reservation or Capacity Block; None of one that it does not know, or no more."""
    with session.ignore_errors("InvalidCapacityReservationId"):
        response = aws.client("ec2").describe_capacity_reservations(CapacityReservationIds=[reservation_id])
        reservations: list[Mapping[str, Any]] = response["CapacityReservations"]
        return reservations[0] if reservations else None
    return None


def _find_mismatch(
    fleet: Fleet, pool: Pool, option: Reservation, reservation: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Find the first thing that makes it another reservation than the pool takes it for, and the fix."""
    is_block = reservation.get("ReservationType") == "capacity-block"
    if is_block != (option.capacity_block is not None):
        kind, key = ("a Capacity Block", "capacity-block") if is_block else ("an on-demand reservation", "reservation")
        return f"it is {kind}", f"set buy: {{{key}: {reservation['CapacityReservationId']}}}"
    kind, zone = reservation["InstanceType"], reservation["AvailabilityZone"]
    if kind not in pool.types:
        return f"it holds {kind}, and the pool takes {join_words(pool.types)}", f"set types: {kind}"
    if zone not in fleet.get_zones(pool):
        message = f"it is in {zone}, and the pool in {join_words(fleet.get_zones(pool))}"
        return message, f"set zones: {zone} in the pool (and in the fleet)"
    if reservation.get("Tenancy", "default") != "default":
        return f"its tenancy is {reservation['Tenancy']}", "use a reservation of default tenancy"
    if not reservation.get("InstancePlatform", "Linux/UNIX").startswith("Linux/UNIX"):
        return f"its platform is {reservation['InstancePlatform']}", "use a reservation for Linux/UNIX"
    return None


def _judge_start(fleet: Fleet, pool: Pool, reservation: Mapping[str, Any]) -> tuple[Status, str, str]:
    """Judge a reservation to come: no instance starts before it, so an apply or a deployment would wait for one."""
    least, start = pool.size.min, reservation.get("StartDate")
    message = f"it is {reservation['State']}{f', and begins {_format_date(start)}' if start else ''}"
    if reservation.get("ReservationType") == "capacity-block":
        # A block's group is made without instances, or waits to start them, and starts them at the block's start.
        fix = "run it again then; `blueprint fleet apply` can create the stacks before"
        return "fail", f"{message}: until then the pool starts no machine", fix
    if least and fleet.get_orchestrator(pool) == "eks":
        message = f"{message}, and the apply would wait for {format_count(least, 'node')} in vain"
        return "fail", message, f"set size: 0..{pool.size.max} until it is active"
    return "warn", message, "wait: instances start when it is active"


def _judge_state(pool: Pool, reservation: Mapping[str, Any]) -> tuple[Status, str, str]:
    state, total, free = reservation["State"], reservation["TotalInstanceCount"], reservation["AvailableInstanceCount"]
    end = reservation.get("EndDate")
    if state != "active":
        since_note = f" since {_format_date(end)}" if end else ""
        return "fail", f"it is {state}{since_note}", "use another reservation, or another way in `buy`"
    availability = f"{free} of {total} × {reservation['InstanceType']} free in {reservation['AvailabilityZone']}"
    end_note = f", until {_format_date(end)}" if end else ""
    is_only_option = len(pool.buy) == 1
    if total < pool.size.min or (is_only_option and total < pool.size.max):
        required = f"at least {pool.size.min}" if total < pool.size.min else f"up to {pool.size.max}"
        message = f"it holds {total}, and the pool takes {required}"
        return "fail", message, f"set size: {min(pool.size.min, total)}..{total}, or use a larger reservation"
    if end and end - datetime.datetime.now(datetime.UTC) < _EXPIRY_WARNING:
        is_block = reservation.get("ReservationType") == "capacity-block"
        last = end - _BLOCK_END_MARGIN if is_block else end
        return "warn", f"{availability}; it ends soon", f"renew it in time: instances run until {_format_date(last)}"
    if free < pool.size.max:
        message = f"{availability}, and the pool takes up to {pool.size.max}{end_note}"
        return "warn", message, "what is taken may be this fleet's own"
    return "pass", f"{availability}{end_note}", ""


def _format_date(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
