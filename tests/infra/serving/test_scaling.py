"""A day of a role whose least is 0, by the alarms and policies that its stack really holds: reckoned minute by minute.

What CloudWatch and Application Auto Scaling do with them is played here as their guides say it, which is no proof of AWS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

Stack = dict[str, Any]
Seen = Mapping[tuple[str, str], float]
"""What was sent in a minute, by role and name; what is not there is missing."""

HIGH, LOW = 3, 15
"""Minutes in a row after which tracking acts. Source: Application Auto Scaling user guide, 2026-11."""

START = 8
"""Minutes from a count that was set to a replica that answers."""

EACH = 10
"""Requests that a replica works off in a minute."""


def reckon(expression: str, values: Mapping[str, float | None]) -> float | None:
    """CloudWatch's metric math, as far as it is used; None is what is missing."""
    functions = {
        "IF": lambda condition, one, other: one if condition else other,
        "FILL": lambda value, instead: instead if value is None else value,
        "FLOOR": math.floor,
    }
    try:
        return float(eval(expression.replace(" AND ", " and "), {"__builtins__": {}}, {**functions, **values}))
    except (TypeError, ZeroDivisionError):
        return None


@dataclass
class Watch:
    """An alarm, or tracking's measure: what is read, and how it is reckoned."""

    reads: dict[str, tuple[str, str]]
    steps: list[tuple[str, str]]
    last: list[float | None] = field(default_factory=list)

    @classmethod
    def of(cls, queries: list[dict[str, Any]]) -> Watch:
        reads, steps = {}, []
        for one in queries:
            if "expression" in one:
                steps.append((one["id"], one["expression"]))
            else:
                read = one["metric"] if "metric" in one else one["metric_stat"]["metric"]
                dimensions = read["dimensions"]
                if isinstance(dimensions, list):
                    dimensions = {row["name"]: row["value"] for row in dimensions}
                reads[one["id"]] = (dimensions["role"], read["metric_name"])
        return cls(reads, steps)

    def look(self, seen: Seen) -> None:
        values: dict[str, float | None] = {name: seen.get(read) for name, read in self.reads.items()}
        for name, expression in self.steps:
            values[name] = reckon(expression, values)
        self.last.append(values[self.steps[-1][0]])

    def all_of(self, minutes: int, holds: Callable[[float], bool]) -> bool:
        return len(self.last) >= minutes and all(one is not None and holds(one) for one in self.last[-minutes:])


