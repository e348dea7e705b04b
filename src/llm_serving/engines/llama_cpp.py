"""llama.cpp's memory and speed on CPU: weights, a slot of cache for each request, and buffers of one step.

Weights and cache are exact: a file's header has the bytes of its tensors, and each slot keeps keys and values of the
whole context in 16 bits, and the states of layers that keep one. The buffers are those of the largest step, as
llama.cpp's graph allocator lays them out for a decoder; `tests/engines/test_llama_cpp.py` compares all three with what
llama-server logs.

Not computed: what llama.cpp adds to each block of some types as it lays weights out for a processor with AMX, Intel's
since Sapphire Rapids (`get_row_size` in ggml-cpu/amx/mmq.cpp): 4 bytes to 34 of Q8_0, 3% of Q4_K and less of others.
"""

from __future__ import annotations

from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.engines.memory import Batch, CpuLoad, Division, Fit, ReplicaSetup, Split
from llm_serving.settings.units import format_bytes

UTILIZATION = memory.NODE_SHARE
"""Share of a node's memory that a replica may take."""

BATCH = Batch(tokens=2048, sequences=4)
"""llama-server's own --batch-size, and the slots that it takes by itself (b11669)."""

STEP_TOKENS = 512
"""Tokens that are computed at once: --ubatch-size, llama-server's own (b11669). A text to embed is one step."""

PROGRAM_BYTES = 100_000_000
"""Program and libraries, with room: 58 MB beside weights, cache and buffers. Measured with b11669, 2026-11-23."""

_NUMBER_BYTES = 4
"""Activations are in 32 bits."""


def select_batch(device: Accelerators | None) -> Batch:  # noqa: ARG001 - the same on every processor
    """Return the slots and the batch that llama-server chooses by itself."""
    return BATCH


def compute_cache_bytes(model: Architecture, slots: int, context: int) -> int:
    """Return what every slot keeps: `CPU KV buffer size` in llama-server's log, and `CPU RS buffer size` beside it."""
    return slots * (_pad(context) * memory.compute_kv_bytes_per_token(model) + _compute_state_bytes(model))


def _compute_state_bytes(model: Architecture) -> int:
    """Return states of a slot, in 32 bits (llama.cpp, src/llama-memory-recurrent.cpp; llama-hparams.cpp, n_embd_s)."""
    state = model.state
    return model.linear_layers * (state.convolution + state.heads) * _NUMBER_BYTES if state else 0


def _pad(context: int) -> int:
    """Return tokens that a slot has: llama.cpp rounds up to whole 256 (b11669, `GGML_PAD` in llama-context.cpp)."""
    return memory.divide_up(context, 256) * 256


def compute_buffer_bytes(model: Architecture, context: int) -> int:
    """Return buffers of the largest step: `CPU compute buffer size` in llama-server's log."""
    width = max(model.intermediate, model.expert_intermediate * max(1, model.active_experts))
    step = max(STEP_TOKENS, context) if model.pooled else STEP_TOKENS
    activations = 3 * step * (width + model.hidden) * _NUMBER_BYTES
    mask = step * _pad(context) * 2 + step * _NUMBER_BYTES * 520
    return activations + mask


def compute_cpu_cache_bytes(model: Architecture, load: CpuLoad) -> int:
    """Return all slots and the buffers: a slot keeps its whole context, whatever the requests are."""
    return compute_cache_bytes(model, load.sequences, load.context) + compute_buffer_bytes(model, load.context)


def compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Compute whether a replica of `model` has room in the memory of one `instance`, with a slot for each request."""
    context, batch = setup.context or model.max_context, setup.batch or BATCH
    budget = int(instance.memory_mib * 2**20 * (setup.utilization or UTILIZATION))
    reserve = compute_buffer_bytes(model, context) + PROGRAM_BYTES
    free = budget - model.weight_bytes - reserve
    reason = _describe_shortage(model, instance, batch.sequences, context, budget, free)
    cache_bytes = free - batch.sequences * _compute_state_bytes(model)
    token_bytes = memory.compute_kv_bytes_per_token(model)  # 0 of an encoder
    tokens = cache_bytes // token_bytes if token_bytes and not reason else 0
    division = Division(budget, model.weight_bytes, reserve, free, tokens)
    fit = memory.build_fit(instance, setup, context, division, reason, calibrated=True)
    if instance.memory_gb_s is None:
        return fit
    speed = memory.estimate_tokens_per_s(model, instance.memory_gb_s, context)
    return fit.model_copy(update={"tokens_per_s": speed})


def count_running(model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> None:
    """Return None: each slot has its state and the room of a whole context."""


def _describe_shortage(model: Model, instance: Instance, slots: int, context: int, budget: int, free: int) -> str:
    if reason := memory.describe_long_context(model, context):
        return reason
    cache = compute_cache_bytes(model, slots, context)
    if cache <= free:
        return ""
    return (
        f"weights {format_bytes(model.weight_bytes)}, {slots} slots of {context} tokens with {format_bytes(cache)} and "
        f"buffers are {format_bytes(cache - free)} more than the {format_bytes(budget)} that a replica may take of "
        f"{instance.name}"
    )


def describe_indivisible(model: Architecture, split: Split) -> str:  # noqa: ARG001
    """Return an empty sentence: `unsupported_options` of the engine's row refuses every split."""
    return ""
