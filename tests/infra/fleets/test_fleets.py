"""The example fleets: valid, within their own spend limits, a screen each, and as described."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from llm_serving.catalog import eks, instances
from llm_serving.fleet import capacity, checks, cost, groups
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load

ROOT = Path(__file__).parents[3]
NAMES = ("one-gpu", "eks-multi-az", "ecs-multi-az", "p5-efa", "trn2", "ads-scale", "mixed")
EACH_FLEET = pytest.mark.parametrize("name", NAMES)


def _load_fleet(name: str) -> Document[Fleet]:
    return load(ROOT / f"infra/fleets/{name}.yaml", Fleet)


def test_the_list_of_examples_is_complete() -> None:
    assert {path.stem for path in (ROOT / "infra/fleets").glob("*.yaml")} == set(NAMES)


@EACH_FLEET
def test_an_example_costs_no_more_than_its_spend_limit_even_in_extended_support(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(eks, "read_today", lambda: datetime.date.max)
    document = _load_fleet(name)
    assert document.value.name == name
    assert document.value.spend_limit
    assert checks.find_mistakes(document) == []


@EACH_FLEET
def test_a_spend_limit_covers_one_fleet_and_not_two(name: str) -> None:
    fleet = _load_fleet(name).value
    max_usd_h = cost.estimate(fleet).max_usd_h
    assert fleet.spend_limit
    assert max_usd_h <= fleet.spend_limit < 2 * max_usd_h + 5


@EACH_FLEET
def test_an_example_fits_on_a_screen(name: str) -> None:
    lines = (ROOT / f"infra/fleets/{name}.yaml").read_text().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 120


@EACH_FLEET
def test_every_pool_of_an_example_has_a_comment_with_its_reason(name: str) -> None:
    lines = (ROOT / f"infra/fleets/{name}.yaml").read_text().splitlines()
    for pool in _load_fleet(name).value.pools:
        line_index = lines.index(f"  {pool}:")
        assert "#" in lines[line_index - 1] or any("#" in line for line in lines[line_index : line_index + 8])


@EACH_FLEET
def test_every_pool_of_an_example_has_groups_within_a_strategy(name: str) -> None:
    fleet = _load_fleet(name).value
    machine_groups = groups.resolve_all(fleet)
    for pool in fleet.pools:
        pool_groups = [group for group in machine_groups if group.pool == pool]
        assert pool_groups
        assert all(len(service) <= 6 for service in groups.group_by_choice(pool_groups))


def test_one_gpu_costs_less_than_any_other_machine_with_a_gpu_of_24_gb() -> None:
    (pool,) = _load_fleet("one-gpu").value.pools.values()
    prices = {
        row.name: row.prices["us-east-1"].usd_h
        for row in instances.load().values()
        if row.accelerators and row.accelerators.kind == "gpu" and "us-east-1" in row.prices
        if row.accelerators.memory_mib * 2**20 > 22e9
    }
    assert pool.types[0] == min(prices, key=lambda kind: prices[kind])


def test_eks_multi_az_has_four_zones_and_g6e_by_karpenter() -> None:
    fleet = _load_fleet("eks-multi-az").value
    machine_groups = groups.resolve_pool(fleet, "general")
    assert len(fleet.zones) == 4
    assert {(group.kind, group.family, group.images) for group in machine_groups} == {("karpenter", "g6e", "soci")}


def test_ecs_multi_az_falls_back_from_spot_in_three_zones_and_has_warm_machines() -> None:
    fleet = _load_fleet("ecs-multi-az").value
    services = groups.group_by_choice(groups.resolve_pool(fleet, "general"))
    assert [[group.purchase_option for group in service] for service in services] == [["spot"] * 3, ["on-demand"] * 3]
    assert sum(group.warm for group in groups.resolve_pool(fleet, "peak")) == 3


def test_p5_efa_is_a_capacity_block_with_all_32_interfaces_and_one_address() -> None:
    (group,) = groups.resolve_pool(_load_fleet("p5-efa").value, "h100")
    assert (group.purchase_option, group.efa, len(group.interfaces)) == ("capacity-block", 32, 33)
    assert group.placement_group is None


def test_trn2_is_neuron_with_16_efa_interfaces() -> None:
    (group,) = groups.resolve_pool(_load_fleet("trn2").value, "trainium")
    assert (group.variant, group.efa, group.accelerators * group.max_size) == ("neuron", 16, 32)


def test_ads_scale_has_over_ten_thousand_gpus_of_several_families_zones_and_purchase_options() -> None:
    fleet = _load_fleet("ads-scale").value
    machine_groups = groups.resolve_all(fleet)
    first = [group for group in machine_groups if group.choice == 0]
    assert fleet.orchestrator == "ecs"
    assert sum(group.max_size * group.accelerators for group in first) > 10_000
    assert {group.variant for group in machine_groups} == {"nvidia"}
    assert len({group.family for group in machine_groups}) >= 5
    assert {group.purchase_option for group in machine_groups} == {"spot", "on-demand", "reservation", "capacity-block"}
    assert {zone for group in machine_groups for zone in group.zones} == set(fleet.zones)


def test_ads_scale_loses_less_than_half_with_any_zone() -> None:
    fleet_capacity = capacity.compute(_load_fleet("ads-scale").value)
    assert max(share for _, share in fleet_capacity.zone_shares) < 0.5


def test_mixed_has_gpu_neuron_and_cpu_on_both_orchestrators() -> None:
    machine_groups = groups.resolve_all(_load_fleet("mixed").value)
    assert {group.variant for group in machine_groups} == {"nvidia", "neuron", "standard"}
    assert {group.orchestrator for group in machine_groups} == {"eks", "ecs"}
    assert {group.os for group in machine_groups} == {"al2023", "bottlerocket"}
