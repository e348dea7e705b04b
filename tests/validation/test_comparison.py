from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from llm_serving.validation import comparison, comparison_page
from llm_serving.validation.answer import Gap, Sample
from llm_serving.validation.comparison import Comparison, ValidationRun

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
    """The alarm of one in twenty at most, over pairs of runs of the same service under the same traffic."""
    alarms = sum(
        comparison.compare(_simulate(seed), _simulate(seed + 1000)).verdict != "no difference shown"
        for seed in range(60)
    )
    assert alarms <= 6
    # Negative control: with requests taken for independent, the queue's own swings are differences.
    pairs = [(_simulate(seed), _simulate(seed + 1000)) for seed in range(60)]
    naive = sum(not _overlap_naively(before, after) for before, after in pairs)
    assert naive > alarms


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


def test_failed_requests_make_a_run_worse() -> None:
    broken = _simulate(2)
    for sample in broken.samples[::5]:
        sample.error = "deadline"
    compared = comparison.compare(_simulate(1), broken)
    assert _get(compared, "errors").verdict == "worse"
    assert math.isinf(_get(compared, "ttft_ms.p95").value)
    assert _get(compared, "ttft_ms.p95").verdict == "worse"


def test_loads_that_differ_and_short_runs_are_noted() -> None:
    other = _simulate(2, count=40, traffic={"arrivals": 20})
    assert comparison.compare(_simulate(1), other).notes == [
        "run 2: another traffic: arrivals 20 instead of 10",
        "run 2: 40 requests; a comparison takes 100",
    ]


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


def test_fewer_requests_within_every_limit_are_worse_in_points() -> None:
    slo = {"ttft_ms": {"p95": 300}}
    light, heavy = _simulate(1, slo=slo), _simulate(2, slo=slo, served=10.5)
    change = _get(comparison.compare(light, heavy), "goodput")
    assert change.verdict == "worse"
    assert change.change == pytest.approx(change.value - change.baseline)
    assert 0 <= change.value < change.baseline <= 1


def test_cost_is_compared_where_both_runs_have_a_price() -> None:
    runs = [_simulate(seed) for seed in (1, 2)]
    for run, usd_h in zip(runs, (1.0, 3.0), strict=True):
        run.report["cost"] = {"usd_h": usd_h}  # type: ignore[index]
    change = _get(comparison.compare(*runs), "usd_per_million_tokens")
    assert change.verdict == "worse"
    assert change.low < 2 < change.high, "three times the price for the same tokens"
    tokens_per_s = sum(sample.output_tokens or 0 for sample in runs[0].samples) / runs[0].report["duration_s"]
    assert change.baseline == pytest.approx(1.0 / 3600 / tokens_per_s * 1e6, rel=0.01)
    unpriced = comparison.compare(_simulate(1), runs[1])
    assert all(other.metric != "usd_per_million_tokens" for other in unpriced.changes)


def test_what_is_compared_is_named_apart_from_loads_that_differ() -> None:
    other = _simulate(2, engine="sglang", tuning={"batch_tokens": 8192})
    compared = comparison.compare(_simulate(1, engine="vllm"), other)
    assert compared.notes == []
    assert compared.differences == [
        "engine: sglang instead of vllm",
        "tuning: {'batch_tokens': 8192} instead of None",
    ]
    assert "engine: sglang instead of vllm" in comparison_page.render("run 1", [compared], comparison.MARGIN)


def test_what_a_report_says_against_its_own_load_is_noted() -> None:
    run = _simulate(2)
    assert comparison.compare(_simulate(1), run).notes == []
    starved = dataclasses.replace(run, report={**run.report, "not_shown": ["the load driver was starved"]})
    assert comparison.compare(_simulate(1), starved).notes == ["run 2: the load driver was starved"]
