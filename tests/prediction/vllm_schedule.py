"""Runs loads through vLLM's own scheduler on a simulated clock; prints what became of them as JSON.

Runs with the Python of the engine's environment: vllm_schedule.py LOADS. A step takes
`base + tokens * per_token + sequences * per_sequence + context * per_context` seconds, in microseconds in LOADS.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16


def build_scheduler(model: str, limits: dict[str, int]) -> Scheduler:
    """Return vLLM's scheduler with so many sequences, tokens of a step and blocks."""
    blocks = limits["cache_tokens"] // BLOCK
    model_config = ModelConfig(model=model, tokenizer=model, dtype="bfloat16", max_model_len=32768)
    scheduler_config = SchedulerConfig(
        max_num_seqs=limits["sequences"],
        max_num_batched_tokens=limits["batch_tokens"],
        max_model_len=32768,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache_config = CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9, enable_prefix_caching=True)
    # vLLM keeps one block to itself.
    cache_config.num_gpu_blocks = blocks + 1
    config = VllmConfig(
        scheduler_config=scheduler_config,
        model_config=model_config,
        cache_config=cache_config,
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_config = KVCacheConfig(
        num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv_config,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )


def build_request(index: int, row: dict[str, Any], hasher: Any) -> Request:
    """Return a request whose prompt is its group's beginning and tokens of its own."""
    shared = min(row["shared_tokens"], row["input_tokens"])
    own = [1000 + index] * (row["input_tokens"] - shared)
    sampling = SamplingParams(ignore_eos=True, max_tokens=row["output_tokens"])
    sampling.update_from_generation_config({}, 2)
    return Request(
        request_id=str(index),
        prompt_token_ids=[100 + row["group"]] * shared + own,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=hasher,
    )


def run(model: str, load: dict[str, Any]) -> dict[str, Any]:
    """Return times of a load: to the first token, between tokens, and of whole requests."""
    scheduler = build_scheduler(model, load["limits"])
    hasher = get_request_block_hasher(BLOCK, sha256)
    rows = load["requests"]
    requests = {str(index): build_request(index, row, hasher) for index, row in enumerate(rows)}
    times, now, next_row = load["times_us"], 0.0, 0
    last: dict[str, float] = {}
    ttft, gaps, e2e, preemptions = [], [], [], 0
    while len(e2e) < len(rows):
        if not scheduler.has_requests():
            now = max(now, rows[next_row]["at_s"])
        while next_row < len(rows) and rows[next_row]["at_s"] <= now:
            scheduler.add_request(requests[str(next_row)])
            next_row += 1
        output = scheduler.schedule()
        preemptions += len(output.preempted_req_ids or ())
        counts = output.num_scheduled_tokens
        tokens = sum(counts.values())
        context = sum(requests[name].num_computed_tokens - count for name, count in counts.items())
        now += 1e-6 * (times[0] + tokens * times[1] + len(counts) * times[2] + context * times[3]) if counts else 0.0
        names = list(counts)
        sampled = [[7] if requests[name].num_computed_tokens >= requests[name].num_tokens else [] for name in names]
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
            ),
        )
        for name, ids in zip(names, sampled, strict=True):
            if not ids:
                continue
            at = rows[int(name)]["at_s"]
            if name in last:
                gaps.append(now - last[name])
            else:
                ttft.append(now - at)
            last[name] = now
            if requests[name].is_finished():
                e2e.append(now - at)
    return {
        "ttft_s": summarize(ttft),
        "itl_s": summarize(gaps),
        "e2e_s": summarize(e2e),
        "preemptions": preemptions,
        "seconds": now,
    }


def summarize(values: list[float]) -> dict[str, float]:
    """Return mean and percentiles."""
    values = sorted(values)

    def percentile(percent: float) -> float:
        position = (len(values) - 1) * percent / 100
        below = int(position)
        above = min(below + 1, len(values) - 1)
        return values[below] + (values[above] - values[below]) * (position - below)

    return {
        "mean": sum(values) / len(values),
        "p50": percentile(50),
        "p95": percentile(95),
        "p99": percentile(99),
    }


def main() -> None:
    """Print the outcome of each load by its name."""
    init_none_hash(sha256)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({name: run(job["model"], load) for name, load in job["loads"].items()}))


if __name__ == "__main__":
    main()
