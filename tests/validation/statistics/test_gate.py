from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from llm_serving.services.traffic import Slo
from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.statistics import gate
from llm_serving.validation.statistics.distribution import Distribution
from llm_serving.validation.statistics.gate import Goodput, Judgement, MissedObjective, Outcome
from llm_serving.validation.statistics.sample_statistics import Metric

_GOOD_RATES = {"requests_per_s": 10.0, "output_tokens_per_s": 100.0}
ENOUGH = 300
"""Requests that bound a 99th percentile."""


def _judge(
    slo: dict[str, Any],
    *,
    ms: list[float] | None = None,
    total: int = ENOUGH,
    failed: int = 0,
    good: int | None = None,
    stall_s: float = 0.0,
    **rates: float,
) -> Judgement:
    values = [100.0] * ENOUGH if ms is None else ms
    distribution = Distribution(tuple((value,) for value in values))
    distributions: dict[Metric, Distribution] = dict.fromkeys(get_args(Metric), distribution)
    goodput = Goodput(total if good is None else good, total, 1.0)
    outcome = Outcome(distributions, goodput, failed, {**_GOOD_RATES, **rates}, stall_s)
    return gate.judge(Slo.model_validate(slo), outcome)


def _find_missed(slo: dict[str, Any], **load: Any) -> list[MissedObjective]:
    return _judge(slo, **load).missed


def test_objectives_that_are_met_are_not_missed() -> None:
    slo = {"ttft_ms": {"p95": 100}, "itl_ms": {"mean": 200}, "e2e_ms": {"p99": 101}, "output_tokens_per_s": 100}
    assert _judge(slo) == Judgement([], [])


def test_each_missed_objective_is_named_with_its_value_and_limit() -> None:
    slo = {"ttft_ms": {"p50": 99, "p95": 200}, "e2e_ms": {"mean": 10}, "requests_per_s": 11}
    misses = _find_missed(slo)
    assert [(miss.metric, miss.value, miss.limit) for miss in misses] == [
        ("ttft_ms.p50", 100, 99),
        ("e2e_ms.mean", 100, 10),
        ("requests_per_s", 10, 11),
    ]
    assert misses[0].why == "100.0 ms; the limit is 99 ms"


def test_a_rate_that_the_load_did_not_ask_for_is_not_shown_rather_than_missed() -> None:
    """Arrivals of 10/s, all answered at once, are 9.5/s from the first request to the end of the last."""
    slo, rates = Slo.model_validate({"requests_per_s": 10}), {**_GOOD_RATES, "requests_per_s": 9.5}
    kept, lagged = (
        gate.judge(slo, Outcome({}, Goodput(300, 300, 1.0), 0, rates, rate_doubt=doubt))
        for doubt in ("the load asked for no more; needs more arrivals", "")
    )
    reason = "requests_per_s of 10: 9.50, and the load asked for no more; needs more arrivals"
    assert kept == Judgement([], [reason])
    assert [miss.metric for miss in lagged.missed] == ["requests_per_s"]


def test_a_limit_on_something_without_samples_is_missed() -> None:
    misses = _find_missed({"itl_ms": {"p95": 1000}}, ms=[])
    assert [(miss.metric, miss.value) for miss in misses] == [("itl_ms.p95", None)]
    assert "no sample" in misses[0].why


def test_a_run_without_requests_fails_even_without_a_limit() -> None:
    assert [miss.metric for miss in _find_missed({}, ms=[], total=0, requests_per_s=0.0)] == ["requests"]


def test_failures_are_missed_above_their_share_and_not_at_it() -> None:
    assert _find_missed({"errors": "1%"}, total=100, failed=1) == []
    misses = _find_missed({"errors": "1%"}, total=100, failed=2)
    assert [(miss.metric, miss.value, miss.limit) for miss in misses] == [("errors", 0.02, 0.01)]
    assert [miss.metric for miss in _find_missed({}, total=100, failed=1)] == ["errors"]


def test_failures_within_their_share_are_not_shown_by_few_requests() -> None:
    missed, not_shown = _judge({"errors": "1%"}, total=100)
    assert missed == []
    assert not_shown == [
        "errors within 1%: 0.00%, and with 95% confidence at most 2.95%; needs 300 requests",
    ]
    assert _judge({"errors": "1%"}) == Judgement([], [])
    assert _judge({}, total=100) == Judgement([], []), "0% is of this load"
    assert (
        _judge({"errors": "1%"}, failed=3)
        .not_shown[0]
        .endswith("needs a longer load, or a service further from its limit")
    )


