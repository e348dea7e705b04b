"""A week of pools that shift between real time and batch, beside a static peak and an oracle. No input or output.

`shifting.decide` is what moves the instances here too. The load strays from the schedule by the same numbers each time.

static   what each pool's peak needs around the clock, and instances of their own for batches
planned  what the decision keeps, from the schedule and the load of each moment; instances take their time to start
oracle   what each moment needs, known beforehand, and each batch in instances that are idle anyway where there are
         any: no plan can do with less
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_serving.catalog import instances
from llm_serving.fleet import shifting
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.shifting import Allocation, Limits, Signals
from llm_serving.fleet.traffic_curves import Batch, PoolCurve, TrafficCurves

DAYS = 7
STEP_S = 300
_STEPS = DAYS * 86400 // STEP_S
_DAY_STEPS = 86400 // STEP_S
_START_STEPS = math.ceil(INSTANCE_START_S / STEP_S)

_COOL_DOWN_S = 900.0
_MAX_MOVED_SHARE = 0.05
"""Most of a pool that real time gives back in a step."""

_FORECAST_MARGIN = 0.02
"""By how much the load may grow beyond the forecast while instances start, as a share."""

_MEMORY = 0.97
"""Share of its deviation from the schedule that the load keeps from step to step."""


@dataclass(frozen=True)
class Hours:
    """Hours, or dollars, of the three."""

    static: float
    planned: float
    oracle: float

    @property
    def saved(self) -> float:
        """What the plan saves of the static peak, as a share."""
        return 1 - self.planned / self.static if self.static else 0

    @property
    def reached(self) -> float:
        """The oracle's share of the plan."""
        return self.oracle / self.planned if self.planned else 1


@dataclass(frozen=True)
class Violation:
    """What the plan did not keep."""

    pool: str
    at_s: float
    """Seconds since the start of the week."""

    kind: Literal["real-time", "zone", "batch"]
    """Less real time than the load needs, than it would need if a zone were lost, or a batch past its deadline."""

    missing: float
    """Instances, or hours of one instance."""


@dataclass
class _Work:
    """What is left of a batch."""

    due_step: int
    left_h: float


@dataclass(frozen=True)
class PoolPlan:
    """The week of one pool; a value for each step."""

    pool: str
    accelerators: int
    usd_h: float | None
    """Price of one instance, on demand; None where the catalog has none."""

    needed: tuple[float, ...]
    """Instances that the load keeps busy."""

    allocations: tuple[Allocation, ...]
    static_instances: int
    oracle_hours: float
    violations: tuple[Violation, ...]

    @property
    def instance_hours(self) -> Hours:
        planned = sum(allocation.total for allocation in self.allocations) * STEP_S / 3600
        return Hours(self.static_instances * DAYS * 24.0, planned, self.oracle_hours)


@dataclass
class _Simulation:
    """One pool as the week passes."""

    curve: PoolCurve
    limits: Limits
    needed: Sequence[float]
    allocations: list[Allocation] = field(default_factory=list)
    work: list[_Work] = field(default_factory=list)
    grew_at: int = -_STEPS

    def step(self, index: int) -> None:
        """Decide on the instances of the next step, and let the batches work."""
        first = shifting.add_zone_reserve(self.needed[0], self.limits.zones)
        now = self.allocations[-1] if self.allocations else Allocation(first, 0)
        self.work += [work for batch in self.curve.batches if (work := _start_work(batch, index))]
        allocation = shifting.decide(now, self._read_signals(index), self.limits)
        if allocation.real_time > now.real_time:
            self.grew_at = index
        self.allocations.append(allocation)
        self._work_off(self.count_ready(lambda allocation: allocation.batch, index) * STEP_S / 3600)

    def count_ready(self, get: Callable[[Allocation], int], index: int) -> int:
        """Return the instances of a part that work: those that have been asked for since a start's time."""
        return min(get(allocation) for allocation in self.allocations[max(0, index - _START_STEPS) : index + 1])

    def _read_signals(self, index: int) -> Signals:
        scheduled = self.curve.compute_scheduled(index * STEP_S)
        deviation = self.needed[index] / scheduled if scheduled else 1.0
        ahead = range(index, index + _START_STEPS + 2)
        forecast = max(self.curve.compute_scheduled(step * STEP_S) for step in ahead) * deviation
        left_h = sum(work.left_h for work in self.work)
        return Signals(
            needed=self.needed[index],
            forecast=forecast * (1 + _FORECAST_MARGIN),
            batch_instances=math.ceil(left_h * 3600 / STEP_S),
            batch_pace=self._compute_pace(index),
            since_growth_s=(index - self.grew_at) * STEP_S,
        )

    def _compute_pace(self, index: int) -> int:
        """Return the instances that keep every deadline, without the time in which they start."""
        pace, before_h = 0, 0.0
        for work in sorted(self.work, key=lambda work: work.due_step):
            before_h += work.left_h
            steps = max(1, work.due_step - index - _START_STEPS)
            pace = max(pace, math.ceil(before_h * 3600 / STEP_S / steps))
        return pace

    def _work_off(self, hours: float) -> None:
        for work in sorted(self.work, key=lambda work: work.due_step):
            done = min(hours, work.left_h)
            work.left_h -= done
            hours -= done
        self.work = [work for work in self.work if work.left_h > 1e-9]


