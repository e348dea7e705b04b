from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest

from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.pages import comparison_page
from llm_serving.validation.reports import comparison
from llm_serving.validation.reports.comparison import Comparison
from llm_serving.validation.reports.validation_run import ValidationRun
from llm_serving.validation.statistics import time_series

SETTINGS = {"traffic": {"arrivals": 10}, "slo": {}, "target": "local", "model": "tiny"}


def _simulate(
    seed: int, *, count: int = 400, factor: float = 1.0, served: float = 14.0, **settings: Any
) -> ValidationRun:
    """A queue in front of one server: waits of neighbours depend on each other, as a real service's do."""
    rng, free, due, samples = random.Random(seed), 0.0, 0.0, []
    for number in range(count):
        due += rng.expovariate(10)
        free = max(free, due) + rng.expovariate(served)
        ttft_ms = factor * (50 + 1000 * (free - due))
        gaps = [Gap(factor * rng.uniform(8, 12), 1) for _ in range(10)]
        e2e_ms = ttft_ms + sum(gap.ms for gap in gaps)
        samples.append(Sample(number, due, ttft_ms=ttft_ms, e2e_ms=e2e_ms, gaps=gaps, output_tokens=11))
    report = {"duration_s": due + 1, "settings": {**SETTINGS, **settings}}
    return ValidationRun(f"run {seed}", report, samples)


def _get(compared: Comparison, metric: str) -> comparison.Change:
    return next(change for change in compared.changes if change.metric == metric)


def test_a_slower_run_is_worse_and_the_faster_one_better() -> None:
    fast, slow = _simulate(1), _simulate(2, factor=1.5)
    compared = comparison.compare(fast, slow)
    change = _get(compared, "itl_ms.p50")
    assert (compared.verdict, change.verdict) == ("worse", "worse")
    assert change.low < 0.5 < change.high
    assert _get(comparison.compare(slow, fast), "itl_ms.p50").verdict == "better"


def test_equal_services_differ_in_few_comparisons() -> None:
    """At most one in twenty, over pairs of runs of the same service under the same traffic."""
    pairs = [(_simulate(seed), _simulate(seed + 1000)) for seed in range(40)]
    alarms = sum(_differs(*pair) for pair in pairs)
    assert alarms <= 2
    # Negative control: with requests taken for independent, the queue's own swings are differences.
    assert sum(not _overlap_naively(before, after) for before, after in pairs) > alarms


def test_a_machine_that_is_a_little_faster_in_one_run_is_no_difference() -> None:
    """Its speed has a standard deviation of 1.5% from run to run: the margin is for that."""
    rng = random.Random(7)
    runs = [_simulate(seed, factor=rng.lognormvariate(0, 0.015)) for seed in range(21)]
    pairs = list(itertools.pairwise(runs))
    assert sum(_differs(*pair) for pair in pairs) <= 1
    # Negative control: intervals that leave zero out show the machine.
    assert sum(_differs(*pair, margin=0) for pair in pairs) > 4


def test_with_several_runs_on_each_side_a_machine_of_any_unrest_is_no_difference() -> None:
    rng = random.Random(8)

    def simulate_group(seed: int, factor: float = 1.0) -> ValidationRun:
        first, *others = (_simulate(100 * seed + n, factor=factor * rng.lognormvariate(0, 0.15)) for n in range(5))
        return dataclasses.replace(first, repeats=others)

    groups = [simulate_group(seed) for seed in range(11)]
    pairs = list(itertools.pairwise(groups))
    assert sum(_differs(*pair) for pair in pairs) <= 1
    # Negative control: the first run of each side alone.
    assert sum(_differs(*(dataclasses.replace(run, repeats=()) for run in pair)) for pair in pairs) > 4
    assert comparison.compare(groups[0], simulate_group(50, 3.0)).verdict == "worse"


def test_single_runs_on_a_busy_machine_show_failures_alone() -> None:
    def simulate(seed: int, factor: float = 1.0, waiting: float = 0.1) -> ValidationRun:
        run = _simulate(seed, factor=factor)
        return dataclasses.replace(run, report={**run.report, "driver": [{"queue_share": waiting}]})

    idle, busy = simulate(1), simulate(2, 2.0, waiting=0.37)
    compared = comparison.compare(idle, busy)
    assert compared.verdict == "no difference shown"
    reason = "run 2: the load driver waited for a core for 37% of the time: the machine may be what differs; "
    assert compared.notes == [f"{reason}needs an idle machine, or --runs 5 of blueprints"]
    # Negative controls: on an idle machine, with repeats, and where requests failed.
    assert comparison.compare(idle, simulate(2, 2.0)).verdict == "worse"
    groups = [
        dataclasses.replace(run, repeats=[simulate(n, f) for n in range(3, 9)]) for run, f in ((idle, 1), (busy, 2))
    ]
    assert comparison.compare(*groups).verdict == "worse"
    for sample in busy.samples[::5]:
        sample.error = "deadline"
    assert _get(comparison.compare(idle, busy), "errors").verdict == "worse"


