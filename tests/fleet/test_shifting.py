"""The decision that shares a pool between real time and batch: what it follows, and what it keeps whatever comes."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from llm_serving.fleet import shifting
from llm_serving.fleet.shifting import Allocation, Limits, Signals

LIMITS = Limits(least=10, most=100, zones=4, max_moves=5, cool_down_s=900)
QUIET = Signals(needed=30, forecast=30)


def test_real_time_grows_at_once_to_what_a_lost_zone_needs() -> None:
    assert shifting.decide(Allocation(20, 0), QUIET, LIMITS) == Allocation(40, 0)
    rising = dataclasses.replace(QUIET, forecast=60)
    assert shifting.decide(Allocation(40, 0), rising, LIMITS) == Allocation(80, 0), "instances take their time to start"


def test_a_pool_in_one_zone_has_no_reserve_for_it() -> None:
    assert shifting.add_zone_reserve(30, 1) == 30


def test_real_time_gives_back_a_few_at_a_time_and_not_soon_after_it_grew() -> None:
    assert shifting.decide(Allocation(60, 0), QUIET, LIMITS) == Allocation(55, 0)
    soon = dataclasses.replace(QUIET, since_growth_s=899)
    assert shifting.decide(Allocation(60, 0), soon, LIMITS) == Allocation(60, 0)


def test_what_real_time_gives_back_works_for_batches_while_there_is_work() -> None:
    work = dataclasses.replace(QUIET, batch_instances=3)
    assert shifting.decide(Allocation(60, 0), work, LIMITS) == Allocation(55, 3), "and the others are returned"
    assert shifting.decide(Allocation(55, 3), QUIET, LIMITS) == Allocation(50, 0)


def test_instances_of_the_minimum_work_for_batches_when_real_time_needs_fewer() -> None:
    night = Signals(needed=1, forecast=1, batch_instances=50)
    assert shifting.decide(Allocation(2, 0), night, LIMITS) == Allocation(2, 8)


def test_a_deadline_gets_the_instances_that_it_needs() -> None:
    due = dataclasses.replace(QUIET, batch_instances=500, batch_pace=25)
    assert shifting.decide(Allocation(40, 0), due, LIMITS) == Allocation(40, 25)


def test_batch_gives_way_to_the_peak() -> None:
    peak = Signals(needed=72, forecast=72, batch_instances=500, batch_pace=30)
    assert shifting.decide(Allocation(60, 40), peak, LIMITS) == Allocation(96, 4)


@given(
    now=st.builds(Allocation, st.integers(0, 60), st.integers(0, 40)),
    signals=st.builds(
        Signals,
        needed=st.floats(0, 500),
        forecast=st.floats(0, 500),
        batch_instances=st.integers(0, 500),
        batch_pace=st.integers(0, 500),
        since_growth_s=st.floats(0, 1e6),
    ),
)
def test_a_pool_never_exceeds_its_size_nor_drops_by_more_than_its_pace(now: Allocation, signals: Signals) -> None:
    after = shifting.decide(now, signals, LIMITS)
    assert after.real_time >= 0 and after.batch >= 0 and after.total <= LIMITS.most
    assert after.real_time >= now.real_time - LIMITS.max_moves
    assert after.real_time >= min(LIMITS.most, shifting.add_zone_reserve(signals.needed, LIMITS.zones))