def plan(fleet: Fleet, curves: TrafficCurves) -> list[PoolPlan]:
    return [_plan_pool(fleet, name, curve, curves.variation) for name, curve in curves.pools.items()]


def sum_hours(plans: Sequence[PoolPlan], unit: Literal["instance", "gpu", "usd"]) -> Hours:
    """Sum up hours or dollars; pools without a price cost nothing here."""
    factors = [{"instance": 1.0, "gpu": float(row.accelerators), "usd": row.usd_h or 0.0}[unit] for row in plans]
    rows = [(row.instance_hours, factor) for row, factor in zip(plans, factors, strict=True)]
    return Hours(
        static=sum(hours.static * factor for hours, factor in rows),
        planned=sum(hours.planned * factor for hours, factor in rows),
        oracle=sum(hours.oracle * factor for hours, factor in rows),
    )


def _plan_pool(fleet: Fleet, name: str, curve: PoolCurve, variation: float) -> PoolPlan:
    pool = fleet.pools[name]
    zones = len(fleet.get_zones(pool))
    max_moves = max(1, math.ceil(pool.size.max * _MAX_MOVED_SHARE))
    limits = Limits(pool.size.min, pool.size.max, zones, max_moves, _COOL_DOWN_S)
    needed = tuple(_draw_loads(name, curve, variation))
    simulation = _Simulation(curve, limits, needed)
    violations: list[Violation] = []
    for index in range(_STEPS):
        simulation.step(index)
        violations += _find_violations(name, simulation, index)
    instance = instances.load()[pool.types[0]]
    price = instance.prices.get(fleet.region)
    return PoolPlan(
        pool=name,
        accelerators=instance.accelerators.count if instance.accelerators else 0,
        usd_h=price.usd_h if price else None,
        needed=needed,
        allocations=tuple(simulation.allocations),
        static_instances=shifting.add_zone_reserve(max(needed), zones) + math.ceil(curve.batch_share),
        oracle_hours=_compute_oracle(curve, limits, needed),
        violations=tuple(violations),
    )


def _draw_loads(name: str, curve: PoolCurve, variation: float) -> Iterator[float]:
    """Yield the load of each step: the schedule, and a deviation that changes slowly and stays within `variation`."""
    draw = random.Random(name)
    deviation = 0.0
    for index in range(_STEPS):
        yield curve.compute_scheduled(index * STEP_S) * (1 + variation * deviation)
        deviation = max(-1.0, min(1.0, deviation * _MEMORY + draw.gauss(0, 0.5) * math.sqrt(1 - _MEMORY**2)))


def _start_work(batch: Batch, index: int) -> _Work | None:
    if index % _DAY_STEPS != int(batch.at // STEP_S) % _DAY_STEPS:
        return None
    return _Work(index + int(batch.within // STEP_S), batch.instance_hours)


def _find_violations(name: str, simulation: _Simulation, index: int) -> Iterator[Violation]:
    at_s, needed = float(index * STEP_S), simulation.needed[index]
    ready = simulation.count_ready(lambda allocation: allocation.real_time, index)
    reserve = shifting.add_zone_reserve(needed, simulation.limits.zones)
    if ready < needed:
        yield Violation(name, at_s, "real-time", needed - ready)
    elif ready < reserve:
        yield Violation(name, at_s, "zone", reserve - ready)
    for work in simulation.work:
        if work.due_step == index:
            yield Violation(name, at_s, "batch", work.left_h)


def _compute_oracle(curve: PoolCurve, limits: Limits, needed: Sequence[float]) -> float:
    """Return the hours of instances that no plan can undercut."""
    real_time = [shifting.add_zone_reserve(value, limits.zones) for value in needed]
    idle_h = [max(0, limits.least - value) * STEP_S / 3600 for value in real_time]
    hours = sum(max(limits.least, value) for value in real_time) * STEP_S / 3600
    for index in range(_STEPS):
        for work in (work for batch in curve.batches if (work := _start_work(batch, index))):
            end = min(work.due_step, _STEPS)
            # What is due after the week's end is done in it by its share.
            left_h = work.left_h * (end - index) / (work.due_step - index)
            for step in range(index, end):
                used_h = min(left_h, idle_h[step])
                idle_h[step] -= used_h
                left_h -= used_h
            hours += left_h
    return hours
