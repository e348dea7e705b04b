"""A role's tasks find machines in the order of its pool's choices, and none that serves is stopped for want of another."""

from __future__ import annotations

import datetime
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from infra.functions import ecs_fallback
from infra.functions.ecs_fallback import Choice
from llm_serving.catalog import signals

HOUR = datetime.timedelta(hours=1)
ARN = "arn:aws:ecs:us-west-2:123456789012"
FAILED = {"cluster": "demo", "failed_group": "demo-aa-g6e-a-spot"}


def compute_time(span: datetime.timedelta = datetime.timedelta()) -> datetime.datetime:
    """That long before now, at the moment of the test."""
    return datetime.datetime.now(datetime.UTC) - span


def build_choices(*rows: tuple[int, int, int]) -> list[Choice]:
    """Build choices from (desired, stuck, serving)."""
    return [Choice(f"service-{index}", *row) for index, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(4, 0, 4), (0, 0, 0)], [4, 0]),  # all is well
        ([(4, 0, 0), (0, 0, 0)], [4, 0]),  # machines are on their way
        ([(4, 3, 1), (0, 0, 0)], [4, 3]),  # three find none
        ([(4, 3, 1), (3, 3, 0), (0, 0, 0)], [4, 3, 3]),  # nor there
        ([(4, 1, 1), (3, 0, 3)], [4, 3]),  # two have a machine again and load their model: nothing is given back yet
        ([(4, 0, 3), (3, 0, 3)], [4, 1]),  # two of them serve
        ([(4, 0, 4), (3, 0, 3), (2, 0, 2)], [4, 0, 0]),  # all serve where they are preferred
        ([(2, 0, 0), (4, 0, 4)], [2, 2]),  # fewer are desired
        ([(0, 0, 4), (4, 4, 0)], [0, 0]),  # none is desired
    ],
)
def test_each_choice_gets_the_tasks_that_the_previous_could_not_place(
    before: list[tuple[int, int, int]], after: list[int]
) -> None:
    assert ecs_fallback.compute_counts(build_choices(*before)) == after


def test_a_choice_without_machines_has_a_limited_number_of_tasks_waiting_and_passes_the_rest_on() -> None:
    stuck = build_choices((400, 400, 0), (0, 0, 0), (0, 0, 0))
    assert ecs_fallback.compute_counts(stuck) == [400, 50, 50]
    second_is_stuck_too = [*build_choices((400, 400, 0)), Choice("b", 50, 50, 0), Choice("c", 50, 0, 20, 50)]
    assert ecs_fallback.compute_counts(second_is_stuck_too) == [400, 50, 100]
    third_has_machines = [*build_choices((400, 400, 0)), Choice("b", 50, 50, 0), Choice("c", 400, 0, 390, 390)]
    assert ecs_fallback.compute_counts(third_has_machines) == [400, 50, 400]


def _build_stuck_role(*desired_counts: int) -> list[Choice]:
    """A role whose choices have all of their tasks waiting."""
    return [Choice(f"choice-{number}", count, count, 0, 0, count) for number, count in enumerate(desired_counts)]


@pytest.mark.parametrize(
    ("roles", "max_waiting"),
    [
        ([_build_stuck_role(40, 0)], 50),  # far from the limit
        ([_build_stuck_role(200, 50, 0), _build_stuck_role(200, 50, 0)], 12),  # four choices share what is left
        ([_build_stuck_role(400, *[50] * 9)], 5),  # many choices
        ([_build_stuck_role(480, 50, 0)], 1),  # and each goes on trying
        ([[Choice("alone", 500, 500, 0, 0, 500)]], 1),
        ([], 50),
    ],
)
def test_choices_after_the_first_share_what_ecs_lets_wait(roles: list[list[Choice]], max_waiting: int) -> None:
    assert ecs_fallback.compute_max_waiting(roles) == max_waiting


@given(
    st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=6), min_size=1, max_size=8).filter(
        lambda roles: sum(role[0] for role in roles) <= 400
    )
)
def test_tasks_without_machines_stay_below_what_ecs_lets_wait(
    desired_counts: list[list[int]],
) -> None:
    roles = [_build_stuck_role(*counts) for counts in desired_counts]
    max_waiting = ecs_fallback.compute_max_waiting(roles)
    assert sum(sum(ecs_fallback.compute_counts(role, max_waiting)) for role in roles) <= 450


