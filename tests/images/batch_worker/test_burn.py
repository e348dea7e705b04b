"""How rows give way to the SLO of a deployment that they share engines with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from batch.burn import Burn, BurnMeter, compute_burn, estimate_in_time
from batch.concurrency import ConcurrencyLimit, Window
from batch.metrics import EngineLoad, parse_histograms
from batch.settings import Objective

from tests.images.batch_worker.conftest import read_settings

TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
OBJECTIVE = Objective(TTFT, limit_s=0.5, allowed=0.05)


def build_scrape(in_time: float, late: float, page: str = "a") -> Mapping[str, Mapping[str, Mapping[float, float]]]:
    """Requests since the start: some took at most 0.5 s, the others more."""
    return {page: {TTFT: {0.25: in_time / 2, 0.5: in_time, 1.0: in_time + late, math.inf: in_time + late}}}


def test_burn_is_the_late_share_over_the_share_that_the_percentile_leaves() -> None:
    before = build_scrape(1000, 500)
    assert compute_burn([OBJECTIVE], before, build_scrape(1095, 505)) == pytest.approx(1.0)
    assert compute_burn([OBJECTIVE], before, build_scrape(1080, 520)) == pytest.approx(4.0)
    assert compute_burn([OBJECTIVE], before, build_scrape(1100, 500)) == 0.0
    assert compute_burn([OBJECTIVE], before, before) == 0.0  # nothing was answered
    strict = Objective(TTFT, limit_s=0.5, allowed=0.01)
    assert compute_burn([OBJECTIVE, strict], before, build_scrape(1095, 505)) == pytest.approx(5.0)  # the largest


def test_pages_that_came_or_went_and_engines_that_restarted_count_nothing() -> None:
    before = {**build_scrape(100, 0), **build_scrape(900, 900, "b")}
    late = build_scrape(100, 10)
    assert compute_burn([OBJECTIVE], before, late) == pytest.approx(20.0)
    assert compute_burn([OBJECTIVE], before, {**late, **build_scrape(10, 5, "b")}) == pytest.approx(20.0)
    assert compute_burn([OBJECTIVE], before, {**late, **build_scrape(900, 900, "c")}) == pytest.approx(20.0)


@pytest.mark.parametrize(("limit_s", "expected"), [(0.5, 60.0), (0.75, 75.0), (0.1, 16.0), (1.0, 90.0), (30.0, 90.0)])
def test_a_limit_between_two_bounds_counts_in_proportion(limit_s: float, expected: float) -> None:
    histogram = {0.25: 40.0, 0.5: 60.0, 1.0: 90.0, math.inf: 100.0}
    assert estimate_in_time(histogram, limit_s) == pytest.approx(expected)


def test_histograms_are_read_from_a_page_and_its_series_added() -> None:
    page = f"""\
# TYPE {TTFT} histogram
{TTFT}_bucket{{engine="0",le="0.5",model_name="m"}} 3.0
{TTFT}_bucket{{engine="0",le="+Inf",model_name="m"}} 4.0
{TTFT}_bucket{{engine="1",le="0.5",model_name="m"}} 1.0
{TTFT}_bucket{{engine="1",le="+Inf",model_name="m"}} 2.0
{TTFT}_sum{{engine="0",model_name="m"}} 9.0
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="+Inf"}} 7.0
"""
    assert parse_histograms(page, {TTFT, ITL}) == {TTFT: {0.5: 4.0, math.inf: 6.0}}


def test_the_objectives_are_read_from_the_settings() -> None:
    written = [{"metric": TTFT, "limit_s": 0.5, "allowed": 0.05}, {"metric": ITL, "limit_s": 0.04, "allowed": 0.01}]
    assert read_settings(objectives=written).objectives == (OBJECTIVE, Objective(ITL, 0.04, 0.01))
    assert read_settings().objectives == ()


def test_what_was_late_counts_for_one_step_back_and_a_minute_against_growth() -> None:
    meter = BurnMeter([OBJECTIVE])
    burns = [meter.observe(build_scrape(100.0 * second, 50.0 * (second >= 3)), second) for second in range(70)]
    assert [second for second, burn in enumerate(burns) if burn.recent > 1] == [3]
    assert burns[3] == Burn(recent=pytest.approx(50 / 350 / 0.05), budget=pytest.approx(50 / 350 / 0.05))
    assert burns[10].budget == pytest.approx(50 / 1050 / 0.05)
    assert burns[62].budget > 0
    assert burns[64].budget == 0


def run_beside_people(objectives: list[Objective]) -> tuple[float, float]:
    """Five minutes of rows beside 8 people at an engine whose answers are late while more than 40 run.

    Returns:
        The late share of people's answers, and the mean number of rows in flight, both after the first minute.
    """
    limit, meter = ConcurrencyLimit(4, 256, is_shared=True), BurnMeter(objectives)
    in_time = late = people_late = 0.0
    rows = []
    for second in range(300):
        running = 8 + limit.value
        is_late = running > 40
        in_time, late = in_time + running * (not is_late), late + running * is_late
        burn = meter.observe(build_scrape(in_time, late), second)
        load = EngineLoad(running=running, waiting=0, kv_usage=0.5, preemptions=0)
        limit.observe(Window(1.0, 1, 1.0, is_full=True, refusals=0, load=load, burn=burn))
        if second >= 60:
            people_late += is_late
            rows.append(running - 8)
    return people_late / len(rows), sum(rows) / len(rows)


def test_rows_stay_within_what_the_slo_of_people_allows_and_take_the_rest() -> None:
    late_share, rows = run_beside_people([OBJECTIVE])
    assert late_share <= OBJECTIVE.allowed
    assert rows >= 20
    assert run_beside_people([]) == (1.0, 256.0)  # the control: no queue, so nothing else holds them back


@pytest.mark.parametrize("text", ["x", "NaN", "+Inf", "1e", "²"])
def test_a_sample_without_a_number_is_left_out(text: str) -> None:
    bounds = f'{TTFT}_bucket{{le="0.5"}} {text}\n{TTFT}_bucket{{le="+Inf"}} 6\n{TTFT}_bucket{{le="{text}"}} 1\n'
    histograms = parse_histograms(bounds, {TTFT})
    assert 0.5 not in histograms[TTFT]
    assert compute_burn([OBJECTIVE], {"a": histograms}, {"a": histograms}) == 0.0


def test_a_histogram_without_its_infinite_bound_is_left_out() -> None:
    assert parse_histograms(f'{TTFT}_bucket{{le="0.5"}} 4\n', {TTFT}) == {}
