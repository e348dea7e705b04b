"""A role's tasks find machines in the order of its pool's choices, and none that serves is stopped for want of another."""

from __future__ import annotations

import datetime
import itertools
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
from llm_serving.fleet import names

HOUR = datetime.timedelta(hours=1)
ARN = "arn:aws:ecs:us-west-2:123456789012"
FAILED = {"cluster": "demo", "failed_group": "demo-aa-g6e-a-spot"}


def ago(span: datetime.timedelta = datetime.timedelta()) -> datetime.datetime:
    """That long before now, at the moment of the test."""
    return datetime.datetime.now(datetime.UTC) - span


def choices(*rows: tuple[int, int, int]) -> list[Choice]:
    """From (wanted, stuck, serving)."""
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
        ([(2, 0, 0), (4, 0, 4)], [2, 2]),  # fewer are wanted
        ([(0, 0, 4), (4, 4, 0)], [0, 0]),  # none is wanted
    ],
)
def test_counts_follow_from_what_the_choice_before_lacks(before: list[tuple[int, int, int]], after: list[int]) -> None:
    assert ecs_fallback.counts(choices(*before)) == after


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_the_first_choice_keeps_its_count_and_no_other_has_more_than_the_one_before_lacks(
    rows: list[tuple[int, int, int]],
) -> None:
    seen = choices(*rows)
    made = ecs_fallback.counts(seen)
    assert made[0] == seen[0].wanted
    for (before, count), after in itertools.pairwise(zip(seen, made, strict=True)):
        assert 0 <= after[1] <= max(0, count - before.serving)


@dataclass
class Cluster:
    """ECS in small: a choice has so many machines; a task waits, then loads, then serves.

    Only each third minute tells that a task is stuck: ECS ends one that waits for long, and its successor is young.
    """

    room: list[int]
    wanted: list[int]
    serving: list[int] = field(default_factory=lambda: [0, 0, 0])
    minute: int = 0

    def step(self) -> None:
        """One minute: tasks that had a machine serve, what is too much ends, and the function is called."""
        held = [min(wanted, room) for wanted, room in zip(self.wanted, self.room, strict=True)]
        told = self.minute % 3 == 0
        seen = [
            Choice(str(at), wanted, told * (wanted - here), min(here, served))
            for at, (wanted, here, served) in enumerate(zip(self.wanted, held, self.serving, strict=True))
        ]
        self.minute += 1
        self.wanted = ecs_fallback.counts(seen)
        # A task that has just got a machine serves a minute later.
        self.serving = [min(here, wanted) for here, wanted in zip(held, self.wanted, strict=True)]


rooms = st.lists(st.integers(0, 12), min_size=3, max_size=3)


@given(rooms, rooms, st.integers(0, 20))
def test_tasks_find_the_most_preferred_room_and_come_back_when_there_is_more(
    scarce: list[int], later: list[int], wanted: int
) -> None:
    cluster = Cluster(scarce, [wanted, 0, 0])
    for room in (scarce, [max(one) for one in zip(scarce, later, strict=True)]):
        cluster.room = room
        least = sum(cluster.serving)
        for _ in range(18):
            cluster.step()
            assert sum(cluster.serving) >= min(least, wanted), "nothing that serves ended for want of another"
        filled, left = [], wanted
        for here in room:
            filled.append(min(here, left))
            left -= filled[-1]
        assert cluster.serving == filled


def task(
    number: int,
    status: str,
    *,
    provider: str = "cp-demo-aa-g6e-a-spot",
    since: datetime.datetime | None = None,
    health: str = "UNKNOWN",
) -> dict[str, Any]:
    return {
        "taskArn": f"{ARN}:task/demo/{number}",
        "lastStatus": status,
        "healthStatus": health,
        "createdAt": since or ago(HOUR),
        "capacityProviderName": provider,
        "taskDefinitionArn": f"{ARN}:task-definition/vllm:{number}",
    }


def service(name: str, wanted: int, **tags: str) -> dict[str, Any]:
    return {
        "serviceArn": f"{ARN}:service/demo/{name}",
        "serviceName": name,
        "status": "ACTIVE",
        "desiredCount": wanted,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }


