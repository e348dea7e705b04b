"""The example fleets: right, rentable within their own limits, a screenful each, and each what it says it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import instances
from llm_serving.fleet import capacity, checks, cost, groups
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load

ROOT = Path(__file__).parents[3]
NAMES = ("one-gpu", "eks-multi-az", "ecs-multi-az", "p5-efa", "trn2", "ads-scale", "mixed")
EACH = pytest.mark.parametrize("name", NAMES)


def _read(name: str) -> Document[Fleet]:
    return load(ROOT / f"infra/fleets/{name}.yaml", Fleet)


def test_these_are_all_the_examples() -> None:
    assert {path.stem for path in (ROOT / "infra/fleets").glob("*.yaml")} == set(NAMES)


@EACH
def test_an_example_can_be_rented_within_its_own_limit(name: str) -> None:
    document = _read(name)
    assert document.value.name == name
    assert document.value.spend_limit
    assert checks.check(document, instances.load()) == []


@EACH
def test_a_limit_is_honest_and_a_second_fleet_of_the_kind_would_break_it(name: str) -> None:
    fleet = _read(name).value
    most = cost.of(fleet, instances.load()).most_usd_h
    assert fleet.spend_limit
    assert most <= fleet.spend_limit < 2 * most + 5


@EACH
def test_an_example_is_a_screenful(name: str) -> None:
    lines = (ROOT / f"infra/fleets/{name}.yaml").read_text().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 120


@EACH
def test_every_pool_of_an_example_has_a_comment_that_says_why(name: str) -> None:
    lines = (ROOT / f"infra/fleets/{name}.yaml").read_text().splitlines()
    for pool in _read(name).value.pools:
        at = lines.index(f"  {pool}:")
        assert "#" in lines[at - 1] or any("#" in line for line in lines[at : at + 8])


@EACH
def test_every_pool_of_an_example_has_groups_within_a_strategy(name: str) -> None:
    fleet = _read(name).value
    made = groups.groups(fleet, instances.load())
    for pool in fleet.pools:
        mine = [group for group in made if group.pool == pool]
        assert mine
        assert all(len(service) <= 6 for service in groups.strategies(mine))


def test_one_gpu_costs_less_than_any_other_machine_with_a_gpu_of_24_gb() -> None:
    (pool,) = _read("one-gpu").value.pools.values()
    prices = {
        row.name: row.prices["us-east-1"].usd_h
        for row in instances.load().values()
        if row.accelerators and row.accelerators.kind == "gpu" and "us-east-1" in row.prices
    }
    assert pool.types[0] == min(prices, key=lambda kind: prices[kind])


def test_eks_multi_az_has_four_zones_and_g6e_by_karpenter() -> None:
    fleet = _read("eks-multi-az").value
    made = groups.of_pool(fleet, "general", instances.load())
    assert len(fleet.zones) == 4
    assert {(group.kind, group.family, group.images) for group in made} == {("karpenter", "g6e", "soci")}


def test_ecs_multi_az_falls_back_from_spot_in_three_zones_and_keeps_machines_warm() -> None:
    fleet = _read("ecs-multi-az").value
    services = groups.strategies(groups.of_pool(fleet, "general", instances.load()))
    assert [[group.bought for group in service] for service in services] == [["spot"] * 3, ["on-demand"] * 3]
    assert sum(group.warm for group in groups.of_pool(fleet, "peak", instances.load())) == 3


def test_p5_efa_is_a_capacity_block_with_all_32_interfaces_and_the_wide_layout() -> None:
    (group,) = groups.of_pool(_read("p5-efa").value, "h100", instances.load())
    assert (group.bought, group.efa, len(group.interfaces)) == ("capacity-block", 32, 40)
    assert group.placement_group is None


def test_trn2_is_neuron_with_16_efa_interfaces() -> None:
    (group,) = groups.of_pool(_read("trn2").value, "trainium", instances.load())
    assert (group.variant, group.efa, group.accelerators * group.most) == ("neuron", 16, 32)


def test_ads_scale_has_over_ten_thousand_gpus_of_several_families_zones_and_ways_to_buy() -> None:
    fleet = _read("ads-scale").value
    made = groups.groups(fleet, instances.load())
    first = [group for group in made if group.choice == 0]
    assert fleet.orchestrator == "ecs"
    assert sum(group.most * group.accelerators for group in first) > 10_000
    assert {group.variant for group in made} == {"nvidia"}
    assert len({group.family for group in made}) >= 5
    assert {group.bought for group in made} == {"spot", "on-demand", "reservation", "capacity-block"}
    assert {zone for group in made for zone in group.zones} == set(fleet.zones)


def test_ads_scale_loses_less_than_half_with_any_zone() -> None:
    met = capacity.of(_read("ads-scale").value, instances.load())
    assert max(share for _, share in met.lost_with) < 0.5


def test_mixed_has_gpu_and_neuron_on_both_orchestrators() -> None:
    made = groups.groups(_read("mixed").value, instances.load())
    assert {group.variant for group in made} == {"nvidia", "neuron"}
    assert {group.orchestrator for group in made} == {"eks", "ecs"}
    assert {group.os for group in made} == {"al2023", "bottlerocket"}
