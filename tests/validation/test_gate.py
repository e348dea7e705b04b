from __future__ import annotations

from typing import Any, get_args

from llm_serving.validation import gate, statistics
from llm_serving.validation.gate import Miss
from llm_serving.validation.statistics import Metric
from llm_serving.workloads.serving.traffic import Slo

_GOOD = {"requests_per_s": 10.0, "output_tokens_per_s": 100.0}


def _missed(
    slo: dict[str, Any], *, ms: list[float] | None = None, total: int = 100, failed: int = 0, **rates: float
) -> list[Miss]:
    values = [100.0] * 50 if ms is None else ms
    latencies: dict[Metric, statistics.Latency] = {metric: statistics.latency(values) for metric in get_args(Metric)}
    return gate.missed(Slo.model_validate(slo), latencies, total, failed, {**_GOOD, **rates})


def test_limits_that_hold_are_not_missed() -> None:
    slo = {"ttft_ms": {"p95": 100}, "itl_ms": {"mean": 200}, "e2e_ms": {"p99": 101}, "output_tokens_per_s": 100}
    assert _missed(slo) == []


def test_each_limit_missed_is_named_with_its_value_and_the_limit() -> None:
    slo = {"ttft_ms": {"p50": 99, "p95": 200}, "e2e_ms": {"mean": 10}, "requests_per_s": 11}
    found = _missed(slo)
    assert [(miss.metric, miss.value, miss.limit) for miss in found] == [
        ("ttft_ms.p50", 100, 99),
        ("e2e_ms.mean", 100, 10),
        ("requests_per_s", 10, 11),
    ]
    assert found[0].why == "100.0 ms, the limit is 99 ms"


def test_a_limit_on_something_without_samples_is_missed() -> None:
    found = _missed({"itl_ms": {"p95": 1000}}, ms=[])
    assert [(miss.metric, miss.value) for miss in found] == [("itl_ms.p95", None)]
    assert "no sample" in found[0].why


def test_no_request_at_all_is_missed_even_without_a_limit() -> None:
    assert [miss.metric for miss in _missed({}, ms=[], total=0, requests_per_s=0.0)] == ["requests"]


def test_failures_are_missed_above_their_share_and_not_at_it() -> None:
    assert _missed({"errors": "1%"}, total=100, failed=1) == []
    found = _missed({"errors": "1%"}, total=100, failed=2)
    assert [(miss.metric, miss.value, miss.limit) for miss in found] == [("errors", 0.02, 0.01)]
    assert [miss.metric for miss in _missed({}, total=100, failed=1)] == ["errors"]
