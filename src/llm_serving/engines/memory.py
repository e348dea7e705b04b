"""Arithmetic of memory that every engine shares: what a model's architecture and an instance type alone decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData
from llm_serving.settings.units import format_bytes

KINDS: Mapping[str, Mapping[str, Sequence[str]]] = own_yaml.read(Path(__file__).with_name("kinds.yaml"))
"""Models that an engine treats otherwise than others, by engine and by what differs: kinds.yaml."""

GIB = 2**30

INDEX_NUMBERS = 128
"""Of a key of DeepSeek V4's indexer."""

VISIBLE_SHARE = 0.9899
"""Share of the nominal memory that a process sees: 79.19 of 80 GiB on H100, in the starts that `engines/vllm.py`
names. L40S, H200 and B200 show 0.991 to 0.996."""

ADAPTER_RANK = 64
"""Rank up to which a LoRA adapter has room: --max-lora-rank in the engines' catalog."""

NODE_SHARE = 0.85
"""Share of a node's CPUs and memory that replicas may request; the rest is for the system and its agents."""

UNKNOWN_SHARE = 1.1
"""Memory of a model whose arithmetic is not known, for each byte of its weights: they and a tenth."""

VECTOR_BYTES = 584
"""Of a vector that DeepSeek V4 caches: 448 numbers in 8 bits, 64 in 16, 8 bytes of scales (vLLM 0.32.0, fp8_ds_mla)."""

CACHE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1}
"""Bytes of a number in the KV cache, by its type; `auto` is the model's own: 16 bits."""


class Batch(PlainData):
    """The largest step that the engine runs."""

    tokens: int
    """Most tokens of a step."""

    sequences: int
    """Most requests of a step."""


@dataclass(frozen=True)
class Split:
    """How a replica splits its model over accelerators."""

    tensor: int = 1
    pipeline: int = 1
    whole_experts: bool = False
    """Whether each accelerator has whole experts, as many as the others, in place of a part of each. Their outputs are
    summed as parts are: vLLM exchanges tokens only between data-parallel ranks (0.32.0, fused_moe/config.py,
    `use_all2all_kernels`)."""

    data: int = 1
    """Copies of the attention layers, each with requests of its own; the experts are spread over all of them."""

    @property
    def expert_ranks(self) -> int:
        """Accelerators over which experts are spread, in whole or in parts."""
        return self.tensor * self.data

    @property
    def ranks(self) -> int:
        """Accelerators of the replica; of Neuron, cores."""
        return self.tensor * self.pipeline * self.data

    @property
    def lanes(self) -> int:
        """Batches that are under way at once, each with its share of the requests."""
        return self.pipeline * self.data


@dataclass(frozen=True)
class ReplicaSetup(Split):
    """How one replica of a model runs; what is left out is the engine's own choice."""

    spare_experts: int = 0
    """Copies of experts beside these, spread with them."""

    context: int = 0
    """The longest request, prompt and answer; 0 is the model's maximum."""

    utilization: float = 0.0
    """Share of each accelerator's memory that the engine may use; 0 is the engine's own."""

    dtype: str = "auto"
    """Of the KV cache: `auto` or `fp8`."""

    batch: Batch | None = None
    """The largest step."""

    phase: str = ""
    """`prefill` or `decode`, where it computes one of them; empty for both."""

    draft: Model | None = None
    """A draft model beside it."""

    draft_tokens: int = 0
    """Tokens that are drafted at a time, by whatever drafts them."""

    prefix_cache: bool = True
    """Whether beginnings of prompts stay in the cache."""

    videos: bool = True
    """Whether requests may have videos, where the model reads them."""

    adapters: int = 0
    """LoRA adapters loaded at once, each of up to `ADAPTER_RANK`."""

    adapter_modules: tuple[str, ...] = ()
    """Modules that they may change, by the engine's names; empty for all."""


class CpuLoad(NamedTuple):
    """What one rank on CPU is to hold of requests."""

    context: int
    """Most tokens of a request."""

    lengths: Sequence[int]
    """Of all requests under way at once."""

    block: int
    """Tokens in a block of the KV cache."""

    tensor: int
    sequences: int
    """Most requests of a step."""

    draft: Architecture | None = None
    """Of a draft model beside it."""


