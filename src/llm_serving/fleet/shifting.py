"""How real time and batch share a pool: one decision, from a schedule and signals. Pure functions.

Whole instances move, never single accelerators: a scheduler that takes them one by one works many times as hard. What
real time gives back goes to batches while there is work, and is returned to AWS otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Allocation:
    """Instances by what they do."""

    real_time: int
    batch: int

    @property
    def total(self) -> int:
        return self.real_time + self.batch


@dataclass(frozen=True)
class Signals:
    """What the pool has to do."""

    needed: float
    """Instances that the load of now keeps busy."""

    forecast: float
    """Most that the schedule expects until instances asked for now are ready, corrected by the load of now."""

    batch_instances: int = 0
    """Instances that could work on what is left of all batches."""

    batch_pace: int = 0
    """Instances that the batches' deadlines need from now on."""

    since_growth_s: float = math.inf
    """Time since real time grew."""


@dataclass(frozen=True)
class Limits:
    """What the decision keeps, whatever the signals say."""

    least: int
    most: int
    zones: int
    """Availability Zones, of which one may be lost."""

    max_moves: int
    """Most instances that real time gives back at once."""

    cool_down_s: float
    """Shortest time between real time's growth and its first step back."""


def decide(now: Allocation, signals: Signals, limits: Limits) -> Allocation:
    """Decide how many instances do what next."""
    real_time = _decide_real_time(now, signals, limits)
    freed = max(0, now.real_time - real_time)
    spare = max(0, limits.least - real_time)
    batch_need = max(signals.batch_pace, now.batch + freed, spare)
    return Allocation(real_time, min(signals.batch_instances, batch_need, limits.most - real_time))


def add_zone_reserve(needed: float, zones: int) -> int:
    """Return the instances that leave as many as needed when a zone is lost; of a pool in one zone, all go at once."""
    return math.ceil(needed * zones / (zones - 1)) if zones > 1 else math.ceil(needed)


def _decide_real_time(now: Allocation, signals: Signals, limits: Limits) -> int:
    """Grow at once and shrink slowly, and keep what a lost zone needs."""
    target = add_zone_reserve(max(signals.needed, signals.forecast), limits.zones)
    target = min(target, limits.most)
    if target >= now.real_time:
        return target
    if signals.since_growth_s < limits.cool_down_s:
        return now.real_time
    return max(target, now.real_time - limits.max_moves)
