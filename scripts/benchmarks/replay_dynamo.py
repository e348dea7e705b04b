"""The part of scripts/benchmarks/replay.py that runs in Dynamo's environment and imports nothing of this project.

    python replay_dynamo.py REQUEST.json RESPONSE.json

Reads what to replay, and writes each replay's milliseconds by request, in the order of arrival.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from aiconfigurator_core.sdk import EngineHandle
from dynamo.llm import KvRouterConfig
from dynamo.replay import run_trace_replay

PREFILL_TOKENS = [64 * 2**power for power in range(9)]
"""64 to 16384 tokens of a step; Dynamo interpolates between them."""

CONTEXTS = [256, 1024, 2048, 4096, 8192, 16384]
CACHED_TOKENS = [0, 4096, 16384, 65536, 131072, 262144, 524288]
"""Tokens in the caches of all requests that decode in a step."""

ROUTERS: dict[str, dict[str, Any]] = {
    "round-robin": {"router_mode": "round_robin"},
    # By the least work, ignoring caches.
    "load": {"router_mode": "kv_router", "router_config": KvRouterConfig(overlap_score_credit=0.0)},
    # By the prompts that the router has sent to each engine.
    "seen": {
        "router_mode": "kv_router",
        "router_config": KvRouterConfig(use_kv_events=False, router_approximate_cache_policy="lru"),
    },
    # By the cached blocks that each engine reports.
    "kv-aware": {"router_mode": "kv_router", "router_config": KvRouterConfig()},
}


def write_timing(payload: dict[str, Any], file: Path) -> dict[str, float]:
    """Write the table of step times for Dynamo; return the milliseconds of a mean prefill."""
    engine = EngineHandle.compile(payload["model"], payload["system"], "vllm", tp_size=payload["tensor"])
    prefill = [engine.predict_prefill_latency(1, tokens) for tokens in PREFILL_TOKENS]
    decode = [
        [engine.predict_decode_latency(max(1, round(cached / context)), context, 2) for context in CONTEXTS]
        for cached in CACHED_TOKENS
    ]
    np.savez(
        file,
        prefill_isl=np.array(PREFILL_TOKENS, float),
        prefill_ttft_ms=np.array(prefill),
        decode_active_kv_tokens=np.array(CACHED_TOKENS, float),
        decode_context_length=np.array(CONTEXTS, float),
        decode_itl=np.array(decode),
    )
    return {"prefill_ms": float(np.interp(payload["prompt_tokens"], PREFILL_TOKENS, prefill))}


def replay(payload: dict[str, Any], trace: str, router: str, table: Path) -> dict[str, Any]:
    """Replay one trace through one router."""
    report = run_trace_replay(
        trace,
        trace_block_size=payload["trace_block"],
        num_workers=payload["replicas"],
        extra_engine_args={
            "engine": {
                "num_gpu_blocks": payload["cache_tokens"] // payload["block"],
                "block_size": payload["block"],
                "max_num_batched_tokens": payload["batch_tokens"],
                "max_num_seqs": payload["sequences"],
                "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": str(table)}},
            }
        },
        capture_per_request=True,
        **ROUTERS[router],
    )
    requests = sorted(report.per_request, key=lambda request: request["arrival_time_ms"])
    return {
        "trace": trace,
        "router": router,
        "ttft_ms": [request["ttft_ms"] for request in requests],
        "e2e_ms": [request["e2e_latency_ms"] for request in requests],
        "input_tokens": [request["input_length"] for request in requests],
        "reused_tokens": [request["reused_input_tokens"] for request in requests],
    }


def main() -> None:
    payload = json.loads(Path(sys.argv[1]).read_text())
    table = Path(sys.argv[1]).with_name("timing.npz")
    timings = write_timing(payload, table)
    replays = [replay(payload, trace, router, table) for trace in payload["traces"] for router in payload["routers"]]
    versions = {name: version(name) for name in ("ai-dynamo", "aiconfigurator-core")}
    Path(sys.argv[2]).write_text(json.dumps({**timings, "versions": versions, "replays": replays}))


if __name__ == "__main__":
    main()