def test_too_few_requests_show_nothing_and_the_number_that_would_is_named() -> None:
    """30 of 2,000 requests passed a limit on the 99th percentile."""
    missed, not_shown = _judge({"e2e_ms": {"p99": 30_000}}, ms=[100.0] * 30, total=30)
    assert missed == []
    assert not_shown == ["e2e_ms.p99 within 30000 ms: 30 requests do not bound it; needs 300 requests"]


def test_an_estimate_within_its_limit_with_a_bound_over_it_is_not_shown() -> None:
    values = [100.0] * 286 + [900.0] * 14
    assert Distribution(tuple((value,) for value in values)).estimate("p95").value == 100
    missed, not_shown = _judge({"ttft_ms": {"p95": 500}}, ms=values)
    assert missed == []
    reason = "ttft_ms.p95 within 500 ms: 100.0 ms, and with 95% confidence at most 900.0; needs 15,000 requests"
    assert not_shown == [reason]
    assert _judge({"ttft_ms": {"p95": 900}}, ms=values).not_shown == []


def test_the_bound_of_a_mean_is_as_wide_as_few_requests_make_it() -> None:
    """Of 2 it holds in 95% of runs by Student's t, where that of a normal distribution did in 83%."""
    bounds = [Distribution(((90.0,), (110.0,)) * pairs).estimate("mean").upper for pairs in (1, 150)]
    assert bounds == [pytest.approx(163.1, abs=0.1), pytest.approx(101.0, abs=0.1)]


def test_hung_requests_count_as_infinite_for_every_limit() -> None:
    """2.7% of requests hung, 5% may fail: the 99th percentile of the answered ones said nothing of it."""
    values = [263.0] * 292 + [math.inf] * 8
    missed = _find_missed({"e2e_ms": {"p99": 1000}, "errors": "5%"}, ms=values, failed=8)
    assert [(miss.metric, miss.value, miss.why) for miss in missed] == [
        ("e2e_ms.p99", None, "8 failed requests make it infinite; the limit is 1000 ms")
    ]
    assert _judge({"e2e_ms": {"p50": 1000}, "errors": "5%"}, ms=values, failed=8) == Judgement([], [])


def test_answers_without_text_are_named_as_what_they_are() -> None:
    """Answered, with a usage and no event to time; "0 failed requests make it infinite" named the wrong ones."""
    values = [263.0] * 280 + [math.inf] * 20
    [miss] = _find_missed({"ttft_ms": {"p95": 1000}}, ms=values)
    assert miss.why == "20 answers without text make it infinite; the limit is 1000 ms"
    [miss] = _find_missed({"ttft_ms": {"p95": 1000}, "errors": "5%"}, ms=values, failed=5)
    assert miss.why == "5 failed requests and 15 answers without text make it infinite; the limit is 1000 ms"
    [reason] = _judge({"ttft_ms": {"p90": 1000}}, ms=[263.0] * 272 + [math.inf] * 28).not_shown
    assert "ms, and 28 answers without text leave it unbounded; " in reason


def test_goodput_is_missed_shown_or_not_shown() -> None:
    slo = {"goodput": "99%"}
    assert [miss.metric for miss in _find_missed(slo, good=290)] == ["goodput"]
    assert _judge(slo, good=ENOUGH) == Judgement([], [])
    assert (
        _judge(slo, good=ENOUGH - 2).not_shown[0].startswith("goodput of 99%: 99.33%, and with 95% confidence at least")
    )


def test_a_stall_of_all_streams_is_missed() -> None:
    missed = _find_missed({"stall": "1s"}, stall_s=2.0)
    assert [(miss.metric, miss.value, miss.limit) for miss in missed] == [("stall", 2.0, 1.0)]
    assert _find_missed({"stall": "3s"}, stall_s=2.0) == []


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, 1),
        ({"ttft_ms": 301.0}, 0),
        ({"e2e_ms": 1001.0}, 0),
        ({"gaps": [Gap(10.0, 1), Gap(120.0, 1)]}, 0),
        ({"error": "deadline"}, 0),
        ({"ttft_ms": None}, 0),  # an answer without text: no limit on its first token is met
        ({"gaps": []}, 1),  # an answer of one token has no gap
    ],
)
def test_a_good_request_meets_every_limit_at_once(change: dict[str, Any], good: int) -> None:
    slo = Slo.model_validate({"ttft_ms": {"p50": 100, "p95": 300}, "itl_ms": {"p95": 50}, "e2e_ms": {"mean": 1000}})
    sample = Sample(0, 0.0, **{"ttft_ms": 200.0, "e2e_ms": 900.0, "gaps": [Gap(10.0, 1)], **change})
    assert gate.count_goodput(slo, [sample], 2.0) == Goodput(good, 1, good / 2)
