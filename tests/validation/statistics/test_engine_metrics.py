from __future__ import annotations

from llm_serving.catalog import engines
from llm_serving.catalog.engines import FinishReasons
from llm_serving.validation.statistics import engine_metrics, sample_statistics
from llm_serving.validation.statistics.engine_metrics import EngineMetrics, Replica
from llm_serving.validation.statistics.sample_statistics import Metric
from tests.known_server import ServerRecord

VLLM = engines.load_engines()["vllm"]


def _parse(text: str) -> EngineMetrics:
    return engine_metrics.parse(text, VLLM)


def _count(names: list[str], before: dict[str, EngineMetrics], after: dict[str, EngineMetrics]) -> list[Replica]:
    return engine_metrics.count_replica_requests(names, before, after, VLLM.finish_reasons.unanswered)


def _build_page(ttfts: list[float], *, itls: list[float] | None = None, aborted: int = 0) -> EngineMetrics:
    known_metrics = ServerRecord(ttft_s=ttfts, itl_s=itls or [], e2e_s=[1.0] * len(ttfts))
    known_metrics.finished.update({"length": len(ttfts), "abort": aborted})
    return _parse(known_metrics.render_metrics())


def _build_metrics(**ms: list[float]) -> dict[Metric, sample_statistics.Latency]:
    return {
        "ttft_ms": sample_statistics.summarize_latency(ms.get("ttft_ms", [])),
        "itl_ms": sample_statistics.summarize_latency(ms.get("itl_ms", [])),
        "e2e_ms": sample_statistics.summarize_latency(ms.get("e2e_ms", [])),
    }


def test_the_cached_share_is_of_all_replicas_during_the_load() -> None:
    def build_page(queries: int, hits: int) -> EngineMetrics:
        return _parse(
            f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\nvllm:prefix_cache_hits_total{{engine="0"}} {hits}\n'
        )

    assert (
        engine_metrics.compute_cached_share(
            {"a": build_page(100, 90), "b": _parse("")}, {"a": build_page(200, 90), "b": build_page(100, 50)}
        )
        == 0.25
    )
    assert engine_metrics.compute_cached_share({}, {"a": _build_page([0.05])}) is None


def test_a_replica_s_share_is_the_difference_of_its_pages() -> None:
    before, after = (
        {"a": _build_page([0.05] * 3), "b": _build_page([])},
        {"a": _build_page([0.05] * 10, aborted=2), "b": _build_page([0.05] * 4)},
    )
    replicas = _count(["a", "b"], before, after)
    assert [(replica.name, replica.requests, replica.unanswered) for replica in replicas] == [("a", 7, 2), ("b", 4, 0)]


def test_a_restarted_replica_counts_from_zero_and_is_marked() -> None:
    replicas = _count(["a"], {"a": _build_page([0.05] * 100)}, {"a": _build_page([0.05] * 5)})
    assert (replicas[0].requests, replicas[0].restarted) == (5, True)


def test_a_replica_without_a_page_after_the_load_is_unknown_and_not_zero() -> None:
    assert _count(["a"], {"a": _build_page([0.05])}, {})[0].requests is None


def test_labels_of_several_engines_in_a_page_are_added_up() -> None:
    text = (
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0\n'
        'vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 3.0\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 2.0\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 2.0\n'
        'vllm:time_to_first_token_seconds_count{engine="0"} 2.0\n'
        'vllm:time_to_first_token_seconds_sum{engine="0"} 1.2e-1\n'
    )
    parsed = _parse("# HELP x\n" + text)
    assert sum(parsed.finished.values()) == 5
    assert parsed.histograms["ttft"].compute_mean_ms() == 60


def test_client_and_engine_agree_within_a_tenth() -> None:
    rows = engine_metrics.compare(
        _build_metrics(ttft_ms=[52.0] * 10), {"a": _build_page([])}, {"a": _build_page([0.050] * 10)}
    )
    assert [(row.statistic, row.agrees, row.said) for row in rows] == [
        ("mean", True, ""), ("p50", True, ""), ("p95", True, ""),
    ]  # fmt: skip
    assert rows[0].engine_ms == 50
    assert (rows[1].engine_from_ms, rows[1].engine_to_ms) == (40, 60)


def test_a_larger_difference_is_reported_with_a_likely_reason() -> None:
    rows = engine_metrics.compare(_build_metrics(ttft_ms=[80.0] * 10), {}, {"a": _build_page([0.050] * 10)})
    assert [row.agrees for row in rows] == [False, False, False]
    assert "+30.0 ms (+60%) from the engine's" in rows[0].said
    assert "router" in rows[0].said
    lower = engine_metrics.compare(_build_metrics(ttft_ms=[20.0] * 10), {}, {"a": _build_page([0.050] * 10)})
    assert "-60%" in lower[0].said


