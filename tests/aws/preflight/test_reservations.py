"""The embedded AWS holds no reservations: EC2's answers are recorded here in its own shape."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from llm_serving.aws.preflight import permissions, reservations
from llm_serving.aws.preflight.check import CheckResult
from tests.aws.preflight.conftest import HEAD

NAME = "cr-0123456789abcdef0"
NOW = datetime.datetime.now(datetime.UTC)
VALID = {
    "CapacityReservationId": NAME,
    "InstanceType": "p5.48xlarge",
    "InstancePlatform": "Linux/UNIX",
    "AvailabilityZone": "us-west-2a",
    "Tenancy": "default",
    "TotalInstanceCount": 4,
    "AvailableInstanceCount": 4,
    "State": "active",
    "ReservationType": "default",
}
BLOCK = {**VALID, "ReservationType": "capacity-block", "EndDate": NOW + datetime.timedelta(days=9)}


def _format_pool(key: str, size: str, zone: str = "us-west-2a", extra: str = "") -> str:
    buy = f"[{{{key}: {NAME}}}{extra}]"
    return f"  prefill:\n    types: p5.48xlarge\n    zones: {zone}\n    buy: {buy}\n    size: {size}\n"


def _check_reservation(stubbed_aws: Any, document: Any, reservation: dict[str, Any] | None) -> CheckResult:
    stub = stubbed_aws.stub("ec2")
    if reservation is None:
        stub.add_client_error("describe_capacity_reservations", "InvalidCapacityReservationId.NotFound", "not found")
    else:
        expected = {"CapacityReservationIds": [NAME]}
        stub.add_response("describe_capacity_reservations", {"CapacityReservations": [reservation]}, expected)
    return _run_check(stubbed_aws, document)


def _run_check(stubbed_aws: Any, document: Any) -> CheckResult:
    (check,) = reservations.list_checks(stubbed_aws, document.value)
    (line,) = check.list_results()
    return line


def test_a_reservation_large_enough_for_the_pool_passes(stubbed_aws: Any, read_fleet: Any) -> None:
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "4")), VALID)
    assert (line.status, line.message) == ("pass", "4 of 4 × p5.48xlarge free in us-west-2a")


def test_a_missing_reservation_fails_with_the_command_that_lists_them(stubbed_aws: Any, read_fleet: Any) -> None:
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "4")), None)
    assert (line.status, line.message) == ("fail", "there is no such reservation in this account and us-west-2")
    assert " ".join(line.command) == "aws ec2 describe-capacity-reservations --region us-west-2"


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        (
            {"InstanceType": "p5en.48xlarge"},
            "it holds p5en.48xlarge, and the pool takes p5.48xlarge",
            "set types: p5en.48xlarge",
        ),
        (
            {"AvailabilityZone": "us-west-2c"},
            "it is in us-west-2c, and the pool in us-west-2a",
            "set zones: us-west-2c in the pool (and in the fleet)",
        ),
        ({"ReservationType": "capacity-block"}, "it is a Capacity Block", f"set buy: {{capacity-block: {NAME}}}"),
        ({"Tenancy": "dedicated"}, "its tenancy is dedicated", "use a reservation of default tenancy"),
        ({"InstancePlatform": "Windows"}, "its platform is Windows", "use a reservation for Linux/UNIX"),
        (
            {"State": "expired", "EndDate": datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)},
            "it is expired since 2026-11-01 00:00 UTC",
            "use another reservation, or another way in `buy`",
        ),
        ({"State": "cancelled"}, "it is cancelled", "use another reservation, or another way in `buy`"),
        (
            {"TotalInstanceCount": 2},
            "it holds 2, and the pool takes at least 4",
            "set size: 2..2, or use a larger reservation",
        ),
    ],
)
def test_another_reservation_than_the_pool_takes_it_for_fails(
    stubbed_aws: Any, read_fleet: Any, change: dict[str, Any], message: str, remedy: str
) -> None:
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "4")), {**VALID, **change})
    assert (line.status, line.message, line.fix) == ("fail", message, remedy)


def test_an_on_demand_reservation_instead_of_a_block_fails(stubbed_aws: Any, read_fleet: Any) -> None:
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("capacity-block", "4")), VALID)
    assert (line.status, line.message) == ("fail", "it is an on-demand reservation")
    assert line.fix == f"set buy: {{reservation: {NAME}}}"


def test_a_reservation_smaller_than_the_most_is_enough_where_the_pool_falls_back(
    stubbed_aws: Any, read_fleet: Any
) -> None:
    document = read_fleet(_format_pool("reservation", "0..8", extra=", on-demand"))
    line = _check_reservation(stubbed_aws, document, VALID)
    assert (line.status, line.message) == (
        "warn",
        "4 of 4 × p5.48xlarge free in us-west-2a, and the pool takes up to 8",
    )
    line_without_fallback = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "0..8")), VALID)
    assert (line_without_fallback.status, line_without_fallback.message) == (
        "fail",
        "it holds 4, and the pool takes up to 8",
    )


def test_a_block_says_until_when(stubbed_aws: Any, read_fleet: Any) -> None:
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("capacity-block", "4")), BLOCK)
    assert line.status == "pass"
    assert line.message.endswith(f", until {BLOCK['EndDate']:%Y-%m-%d %H:%M UTC}")


@pytest.mark.parametrize("size", ["4", "0..4"])
@pytest.mark.parametrize("orchestrator", ["eks", "ecs"])
def test_a_block_that_is_not_active_stops_the_preflight_and_says_when_it_begins(
    stubbed_aws: Any, read_fleet: Any, orchestrator: str, size: str
) -> None:
    coming = {**BLOCK, "State": "scheduled", "StartDate": datetime.datetime(2026, 12, 1, 11, 30, tzinfo=datetime.UTC)}
    fleet = read_fleet(_format_pool("capacity-block", size), f"{HEAD}orchestrator: {orchestrator}\n")
    line = _check_reservation(stubbed_aws, fleet, coming)
    assert (line.status, line.message) == (
        "fail",
        "it is scheduled, and begins 2026-12-01 11:30 UTC: until then the pool starts no machine",
    )
    assert line.fix == "run it again then; `blueprint fleet apply` can create the stacks before"


def test_a_block_that_ends_within_a_day_says_when_its_machines_end(stubbed_aws: Any, read_fleet: Any) -> None:
    end = NOW + datetime.timedelta(hours=5)
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("capacity-block", "4")), {**BLOCK, "EndDate": end})
    assert line.status == "warn"
    deadline = f"{end - datetime.timedelta(minutes=40):%Y-%m-%d %H:%M UTC}"
    assert line.fix == f"renew it in time: instances run until {deadline}"


def test_used_instances_of_a_reservation_are_reported(stubbed_aws: Any, read_fleet: Any) -> None:
    line = _check_reservation(
        stubbed_aws, read_fleet(_format_pool("reservation", "4")), {**VALID, "AvailableInstanceCount": 1}
    )
    assert (line.status, line.message) == (
        "warn",
        "1 of 4 × p5.48xlarge free in us-west-2a, and the pool takes up to 4",
    )


OWN_RESERVATION = (
    "  prefill:\n    types: p5.48xlarge\n    zones: us-west-2a\n    buy: [{reserve: 3}, on-demand]\n    size: 2..6\n"
)
EXPECTED_REQUEST = {
    "Filters": [
        {"Name": "tag:fleet", "Values": ["demo"]},
        {"Name": "tag:Name", "Values": ["reserved-demo-prefill-p5-48xlarge-a-cr"]},
        {"Name": "state", "Values": ["active"]},
    ]
}


def test_a_reservation_of_the_fleet_shows_its_cost_used_or_not(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.stub("ec2").add_response(
        "describe_capacity_reservations", {"CapacityReservations": []}, EXPECTED_REQUEST
    )
    line = _run_check(stubbed_aws, read_fleet(OWN_RESERVATION))
    assert (line.status, line.name) == ("pass", "3 reserved for prefill")
    assert line.message == (
        "created by the apply: 3 × p5.48xlarge in us-west-2a, for 165.12 USD/h from then on, used or not; "
        "the apply fails where EC2 has too few"
    )


def test_a_created_reservation_shows_its_free_instances(stubbed_aws: Any, read_fleet: Any) -> None:
    reservation = {**VALID, "TotalInstanceCount": 3, "AvailableInstanceCount": 1}
    stubbed_aws.stub("ec2").add_response(
        "describe_capacity_reservations", {"CapacityReservations": [reservation]}, EXPECTED_REQUEST
    )
    line = _run_check(stubbed_aws, read_fleet(OWN_RESERVATION))
    assert line.message == "3 × p5.48xlarge in us-west-2a, 1 free, for 165.12 USD/h, used or not"


def test_creating_a_reservation_needs_rights_that_using_it_does_not(read_fleet: Any) -> None:
    own_actions, existing_actions = (
        permissions.list_actions_by_part(read_fleet(text).value)["instances"]
        for text in (OWN_RESERVATION, _format_pool("reservation", "4"))
    )
    assert "ec2:CreateCapacityReservation" in own_actions and "ec2:CreateCapacityReservation" not in existing_actions
    assert "resource-groups:GroupResources" in own_actions and "resource-groups:GroupResources" in existing_actions


def test_a_reservation_to_come_fails_where_the_apply_would_wait_for_its_machines(
    stubbed_aws: Any, read_fleet: Any
) -> None:
    coming = {**VALID, "State": "scheduled"}
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "4")), coming)
    assert (line.status, line.message) == ("fail", "it is scheduled, and the apply would wait for 4 nodes in vain")
    assert line.fix == "set size: 0..4 until it is active"


def test_a_reservation_to_come_is_waited_for_where_the_apply_starts_no_machine(
    stubbed_aws: Any, read_fleet: Any
) -> None:
    coming = {**VALID, "State": "scheduled"}
    line = _check_reservation(stubbed_aws, read_fleet(_format_pool("reservation", "0..4")), coming)
    assert (line.status, line.message) == ("warn", "it is scheduled")