@dataclass
class Day:
    """The stack's alarms and policies before requests that come."""

    stack: Stack
    retries: bool = True
    """Whether who is refused asks again in the next minute."""

    count: int = 0
    ready: int = 0
    refused: int = 0
    history: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        alarms = self.stack["resource"]["aws_cloudwatch_metric_alarm"]
        policy = self.stack["resource"]["aws_appautoscaling_policy"]["worker-scaling-policy"]
        self.tracks = policy["target_tracking_scaling_policy_configuration"]
        self.track = Watch.of(self.tracks["customized_metric_specification"]["metrics"])
        self.alarms = {name: one for name, one in alarms.items() if "ok_actions" not in one}
        self.watches = {name: Watch.of(one["metric_query"]) for name, one in self.alarms.items()}
        self.most = self.stack["resource"]["aws_appautoscaling_target"]["worker-scaling"]["max_capacity"]

    def minute(self, arrivals: int, *, collected: bool = True) -> None:
        """One minute: requests are answered or refused, measured, and acted upon."""
        self.coming = [left - 1 for left in self.coming]
        self.ready += sum(left <= 0 for left in self.coming)
        self.coming = [left for left in self.coming if left > 0]
        asking = arrivals + (self.refused if self.retries else 0)
        self.refused = 0 if self.ready else asking
        self.answered.append(asking if self.ready else 0)
        seen = self._seen(asking, collected)
        self.track.look(seen)
        for watch in self.watches.values():
            watch.look(seen)
        self._act()
        self.history.append(self.count)

    def _seen(self, asking: int, collected: bool) -> dict[tuple[str, str], float]:
        names = {"requests": "vllm_router_requests_total", "errors": "vllm_router_request_errors_total"}
        seen: dict[tuple[str, str], float] = {}
        if self.ready:
            seen["worker", "vllm:num_requests_waiting"] = max(0, asking - EACH * self.ready) / self.ready
            seen["worker", "vllm:num_requests_running"] = min(asking, EACH * self.ready)
            seen["worker", "up"] = 4 * self.ready
        if collected:
            seen["router", "up"] = 4
            seen.setdefault(("worker", "up"), 0)
            self.known |= {"requests" if self.ready else "errors"} if asking else set()
            for name in self.known:
                seen["router", names[name]] = asking if (name == "requests") == bool(self.ready) else 0
        return seen

    def _act(self) -> None:
        target = self.tracks["target_value"]
        measure = self.track.last[-1]
        if self.track.all_of(HIGH, lambda one: one > target) and not self.coming:
            assert measure is not None
            self._set(max(self.count, math.ceil(self.ready * measure / target)))
        elif self.track.all_of(LOW, lambda one: one < 0.9 * target):
            assert measure is not None
            self._set(min(self.count, math.ceil(self.ready * measure / target)))
            self.track.last.clear()
        for name, alarm in self.alarms.items():
            threshold, above = alarm["threshold"], alarm["comparison_operator"].startswith("Greater")
            beyond = (lambda one, least=threshold: one > least) if above else (lambda one, most=threshold: one < most)
            if self.watches[name].all_of(alarm["evaluation_periods"], beyond):
                policy = alarm["alarm_actions"].removeprefix("${aws_appautoscaling_policy.").partition("[*]")[0]
                step = self.stack["resource"]["aws_appautoscaling_policy"][policy]["step_scaling_policy_configuration"]
                assert step["adjustment_type"] == "ExactCapacity"
                self._set(step["step_adjustment"][0]["scaling_adjustment"])

    def _set(self, count: int) -> None:
        count = min(self.most, count)
        self.coming += [START] * (count - self.count)
        lost = max(0, self.count - count)
        self.coming = self.coming[: max(0, len(self.coming) - lost)]
        self.count, self.ready = count, min(self.ready, count)


@pytest.fixture
def day(stacks: dict[str, Stack]) -> Day:
    return Day(stacks["single"])


def test_a_night_costs_nothing_and_the_first_request_of_a_day_brings_a_replica(day: Day) -> None:
    for _ in range(400):
        day.minute(0)
    assert set(day.history) == {0}, "no requests, no replica"
    day.retries = False
    day.minute(1)
    assert day.count == 1, "one request is enough"
    for _ in range(START):
        day.minute(0)
    assert (day.count, day.ready) == (1, 1), "it comes although nobody asked again"


def test_it_stays_while_anybody_asks_grows_by_load_and_goes_after_the_cool_down(day: Day) -> None:
    for _ in range(120):
        day.minute(3)  # worked off at once: the queue is empty
    assert day.ready == 1 and 0 not in day.history, "an empty queue is not nobody"
    for _ in range(40):
        day.minute(40)
    assert day.ready == 2, "tracking goes on from 1"
    for _ in range(40):
        day.minute(3)
    assert day.count == 1
    quiet = day.alarms["worker-sleep-alarm"]["evaluation_periods"]
    assert quiet == 5
    for _ in range(10):
        for pause in (3, 0, 0, 0, 0):
            day.minute(pause)
    assert 0 not in day.history, "pauses shorter than the cool-down"
    day.minute(3)
    for minute in range(quiet):
        assert day.count == 1, minute
        day.minute(0)
    assert day.count == 0
    assert sum(day.answered) > 0
    day.minute(0)
    day.minute(2)
    assert day.count == 1, "and it comes again: the alarm to sleep is over once it sleeps"


def test_what_is_not_measured_sends_nobody_away(day: Day) -> None:
    for _ in range(30):
        day.minute(1)
    for _ in range(60):
        day.minute(1, collected=False)
    assert (day.count, day.ready) == (1, 1), "the router's collector is gone, its requests are not"


def test_without_its_floor_tracking_would_end_a_replica_that_is_asked(day: Day) -> None:
    day.track.steps = [("measure", "load")]
    for _ in range(60):
        day.minute(3)
    assert 0 in day.history[10:], "this is what the floor is for"
