from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.catalog import eks, instances
from llm_serving.fleet import cost, standing_cost
from llm_serving.fleet.model import Fleet
from llm_serving.settings.units import Bounds

PRICED = sorted(name for name, row in instances.load().items() if "us-east-1" in row.prices)
BLOCK = {"capacity-block": "cr-0123456789abcdef0"}


def _build_fleet(**pools: dict[str, Any]) -> Fleet:
    return Fleet(name="demo", region="us-east-1", zones=("us-east-1a",), pools=pools)


def _sum_min(costs: cost.Cost) -> float:
    return sum(pool.min_usd_h for pool in costs.pools)


def _sum_max(costs: cost.Cost) -> float:
    return sum(pool.max_usd_h for pool in costs.pools)


def test_the_minimum_uses_the_cheapest_type_and_the_maximum_the_dearest() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": ["g6e.48xlarge", "g6e.xlarge"], "size": "2..3"}))
    assert _sum_min(costs) == pytest.approx(2 * 1.861)
    assert _sum_max(costs) == pytest.approx(3 * 30.13118)
    assert costs.unknown == ()
    assert [source.date for source in costs.sources] == ["2026-07-20"]


def test_an_unknown_price_is_named_and_left_out_of_the_sum() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": ["p5.48xlarge", "p5e.48xlarge", "no.such"], "size": 2}))
    assert costs.pools[0].unknown == ("p5e.48xlarge", "no.such")
    assert _sum_max(costs) == _sum_min(costs) == pytest.approx(110.08)


def test_a_capacity_block_is_paid_up_front() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": "p5e.48xlarge", "size": 2, "buy": BLOCK}))
    assert (_sum_max(costs), costs.unknown, costs.pools[0].prepaid, costs.sources) == (0, (), True, ())


def test_an_on_demand_reservation_costs_its_hours_like_any_machine() -> None:
    reserved = {"reservation": "cr-0123456789abcdef0"}
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": 2, "buy": reserved}))
    assert _sum_max(costs) == pytest.approx(110.08)


def test_spare_instances_cost_from_the_first_hour() -> None:
    pools = {
        "idle": {"types": "g6e.xlarge", "size": "0..3", "spare": 2},
        "busy": {"types": "g6e.xlarge", "size": "3..4", "spare": 1},
    }
    costs = cost.estimate(_build_fleet(**pools))
    assert [pool.min_usd_h for pool in costs.pools] == pytest.approx([2 * 1.861, 3 * 1.861]), (
        "those of the least size are idle too"
    )
    assert [pool.spare_usd_h for pool in costs.pools] == pytest.approx([2 * 1.861, 1.861])


def test_the_fleets_own_reservation_costs_the_same_used_or_idle() -> None:
    buy = [{"reserve": 4}, "on-demand"]
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": "1..10", "buy": buy}))
    assert _sum_min(costs) == pytest.approx(4 * 55.04), "four are paid for where one runs"
    assert _sum_max(costs) == pytest.approx(10 * 55.04), "a machine in the reservation is not paid for twice"
    assert costs.pools[0].reserved_usd_h == pytest.approx(4 * 55.04)


def test_a_pool_without_its_own_reservation_costs_its_minimum() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": "1..10"}))
    assert (_sum_min(costs), costs.pools[0].reserved_usd_h) == (pytest.approx(55.04), 0)


_pools = st.dictionaries(
    st.sampled_from(["aa", "bb", "cc"]),
    st.fixed_dictionaries(
        {
            "types": st.lists(st.sampled_from(PRICED), min_size=1, max_size=4, unique=True),
            "size": st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda bounds: Bounds(*sorted(bounds))),
        }
    ),
    min_size=1,
)


@given(_pools)
def test_the_minimum_never_exceeds_the_maximum_and_pools_add_up(pools: dict[str, Any]) -> None:
    costs = cost.estimate(_build_fleet(**pools))
    assert 0 <= _sum_min(costs) <= _sum_max(costs)
    single_costs = [_sum_max(cost.estimate(_build_fleet(**{name: pool}))) for name, pool in pools.items()]
    assert math.isclose(_sum_max(costs), sum(single_costs), abs_tol=1e-9)


@given(_pools, st.sampled_from(PRICED))
def test_one_more_fallback_type_never_lowers_the_maximum(pools: dict[str, Any], name: str) -> None:
    larger_pools = {key: {**pool, "types": list(dict.fromkeys([*pool["types"], name]))} for key, pool in pools.items()}
    assert _sum_max(cost.estimate(_build_fleet(**larger_pools))) >= _sum_max(cost.estimate(_build_fleet(**pools)))


SMALL_VOLUME = 100 * 0.08 / 730
"""Of an instance whose images are on other disks, in USD an hour."""