class Fit(PlainData):
    """One replica of a model on one instance type. All bytes are those of one accelerator, the fullest one."""

    instance: str
    tensor_parallel: int
    pipeline: int = 1
    fits: bool
    why: str
    """Why it does not fit, as a sentence; empty where it does."""

    budget_bytes: int
    """What the engine may use."""

    weight_bytes: int
    draft_bytes: int = 0
    """Of the weights, those of the draft model."""

    reserve_bytes: int
    """What the largest batch and the libraries take."""

    video_bytes: int = 0
    """Of the reserve, those that it would not take if requests had no videos."""

    adapter_bytes: int = 0
    """Of the reserve, those of LoRA adapters."""

    cache_bytes: int
    """What remains for the KV cache; below 0 where the weights alone are too much."""

    cache_tokens: int
    """Tokens that the cache of one replica holds; 0 where it does not fit."""

    context: int
    calibrated: bool
    """Whether the reserve was measured for such weights, settings and accelerators, split this way; else it is
    extrapolated."""

    computed: bool = True
    """Whether more than the weights is computed: reserve, cache and tokens are 0 otherwise."""

    most_sequences: int | None = None
    """Most requests of a step, each of which keeps a state in the cache; None where none does."""

    tokens_per_s: float | None = None
    """Most output tokens a second of one request on CPU, an estimate by memory bandwidth; None where there is none."""

    @property
    def requests(self) -> float:
        """Requests of the full context that the cache holds at once."""
        return self.cache_tokens / self.context


class Division(NamedTuple):
    """What one accelerator's memory is for, as `Fit` has it."""

    budget_bytes: int
    weight_bytes: int
    reserve_bytes: int
    cache_bytes: int
    cache_tokens: int = 0
    draft_bytes: int = 0
    video_bytes: int = 0
    adapter_bytes: int = 0
    most_sequences: int | None = None


def build_fit(
    instance: Instance, setup: ReplicaSetup, context: int, division: Division, reason: str, *, calibrated: bool = False
) -> Fit:
    """Build what an engine's arithmetic found of one replica.

    Args:
        reason: why it does not fit, as a sentence; empty where it does.
    """
    return Fit(
        instance=instance.name,
        tensor_parallel=setup.tensor,
        pipeline=setup.pipeline,
        fits=not reason,
        why=reason,
        context=context,
        calibrated=calibrated,
        **division._replace(cache_tokens=0 if reason else division.cache_tokens)._asdict(),
    )


def describe_long_context(model: Model, context: int) -> str:
    """Return why the model takes no requests of so many tokens, as a sentence; empty where it does."""
    if context > model.max_context:
        return f"the model was made for {model.max_context} tokens a request, not {context}"
    return ""


def describe_other_vocabulary(model: Model, draft: Model) -> str:
    """Return why a draft model does not count the tokens of the model; empty where it does, or one is not known.

    Source: vLLM 0.32.0, config/speculative.py, verify_equal_vocab_size_if_draft_model.
    """
    if not (draft.is_known and model.is_known) or draft.vocabulary == model.vocabulary:
        return ""
    return (
        f"its vocabulary has {draft.vocabulary} tokens and that of {model.name} {model.vocabulary}, and the "
        "engine starts with equal ones only"
    )


def describe_shortage(model: Model, division: Division, context: int, owner: str = "of one accelerator") -> str:
    """Return which memory is short, as a sentence; empty where none is."""
    budget, weights, reserve = division.budget_bytes, division.weight_bytes, division.reserve_bytes
    if weights + reserve > budget:
        draft = f", {format_bytes(division.draft_bytes)} of them the draft's," if division.draft_bytes else ""
        parts = describe_reserve(division.video_bytes, division.adapter_bytes)
        return (
            f"weights {format_bytes(weights)}{draft} and reserve {format_bytes(reserve)}{parts and parts + ','} are "
            f"{format_bytes(weights + reserve - budget)} more than the {format_bytes(budget)} {owner}"
        )
    if not model.encoder and (tokens := division.cache_tokens) < context:
        return f"the cache holds {tokens} tokens, {context - tokens} short of one request of {context}"
    return ""


def describe_reserve(video_bytes: int, adapter_bytes: int) -> str:
    """Return what of the reserve is not for every request, as a part of a sentence; empty where all of it is."""
    parts = {"a video": video_bytes, "adapters": adapter_bytes}
    return "".join(f", {format_bytes(count)} of it for {name}" for name, count in parts.items() if count)