def test_single_runs_with_few_requests_show_failures_alone() -> None:
    """Two validations of one deployment with 64 requests each said that its time to first token was 33% worse."""
    runs = _simulate(1, count=64), _simulate(2, count=64, factor=2.0)
    compared = comparison.compare(*runs)
    assert compared.verdict == "no difference shown"
    assert compared.notes == [
        f"run {seed}: 64 requests: the moment may be what differs; needs 100, or --runs 5 of blueprints"
        for seed in (1, 2)
    ]
    # Negative controls: with enough requests, with repeats, and where requests failed.
    assert comparison.compare(_simulate(1, count=100), _simulate(2, count=100, factor=2.0)).verdict == "worse"
    groups = [
        dataclasses.replace(run, repeats=[_simulate(seed, count=64, factor=factor) for seed in range(3, 9)])
        for run, factor in zip(runs, (1.0, 2.0), strict=True)
    ]
    assert comparison.compare(*groups).verdict == "worse"
    for sample in runs[1].samples[::3]:
        sample.error = "http_500"
    assert _get(comparison.compare(*runs), "errors").verdict == "worse"


def _differs(before: ValidationRun, after: ValidationRun, margin: float = comparison.MARGIN) -> bool:
    return comparison.compare(before, after, margin).verdict != "no difference shown"


def _overlap_naively(before: ValidationRun, after: ValidationRun) -> bool:
    """Whether plain 95% intervals of the mean time to first token overlap."""

    def interval(run: ValidationRun) -> tuple[float, float]:
        values = [sample.ttft_ms or 0 for sample in run.samples]
        mean = sum(values) / len(values)
        error = 1.96 * math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) ** 2)
        return mean - error, mean + error

    (low, high), (other_low, other_high) = interval(before), interval(after)
    return low <= other_high and other_low <= high


def test_a_change_below_the_margin_does_not_count() -> None:
    runs = _simulate(1, count=4000, served=100), _simulate(1, count=4000, served=100, factor=1.03)
    assert _get(comparison.compare(*runs), "itl_ms.p50").verdict == "no difference shown"
    assert _get(comparison.compare(*runs, margin=0.01), "itl_ms.p50").verdict == "worse"


def test_a_change_is_shown_where_its_whole_interval_is_beyond_the_margin() -> None:
    before = _simulate(1, count=4000, served=100)
    change = _get(comparison.compare(before, _simulate(2, count=4000, served=100, factor=1.1)), "itl_ms.p50")
    assert change.verdict == "worse"
    assert change.low > comparison.MARGIN
    change = _get(comparison.compare(before, _simulate(2, count=200, served=100, factor=1.06)), "itl_ms.p50")
    assert change.verdict == "no difference shown"
    assert 0 < change.low < comparison.MARGIN < change.change


def test_few_failed_requests_count_and_failures_that_come_together_are_one_event() -> None:
    spread, burst = _simulate(2, count=1000), _simulate(3, count=1000)
    for sample in spread.samples[::25]:
        sample.error = "http_500"
    for sample in burst.samples[300:340]:
        sample.error = "http_500"
    assert _get(comparison.compare(_simulate(1, count=1000), spread), "errors").verdict == "worse"
    assert _get(comparison.compare(_simulate(1, count=1000), burst), "errors").verdict == "no difference shown"


def test_failed_requests_make_a_run_worse() -> None:
    broken = _simulate(2)
    for sample in broken.samples[::5]:
        sample.error = "deadline"
    compared = comparison.compare(_simulate(1), broken)
    assert _get(compared, "errors").verdict == "worse"
    assert math.isinf(_get(compared, "ttft_ms.p95").value)
    assert _get(compared, "ttft_ms.p95").verdict == "worse"


def test_loads_that_differ_are_noted() -> None:
    other = _simulate(2, traffic={"arrivals": 20})
    assert comparison.compare(_simulate(1), other).notes == ["run 2: another traffic: arrivals 20 instead of 10"]
    # Nor do validations count together unremarked that had another load.
    repeated = dataclasses.replace(_simulate(3), repeats=[other])
    assert comparison.compare(_simulate(1), repeated).notes == ["run 2: another traffic: arrivals 20 instead of 10"]
    assert comparison.compare(_simulate(1), repeated).other_load
    assert comparison.compare(_simulate(1), _simulate(2, driver="aiperf")).notes == [
        "run 2: another driver: aiperf instead of none"
    ]
    assert not comparison.compare(_simulate(1), _simulate(2, traffic={"arrivals": 10, "requests": 9})).other_load
    ranged, drawn = ({"arrivals": 10, "input_tokens": tokens} for tokens in ("200..300", {"mean": 250.0, "cv": 0.5}))
    compared = comparison.compare(_simulate(1, traffic=ranged), _simulate(2, traffic=drawn))
    assert compared.notes == ["run 2: another traffic: input_tokens mean 250, cv 0.5 instead of 200..300"]