# EKS control plane, system nodes, NAT gateways with their addresses, endpoints in zones, KMS keys.
STANDING = [
    ("eks", 1, 0.10 + 2 * 0.17952 + 1 * 0.05 + 11 * 0.01 + 3 * 0.00137),
    ("eks", 4, 0.10 + 4 * 0.17952 + 4 * 0.05 + 44 * 0.01 + 3 * 0.00137),
    ("ecs", 1, 1 * 0.05 + 9 * 0.01 + 3 * 0.00137),
    ("both", 2, 0.10 + 2 * 0.17952 + 2 * 0.05 + 28 * 0.01 + 4 * 0.00137),
]


@pytest.mark.parametrize(("orchestrator", "zone_count", "usd_h"), STANDING)
def test_what_stands_without_instances_is_in_the_least_and_the_most(
    orchestrator: Any, zone_count: int, usd_h: float
) -> None:
    zones = tuple(f"us-east-1{letter}" for letter in "abcd"[:zone_count])
    pools: dict[str, Any] = {"aa": {"types": "g6e.xlarge", "size": "0..1"}}
    fleet = Fleet(name="demo", region="us-east-1", zones=zones, orchestrator=orchestrator, pools=pools)
    costs = cost.estimate(fleet)
    volumes = SMALL_VOLUME * max(2, zone_count) * (orchestrator != "ecs")  # of system nodes
    assert costs.standing_usd_h == pytest.approx(usd_h)
    assert costs.min_usd_h == pytest.approx(usd_h + volumes, rel=1e-4)
    assert costs.max_usd_h == pytest.approx(usd_h + volumes + 1.861 + SMALL_VOLUME, rel=1e-4)
    assert all(item.is_regional_price for item in costs.standing)
    assert all(item.source.name and item.source.date for item in costs.standing)


def test_an_existing_network_is_its_owners_cost() -> None:
    network = {"vpc": "vpc-0123456789abcdef0", "private_subnets": ["subnet-0123456789abcdef0"]}
    pools: dict[str, Any] = {"aa": {"types": "g6e.xlarge", "size": "0..1"}}
    fleet = Fleet(
        name="demo", region="us-east-1", zones=("us-east-1a",), orchestrator="ecs", pools=pools, network=network
    )
    assert [(item.name, item.count) for item in cost.estimate(fleet).standing] == [("KMS keys", 2)]


def test_an_existing_cluster_and_the_volumes_of_its_nodes_are_its_owners_cost() -> None:
    network = {"vpc": "vpc-0123456789abcdef0", "private_subnets": ["subnet-0123456789abcdef0"]}
    pools: dict[str, Any] = {"aa": {"types": "g6e.xlarge", "size": "1..2"}}
    existing: dict[str, Any] = {"eks": {"cluster": "platform"}, "network": network}
    costs = cost.estimate(Fleet(name="demo", region="us-east-1", zones=("us-east-1a",), pools=pools, **existing))
    assert [(item.name, item.count) for item in costs.standing] == [("KMS keys", 1)]
    assert (costs.volumes.min_usd_h, costs.volumes.max_usd_h, costs.pools[0].min_usd_h) == (0, 0, 1.861)


def test_a_region_without_prices_of_its_own_is_estimated_and_says_so() -> None:
    pools: dict[str, Any] = {"aa": {"types": "g6e.xlarge", "size": 0}}
    fleet = Fleet(name="demo", region="eu-west-1", zones=("eu-west-1a",), orchestrator="ecs", pools=pools)
    is_regional = {item.name: item.is_regional_price for item in cost.estimate(fleet).standing}
    assert is_regional == {
        "NAT gateways": False,
        "public addresses": True,
        "endpoints in zones": False,
        "KMS keys": True,
    }


def test_extended_support_costs_six_times_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: dict[str, Any] = {"aa": {"types": "g6e.xlarge", "size": 0}}
    fleet = Fleet(name="demo", region="us-east-1", zones=("us-east-1a", "us-east-1b"), pools=pools)
    ended = eks.END_OF_STANDARD_SUPPORT[fleet.eks.version]
    for day, usd_h in ((ended - datetime.timedelta(days=1), 0.10), (ended, 0.60)):
        monkeypatch.setattr(eks, "read_today", lambda day=day: day)
        assert standing_cost.list_items(fleet)[0].usd_h == usd_h


def test_root_volumes_are_in_both_totals() -> None:
    """500 GiB of gp3 with 16,000 operations and 1,000 MiB a second are 140 USD a month, beside 1.86 USD an hour."""
    fleet = _build_fleet(aa={"types": ["g6e.xlarge"], "size": "1..10", "disk": "gp3"})
    system_nodes, each = 2 * SMALL_VOLUME, (500 * 0.08 + 13_000 * 0.005 + 875 * 0.04) / 730
    costs = cost.estimate(fleet)
    assert costs.volumes.min_usd_h == pytest.approx(system_nodes + each, rel=1e-3)
    assert costs.volumes.max_usd_h == pytest.approx(system_nodes + 10 * each, rel=1e-3)
    assert costs.min_usd_h == pytest.approx(costs.standing_usd_h + 1.861 + costs.volumes.min_usd_h)
    assert costs.max_usd_h == pytest.approx(costs.standing_usd_h + 18.61 + costs.volumes.max_usd_h)
    assert costs.volumes.is_regional_price
