from __future__ import annotations

import pytest

from llm_serving.catalog import engines
from llm_serving.services.traffic import Slo
from llm_serving.settings.units import Bounds
from llm_serving.validation.load.load_plan import TargetRole
from llm_serving.validation.statistics import engine_metrics, unlike_workers
from llm_serving.validation.statistics.engine_metrics import EngineMetrics
from llm_serving.validation.statistics.unlike_workers import UnlikeWorkers
from tests.known_server import ServerRecord

VLLM = engines.load_engines()["vllm"]


def build_page(ttfts: list[float], aborted: int = 0) -> EngineMetrics:
    known = ServerRecord(ttft_s=ttfts, e2e_s=[2 * ttft for ttft in ttfts])
    known.finished.update({"length": len(ttfts), "abort": aborted})
    return engine_metrics.parse(known.render_metrics(), VLLM)


def summarize(
    after: dict[str, EngineMetrics], slo: dict[str, object], before: dict[str, EngineMetrics] | None = None
) -> list[UnlikeWorkers]:
    """Summarize two replicas `a` and `b` of one role, and `c` of another with five times their weight."""
    replicas = engine_metrics.count_replica_requests(after, before or {}, after, VLLM.finish_reasons.unanswered)
    none = Bounds(0, 0)  # what the target has is not asked
    roles = {
        TargetRole(name="small", replicas=none, instances=(), accelerators="1 x L40S", weight=1): ["a", "b"],
        TargetRole(name="large", replicas=none, instances=(), accelerators="8 x H100", weight=5): ["c"],
    }
    return unlike_workers.summarize(
        roles, replicas, before or {}, after, ("ttft_ms", "e2e_ms"), Slo.model_validate(slo)
    )


def test_the_share_of_the_requests_stands_beside_that_of_the_weights() -> None:
    before = {"a": build_page([0.05] * 100)}
    after = {"a": build_page([0.05] * 120), "b": build_page([0.05] * 20), "c": build_page([0.05] * 60)}
    small, large = summarize(after, {}, before)
    assert (small.requests, large.requests) == (40, 60)
    assert (small.share, large.share) == (0.4, 0.6)
    assert (small.weight_share, large.weight_share) == (round(2 / 7, 4), round(5 / 7, 4))
    without = summarize({name: after[name] for name in ("a", "c")}, {}, before)
    assert [row.replicas for row in without] == [1, 1], "a replica whose page is lacking has no weight"


@pytest.mark.parametrize(
    ("ttfts", "state"),
    [
        # Buckets end at 250, 500, 750 and 1000 ms, the limit is 600 ms.
        ([0.2] * 200, "met"),
        ([0.2] * 20, "not shown"),
        ([0.2] * 180 + [0.6] * 20, "not shown"),
        ([0.2] * 180 + [0.9] * 20, "missed"),
        ([0.2] * 192 + [0.9] * 8, "not shown"),
    ],
    ids=["far below", "too few requests", "the bucket of the limit", "beyond", "below, and not surely"],
)
def test_a_limit_is_missed_or_met_where_the_buckets_leave_no_doubt(ttfts: list[float], state: str) -> None:
    [small, _] = summarize({"a": build_page(ttfts), "c": build_page([0.2] * 200)}, {"ttft_ms": {"p95": 600}})
    assert small.latencies["ttft_ms"]["p95"].state == state


def test_each_missed_limit_names_the_role_and_its_accelerators() -> None:
    pages = {"a": build_page([3.0] * 30), "b": build_page([3.0] * 30), "c": build_page([0.2] * 100)}
    rows = summarize(pages, {"ttft_ms": {"p95": 800, "mean": 900}, "e2e_ms": {"p95": 9000}})
    assert [f"{missed.metric}: {missed.why}" for missed in unlike_workers.list_missed(rows, 0.01)] == [
        "ttft_ms.p95 on small (1 x L40S): more than 2500 ms by the engines' own histogram; the limit is 800 ms",
        "ttft_ms.mean on small (1 x L40S): 3000 ms by the engines' own histogram; the limit is 900 ms",
    ]
    assert list(unlike_workers.list_missed(summarize(pages, {}), 0.01)) == []


def test_requests_without_an_answer_are_the_role_s() -> None:
    rows = summarize({"a": build_page([0.2] * 90, aborted=10), "c": build_page([0.2] * 100)}, {})
    [missed] = unlike_workers.list_missed(rows, 0.01)
    assert f"{missed.metric}: {missed.why}" == (
        "errors on small (1 x L40S): 10 of 100 requests ended without an answer (10.00%); the limit is 1%"
    )
    assert not list(unlike_workers.list_missed(rows, 0.1))


def test_a_limit_within_its_bucket_is_said_and_fails_nothing() -> None:
    rows = summarize({"a": build_page([0.6] * 100), "c": build_page([0.2] * 100)}, {"ttft_ms": {"p95": 600}})
    assert list(unlike_workers.list_missed(rows, 0.01)) == []
    assert list(unlike_workers.list_unclear(rows)) == [
        "ttft_ms.p95 on small (1 x L40S) is 500 to 750 ms by the engines' own histogram, and its limit of 600 ms lies "
        "between."
    ]


def test_a_role_whose_replicas_answered_nothing_has_no_latency() -> None:
    small, large = summarize({"a": build_page([]), "c": build_page([0.2] * 10)}, {"ttft_ms": {"p95": 1}})
    assert (small.requests, small.share, small.latencies) == (0, 0.0, {})
    assert large.latencies["ttft_ms"]["p95"].state == "missed"
