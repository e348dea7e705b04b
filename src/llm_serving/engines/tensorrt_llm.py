"""TensorRT-LLM's memory: whether a model fits, and how much of the accelerators remains for the KV cache.

TensorRT-LLM loads the weights, runs its largest step, and gives the cache a share of what is free then. What weights
and step take is computed as for vLLM; no start was measured.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import vllm
from llm_serving.engines.memory import (
    KINDS,
    Batch,
    Fit,
    ReplicaSetup,
    build_fit,
    compute_kv_bytes_per_token,
    compute_state_bytes,
    describe_shortage,
    select_stage,
)

UTILIZATION = 1.0
"""It takes no share of the whole memory, but one of what is free."""

BATCH = Batch(tokens=8192, sequences=2048)
"""`--max_num_tokens` and `--max_batch_size`, its own (trtllm_serve_cli.yaml at 029e223)."""

FREE_SHARE = 0.9
"""Share of the free memory that its cache takes: `--free_gpu_memory_fraction`, its own."""


def select_batch(device: Accelerators | None) -> Batch:  # noqa: ARG001 - the same on every processor
    """Return the largest step that trtllm-serve chooses by itself."""
    return BATCH


compute_cpu_cache_bytes = vllm.compute_cpu_cache_bytes
"""As on every engine whose requests share one cache."""

describe_indivisible = functools.partial(vllm.describe_indivisible, whole_blocks=True)
"""Heads and experts are split as vLLM does, and none within a block of FP8 scales."""


def compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Compute whether a replica of `model` on `instance`, which has accelerators, serves requests of its context."""
    device, context, batch = instance.accelerators, setup.context or model.max_context, setup.batch or BATCH
    assert device, "an engine without the platform `cpu` is placed on accelerators only"
    if model.window and model.kind not in KINDS["tensorrt-llm"]["window-cache"]:
        model = model.model_copy(update={"window": model.max_context, "chunked": False})
    setup = replace(setup, utilization=setup.utilization or UTILIZATION)
    division = vllm.divide_memory(model, instance, batch, context, setup)
    cache = int(division.cache_bytes * FREE_SHARE)
    if model.state:
        tokens, most_sequences = _count_beside_states(model, cache, context, batch, setup)
    else:
        tokens, most_sequences = int(division.cache_tokens * FREE_SHARE), None
    division = division._replace(cache_bytes=cache, cache_tokens=tokens, most_sequences=most_sequences)
    reason = vllm.describe_unfit(model, device, context, setup, whole_blocks=True)
    return build_fit(instance, setup, context, division, reason or describe_shortage(model, division, context))


def _count_beside_states(
    model: Architecture, cache_bytes: int, context: int, batch: Batch, setup: ReplicaSetup
) -> tuple[int, int]:
    """Return tokens that have room beside the states, and most requests of a step beside whose states a context has.

    The cache has a state for each request of the largest step of each stage, and one more, whether these come or not.
    Prompts leave no states behind (`caches_states` of its row).
    Source: _torch/pyexecutor/mamba_cache_manager.py at 00bce92, _estimate_mamba_hybrid_cache_cost.
    """
    stage = select_stage(model, setup.pipeline)
    token_bytes = compute_kv_bytes_per_token(stage, setup.tensor, setup.dtype)
    state_bytes = stage.linear_layers * compute_state_bytes(stage, setup.tensor)
    most_states = max(0, (cache_bytes - context * token_bytes) // state_bytes - 1)
    states = min(batch.sequences * setup.pipeline, most_states) + 1
    return max(0, cache_bytes - states * state_bytes) // token_bytes, most_states // setup.pipeline


def count_running(model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> None:
    """Return None: all requests of a step have their states beside the tokens that the cache holds."""
