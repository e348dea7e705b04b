from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.catalog import instances
from llm_serving.fleet import cost
from llm_serving.fleet.model import Fleet
from llm_serving.settings.units import Bounds

CATALOGUE = instances.load()
PRICED = sorted(name for name, row in CATALOGUE.items() if "us-east-1" in row.prices)
BLOCK = {"capacity-block": "cr-0123456789abcdef0"}


def _build_fleet(**pools: dict[str, Any]) -> Fleet:
    return Fleet(name="demo", region="us-east-1", zones=("us-east-1a",), pools=pools)


def test_the_minimum_uses_the_cheapest_type_and_the_maximum_the_dearest() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": ["g6e.48xlarge", "g6e.xlarge"], "size": "2..3"}), CATALOGUE)
    assert costs.min_usd_h == pytest.approx(2 * 1.861)
    assert costs.max_usd_h == pytest.approx(3 * 30.13118)
    assert costs.unknown == ()
    assert [source.date for source in costs.sources] == ["2026-07-20"]


def test_an_unknown_price_is_named_and_left_out_of_the_sum() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": ["p5.48xlarge", "p5e.48xlarge", "no.such"], "size": 2}), CATALOGUE)
    assert costs.pools[0].unknown == ("p5e.48xlarge", "no.such")
    assert costs.max_usd_h == costs.min_usd_h == pytest.approx(110.08)


def test_a_capacity_block_is_paid_up_front() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": "p5e.48xlarge", "size": 2, "buy": BLOCK}), CATALOGUE)
    assert (costs.max_usd_h, costs.unknown, costs.pools[0].prepaid, costs.sources) == (0, (), True, ())


def test_an_on_demand_reservation_costs_its_hours_like_any_machine() -> None:
    reserved = {"reservation": "cr-0123456789abcdef0"}
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": 2, "buy": reserved}), CATALOGUE)
    assert costs.max_usd_h == pytest.approx(110.08)


def test_the_fleets_own_reservation_costs_the_same_used_or_idle() -> None:
    buy = [{"reserve": 4}, "on-demand"]
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": "1..10", "buy": buy}), CATALOGUE)
    assert costs.min_usd_h == pytest.approx(4 * 55.04), "four are paid for where one runs"
    assert costs.max_usd_h == pytest.approx(10 * 55.04), "a machine in the reservation is not paid for twice"
    assert costs.pools[0].reserved_usd_h == pytest.approx(4 * 55.04)


def test_a_pool_without_its_own_reservation_costs_its_minimum() -> None:
    costs = cost.estimate(_build_fleet(aa={"types": "p5.48xlarge", "size": "1..10"}), CATALOGUE)
    assert (costs.min_usd_h, costs.pools[0].reserved_usd_h) == (pytest.approx(55.04), 0)


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
    costs = cost.estimate(_build_fleet(**pools), CATALOGUE)
    assert 0 <= costs.min_usd_h <= costs.max_usd_h
    single_costs = [cost.estimate(_build_fleet(**{name: pool}), CATALOGUE).max_usd_h for name, pool in pools.items()]
    assert math.isclose(costs.max_usd_h, sum(single_costs), abs_tol=1e-9)


@given(_pools, st.sampled_from(PRICED))
def test_one_more_fallback_type_never_lowers_the_maximum(pools: dict[str, Any], name: str) -> None:
    larger_pools = {key: {**pool, "types": list(dict.fromkeys([*pool["types"], name]))} for key, pool in pools.items()}
    assert (
        cost.estimate(_build_fleet(**larger_pools), CATALOGUE).max_usd_h
        >= cost.estimate(_build_fleet(**pools), CATALOGUE).max_usd_h
    )
