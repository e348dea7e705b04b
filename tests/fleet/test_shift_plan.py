"""A week of shifting on the example fleets, and what the plan says of a load or a deadline that it cannot hold."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.fleet import shift_plan, shifting, traffic_curves
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.shift_plan import PoolPlan
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

CURVES = sorted((paths.EXAMPLE_FLEETS / "curves").glob("*.yaml"))

SMALL_FLEET = """\
name: small
region: us-east-1
zones: [us-east-1a, us-east-1b]
orchestrator: eks
spend_limit: 900 USD/h
pools:
  general: {types: g6e.2xlarge, size: 0..30}
  held: {types: g6e.2xlarge, buy: {reservation: cr-0aaaaaaaaaaaaaaa1}, size: 0..4, zones: us-east-1a}
"""

SMALL_CURVE = """\
source: this test
variation: VARIATION
pools:
  POOL:
    peak: PEAK
    hours: [20%, 20%, 20%, 20%, 20%, 20%, 40%, 60%, 80%, 100%, 100%, 100%, 100%, 100%, 100%, 100%, 80%, 60%, 40%, 20%, 20%, 20%, 20%, 20%]
    batches: [BATCH]
"""


def plan_example(name: str) -> list[PoolPlan]:
    fleet = load(paths.EXAMPLE_FLEETS / f"{name}.yaml", Fleet).value
    curves = traffic_curves.load_curves(paths.EXAMPLE_FLEETS / "curves" / f"{name}.yaml", fleet).value
    return shift_plan.plan(fleet, curves)


def write_small(
    folder: Path, batch: str, *, pool: str = "general", peak: float = 10, variation: str = "2%"
) -> tuple[Path, Path]:
    fleet, curve = folder / "fleet.yaml", folder / "week.yaml"
    fleet.write_text(SMALL_FLEET)
    text = SMALL_CURVE.replace("POOL", pool).replace("PEAK", str(peak)).replace("VARIATION", variation)
    curve.write_text(text.replace("BATCH", batch))
    return fleet, curve


def plan_small(folder: Path, batch: str, variation: str = "2%") -> PoolPlan:
    fleet_file, curve = write_small(folder, batch, variation=variation)
    fleet = load(fleet_file, Fleet).value
    [plan] = shift_plan.plan(fleet, traffic_curves.load_curves(curve, fleet).value)
    return plan


def test_ten_thousand_gpus_need_a_third_less_and_come_within_a_twentieth_of_the_oracle() -> None:
    plans = plan_example("ads-scale")
    hours = shift_plan.sum_hours(plans, "gpu")
    assert hours.planned <= 0.7 * hours.static
    assert hours.oracle >= 0.95 * hours.planned
    assert [violation for plan in plans for violation in plan.violations] == []
    assert sum(plan.static_instances * plan.accelerators for plan in plans) > 8000, "beside 1,328 reserved ones"


@pytest.mark.parametrize("file", CURVES, ids=lambda file: file.stem)
def test_each_example_holds_its_load_with_no_less_than_the_oracle(file: Path) -> None:
    for plan in plan_example(file.stem):
        hours = plan.instance_hours
        assert hours.oracle <= hours.planned < hours.static
        assert plan.violations == ()


def test_a_decision_that_ignores_the_schedule_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = shifting.decide

    def decide_by_load(
        now: shifting.Allocation, signals: shifting.Signals, limits: shifting.Limits
    ) -> shifting.Allocation:
        return decide(now, dataclasses.replace(signals, forecast=signals.needed), limits)

    monkeypatch.setattr(shifting, "decide", decide_by_load)
    assert {violation.kind for plan in plan_example("ads-scale") for violation in plan.violations} == {"zone"}


def test_without_deviations_and_batches_the_oracle_is_the_schedule_with_its_reserve(tmp_path: Path) -> None:
    plan = plan_small(tmp_path, "", variation="0%")
    hours = sum(math.ceil(needed * 2) for needed in plan.needed) * shift_plan.STEP_S / 3600
    assert plan.oracle_hours == pytest.approx(hours)
    assert plan.static_instances == 20


def test_a_batch_costs_the_oracle_its_own_hours_and_no_more(tmp_path: Path) -> None:
    batch = "{at: 1h, within: 5h, instance_hours: 20}"
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    with_batch, without = plan_small(tmp_path / "with", batch), plan_small(tmp_path / "without", "")
    assert with_batch.oracle_hours - without.oracle_hours == pytest.approx(20 * shift_plan.DAYS)
    assert with_batch.static_instances - without.static_instances == 4
    assert with_batch.violations == ()


def test_a_deadline_that_the_peak_breaks_is_said_beforehand(tmp_path: Path) -> None:
    plan = plan_small(tmp_path, "{at: 9h, within: 5h, instance_hours: 60}")
    assert {violation.kind for violation in plan.violations} == {"batch"}
    assert [int(violation.at_s // 3600) for violation in plan.violations] == [14 + 24 * day for day in range(7)]


def test_the_same_week_comes_each_time(tmp_path: Path) -> None:
    assert plan_small(tmp_path, "") == plan_small(tmp_path, "")


@pytest.mark.parametrize(
    ("pool", "peak", "batch", "message"),
    [
        (
            "other",
            10,
            "",
            'week.yaml:4:3: pools.other: "other": the fleet small has no such pool. Fix: write one of general, held.',
        ),
        (
            "held",
            2,
            "",
            'week.yaml:4:3: pools.held: "held": its instances are reserved: they cost the same at night, and none can be given back. '
            "Fix: remove the pool from this file.",
        ),
        (
            "general",
            20,
            "",
            "week.yaml:5:11: pools.general.peak: 20.0: so that a zone may be lost, it takes 41 instances, and the pool has at most 30. "
            "Fix: set size: 0..41 in the fleet.",
        ),
        (
            "general",
            10,
            "{at: 9h, within: 1min, instance_hours: 1}",
            'week.yaml:7:32: pools.general.batches[0].within: "1min": it is too small. Fix: use 1h or more.',
        ),
        (
            "general",
            10,
            "{at: 30h, within: 5h, instance_hours: 1}",
            'week.yaml:7:20: pools.general.batches[0].at: "30h": it is too large. Fix: use 1d or less.',
        ),
    ],
)
def test_a_curve_that_the_fleet_cannot_carry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, peak: float, batch: str, message: str
) -> None:
    fleet, curve = write_small(tmp_path, batch, pool=pool, peak=peak)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        traffic_curves.load_curves(Path(curve.name), load(fleet, Fleet).value)
    assert str(raised.value) == message