class Ecs:
    """ECS with recorded answers, each held against its API's own model; any other call is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]]) -> None:
        self.client = boto3.Session("test", "test", region_name="us-west-2").client("ecs")
        self.stub = Stubber(self.client)
        self.stub.activate()
        monkeypatch.setattr(boto3, "client", lambda _name: self.client)
        ecs_fallback._has_health_check.cache_clear()
        arns = [one["serviceArn"] for one in services]
        self.stub.add_response("list_services", {"serviceArns": arns}, {"cluster": "demo"})
        asked = {"cluster": "demo", "services": arns, "include": ["TAGS"]}
        self.stub.add_response("describe_services", {"services": services}, asked)

    def tasks(self, name: str, *found: dict[str, Any]) -> None:
        arns = [one["taskArn"] for one in found]
        self.stub.add_response("list_tasks", {"taskArns": arns}, {"cluster": "demo", "serviceName": name})
        if found:
            self.stub.add_response("describe_tasks", {"tasks": list(found)}, {"cluster": "demo", "tasks": arns})

    def definition(self, number: int, *, checked: bool) -> None:
        container = {"name": "vllm", **({"healthCheck": {"command": ["CMD", "true"]}} if checked else {})}
        answer = {"taskDefinition": {"containerDefinitions": [container]}}
        asked = {"taskDefinition": f"{ARN}:task-definition/vllm:{number}"}
        self.stub.add_response("describe_task_definition", answer, asked)

    def moved(self, name: str, count: int) -> None:
        asked = {"cluster": "demo", "service": f"{ARN}:service/demo/{name}", "desiredCount": count}
        self.stub.add_response("update_service", {}, asked)


FIRST = service("decode-0", 2, **names.fallback_tags("decode", 0))
SECOND = service("decode-1", 0, **names.fallback_tags("decode", 1))


def test_a_failed_launch_moves_what_waits_for_that_group_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ecs = Ecs(monkeypatch, [SECOND, FIRST])
    other = task(2, "PROVISIONING", since=ago(), provider="cp-demo-aa-g6e-b-spot")
    ecs.tasks("decode-0", task(1, "PROVISIONING", since=ago()), other)
    ecs.tasks("decode-1")
    ecs.moved("decode-1", 1)
    changed = ecs_fallback.handler(FAILED)
    assert changed == [{"service": f"{ARN}:service/demo/decode-1", "from": 0, "to": 1}]
    ecs.stub.assert_no_pending_responses()


@pytest.mark.parametrize(("waiting", "moved"), [(datetime.timedelta(minutes=9), 0), (HOUR, 2)])
def test_without_word_of_a_failure_a_task_waits_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, waiting: datetime.timedelta, moved: int
) -> None:
    ecs = Ecs(monkeypatch, [FIRST, SECOND])
    ecs.tasks("decode-0", *(task(number, "PROVISIONING", since=ago(waiting)) for number in (1, 2)))
    ecs.tasks("decode-1")
    if moved:
        ecs.moved("decode-1", moved)
    assert len(ecs_fallback.handler({"cluster": "demo"})) == bool(moved)
    ecs.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("checked", "health", "left"), [(True, "UNKNOWN", 2), (True, "HEALTHY", 0), (False, "UNKNOWN", 0)]
)
def test_a_task_that_loads_its_model_serves_only_once_it_is_healthy_where_that_is_checked(
    monkeypatch: pytest.MonkeyPatch, checked: bool, health: str, left: int
) -> None:
    ecs = Ecs(monkeypatch, [FIRST, {**SECOND, "desiredCount": 2}])
    ecs.tasks("decode-0", *(task(number, "RUNNING", health=health) for number in (1, 2)))
    if health != "HEALTHY":
        for number in (1, 2):
            ecs.definition(number, checked=checked)
    ecs.tasks("decode-1")
    if left != 2:
        ecs.moved("decode-1", left)
    ecs_fallback.handler({"cluster": "demo"})
    ecs.stub.assert_no_pending_responses()


def test_a_service_without_the_tags_or_without_its_first_choice_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = service("prefill-0", 3, fallback="prefill", choice="0")
    orphan = service("router-1", 3, fallback="router", choice="1")
    ecs = Ecs(monkeypatch, [alone, orphan, service("gateway", 2)])
    assert ecs_fallback.handler({"cluster": "demo"}) == []
    ecs.stub.assert_no_pending_responses()


def test_what_aws_refuses_of_one_role_keeps_no_other_from_falling_back(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [service(f"prefill-{at}", 2 - 2 * at, fallback="prefill", choice=str(at)) for at in (0, 1)]
    ecs = Ecs(monkeypatch, [FIRST, SECOND, *others])
    ecs.stub.add_client_error("list_tasks", "ServerException")
    ecs.tasks("prefill-0", task(1, "PROVISIONING"))
    ecs.tasks("prefill-1")
    ecs.moved("prefill-1", 1)
    with pytest.raises(ClientError, match="ServerException"):
        ecs_fallback.handler({"cluster": "demo"})
    ecs.stub.assert_no_pending_responses()


@mock_aws
def test_on_an_emulated_ecs_a_count_that_nobody_lacks_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    ecs = boto3.client("ecs")
    ecs.create_cluster(clusterName="demo")
    ecs.register_task_definition(family="vllm", containerDefinitions=[{"name": "vllm", "image": "vllm", "memory": 1}])
    for name, wanted, choice in (("decode-0", 0, "0"), ("decode-1", 3, "1")):
        tags = [{"key": "fallback", "value": "decode"}, {"key": "choice", "value": choice}]
        ecs.create_service(cluster="demo", serviceName=name, taskDefinition="vllm", desiredCount=wanted, tags=tags)
    assert [(one["from"], one["to"]) for one in ecs_fallback.handler({"cluster": "demo"})] == [(3, 0)]
    (after,) = ecs.describe_services(cluster="demo", services=["decode-1"])["services"]
    assert after["desiredCount"] == 0
    assert ecs_fallback.handler({"cluster": "demo"}) == [], "called again it has nothing to do"
