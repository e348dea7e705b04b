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


def _fleet(**pools: dict[str, Any]) -> Fleet:
    return Fleet(name="demo", region="us-east-1", zones=("us-east-1a",), pools=pools)


def test_the_least_is_the_cheapest_type_and_the_most_the_dearest() -> None:
    costs = cost.of(_fleet(aa={"types": ["g6e.48xlarge", "g6e.xlarge"], "size": "2..3"}), CATALOGUE)
    assert costs.least_usd_h == pytest.approx(2 * 1.861)
    assert costs.most_usd_h == pytest.approx(3 * 30.13118)
    assert costs.unknown == ()
    assert [source.date for source in costs.sources] == ["2026-07-20"]


def test_an_unknown_price_is_named_and_left_out_of_the_sum() -> None:
    costs = cost.of(_fleet(aa={"types": ["p5.48xlarge", "p5e.48xlarge", "no.such"], "size": 2}), CATALOGUE)
    assert costs.pools[0].unknown == ("p5e.48xlarge", "no.such")
    assert costs.most_usd_h == costs.least_usd_h == pytest.approx(110.08)


def test_a_capacity_block_is_paid_up_front() -> None:
    costs = cost.of(_fleet(aa={"types": "p5e.48xlarge", "size": 2, "buy": BLOCK}), CATALOGUE)
    assert (costs.most_usd_h, costs.unknown, costs.pools[0].prepaid, costs.sources) == (0, (), True, ())


def test_an_on_demand_reservation_costs_its_hours_like_any_machine() -> None:
    reserved = {"reservation": "cr-0123456789abcdef0"}
    costs = cost.of(_fleet(aa={"types": "p5.48xlarge", "size": 2, "buy": reserved}), CATALOGUE)
    assert costs.most_usd_h == pytest.approx(110.08)


def test_what_the_fleet_reserves_costs_from_the_apply_on_whether_it_is_used_or_not() -> None:
    buy = [{"reserve": 4}, "on-demand"]
    costs = cost.of(_fleet(aa={"types": "p5.48xlarge", "size": "1..10", "buy": buy}), CATALOGUE)
    assert costs.least_usd_h == pytest.approx(4 * 55.04), "four are paid for where one runs"
    assert costs.most_usd_h == pytest.approx(10 * 55.04), "a machine in the reservation is not paid for twice"
    assert costs.pools[0].reserved_usd_h == pytest.approx(4 * 55.04)


def test_without_a_reservation_of_its_own_a_pool_costs_no_more_than_its_least() -> None:
    costs = cost.of(_fleet(aa={"types": "p5.48xlarge", "size": "1..10"}), CATALOGUE)
    assert (costs.least_usd_h, costs.pools[0].reserved_usd_h) == (pytest.approx(55.04), 0)


_pools = st.dictionaries(
    st.sampled_from(["aa", "bb", "cc"]),
    st.fixed_dictionaries(
        {
            "types": st.lists(st.sampled_from(PRICED), min_size=1, max_size=4, unique=True),
            "size": st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ends: Bounds(*sorted(ends))),
        }
    ),
    min_size=1,
)


@given(_pools)
def test_the_least_never_exceeds_the_most_and_pools_add_up(pools: dict[str, Any]) -> None:
    costs = cost.of(_fleet(**pools), CATALOGUE)
    assert 0 <= costs.least_usd_h <= costs.most_usd_h
    alone = [cost.of(_fleet(**{name: pool}), CATALOGUE).most_usd_h for name, pool in pools.items()]
    assert math.isclose(costs.most_usd_h, sum(alone), abs_tol=1e-9)


@given(_pools, st.sampled_from(PRICED))
def test_one_more_type_to_fall_back_to_never_makes_the_most_less(pools: dict[str, Any], name: str) -> None:
    more = {key: {**pool, "types": list(dict.fromkeys([*pool["types"], name]))} for key, pool in pools.items()}
    assert cost.of(_fleet(**more), CATALOGUE).most_usd_h >= cost.of(_fleet(**pools), CATALOGUE).most_usd_h
