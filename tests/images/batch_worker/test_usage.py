"""Tokens of teams by day: all workers count together, and a new day begins at zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from batch import usage
from batch.layout import Layout
from batch.usage import Usage

from tests.images.batch_worker.conftest import read_settings

DAY_S = 86_400.0
TEAMS = {
    name: {"weight": 1, "priority": "normal", "deadline_s": 60.0, "tokens_per_day": quota, "queues": {}}
    for name, quota in (("ads", 100), ("search", None))
}


class FakeStore:
    """JSON objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def write_json(self, key: str, value: Any) -> None:
        self.objects[key] = value

    def read_json(self, key: str) -> Any:
        return _Stored(self.objects[key]) if key in self.objects else None

    def list_objects(self, prefix: str) -> list[dict[str, str]]:
        return [{"key": key} for key in sorted(self.objects) if key.startswith(prefix)]


class _Stored:
    def __init__(self, value: Any) -> None:
        self.value = value


class Day:
    """A clock that tests move."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def day() -> Day:
    return Day()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def open_usage(store: Any, day: Day, worker: str = "w0") -> Usage:
    opened = Usage(store, replace(read_settings(teams=TEAMS), worker=worker), day)
    opened.exchange()
    return opened


def test_a_quota_is_spent_by_all_workers_together(store: FakeStore, day: Day) -> None:
    workers = [open_usage(store, day, f"w{number}") for number in range(2)]
    for each in workers:
        each.add("ads", 50)
        each.exchange()
    assert workers[1].is_spent("ads")
    assert not workers[0].is_spent("ads")  # as far as it knows
    workers[0].exchange()
    assert workers[0].is_spent("ads")


def test_a_team_without_a_quota_is_never_stopped(store: FakeStore, day: Day) -> None:
    opened = open_usage(store, day)
    opened.add("search", 10**12)
    opened.exchange()
    assert not opened.is_spent("search")
    assert sum(count for _, count in usage.read_day(store, Layout("batch/mine"), "search", "1970-01-01")) == 10**12  # type: ignore[arg-type]


def test_the_next_day_begins_at_zero(store: FakeStore, day: Day) -> None:
    opened = open_usage(store, day)
    opened.add("ads", 100)
    opened.exchange()
    assert opened.is_spent("ads")
    day.now += DAY_S
    opened.exchange()
    assert not opened.is_spent("ads")


def test_a_worker_that_restarts_goes_on_from_its_own_count(store: FakeStore, day: Day) -> None:
    opened = open_usage(store, day)
    opened.add("ads", 60)
    opened.exchange()
    again = Usage(store, replace(read_settings(teams=TEAMS), worker="w0"), day)  # type: ignore[arg-type]
    again.add("ads", 30)  # before its first exchange
    again.exchange()
    again.add("ads", 9)
    assert not again.is_spent("ads")
    again.add("ads", 1)
    assert again.is_spent("ads")
