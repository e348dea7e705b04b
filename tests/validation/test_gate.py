from __future__ import annotations

from typing import Any, get_args

from llm_serving.validation import gate, statistics
from llm_serving.validation.gate import MissedObjective
from llm_serving.validation.statistics import Metric
from llm_serving.workloads.serving.traffic import Slo

_GOOD_RATES = {"requests_per_s": 10.0, "output_tokens_per_s": 100.0}


def _find_missed(
    slo: dict[str, Any], *, ms: list[float] | None = None, total: int = 100, failed: int = 0, **rates: float
) -> list[MissedObjective]:
    values = [100.0] * 50 if ms is None else ms
    latencies: dict[Metric, statistics.Latency] = {
        metric: statistics.summarize_latency(values) for metric in get_args(Metric)
    }
    return gate.find_missed_objectives(Slo.model_validate(slo), latencies, total, failed, {**_GOOD_RATES, **rates})


def test_objectives_that_are_met_are_not_missed() -> None:
    slo = {"ttft_ms": {"p95": 100}, "itl_ms": {"mean": 200}, "e2e_ms": {"p99": 101}, "output_tokens_per_s": 100}
    assert _find_missed(slo) == []


def test_each_missed_objective_is_named_with_its_value_and_limit() -> None:
    slo = {"ttft_ms": {"p50": 99, "p95": 200}, "e2e_ms": {"mean": 10}, "requests_per_s": 11}
    misses = _find_missed(slo)
    assert [(miss.metric, miss.value, miss.limit) for miss in misses] == [
        ("ttft_ms.p50", 100, 99),
        ("e2e_ms.mean", 100, 10),
        ("requests_per_s", 10, 11),
    ]
    assert misses[0].why == "100.0 ms; the limit is 99 ms"


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