def test_a_large_role_without_machines_leaves_room_for_the_last_choice_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = [
        build_service(f"prefill-{choice}", count, fallback="prefill", choice=str(choice))
        for choice, count in enumerate((400, 50))
    ]
    ecs = Ecs(monkeypatch, [FIRST, {**SECOND, "desiredCount": 50}, *large])
    stuck = [build_task(number, "PROVISIONING") for number in range(100)]
    ecs.add_tasks("decode-0", *stuck[:2])
    ecs.add_tasks("decode-1")
    ecs.add_tasks("prefill-0", *stuck[:99])
    ecs.add_tasks("prefill-1")
    monkeypatch.setattr(ecs_fallback, "MAX_CLUSTER_WAITING", 111)
    ecs.expect_update("decode-1", 2)
    ecs.expect_update("prefill-1", 5)
    ecs_fallback.handler({"cluster": "demo"})
    ecs.stub.assert_no_pending_responses()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_the_first_choice_is_unchanged_and_each_other_covers_at_most_the_previous_shortfall(
    rows: list[tuple[int, int, int]],
) -> None:
    observed = build_choices(*rows)
    new_counts = ecs_fallback.compute_counts(observed)
    assert new_counts[0] == observed[0].desired_count
    for (before, count), after in itertools.pairwise(zip(observed, new_counts, strict=True)):
        assert 0 <= after[1] <= max(0, count - before.serving_count)


@dataclass
class Cluster:
    """A model of ECS: each choice has a number of machines; a task waits, then loads, then serves.

    A task counts as stuck only every third minute: ECS stops one that waits too long, and its successor is new.
    """

    capacity: list[int]
    desired: list[int]
    serving: list[int] = field(default_factory=lambda: [0, 0, 0])
    minute: int = 0

    def step(self) -> None:
        """One minute: tasks that had a machine serve, what is too much ends, and the function is called."""
        placed = [min(desired_count, free) for desired_count, free in zip(self.desired, self.capacity, strict=True)]
        is_reported = self.minute % 3 == 0
        observed = [
            Choice(str(index), desired_count, is_reported * (desired_count - running), min(running, serving_count))
            for index, (desired_count, running, serving_count) in enumerate(
                zip(self.desired, placed, self.serving, strict=True)
            )
        ]
        self.minute += 1
        self.desired = ecs_fallback.compute_counts(observed)
        # A task that has just got a machine serves a minute later.
        self.serving = [
            min(running, desired_count) for running, desired_count in zip(placed, self.desired, strict=True)
        ]


capacities = st.lists(st.integers(0, 12), min_size=3, max_size=3)


@given(capacities, capacities, st.integers(0, 20))
def test_tasks_move_to_the_most_preferred_capacity_and_back(scarce: list[int], later: list[int], desired: int) -> None:
    cluster = Cluster(scarce, [desired, 0, 0])
    for capacity in (scarce, [max(pair) for pair in zip(scarce, later, strict=True)]):
        cluster.capacity = capacity
        serving_before = sum(cluster.serving)
        for _ in range(18):
            cluster.step()
            assert sum(cluster.serving) >= min(serving_before, desired), "no serving task ended before its replacement"
        filled, remaining = [], desired
        for free in capacity:
            filled.append(min(free, remaining))
            remaining -= filled[-1]
        assert cluster.serving == filled


def build_task(
    number: int,
    status: str,
    *,
    provider: str | None = "cp-demo-aa-g6e-a-spot",
    created_at: datetime.datetime | None = None,
    health: str = "UNKNOWN",
) -> dict[str, Any]:
    return {
        "taskArn": f"{ARN}:task/demo/{number}",
        "lastStatus": status,
        "healthStatus": health,
        "createdAt": created_at or compute_time(HOUR),
        **({"capacityProviderName": provider} if provider else {}),
        "taskDefinitionArn": f"{ARN}:task-definition/vllm:{number}",
    }