def test_the_page_shows_every_change_with_its_interval() -> None:
    compared = comparison.compare(_simulate(1), _simulate(2, factor=1.5))
    page = comparison_page.render("run 1", [compared], comparison.MARGIN)
    assert page.count('class="interval"') == len(compared.changes)
    assert "WORSE" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("share", "text"), [(0.05, "+5.0%"), (-0.05, "−5.0%"), (math.inf, "+∞"), (-math.inf, "−∞"), (math.nan, "–")]
)
def test_changes_are_shown_with_their_sign(share: float, text: str) -> None:
    assert comparison_page.format_percent(share) == text


def test_a_number_that_was_zero_has_no_change_in_percent() -> None:
    bundled = dataclasses.replace(run := _simulate(1), samples=[_bundle(sample) for sample in run.samples])
    change = _get(comparison.compare(bundled, _simulate(2)), "itl_ms.p50")
    assert (change.baseline, change.low, change.change, change.verdict) == (0, math.inf, math.inf, "worse")
    same = _get(comparison.compare(bundled, dataclasses.replace(bundled, title="again")), "itl_ms.p50")
    assert (same.low, same.change, same.high, same.verdict) == (0, 0, 0, comparison.NONE)


def _bundle(sample: Sample) -> Sample:
    return dataclasses.replace(sample, gaps=[Gap(0, 1)] * len(sample.gaps))


def test_fewer_requests_within_every_limit_are_worse_in_points() -> None:
    slo = {"ttft_ms": {"p95": 300}}
    light, heavy = _simulate(1, slo=slo), _simulate(2, slo=slo, served=10.5)
    change = _get(comparison.compare(light, heavy), "goodput")
    assert change.verdict == "worse"
    assert change.change == pytest.approx(change.value - change.baseline)
    assert 0 <= change.value < change.baseline <= 1


def test_cost_is_compared_where_both_runs_have_a_price() -> None:
    runs = [_simulate(seed) for seed in (1, 2)]
    for run, usd in zip(runs, (1.0, 3.0), strict=True):
        run.report["cost"] = {"per_million_tokens": usd}  # type: ignore[index]
    change = _get(comparison.compare(*runs), "usd_per_million_tokens")
    assert change.verdict == "worse"
    assert change.low < 2 < change.high, "three times the price for the same tokens"
    assert (change.baseline, change.value) == pytest.approx((1.0, 3.0)), "as the reports have it"
    unpriced = comparison.compare(_simulate(1), runs[1])
    assert all(other.metric != "usd_per_million_tokens" for other in unpriced.changes)


def test_ramp_and_drain_are_no_difference() -> None:
    """Ten requests a second answered in 1 s, and in 8 s: the rate is that of the arrivals."""
    runs = []
    for title, e2e_ms in (("quick", 1000.0), ("slow", 8000.0)):
        samples = [Sample(number, number / 10, e2e_ms=e2e_ms, output_tokens=10) for number in range(400)]
        steady = time_series.compute_steady_rates(samples)
        assert steady
        report = {"duration_s": 39.9 + e2e_ms / 1000, "settings": SETTINGS, "steady": steady.model_dump()}
        runs.append(ValidationRun(title, report, samples))
    change = _get(comparison.compare(*runs), "output_tokens_per_s")
    assert (change.baseline, change.value, change.verdict) == (
        pytest.approx(100, rel=0.01),
        pytest.approx(100, rel=0.01),
        "no difference shown",
    )
    # The negative control: over the whole time the slow one has fewer.
    for run in runs:
        del run.report["steady"]  # type: ignore[attr-defined]
    assert _get(comparison.compare(*runs), "output_tokens_per_s").change < -0.1


def test_what_is_compared_is_named_apart_from_loads_that_differ() -> None:
    other = _simulate(2, engine="sglang", tuning={"batch_tokens": 8192})
    compared = comparison.compare(_simulate(1, engine="vllm"), other)
    assert compared.notes == []
    assert compared.differences == [
        "engine: sglang instead of vllm",
        "tuning: batch_tokens 8192 instead of none",
    ]
    assert "engine: sglang instead of vllm" in comparison_page.render("run 1", [compared], comparison.MARGIN)


def test_what_a_report_says_against_its_own_load_is_noted() -> None:
    run = _simulate(2)
    assert comparison.compare(_simulate(1), run).notes == []
    starved = dataclasses.replace(run, report={**run.report, "not_shown": ["the load driver was starved"]})
    assert comparison.compare(_simulate(1), starved).notes == ["run 2: the load driver was starved"]