def test_requests_before_the_load_are_not_compared() -> None:
    rows = engine_metrics.compare(
        _build_metrics(ttft_ms=[50.0]), {"a": _build_page([5.0] * 50)}, {"a": _build_page([5.0] * 50 + [0.050])}
    )
    assert rows[0].engine_ms == 50


def test_replicas_are_compared_together() -> None:
    after = {"a": _build_page([0.040] * 3), "b": _build_page([0.060] * 3)}
    assert engine_metrics.compare(_build_metrics(ttft_ms=[50.0]), {}, after)[0].engine_ms == 50


def test_metrics_of_only_one_side_are_not_compared() -> None:
    assert engine_metrics.compare(_build_metrics(itl_ms=[10.0]), {}, {"a": _build_page([0.05])}) == []


def test_a_percentile_above_the_last_bound_has_no_upper_end() -> None:
    rows = engine_metrics.compare(_build_metrics(ttft_ms=[100_000.0]), {}, {"a": _build_page([100.0])})
    assert (rows[1].engine_from_ms, rows[1].engine_to_ms, rows[1].agrees) == (5000, None, True)


def test_a_page_that_is_not_prometheus_text_counts_as_unread() -> None:
    pages = {"a": "<html>Bad Gateway</html>", "b": 'vllm:request_success_total{finished_reason="stop"} 2'}
    parsed = engine_metrics.parse_pages(pages, VLLM)
    assert [(replica.name, replica.requests) for replica in _count(["a", "b"], {}, parsed)] == [("a", None), ("b", 2)]


def test_labels_with_escapes_and_timestamps_are_parsed() -> None:
    text = 'vllm:request_success_total{model_name="a\\"b,c}\\\\",finished_reason="stop"} 2.0 1700000000000\n'
    assert _parse(text).finished == {"stop": 2}


def test_another_engine_s_names_are_read_from_its_row() -> None:
    other = VLLM.model_copy(
        update={
            "metrics": {"finished": "done_total", "ttft": "first_seconds"},
            "finish_reasons": FinishReasons(label="why", unanswered=("gone",)),
        }
    )
    text = 'done_total{why="gone"} 1\ndone_total{why="ok"} 3\nfirst_seconds_sum 2\nfirst_seconds_count 4\n'
    parsed = engine_metrics.parse(text + "vllm:time_to_first_token_seconds_count 9\n", other)
    assert parsed.finished == {"gone": 1, "ok": 3}
    assert parsed.histograms["ttft"].compute_mean_ms() == 500
    assert parsed.histograms["itl"].count == 0


def _build_transfer_page(count: int, seconds: float, size: int, failed: int, **latencies: float) -> EngineMetrics:
    """A page with as many transfers, and as many requests with these latencies in seconds."""
    totals = {"vllm:nixl_xfer_time_seconds": seconds, "vllm:nixl_bytes_transferred": size}
    names = {"ttft": "vllm:time_to_first_token_seconds", "e2e": "vllm:e2e_request_latency_seconds"}
    totals |= {names[name]: value for name, value in latencies.items()}
    lines = [f'vllm:nixl_num_failed_transfers_total{{engine="0"}} {failed}']
    for name, value in totals.items():
        lines += [f'{name}_count{{engine="0"}} {count}', f'{name}_sum{{engine="0"}} {value * count}']
    return _parse("\n".join(lines) + "\n")


def test_the_hand_over_is_what_the_engines_counted_during_the_load() -> None:
    before = {
        "prefill-0": _build_transfer_page(0, 0, 0, 0),
        "decode-0": _build_transfer_page(10, 9.0, 1_000_000, 1, ttft=9.0, e2e=9.0),
    }
    after = {
        "prefill-0": _build_transfer_page(20, 0, 0, 0, ttft=0.05, e2e=0.06),
        "decode-0": _build_transfer_page(30, 3.02, 1_000_000, 3, ttft=3.04, e2e=4.0),
    }
    after["prefill-0"].histograms["transfer-time"].count = 0
    transfers = engine_metrics.summarize_transfers(200.0, before, after, ["prefill-0"])
    assert (transfers.count, transfers.failed, transfers.bytes) == (20, 2, 20_000_000)
    assert (transfers.mean_ms, transfers.share_of_ttft) == (30.0, 0.15)
    assert (transfers.prefill_ms, transfers.decode_ms, transfers.router_ms) == (60.0, 60.0, 80.0)


def test_without_transfers_or_pages_the_hand_over_has_no_times() -> None:
    none = engine_metrics.summarize_transfers(None, {}, {"decode-0": _parse("")}, ["prefill-0"])
    assert (none.count, none.mean_ms, none.share_of_ttft, none.router_ms) == (0, None, None, None)