def build_service(name: str, desired: int, **tags: str) -> dict[str, Any]:
    return {
        "serviceArn": f"{ARN}:service/demo/{name}",
        "serviceName": name,
        "status": "ACTIVE",
        "desiredCount": desired,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }


class Ecs:
    """ECS with recorded responses, validated against its API model; any other call is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]]) -> None:
        self.client = boto3.Session("test", "test", region_name="us-west-2").client("ecs")
        self.stub = Stubber(self.client)
        self.stub.activate()
        monkeypatch.setattr(boto3, "client", lambda _name: self.client)
        ecs_fallback._has_health_check.cache_clear()
        arns = [item["serviceArn"] for item in services]
        self.stub.add_response("list_services", {"serviceArns": arns}, {"cluster": "demo"})
        expected = {"cluster": "demo", "services": arns, "include": ["TAGS"]}
        self.stub.add_response("describe_services", {"services": services}, expected)

    def add_tasks(self, name: str, *rows: dict[str, Any]) -> None:
        arns = [row["taskArn"] for row in rows]
        self.stub.add_response("list_tasks", {"taskArns": arns}, {"cluster": "demo", "serviceName": name})
        if rows:
            self.stub.add_response("describe_tasks", {"tasks": list(rows)}, {"cluster": "demo", "tasks": arns})

    def add_definition(self, number: int, *, checked: bool) -> None:
        container = {"name": "vllm", **({"healthCheck": {"command": ["CMD", "true"]}} if checked else {})}
        response = {"taskDefinition": {"containerDefinitions": [container]}}
        expected = {"taskDefinition": f"{ARN}:task-definition/vllm:{number}"}
        self.stub.add_response("describe_task_definition", response, expected)

    def expect_update(self, name: str, count: int) -> None:
        expected = {"cluster": "demo", "service": f"{ARN}:service/demo/{name}", "desiredCount": count}
        self.stub.add_response("update_service", {}, expected)

    def expect_percent(self, name: str, percent: int) -> None:
        expected = {
            "cluster": "demo",
            "service": f"{ARN}:service/demo/{name}",
            "deploymentConfiguration": {**ROLLOUT, "minimumHealthyPercent": percent},
        }
        self.stub.add_response("update_service", {}, expected)


ROLLOUT = {
    "deploymentCircuitBreaker": {"enable": True, "rollback": True},
    "alarms": {"alarmNames": ["demo-chat-errors"], "enable": True, "rollback": True},
    "maximumPercent": 100,
    "minimumHealthyPercent": 75,
}
"""Of a service of four tasks, of which one may be away."""

FIRST = build_service("decode-0", 2, fallback="decode", choice="0")
SECOND = build_service("decode-1", 0, fallback="decode", choice="1")


def test_a_failed_launch_moves_its_groups_pending_tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ecs = Ecs(monkeypatch, [SECOND, FIRST])
    other = build_task(2, "PROVISIONING", created_at=compute_time(), provider="cp-demo-aa-g6e-b-spot")
    ecs.add_tasks("decode-0", build_task(1, "PROVISIONING", created_at=compute_time()), other)
    ecs.add_tasks("decode-1")
    ecs.expect_update("decode-1", 1)
    changes = ecs_fallback.handler(FAILED)
    assert changes == [{"service": f"{ARN}:service/demo/decode-1", "from": 0, "to": 1}]
    ecs.stub.assert_no_pending_responses()


def count_stoppable(percent: int, desired: int, running: int) -> int:
    """How many tasks ECS stops before it starts others. Source: ECS API reference, minimumHealthyPercent: rounded up."""
    return max(0, running - -(-percent * desired // 100))


@given(st.integers(1, 100), st.data())
def test_a_rollout_may_stop_so_many_of_the_tasks_that_there_are(desired: int, data: st.DataObject) -> None:
    started, unavailable = data.draw(st.integers(0, desired)), data.draw(st.integers(1, 10))
    choice = Choice("decode", desired, 0, started, started_count=started, unavailable=unavailable)
    percent = ecs_fallback.compute_least_percent(choice, desired)
    assert count_stoppable(percent, desired, started) == min(unavailable, started)


def test_one_percent_for_all_would_stop_none_of_few_and_half_of_many() -> None:
    assert [count_stoppable(75, desired, desired) for desired in (1, 3, 4)] == [0, 0, 1]
    assert count_stoppable(75, 4, 3) == 0, "with one that waits for an instance"
    assert count_stoppable(50, 80, 80) == 40


@pytest.mark.parametrize("state", ["COMPLETED", "IN_PROGRESS"])
def test_a_service_keeps_all_tasks_but_those_that_a_rollout_may_stop(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    services = [
        {
            **build_service(f"decode-{choice}", count, fallback="decode", choice=str(choice), unavailable="1"),
            "deploymentConfiguration": {**ROLLOUT, "strategy": "ROLLING"},
            "deployments": [{"rolloutState": state}],
        }
        for choice, count in enumerate((4, 1))
    ]
    ecs = Ecs(monkeypatch, services)
    running = [build_task(number, "RUNNING", health="HEALTHY") for number in range(4)]
    ecs.add_tasks("decode-0", *running[:3], build_task(4, "PROVISIONING"))
    ecs.add_tasks("decode-1", running[3])
    if state == "COMPLETED":
        ecs.expect_percent("decode-0", 50)
        ecs.expect_percent("decode-1", 0)
    assert ecs_fallback.handler({"cluster": "demo"}) == [], "no count changes"
    ecs.stub.assert_no_pending_responses()


@pytest.mark.parametrize(("waiting", "moved"), [(datetime.timedelta(minutes=9), 0), (HOUR, 2)])
def test_without_a_launch_failure_a_task_waits_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, waiting: datetime.timedelta, moved: int
) -> None:
    ecs = Ecs(monkeypatch, [FIRST, SECOND])
    created_at = compute_time(waiting)
    without_provider = build_task(2, "PROVISIONING", created_at=created_at, provider=None)
    ecs.add_tasks("decode-0", build_task(1, "PROVISIONING", created_at=created_at), without_provider)
    ecs.add_tasks("decode-1")
    if moved:
        ecs.expect_update("decode-1", moved)
    assert len(ecs_fallback.handler({"cluster": "demo"})) == bool(moved)
    ecs.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("checked", "health", "left"), [(True, "UNKNOWN", 2), (True, "HEALTHY", 0), (False, "UNKNOWN", 0)]
)
def test_a_task_with_a_health_check_counts_as_serving_once_healthy(
    monkeypatch: pytest.MonkeyPatch, checked: bool, health: str, left: int
) -> None:
    ecs = Ecs(monkeypatch, [FIRST, {**SECOND, "desiredCount": 2}])
    ecs.add_tasks("decode-0", *(build_task(number, "RUNNING", health=health) for number in (1, 2)))
    if health != "HEALTHY":
        for number in (1, 2):
            ecs.add_definition(number, checked=checked)
    ecs.add_tasks("decode-1")
    if left != 2:
        ecs.expect_update("decode-1", left)
    ecs_fallback.handler({"cluster": "demo"})
    ecs.stub.assert_no_pending_responses()


def test_the_number_of_waiting_tasks_is_logged_as_a_metric(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ecs = Ecs(monkeypatch, [FIRST, SECOND])
    ecs.add_tasks("decode-0", *(build_task(number, "PROVISIONING", created_at=compute_time()) for number in (1, 2)))
    ecs.add_tasks("decode-1", build_task(3, "PENDING"))
    ecs_fallback.handler({"cluster": "demo"})
    logged = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (logged["cluster"], logged["provisioning"]) == ("demo", 2)
    [metrics] = logged["_aws"]["CloudWatchMetrics"]
    signal = signals.load()["waiting-tasks"]
    assert (metrics["Namespace"], metrics["Dimensions"], metrics["Metrics"]) == (
        signal.program,
        [["cluster"]],
        [{"Name": signal.name}],
    )


def test_a_service_that_cannot_fall_back_stays_as_it_is_and_its_waiting_tasks_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = build_service("prefill-0", 3, fallback="prefill", choice="0")
    orphan = build_service("router-1", 3, fallback="router", choice="1")
    ecs = Ecs(monkeypatch, [alone, orphan, build_service("gateway", 2)])
    for number, name in enumerate(("gateway", "prefill-0", "router-1"), start=1):
        ecs.add_tasks(name, build_task(number, "PROVISIONING"))
    assert ecs_fallback.handler({"cluster": "demo"}) == []
    ecs.stub.assert_no_pending_responses()
    assert json.loads(capsys.readouterr().out)["provisioning"] == 3


def test_an_error_of_one_role_does_not_stop_the_others_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    other_services = [
        build_service(f"prefill-{choice}", 2 - 2 * choice, fallback="prefill", choice=str(choice)) for choice in (0, 1)
    ]
    ecs = Ecs(monkeypatch, [FIRST, SECOND, *other_services])
    ecs.stub.add_client_error("list_tasks", "ServerException")
    ecs.add_tasks("prefill-0", build_task(1, "PROVISIONING"))
    ecs.add_tasks("prefill-1")
    ecs.expect_update("prefill-1", 1)
    with pytest.raises(ClientError, match="ServerException"):
        ecs_fallback.handler({"cluster": "demo"})
    ecs.stub.assert_no_pending_responses()


POOL = frozenset({"cp-demo-aa-g6e-a-od"})


def build_donor(desired: int, started: int, waiting: int = 0, *, most: int = 40, name: str = "batch") -> list[Choice]:
    return [Choice(name, desired, 0, started, started, waiting, most, POOL)]


def build_rival(waiting: int, providers: frozenset[str] = POOL) -> list[Choice]:
    return [Choice("real-time", 20, 0, 10, 10, waiting, None, providers)]


@pytest.mark.parametrize(
    ("roles", "ending", "after"),
    [
        ([build_donor(40, 40), build_rival(3)], 0, 37),  # at once
        ([build_donor(37, 37), build_rival(3)], 3, 37),  # the instances are not free yet
        ([build_donor(37, 37), build_rival(5)], 3, 35),  # more wait
        ([build_donor(40, 38, 2), build_rival(3)], 0, 35),  # what waits itself must not take what it gives
        ([build_donor(2, 2), build_rival(3)], 0, 0),
        ([build_donor(20, 20), build_rival(0)], 0, 22),  # a twentieth in a call
        ([build_donor(2, 2, most=3), build_rival(0)], 0, 3),  # one in any case
        ([build_donor(40, 40), build_rival(0)], 0, 40),
        ([build_donor(40, 10, 30), build_rival(0)], 0, None),  # it finds no instance itself
        ([build_donor(20, 20), build_rival(9, frozenset({"cp-demo-bb-g6e-a-od"}))], 0, 22),  # of another pool
    ],
)
def test_a_role_that_gives_way_goes_down_before_others_come_up_and_returns_in_steps(
    roles: list[list[Choice]], ending: int, after: int | None
) -> None:
    assert ecs_fallback.compute_shifts(roles, {"batch": ending}).get("batch") == after


def test_several_roles_that_give_way_give_no_more_than_is_missing_together() -> None:
    roles = [build_donor(4, 4), build_donor(8, 8, name="nightly"), build_rival(6)]
    assert ecs_fallback.compute_shifts(roles, {"batch": 0, "nightly": 0}) == {"batch": 0, "nightly": 6}


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_no_count_leaves_its_bounds_and_nobody_gives_what_nobody_needs(
    desired: int, started: int, waiting: int, ending: int
) -> None:
    [(_, count)] = ecs_fallback.compute_shifts(
        [build_donor(desired, started, most=60), build_rival(waiting)], {"batch": ending}
    ).items()
    assert 0 <= count <= 60
    assert count >= min(desired, started) - max(0, waiting - ending)
    assert not waiting or count <= desired, "nobody starts more while others wait"


@pytest.mark.parametrize("stopped", [False, True])
def test_the_function_reads_who_gives_way_from_its_tag_and_does_nothing_in_a_storm(
    monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    strategy = {"capacityProviderStrategy": [{"capacityProvider": provider, "weight": 1} for provider in POOL]}
    donor = {**build_service("batch-0", 3, **{"gives-way": "3"}), **strategy}
    rival = {**build_service("worker-0", 2), **strategy}
    ecs = Ecs(monkeypatch, [donor, rival])
    ecs.add_tasks("batch-0", *(build_task(number, "RUNNING", health="HEALTHY") for number in range(3)))
    ecs.add_tasks("worker-0", *(build_task(number, "PROVISIONING") for number in (3, 4)))
    tags = [{"key": "gpu-repair", "value": "stopped"}] if stopped else []
    ecs.stub.add_response(
        "describe_clusters", {"clusters": [{"tags": tags}]}, {"clusters": ["demo"], "include": ["TAGS"]}
    )
    if not stopped:
        ending = {"cluster": "demo", "serviceName": f"{ARN}:service/demo/batch-0", "desiredStatus": "STOPPED"}
        ecs.stub.add_response("list_tasks", {"taskArns": [f"{ARN}:task/demo/{number}" for number in (8, 9)]}, ending)
        gone, draining = build_task(8, "STOPPED"), build_task(9, "DEACTIVATING")
        ecs.stub.add_response("describe_tasks", {"tasks": [gone, draining]})
        ecs.expect_update("batch-0", 2)
    changes = ecs_fallback.handler({"cluster": "demo"})
    assert changes == ([] if stopped else [{"service": f"{ARN}:service/demo/batch-0", "from": 3, "to": 2}])
    ecs.stub.assert_no_pending_responses()


def test_a_group_that_auto_scaling_gave_up_tries_again_and_what_a_person_suspended_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of Auto Scaling's own reason no page has the words."""
    ecs = Ecs(monkeypatch, [])
    auto_scaling = boto3.Session("test", "test", region_name="us-west-2").client("autoscaling")
    monkeypatch.setattr(boto3, "client", {"ecs": ecs.client, "autoscaling": auto_scaling}.__getitem__)
    reasons = {
        "demo-h100": {"Launch": "Administratively suspended", "AZRebalance": "User suspended at 2025-10-20T22:56:42Z"},
        "demo-l40s": {"Launch": "User suspended at 2025-10-20T22:56:42Z"},
        "demo-h200": {},
    }
    described = [
        {
            "AutoScalingGroupName": name,
            "MinSize": 0,
            "MaxSize": 2,
            "DesiredCapacity": 2,
            "DefaultCooldown": 300,
            "AvailabilityZones": ["us-west-2a"],
            "HealthCheckType": "EC2",
            "CreatedTime": compute_time(),
            "SuspendedProcesses": [{"ProcessName": key, "SuspensionReason": why} for key, why in suspended.items()],
        }
        for name, suspended in reasons.items()
    ]
    with Stubber(auto_scaling) as stub:
        names = {"AutoScalingGroupNames": list(reasons)}
        stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": described}, names)
        resumed = {"AutoScalingGroupName": "demo-h100", "ScalingProcesses": ["Launch"]}
        stub.add_response("resume_processes", {}, resumed)
        ecs_fallback.handler({"cluster": "demo", "groups": list(reasons)})
        stub.assert_no_pending_responses()


@mock_aws
def test_an_emulated_ecs_returns_a_fallback_count_once_unneeded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    ecs = boto3.client("ecs")
    ecs.create_cluster(clusterName="demo")
    ecs.register_task_definition(family="vllm", containerDefinitions=[{"name": "vllm", "image": "vllm", "memory": 1}])
    for name, desired, choice in (("decode-0", 0, "0"), ("decode-1", 3, "1")):
        tags = [{"key": "fallback", "value": "decode"}, {"key": "choice", "value": choice}]
        ecs.create_service(cluster="demo", serviceName=name, taskDefinition="vllm", desiredCount=desired, tags=tags)
    assert [(change["from"], change["to"]) for change in ecs_fallback.handler({"cluster": "demo"})] == [(3, 0)]
    (after,) = ecs.describe_services(cluster="demo", services=["decode-1"])["services"]
    assert after["desiredCount"] == 0
    assert ecs_fallback.handler({"cluster": "demo"}) == [], "called again it has nothing to do"
