"""A day of a role that scales to 0, simulated minute by minute from the alarms and policies of its stack.

CloudWatch and Application Auto Scaling are simulated from their guides, which does not prove AWS's behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

Stack = dict[str, Any]
Metrics = Mapping[tuple[str, str], float]
"""What was sent in a minute, by role and name; what is not there is missing."""

HIGH, LOW = 3, 15
"""Minutes in a row after which tracking acts. Source: Application Auto Scaling user guide, 2026-11."""

START = 8
"""Minutes from a count that was set to a replica that answers."""

REQUESTS_PER_REPLICA = 10
"""Requests that a replica works off in a minute."""


def evaluate(expression: str, values: Mapping[str, float | None]) -> float | None:
    """CloudWatch's metric math, as far as it is used; None is what is missing."""
    functions = {
        "IF": lambda condition, then_value, other: then_value if condition else other,
        "FILL": lambda value, default: default if value is None else value,
        "FLOOR": math.floor,
    }
    try:
        return float(eval(expression.replace(" AND ", " and "), {"__builtins__": {}}, {**functions, **values}))
    except (TypeError, ZeroDivisionError):
        return None


@dataclass
class MetricWatch:
    """An alarm, or tracking's measure: what is read, and how it is reckoned."""

    reads: dict[str, tuple[str, str]]
    steps: list[tuple[str, str]]
    recent_values: list[float | None] = field(default_factory=list)

    @classmethod
    def from_queries(cls, queries: list[dict[str, Any]]) -> MetricWatch:
        reads, steps = {}, []
        for query in queries:
            if "expression" in query:
                steps.append((query["id"], query["expression"]))
            else:
                metric = query["metric"] if "metric" in query else query["metric_stat"]["metric"]
                dimensions = metric["dimensions"]
                if isinstance(dimensions, list):
                    dimensions = {row["name"]: row["value"] for row in dimensions}
                reads[query["id"]] = (dimensions["role"], metric["metric_name"])
        return cls(reads, steps)

    def observe(self, metrics: Metrics) -> None:
        values: dict[str, float | None] = {name: metrics.get(metric_key) for name, metric_key in self.reads.items()}
        for name, expression in self.steps:
            values[name] = evaluate(expression, values)
        self.recent_values.append(values[self.steps[-1][0]])

    def holds_for(self, minutes: int, predicate: Callable[[float], bool]) -> bool:
        return len(self.recent_values) >= minutes and all(
            value is not None and predicate(value) for value in self.recent_values[-minutes:]
        )


@dataclass
class ScalingSimulation:
    """The stack's alarms and policies before requests that come."""

    stack: Stack
    retries: bool = True
    """Whether who is refused asks again in the next minute."""

    count: int = 0
    ready: int = 0
    refused: int = 0
    history: list[int] = field(default_factory=list)
    answered_per_minute: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    added_at: int = -1000
    """When the alarm on requests that found no replica last added one; it adds none within its cooldown."""

    seen_metrics: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        alarms = self.stack["resource"]["aws_cloudwatch_metric_alarm"]
        policy = self.stack["resource"]["aws_appautoscaling_policy"]["worker-scaling-policy"]
        self.tracks = policy["target_tracking_scaling_policy_configuration"]
        self.track = MetricWatch.from_queries(self.tracks["customized_metric_specification"]["metrics"])
        self.alarms = {name: alarm for name, alarm in alarms.items() if "ok_actions" not in alarm}
        self.watches = {name: MetricWatch.from_queries(alarm["metric_query"]) for name, alarm in self.alarms.items()}
        self.max_count = self.stack["resource"]["aws_appautoscaling_target"]["worker-scaling"]["max_capacity"]

    def run_minute(self, arrivals: int, *, collected: bool = True, readable: bool = True) -> None:
        """One minute: requests are answered or refused, measured, and acted upon.

        Args:
            collected: the router's collector runs.
            readable: the replicas' collectors can read their metrics.
        """
        self.coming = [minutes_left - 1 for minutes_left in self.coming]
        self.ready += sum(minutes_left <= 0 for minutes_left in self.coming)
        self.coming = [minutes_left for minutes_left in self.coming if minutes_left > 0]
        request_count = arrivals + (self.refused if self.retries else 0)
        self.refused = 0 if self.ready else request_count
        self.answered_per_minute.append(request_count if self.ready else 0)
        metrics = self._measure(request_count, collected, readable)
        self.track.observe(metrics)
        for watch in self.watches.values():
            watch.observe(metrics)
        self._apply_alarms()
        self.history.append(self.count)

    def _measure(self, request_count: int, collected: bool, readable: bool) -> dict[tuple[str, str], float]:
        names = {"requests": "vllm_router_requests_total", "errors": "vllm_router_request_errors_total"}
        metrics: dict[tuple[str, str], float] = {}
        if self.ready and readable:
            metrics["worker", "vllm:num_requests_waiting"] = (
                max(0, request_count - REQUESTS_PER_REPLICA * self.ready) / self.ready
            )
            metrics["worker", "vllm:num_requests_running"] = min(request_count, REQUESTS_PER_REPLICA * self.ready)
            metrics["worker", "up"] = 4 * self.ready
        if collected:
            metrics["router", "up"] = 4
            metrics.setdefault(("worker", "up"), 0)
            self.seen_metrics |= {"requests" if self.ready else "errors"} if request_count else set()
            for name in self.seen_metrics:
                metrics["router", names[name]] = request_count if (name == "requests") == bool(self.ready) else 0
        return metrics

    def _apply_alarms(self) -> None:
        target = self.tracks["target_value"]
        measure = self.track.recent_values[-1]
        if self.track.holds_for(HIGH, lambda value: value > target) and not self.coming:
            assert measure is not None
            self._set_count(max(self.count, math.ceil(self.ready * measure / target)))
        elif self.track.holds_for(LOW, lambda value: value < 0.9 * target):
            assert measure is not None
            self._set_count(min(self.count, math.ceil(self.ready * measure / target)))
            self.track.recent_values.clear()
        for name, alarm in self.alarms.items():
            threshold, is_upper = alarm["threshold"], alarm["comparison_operator"].startswith("Greater")
            predicate = (
                (lambda value, lower_limit=threshold: value > lower_limit)
                if is_upper
                else (lambda value, upper_limit=threshold: value < upper_limit)
            )
            if self.watches[name].holds_for(alarm["evaluation_periods"], predicate):
                policy = alarm["alarm_actions"].removeprefix("${aws_appautoscaling_policy.").partition("[*]")[0]
                step = self.stack["resource"]["aws_appautoscaling_policy"][policy]["step_scaling_policy_configuration"]
                change = step["step_adjustment"][0]["scaling_adjustment"]
                if step["adjustment_type"] == "ExactCapacity":
                    self._set_count(change)
                elif (len(self.history) - self.added_at) * 60 >= step["cooldown"]:
                    self.added_at = len(self.history)
                    self._set_count(self.count + change)

    def _set_count(self, count: int) -> None:
        count = min(self.max_count, count)
        self.coming += [START] * (count - self.count)
        removed = max(0, self.count - count)
        self.coming = self.coming[: max(0, len(self.coming) - removed)]
        self.count, self.ready = count, min(self.ready, count)


