"""TensorRT-LLM's memory: whether a model fits, and how much of the accelerators remains for the KV cache.

TensorRT-LLM loads the weights, runs its largest step, and gives the cache a share of what is free then. What weights
and step take is computed as for vLLM; no start was measured. So are states of linear layers, of which it keeps more
as prompts are cached (_torch/pyexecutor/mamba_cache_manager.py): its cache holds fewer tokens of such models.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import vllm
from llm_serving.engines.memory import Batch, Fit, ReplicaSetup

UTILIZATION = 1.0
"""It takes no share of the whole memory, but one of what is free."""

BATCH = Batch(tokens=8192, sequences=2048)
"""`--max_num_tokens` and `--max_batch_size`, its own (trtllm_serve_cli.yaml at 029e223)."""

_WINDOW_KINDS = ("gemma4", "gemma4_text")
"""Models whose layers with a window drop what lies behind it: of others all layers keep all tokens, unless a
configuration says otherwise (`kv_cache_config.max_attention_window`; _torch/pyexecutor/_util.py at 0004396)."""

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
    """Compute whether a replica of `model` on `instance` serves requests of its context."""
    own = replace(setup, utilization=setup.utilization or UTILIZATION, batch=setup.batch or BATCH)
    if model.window and model.kind not in _WINDOW_KINDS:
        model = model.model_copy(update={"window": model.max_context, "chunked": False})
    fit = vllm.compute_fit(model, instance, own)
    cache, tokens = int(fit.cache_bytes * FREE_SHARE), int(fit.cache_tokens * FREE_SHARE)
    shortage = f"the cache holds {tokens} tokens, {fit.context - tokens} short of one request of {fit.context}"
    reason = fit.why or (shortage if tokens < fit.context and not model.encoder else "")
    update = {"cache_bytes": cache, "cache_tokens": 0 if reason else tokens, "why": reason, "fits": not reason}
    return fit.model_copy(update=update | {"calibrated": False})
