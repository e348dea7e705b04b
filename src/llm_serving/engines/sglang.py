"""SGLang's memory: whether a model fits, and how much of the accelerators remains for the KV cache.

SGLang sets a reserve aside, which it computes from its largest step before it loads anything, and gives weights and
cache the rest. This module computes the same from its code (SGLang 0.5.23, arg_groups/memory_hook.py,
handle_gpu_memory_settings); no start was measured. Weights are those of every engine that holds them as stored.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from llm_serving.catalog.architecture import Architecture, Vision
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import vllm
from llm_serving.engines.memory import (
    GIB,
    INDEX_NUMBERS,
    KINDS,
    VECTOR_BYTES,
    VISIBLE_SHARE,
    Batch,
    Division,
    Fit,
    ReplicaSetup,
    Split,
    build_fit,
    compute_kv_bytes_per_token,
    compute_kv_layer_bytes,
    compute_rank_bytes,
    describe_shortage,
    divide_up,
    select_stage,
)

UTILIZATION = 1.0
"""SGLang takes no share of the memory: it takes all but its reserve."""

SEQUENCES = 2048
"""Least of the requests that a step may have by default (model_executor/model_runner_kv_cache_mixin.py)."""

_COMPRESSED_SEQUENCES, _WINDOW_SHARE = 256, 0.1
"""DeepSeek V4's: most requests of a step by default, and of all tokens, those whose part of the windows has room
(arg_groups/deepseek_v4_hook.py; `--swa-full-tokens-ratio`)."""

_KINDS = KINDS["sglang"]

_MIB = 2**20


class _Size(NamedTuple):
    """What SGLang chooses by an accelerator's memory."""

    below_bytes: float
    step_tokens: int
    graph_requests: int
    """Most requests of a step whose CUDA graph is kept, with less than four ways to split a layer."""

    split_graph_requests: int
    """And with four or more."""


_SIZES = (
    _Size(20 * GIB, 2048, 8, 8),
    _Size(35 * GIB, 4096, 48, 160),
    _Size(60 * GIB, 4096, 32, 160),
    _Size(160 * GIB, 8192, 256, 512),
    _Size(float("inf"), 16384, 512, 512),
)

_LARGE_BYTES, _LARGE_RESERVE_BYTES = 60 * GIB, 10 * GIB
"""Accelerators of more memory than the first have at least the second in reserve."""

_CONSTANT_BYTES, _TOKEN_BYTES, _SPLIT_BYTES = 512 * _MIB, 1.5 * _MIB, 128 * _MIB
"""Of the reserve: always; for each token of a step, of which 2,048 are counted at least; for each way to split."""

_GRAPH_REQUEST_BYTES, _PROMPT_GRAPH_BYTES, _LATENT_GRAPHS_BYTES = 2 * _MIB, 8 * _MIB, 1536 * _MIB
"""Of the reserve: for each request of the largest graph of answers, for each graph of prompts, and for all graphs of
prompts with latent attention."""

_PROMPT_GRAPH_STEPS = ((4, 32), (16, 256), (32, 512), (64, 1024), (256, 4096), (512, 2**31))
"""Tokens between graphs of prompts, and up to how many (arg_groups/cuda_graph_hook.py)."""

_WINDOW_CACHE_SHARE = 0.8
"""Tokens of that cache for each of the other layers' (`--swa-full-tokens-ratio`)."""

_EIGHT_BITS = (*vllm.BLACKWELL, "RTX PRO")
"""GPUs of compute capability 10 or more, by the beginning of their names."""

_PICTURE_BYTES, _HOPPER_PICTURE_BYTES = 100 * _MIB, 1024 * _MIB
"""Kept for pictures beside the reserve, and of Qwen3-VL on H100 and H200 (environ.py, SGLANG_VLM_CACHE_SIZE_MB and
SGLANG_MM_FEATURE_CACHE_MB; arg_groups/model_overrides/qwen3_vl.py)."""

_STATE_RATIO, _STATE_NUMBER_BYTES = 0.9, 4
"""Memory for states of linear layers, for each byte of the KV cache (`--mamba-full-memory-ratio`); bytes of a number of
their heads (configs/mamba_utils.py, mamba2_state_dtype)."""

_REQUEST_STATES = 5
"""States that a request may take, with those of its cached prompt; one where none are cached (mem_cache/
kv_cache_configurator.py, _calculate_mamba_ratio)."""


