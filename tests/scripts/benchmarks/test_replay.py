from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_serving import console
from llm_serving.validation import sample_statistics
from scripts.benchmarks import replay
from scripts.benchmarks.replay import ReplayResult, RouterResult, TrafficMix

ROOT = Path(__file__).parents[3]


def _build_trace(share: float, users: int = 16, requests: int = 200) -> list[dict[str, Any]]:
    return list(replay.generate_trace(TrafficMix(share, users), requests, arrivals=6.0))


def _count_common_blocks(request: dict[str, Any], other: dict[str, Any]) -> int:
    pairs = zip(request["hash_ids"], other["hash_ids"], strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def test_a_user_repeats_only_the_shared_part_of_each_prompt() -> None:
    requests = _build_trace(0.5, users=2, requests=50)
    for request, other in itertools.combinations(requests, 2):
        shorter = min(len(request["hash_ids"]), len(other["hash_ids"]))
        assert _count_common_blocks(request, other) in (0, shorter // 2)
    blocks = [number for request in requests for number in request["hash_ids"]]
    unique_blocks = [number for number in set(blocks) if blocks.count(number) == 1]
    assert len(unique_blocks) >= len(blocks) // 2 - len(requests)


def test_without_sharing_no_block_repeats() -> None:
    blocks = [number for request in _build_trace(0.0) for number in request["hash_ids"]]
    assert len(blocks) == len(set(blocks))


def test_every_requests_blocks_match_its_tokens_within_the_length_range() -> None:
    for request in _build_trace(0.8):
        assert request["input_length"] == len(request["hash_ids"]) * replay.TRACE_BLOCK
        assert replay.PROMPT_TOKENS[0] - replay.TRACE_BLOCK < request["input_length"] <= replay.PROMPT_TOKENS[1]
        assert replay.ANSWER_TOKENS[0] <= request["output_length"] <= replay.ANSWER_TOKENS[1]


def test_few_users_prefixes_fit_one_cache_and_many_users_only_all_caches() -> None:
    max_tokens = 0.8 * replay.PROMPT_TOKENS[1]
    assert (
        replay.FEW_USERS * max_tokens
        < replay.compute_cache_tokens()
        < replay.MANY_USERS * max_tokens
        < replay.REPLICAS * replay.compute_cache_tokens()
    )


def test_every_router_gets_the_same_traffic_and_without_sharing_one_mix() -> None:
    assert _build_trace(0.25) == _build_trace(0.25)
    assert replay.build_mixes([0, 0.5]) == [TrafficMix(0, 160), TrafficMix(0.5, 16), TrafficMix(0.5, 160)]


def test_requests_that_fill_the_caches_are_not_counted() -> None:
    replayed = {"ttft_ms": [900] * 2 + [100] * 8, "e2e_ms": [9000] * 2 + [1000] * 8}
    replayed |= {"input_tokens": [1000] * 10, "reused_tokens": [0] * 2 + [500] * 8}
    measurement = replay._summarize_replay(replayed)
    assert (measurement.ttft.p99, measurement.e2e.mean, measurement.reused) == (100, 1000, 0.5)


def test_the_table_compares_routers_with_round_robin_and_the_notes_have_the_method() -> None:
    def build_found(ms: float) -> RouterResult:
        return RouterResult(
            sample_statistics.summarize_latency([ms / 10]), sample_statistics.summarize_latency([ms]), 0.1
        )

    ms = {"round-robin": 10_000.0, "load": 9_000.0, "seen": 7_500.0, "kv-aware": 7_000.0}
    results = ReplayResult(
        {(TrafficMix(0.8, 160), router): build_found(value) for router, value in ms.items()},
        prefill_ms=800.0,
        versions={"ai-dynamo": "1.6.1", "aiconfigurator-core": "0.12.0"},
    )
    table = replay.build_table(results.results)
    changes = list(table.columns[-1].cells)
    assert set(table.columns[1].cells) == {"short"}
    assert changes == ["+0.0%", "-10.0%", "-25.0%", "-30.0%"]
    notes = replay.format_notes(results, arrivals=6.0)
    assert "Every number is simulated by Dynamo 1.6.1's offline replay." in notes
    assert "prefill alone uses 60% of the replicas" in notes
    assert "kv-aware saves at most 30% here; the talk claims 20 to 40%" in notes


def test_the_lock_has_the_inputs_versions_each_with_hashes() -> None:
    pinned = set(re.findall(r"(?m)^([\w.-]+==[\w.]+)", (ROOT / "requirements" / "replay.in").read_text()))
    locked = re.findall(r"(?m)^([\w.-]+==[\w.]+) \\\n    --hash=sha256:", replay.LOCK.read_text())
    assert set(locked) == pinned


def test_the_request_has_all_keys_that_the_other_part_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_create_venv", lambda _: Path("python"))

    def run(command: list[str], **_: Any) -> None:
        request, output_path = (json.loads(Path(command[2]).read_text()), Path(command[3]))
        used_keys = set(re.findall(r'payload\["(\w+)"\]', Path(command[1]).read_text()))
        assert used_keys == set(request)
        times = {"ttft_ms": [100.0] * 10, "e2e_ms": [1000.0] * 10}
        tokens = {"input_tokens": [8000] * 10, "reused_tokens": [0] * 10}
        replays = [
            {"trace": trace, "router": router, **times, **tokens}
            for trace in request["traces"]
            for router in request["routers"]
        ]
        output_path.write_text(json.dumps({"prefill_ms": 1.0, "versions": {}, "replays": replays}))

    monkeypatch.setattr(console, "run", run)
    results = replay.replay([TrafficMix(0.5, 16)], requests=10, arrivals=6.0, work=tmp_path)
    assert set(results.results) == {(TrafficMix(0.5, 16), router) for router in replay.ROUTERS}
