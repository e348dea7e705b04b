"""Tokens of teams by day: all workers count together, and a new day begins at zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from batch import usage
from batch.layout import Layout
from batch.store import Store, Stored
from batch.usage import Usage
from botocore.exceptions import ClientError

from tests.images.batch_worker.conftest import read_settings

DAY_S = 86_400.0
TEAMS = {
    name: {"weight": 1, "priority": "normal", "deadline_s": 60.0, "tokens_per_day": quota, "queues": {}}
    for name, quota in (("ads", 100), ("search", None))
}


class FakeStore:
    """JSON objects in memory, which notes what was asked of it."""

    read_changed = Store.read_changed

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.calls: list[str] = []

    def write_json(self, key: str, value: Any) -> None:
        self.objects[key] = value

    def read_json(self, key: str) -> Stored | None:
        self.calls.append(key)
        return Stored(self.objects[key], str(self.objects[key])) if key in self.objects else None

    def list_objects(self, prefix: str) -> list[dict[str, str]]:
        self.calls.append(prefix)
        return [{"key": key, "etag": str(value)} for key, value in self.objects.items() if key.startswith(prefix)]


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
    [(_, count)] = usage.read_day(store, Layout("batch/mine"), "search", "1970-01-01").values()  # type: ignore[arg-type]
    assert count == 10**12


def test_only_what_changed_is_read_and_nothing_while_no_chunk_is_open(store: FakeStore, day: Day) -> None:
    """A worker that waits for work would read all workers' counts every two seconds, which costs by the request."""
    workers = [open_usage(store, day, f"w{number}") for number in range(9)]
    for each in workers:
        each.add("ads", 1)
        each.exchange()
    workers[0].exchange()
    store.calls.clear()
    workers[1].add("ads", 1)
    workers[1].exchange(is_needed=False)
    assert store.calls == []
    workers[0].exchange()
    folder = "batch/mine/usage/ads/1970-01-01/"
    assert store.calls == [folder, f"{folder}w1.json"]
    workers[0].add("ads", 100 - 1 - 9)
    assert workers[0].is_spent("ads")


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


def test_a_worker_that_restarts_takes_nothing_from_what_a_team_without_a_quota_used(store: FakeStore, day: Day) -> None:
    opened = open_usage(store, day)
    opened.add("search", 60)
    opened.exchange()
    again = open_usage(store, day)
    again.add("search", 9)
    again.exchange()
    [(_, count)] = usage.read_day(store, Layout("batch/mine"), "search", "1970-01-01").values()  # type: ignore[arg-type]
    assert count == 69


def test_a_worker_whose_first_read_is_throttled_counts_what_it_used_before_once(store: FakeStore, day: Day) -> None:
    opened = open_usage(store, day)
    for team in TEAMS:
        opened.add(team, 60)
    opened.exchange()
    read, again = store.read_json, Usage(store, replace(read_settings(teams=TEAMS), worker="w0"), day)  # type: ignore[arg-type]
    answers = iter([True, False])

    def throttle(key: str) -> Any:
        if not next(answers, True):
            raise ClientError({"Error": {"Code": "SlowDown"}}, "GetObject")
        return read(key)

    store.read_json = throttle  # type: ignore[method-assign]
    with pytest.raises(ClientError):
        again.exchange()
    again.exchange()
    assert dict(again._own) == dict.fromkeys(TEAMS, 60)