@pytest.fixture
def simulation(stacks: dict[str, Stack]) -> ScalingSimulation:
    return ScalingSimulation(stacks["single"])


def test_a_role_scales_to_zero_and_the_first_request_starts_a_replica(simulation: ScalingSimulation) -> None:
    for _ in range(400):
        simulation.run_minute(0)
    assert set(simulation.history) == {0}, "no requests, no replica"
    simulation.retries = False
    simulation.run_minute(1)
    assert simulation.count == 1, "one request is enough"
    for _ in range(START):
        simulation.run_minute(0)
    assert (simulation.count, simulation.ready) == (1, 1), "it comes although nobody asked again"


def test_a_replica_stays_while_requested_scales_by_load_and_stops_after_the_cool_down(
    simulation: ScalingSimulation,
) -> None:
    for _ in range(120):
        simulation.run_minute(3)  # worked off at once: the queue is empty
    assert simulation.ready == 1 and 0 not in simulation.history, "an empty queue is not nobody"
    for _ in range(40):
        simulation.run_minute(40)
    assert simulation.ready == 2, "tracking continues from 1"
    for _ in range(40):
        simulation.run_minute(3)
    assert simulation.count == 1
    idle_minutes = simulation.alarms["worker-sleep-alarm"]["evaluation_periods"]
    assert idle_minutes == 5
    for _ in range(10):
        for pause in (3, 0, 0, 0, 0):
            simulation.run_minute(pause)
    assert 0 not in simulation.history, "pauses shorter than the cool-down"
    simulation.run_minute(3)
    for minute in range(idle_minutes):
        assert simulation.count == 1, minute
        simulation.run_minute(0)
    assert simulation.count == 0
    assert sum(simulation.answered_per_minute) > 0
    simulation.run_minute(0)
    simulation.run_minute(2)
    assert simulation.count == 1, "and it comes again: the alarm to sleep is over once it sleeps"


def test_an_unmeasured_metric_does_not_scale_in(simulation: ScalingSimulation) -> None:
    for _ in range(30):
        simulation.run_minute(1)
    for _ in range(60):
        simulation.run_minute(1, collected=False)
    assert (simulation.count, simulation.ready) == (1, 1), "the router's collector is gone, its requests are not"


def test_replicas_whose_metrics_nobody_can_read_are_not_taken_for_none(simulation: ScalingSimulation) -> None:
    for _ in range(80):
        simulation.run_minute(40)
    assert simulation.ready == 2
    for _ in range(10):
        simulation.run_minute(40, readable=False)
    assert simulation.ready >= 2, "engines at their limit may not answer what reads them"


def test_without_its_floor_tracking_ends_a_replica_in_use(simulation: ScalingSimulation) -> None:
    simulation.track.steps = [("measure", "load")]
    for _ in range(60):
        simulation.run_minute(3)
    assert 0 in simulation.history[10:], "this is what the floor is for"
