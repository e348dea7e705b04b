"""A week of 10,000 GPUs with faults and a storm, in minutes: the function's own decisions, on a model of ECS."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from infra.functions import gpu_repair
from infra.functions.gpu_repair import Instance, Signals
from llm_serving import paths
from llm_serving.fleet import loading, shift_plan, shifting, traffic_curves
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.fleet.shift_plan import STEP_S
from llm_serving.fleet.shifting import Allocation, Limits

START = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
WEEK_MINUTES = 7 * 24 * 60

FAULTS_OF_A_WEEK = round((148 + 72) / 54 * 7 * 10_000 / 16_384)
"""Faulty GPUs and HBM of 54 days with 16,384 H100s. Source: "The Llama 3 Herd of Models", arXiv:2407.21783, table 5."""

REPLACEMENT_MINUTES = 10 + INSTANCE_START_S // 60
"""Tasks that move, and the start of the instance that comes."""


@dataclass
class Week:
    """1,250 instances of eight GPUs, in two pools and three zones."""

    instances: dict[str, Instance] = field(
        default_factory=lambda: {
            f"i-{number:04}": Instance(
                "", f"i-{number:04}", "ranking" if number < 800 else "large", "aabbc"[number % 5]
            )
            for number in range(1250)
        }
    )
    minute: int = 0
    stopped: bool = False
    broken: set[str] = field(default_factory=set)
    due: dict[str, int] = field(default_factory=dict)
    """Minute at which a drained instance is replaced."""

    waits: list[int] = field(default_factory=list)
    """Minutes from each fault to its replacement's start."""

    most: Counter[str] = field(default_factory=Counter)
    """Most that drained at a time, by pool and zone."""

    replaced: Counter[str] = field(default_factory=Counter)

    @property
    def now(self) -> datetime.datetime:
        return START + datetime.timedelta(minutes=self.minute)

    def fail(self, instance_id: str) -> None:
        self.broken.add(instance_id)
        self.instances[instance_id] = replace(
            self.instances[instance_id], signals=Signals(xids=(79,)), failed_at=self.now
        )

    def call(self) -> None:
        """Do what the handler does with ECS."""
        instances = list(self.instances.values())
        self.stopped = self.stopped or gpu_repair.is_storm(instances, self.now)
        for instance, hold in gpu_repair.choose(instances, stopped=self.stopped):
            if not hold:
                assert instance.failed_at
                self.waits.append(int((self.now - instance.failed_at).total_seconds()) // 60)
                self.instances[instance.instance_id] = replace(instance, draining=True)
                self.due[instance.instance_id] = self.minute + REPLACEMENT_MINUTES
        draining = [one for one in self.instances.values() if one.draining]
        self.most |= Counter(place for one in draining for place in one.places)

    def pass_minute(self) -> None:
        """Have instances that are due replaced, and call where something is broken."""
        self.minute += 1
        for instance_id in [name for name, minute in self.due.items() if minute <= self.minute]:
            old = self.instances[instance_id]
            self.instances[instance_id] = Instance("", instance_id, old.pool, old.zone)
            self.replaced[instance_id] += 1
            self.broken.remove(instance_id)
            del self.due[instance_id]
        if self.broken:
            self.call()


def test_a_week_of_10_000_gpus_keeps_the_limits_and_starts_each_replacement_within_a_minute() -> None:
    draw, week = random.Random(7), Week()
    faults = {draw.randrange(WEEK_MINUTES): name for name in draw.sample(sorted(week.instances), FAULTS_OF_A_WEEK)}
    while week.minute < WEEK_MINUTES:
        if week.minute in faults:
            week.fail(faults[week.minute])
        week.pass_minute()
    assert sum(week.replaced.values()) == FAULTS_OF_A_WEEK == 17
    assert max(week.waits) <= 1 and not week.stopped


def test_a_storm_of_a_third_of_10_000_gpus_waits_for_a_person_and_is_then_worked_off_within_the_limits() -> None:
    draw, week = random.Random(7), Week()
    broken = draw.sample(sorted(week.instances), 375)  # 30%
    for instance_id in broken:
        week.fail(instance_id)
    for _ in range(30):
        week.pass_minute()
    assert week.stopped and not week.due and not week.replaced, "nothing is replaced while the storm's cause is unknown"
    week.stopped = False  # the person takes the tag away
    while week.broken:
        week.pass_minute()
    assert week.replaced == Counter(broken), "each once"
    sizes = Counter(place for one in week.instances.values() for place in one.places)
    limits = {place: gpu_repair.compute_limit(size) for place, size in sizes.items()}
    assert limits == {"pool ranking": 20, "pool large": 20, "zone a": 20, "zone b": 20, "zone c": 12}
    assert all(week.most[place] <= limit for place, limit in limits.items())
    assert week.minute < 6 * 60, "375 of 1,250 are new within six hours"


STORM_H = 2 * 24 + 20
"""Evening of the third day."""


def test_a_week_of_faults_costs_a_pool_that_shifts_no_load_and_a_storm_waits_for_a_person() -> None:
    """Both decisions together: of the pool of ads-scale with most GPUs, at worst all broken instances are real time's."""
    fleet = loading.load_fleet(paths.EXAMPLE_FLEETS / "ads-scale.yaml").value
    curves = traffic_curves.load_curves(paths.EXAMPLE_FLEETS / "curves" / "ads-scale.yaml", fleet).value
    needed = next(plan for plan in shift_plan.plan(fleet, curves) if plan.pool == "ranking").needed
    limits, now = Limits(200, 800, 4, 40, 900.0), Allocation(500, 0)
    draw, week, grew_at = random.Random(7), Week(), 0
    ranking = [name for name, one in week.instances.items() if one.pool == "ranking"]
    faults = {draw.randrange(WEEK_MINUTES): name for name in draw.sample(ranking, FAULTS_OF_A_WEEK)}
    storm: list[str] = []
    for step in range(len(needed)):
        minute = step * STEP_S // 60
        if minute == STORM_H * 60:
            storm = draw.sample(sorted({*ranking} - {*faults.values()}), 300)  # 24% of the cluster
            for name in storm:
                week.fail(name)
        if minute == (STORM_H + 1) * 60:
            assert week.stopped and not set(storm) & set(week.replaced), "until a person has looked"
            week.stopped = False
        for _ in range(STEP_S // 60):
            if week.minute in faults and faults[week.minute] not in week.broken:
                week.fail(faults[week.minute])
            week.pass_minute()
        signals = shifting.Signals(
            needed=needed[step],
            forecast=max(needed[step : step + 5]) * 1.02,
            batch_instances=200,
            since_growth_s=(step - grew_at) * STEP_S,
        )
        after = shifting.decide(now, signals, limits)
        assert after.total <= 800
        grew_at = step if after.real_time > now.real_time else grew_at
        now = after
        broken = sum(one.pool == "ranking" for one in (week.instances[name] for name in week.broken))
        is_everyday = not week.broken & set(storm)
        assert not is_everyday or now.real_time - broken >= needed[step], "a single fault costs no request its instance"
    assert not week.broken and set(storm) <= set(week.replaced)
    sizes = Counter(place for one in week.instances.values() for place in one.places)
    assert all(week.most[place] <= gpu_repair.compute_limit(size) for place, size in sizes.items())