def select_batch(device: Accelerators | None) -> Batch:
    """Return the largest step that SGLang chooses for its server."""
    return Batch(tokens=_select_size(device).step_tokens if device else 4096, sequences=SEQUENCES)


def _select_size(device: Accelerators) -> _Size:
    device_bytes = compute_rank_bytes(device)
    return next(size for size in _SIZES if device_bytes < size.below_bytes)


compute_cpu_cache_bytes = vllm.compute_cpu_cache_bytes
"""As on every engine whose requests share one cache."""


def describe_indivisible(model: Architecture, split: Split) -> str:
    """Return why the model cannot be split this way, as a sentence; empty where it can.

    Heads and experts are split as vLLM does, and none within a block of FP8 scales.
    """
    if split.pipeline > 1 and model.kind in _KINDS["one-stage"]:
        return f"SGLang has no pipeline stages of {model.kind}"
    return vllm.describe_indivisible(model, dataclasses.replace(split, data=1), whole_blocks=True)


def compute_weight_bytes(model: Architecture, setup: ReplicaSetup, device: Accelerators) -> int:
    """Return bytes of weights on the fullest accelerator of a replica."""
    padding = None if model.kind in _KINDS["unpadded"] else device
    weights = vllm.compute_weight_bytes(model, setup, padding, _KINDS["both-ends"])
    if model.kind in _KINDS["whole-embedding"]:
        embedding = 2 * model.vocabulary * model.hidden
        weights += embedding - embedding // setup.tensor
    return weights


def compute_reserve_bytes(model: Architecture, setup: ReplicaSetup, device: Accelerators, batch: Batch) -> int:
    """Return what SGLang sets aside of one accelerator: the largest step, CUDA graphs, buffers between ranks."""
    size = _select_size(device)
    graph_requests = min(size.split_graph_requests if setup.tensor >= 4 else size.graph_requests, batch.sequences)
    step_tokens = graph_requests if setup.phase == "decode" else batch.tokens
    reserve = _CONSTANT_BYTES + max(step_tokens, 2048) * _TOKEN_BYTES + setup.tensor * setup.pipeline * _SPLIT_BYTES
    if setup.phase != "prefill":
        reserve += graph_requests * _GRAPH_REQUEST_BYTES
    if setup.phase != "decode":
        reserve += _compute_prompt_graph_bytes(model, setup, batch)
    return int(max(reserve, _LARGE_RESERVE_BYTES if compute_rank_bytes(device) > _LARGE_BYTES else 0))


def _compute_prompt_graph_bytes(model: Architecture, setup: ReplicaSetup, batch: Batch) -> int:
    if setup.pipeline > 1 or model.compressed or (model.vision and model.kind not in _KINDS["seeing-graphs"]):
        return 0
    if model.latent:
        return _LATENT_GRAPHS_BYTES
    graphs, start = 0, 0
    for step, last in _PROMPT_GRAPH_STEPS:
        end = min(batch.tokens, last)
        graphs, start = graphs + (end - start) // step, end
    return graphs * _PROMPT_GRAPH_BYTES


def compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Compute whether a replica of `model` on `instance`, which has accelerators, serves requests of its context."""
    device = instance.accelerators
    assert device, "an engine without the platform `cpu` is placed on accelerators only"
    setup = dataclasses.replace(setup, data=1)  # each copy has experts of its own
    context, batch = setup.context or model.max_context, setup.batch or select_batch(device)
    weights = compute_weight_bytes(model, setup, device)
    budget = int(compute_rank_bytes(device) * VISIBLE_SHARE * (setup.utilization or UTILIZATION))
    reserve = compute_reserve_bytes(model, setup, device, batch)
    if model.vision and setup.phase != "decode":
        reserve = budget - int((budget - reserve) * _compute_seeing_share(model.vision))
    if model.vision:
        is_large = model.kind in ("qwen3_vl", "qwen3_vl_moe") and device.name.startswith(("H100", "H200"))
        reserve += _HOPPER_PICTURE_BYTES if is_large else _PICTURE_BYTES
    cache = budget - weights - reserve
    stored = dataclasses.replace(setup, dtype=_select_cache_type(model, device, setup.dtype))
    stage = model if model.kind in _KINDS["whole-cache"] else select_stage(model, setup.pipeline)
    tokens = _count_tokens(stage, cache, context, stored)
    reason = vllm.describe_misfit(model, device, context, setup) or describe_indivisible(model, setup)
    division = Division(budget, weights, reserve, cache, tokens)
    return build_fit(instance, setup, context, division, reason or describe_shortage(model, division, context))


def _select_cache_type(model: Architecture, device: Accelerators, dtype: str) -> str:
    """Return how a token is stored on these accelerators, as `compute_kv_layer_bytes` takes it.

    Sparse attention over compressed vectors has 8 bits on Blackwell, whatever is asked (arg_groups/overrides.py,
    _dsa_kv_cache_dtype_default).
    """
    return "fp8_e4m3" if vllm.has_sparse_vectors(model) and device.name.startswith(_EIGHT_BITS) else dtype


def _compute_seeing_share(vision: Vision) -> float:
    """Return the share of weights and cache that a model keeps which sees: pictures take the rest.

    Source: arg_groups/memory_hook.py, adjust_mem_fraction_for_vlm, which takes 24 layers where config.json says none.
    """
    size = (vision.layers or 24) * vision.hidden**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))


def _count_tokens(model: Architecture, cache_bytes: int, context: int, setup: ReplicaSetup) -> int:
    """Return tokens that the cache holds; those of the requests whose states have room, where these are fewer."""
    token_bytes, free_bytes = compute_kv_bytes_per_token(model, setup.tensor, setup.dtype), max(0, cache_bytes)
    if model.compressed:
        return _count_compressed_tokens(model, token_bytes, free_bytes, setup.batch)
    if model.kind in _KINDS["window-cache"]:
        window_bytes = model.sliding_layers * compute_kv_layer_bytes(model, setup.tensor, setup.dtype, has_window=True)
        token_bytes -= int((1 - _WINDOW_CACHE_SHARE) * window_bytes)
    if model.state is None:
        return free_bytes // token_bytes if token_bytes else 0
    states, requests = _count_states(model, free_bytes, setup)
    # Each request of a step has a state for each of its drafted tokens.
    drafted = setup.draft_tokens * (min(requests, setup.batch.sequences if setup.batch else SEQUENCES) + 1)
    tokens = max(0, free_bytes - (states + drafted) * _compute_state_bytes(model, setup)) // token_bytes
    return min(tokens, requests * context)


def count_running(model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> int | None:  # noqa: ARG001
    """Return requests whose states have room at once, whatever their tokens; None for models that keep none."""
    if model.state is None:
        return None
    return max(1, _count_states(select_stage(model, setup.pipeline), cache_bytes, setup)[1])


def _compute_state_bytes(model: Architecture, setup: ReplicaSetup) -> int:
    """Return bytes of a request's states in all layers that keep one."""
    state = model.state
    numbers_bytes = 2 * state.convolution + _STATE_NUMBER_BYTES * state.heads if state else 0
    return model.linear_layers * divide_up(numbers_bytes, setup.tensor)


def _count_states(model: Architecture, cache_bytes: int, setup: ReplicaSetup) -> tuple[int, int]:
    """Return states that have room in their share of the cache, a spare one among them, and their requests at once.

    Without cached beginnings of prompts, and with a number of requests, there are as many as these.
    Source: mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache and resolve_max_num_reqs.
    """
    if not setup.prefix_cache and setup.batch and setup.batch.sequences != SEQUENCES:
        return setup.batch.sequences + 1, setup.batch.sequences
    share = max(0, cache_bytes) * _STATE_RATIO / (1 + _STATE_RATIO) / _compute_state_bytes(model, setup)
    drafts, request_states = setup.draft_tokens, _REQUEST_STATES if setup.prefix_cache else 1
    states = int((share - 1 - drafts) // (1 + drafts / request_states)) + 1
    return states, max(0, states - 1) // request_states


def _count_compressed_tokens(model: Architecture, token_bytes: int, free_bytes: int, batch: Batch | None) -> int:
    """Return tokens of a cache of DeepSeek V4: vectors of all, windows of some, and what becomes vectors.

    Source: model_executor/pool_configurator.py at 003fca8, DSV4PoolConfigurator.
    """
    # What becomes vectors of 4 tokens has rings of 8 for each 128 of a window, of 128 tokens one ring for each request.
    ring_bytes = model.indexed_layers * 8 / 128 * 16 * (model.head_dim + INDEX_NUMBERS)
    sequences = batch.sequences if batch and batch.sequences != SEQUENCES else _COMPRESSED_SEQUENCES
    request_bytes = (sequences + 3) * 128 * 8 * model.head_dim * (model.full_layers - model.indexed_layers)
    windows = _WINDOW_SHARE * (model.layers * VECTOR_BYTES + ring_bytes)
    return max(0, int((free_bytes - request_bytes) / (token_bytes + windows)))
