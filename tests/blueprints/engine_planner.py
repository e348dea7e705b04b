"""Run by the engine's own Python: what vLLM's planner makes of layers and bytes that are given to it, without a start.

Reads a list of questions as JSON from standard input: `layers` (of them `sliding` with a `window`), `heads`, `size` of a
head, `latent`, `context`, `bytes`, `batch`, `block`. Answers with the tokens of each cache, as vLLM would log them.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout


def config(question: dict[str, Any]) -> Any:
    """The few settings that the planner looks at."""
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=question["context"]),
        # With asynchronous scheduling two batches are under way.
        max_in_flight_tokens=2 * question["batch"],
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(
            block_size=question["block"],
            num_gpu_blocks_override=None,
            enable_prefix_caching=True,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        kv_transfer_config=None,
    )


def layer(question: dict[str, Any], number: int) -> Any:
    """The cache of one layer; the sliding ones and the others alternate as long as there are both."""
    common = {
        "block_size": question["block"],
        "num_kv_heads": question["heads"],
        "head_size": question["size"],
        "dtype": torch.bfloat16,
    }
    if question["latent"]:
        return MLAAttentionSpec(**common)
    if number < 2 * question["sliding"] and number % 2 == 0:
        return SlidingWindowSpec(**common, sliding_window=question["window"], dcp_sharded=False)
    return FullAttentionSpec(**common)


def tokens(question: dict[str, Any]) -> int:
    """Tokens of the cache."""
    settings = config(question)
    layers = {f"layer{number}": layer(question, number) for number in range(question["layers"])}
    groups = kv_cache_utils.get_kv_cache_groups(settings, layers)
    plan = kv_cache_utils.get_kv_cache_config_from_groups(settings, groups, question["bytes"])
    return int(kv_cache_utils.get_kv_cache_capacity(settings, plan)[0])


print(json.dumps([tokens(question) for question in json.load(sys.stdin)]))