def compute_unknown_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Return whether the weights of an unknown model, and a tenth more, have room; nothing else is computed."""
    device = instance.accelerators
    budget = int((compute_rank_bytes(device) if device else instance.memory_mib * 2**20) * setup.utilization)
    weights = int(UNKNOWN_SHARE * model.weight_bytes / (setup.tensor * setup.pipeline))
    reason = (
        f"weights {format_bytes(weights)}, with a tenth for what is not computed, are more than the "
        f"{format_bytes(budget)} of one accelerator"
    )
    division = Division(budget, weights, 0, budget - weights)
    fit = build_fit(instance, setup, setup.context, division, reason if weights > budget else "")
    return fit.model_copy(update={"computed": False})


def compute_kv_bytes_per_token(model: Architecture, tensor_parallel: int = 1, dtype: str = "auto") -> int:
    """Return bytes that one token takes in the KV cache of one accelerator, all layers counted.

    Heads are split over accelerators until each holds one; multi-head latent attention has one vector for all heads,
    which every accelerator keeps whole. An engine's own arithmetic counts what layers with a sliding window drop, and
    the windows of DeepSeek V4.
    """
    if model.compressed:
        vectors = divide_up((model.full_layers - model.indexed_layers) * VECTOR_BYTES, 128)
        return model.indexed_layers * compute_kv_layer_bytes(model, tensor_parallel, dtype) + vectors
    layer_bytes = compute_kv_layer_bytes(model, tensor_parallel, dtype)
    window_bytes = compute_kv_layer_bytes(model, tensor_parallel, dtype, has_window=True)
    missing_index_bytes = (model.layers - model.indexed_layers) * model.index_bytes
    return model.full_layers * layer_bytes + model.sliding_layers * window_bytes - missing_index_bytes


def compute_kv_layer_bytes(model: Architecture, tensor_parallel: int, dtype: str, *, has_window: bool = False) -> int:
    """Return bytes that one token takes in one layer of one accelerator's KV cache, the largest."""
    if model.encoder:
        return 0
    if model.compressed:
        return VECTOR_BYTES if has_window else (VECTOR_BYTES + model.index_bytes) // 4
    cache_type = model.cache_type if dtype == "auto" else dtype
    number_bytes = CACHE_BYTES[cache_type]
    if model.latent:
        rank, rope = model.latent.kv_rank, model.latent.rope_dim
        if model.index_bytes and cache_type == "fp8":
            # Sparse attention keeps a 32-bit scale for each 128 numbers, and positions in 16 bits (vLLM 0.32.0,
            # fp8_ds_mla; SGLang 0.5.23, calculate_mla_kv_cache_dim); with fp8_e4m3 neither.
            return rank + rank // 128 * 4 + 2 * rope + model.index_bytes
        return (rank + rope) * number_bytes + model.index_bytes
    heads, width = (model.kv_heads, model.head_dim) if has_window else model.full_heads
    index_bytes = 0 if has_window else model.index_bytes
    return divide_up(heads, tensor_parallel) * (width + (model.value_dim or width)) * number_bytes + index_bytes


def compute_state_bytes(model: Architecture, tensor_parallel: int = 1) -> int:
    """Return bytes that a request takes in one layer without keys and values; heads are split."""
    state = model.state
    return divide_up(2 * state.convolution + state.number_bytes * state.heads, tensor_parallel) if state else 0


def estimate_tokens_per_s(model: Model, bandwidth_gb_s: float, context: int) -> float:
    """Return most output tokens a second of one request on CPU, bound by memory.

    Each token reads all weights that it passes through and the cache of its request, here half of the context:
    bandwidth / (active weights + cache). Cores that are slower than their memory, or other requests, make it less.
    Source of the formula: Williams, Waterman and Patterson, "Roofline", Communications of the ACM 52(4), 2009.
    """
    active_bytes = model.weight_bytes * model.active_parameters / model.parameters
    cache_bytes = compute_kv_bytes_per_token(model) * context / 2
    return bandwidth_gb_s * 1e9 / (active_bytes + cache_bytes)


def select_stage(model: Architecture, pipeline: int) -> Architecture:
    """Return the fullest of the `pipeline` stages that the layers are split into, as a separate model.

    Only the first stage holds the embedding and only the last the output layer; the sparse layers of a mixture of
    experts are the larger ones, and some stage holds nothing else.
    """
    if pipeline == 1:
        return model
    layers = divide_up(model.layers, pipeline)
    smaller = {
        "layers": layers,
        "sliding_layers": min(layers, divide_up(model.sliding_layers, pipeline)),
        "linear_layers": layers * model.linear_layers // model.layers,
        "feed_forward_layers": divide_up(model.feed_forward_layers, pipeline),
        "indexed_layers": divide_up(model.indexed_layers, pipeline)
        if model.compressed
        else min(layers, model.indexed_layers),
        "dense_layers": layers - divide_up(layers, model.sparse_step) if model.experts else 0,
        "prediction_layers": 0,
        "tied": True,
    }
    return model.model_copy(update=smaller)


def count_ranks(device: Accelerators) -> int:
    """Return ways that one node can split a model: its GPUs, or the NeuronCores of all its devices."""
    return device.count * device.ranks


def compute_rank_bytes(device: Accelerators) -> int:
    """Return memory of one rank: a GPU's, or a NeuronCore's share of its device."""
    return device.memory_mib * 2**20 // device.ranks


def list_tensor_sizes(model: Architecture, instance: Instance) -> tuple[int, ...]:
    """Return the degrees of tensor parallelism worth trying on one node: powers of two up to all it has."""
    if instance.accelerators is None:
        return ()
    rank_count = count_ranks(instance.accelerators)
    return tuple(2**power for power in range(rank_count.bit_length()) if 2**power <= min(rank_count, model.heads))


def divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
