"""vLLM's memory: whether a model fits, and how much of the accelerators remains for the KV cache.

vLLM takes a share of each accelerator's memory (`UTILIZATION`), loads the weights, runs its largest batch once, and
gives the rest to the KV cache. This module computes the same without an accelerator: weights and cache follow from the
architecture; what the largest batch and the libraries take (`reserve_bytes`) follows from measurements that others
published. On CPU the engine is told how large its cache is: what a replica's share of its node leaves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from llm_serving.catalog import engines
from llm_serving.catalog.architecture import EXPERTS, Architecture, TensorGroup
from llm_serving.catalog.families import TensorSplit
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.catalog.quantizations import MXFP4
from llm_serving.engines.memory import (
    ADAPTER_RANK,
    GIB,
    KINDS,
    NODE_SHARE,
    VISIBLE_SHARE,
    Batch,
    CpuLoad,
    Division,
    Fit,
    ReplicaSetup,
    Split,
    build_fit,
    compute_kv_bytes_per_token,
    compute_rank_bytes,
    count_ranks,
    describe_long_context,
    describe_shortage,
    divide_up,
    estimate_tokens_per_s,
    select_stage,
)
from llm_serving.engines.vllm_blocks import BLOCK_TOKENS, count_cache_blocks
from llm_serving.settings.units import format_bytes

_KINDS = KINDS["vllm"]

UTILIZATION = 0.92
"""Share of an accelerator's memory that vLLM uses: its own default, `gpu_memory_utilization` (vLLM 0.32.0)."""

# These constants were fitted to starts of vLLM 0.19.0 on H100, published as logs and a table by llm-d-planner
# (accuracy/results/v0.19.0/results_raw.csv, commit 30ec05f, 2026-04): models of 7 to 72 billion parameters, dense and
# mixture of experts, over 1 to 4 GPUs. The reserve is within 0.52 GiB of each of the 28 that the tests compare.
_SAMPLER_BYTES = 16
"""Of the largest batch's sampler, for each sequence and token of the vocabulary: several copies of the logits."""
_LIBRARY_BYTES = int(0.27 * GIB)
"""CUDA libraries and workspaces outside PyTorch on one GPU: 0.24 to 0.27 GiB (0.46 for one family)."""
_COMMUNICATION_BYTES = int(1.95 * GIB)
"""On top of that with tensor parallelism, NCCL's and all-reduce's buffers: 2.06 to 2.21 GiB in all at 2 and 4 GPUs."""
_GRAPH_BYTES, _GRAPH_BYTES_PER_LAYER = int(0.3 * GIB), int(0.02 * GIB)
"""CUDA graphs: 0.9 GiB at 32 layers, 1.8 at 80. Taken off the cache since vLLM 0.21."""

_MEASURED_DEVICE, _MEASURED_WAYS = "H100", 4
"""Where the reserve was measured: up to so many accelerators, each layer split over all of them."""

_MEASURED_BATCH, _MEASURED_QUANTIZATIONS = Batch(tokens=8192, sequences=1024), ("none", "mxfp4")
"""The largest batch, the engine's own there, and the weights with which it was measured; the cache was in 16 bits."""

_SPARSE_DEVICES = ("H100", "H200", "B200", "B300", "RTX PRO")
"""GPUs for which vLLM has kernels of sparse attention over compressed vectors, by the beginning of their names: compute
capability 9, 10 and 12 (vLLM 0.32.0, platforms/cuda.py; models/deepseek_v4/sparse_mla.py)."""

_WITHOUT_BF16 = "T4"
_BF16_WEIGHTS = "mxfp4"
"""Weights that vLLM refuses on GPUs without BF16 (vLLM 0.32.0, quantization/mxfp4.py)."""

_SHARED_EXPERTS = ("shared expert", "shared experts")
"""Matrices beside the experts, by their names in families.yaml."""

_LEAST_BLOCK = 32
"""Smallest block of FP8 scales into which vLLM cuts those of experts (vLLM 0.32.0, fused_moe/oracle/fp8.py)."""

BLACKWELL = ("B200", "B300")
"""Of compute capability 10, by the beginning of their names."""

_PADDED_WIDTH = 128
"""What the width of an expert in 16 bits is rounded up to on Blackwell (vLLM 0.32.0, oracle/unquantized.py)."""

_ADAPTER_NUMBER_BYTES = 2
"""LoRA adapters are kept in the model's own type: 16 bits."""

_MERGED = ({"q_proj", "k_proj", "v_proj", "qkv_proj"}, {"gate_proj", "up_proj", "gate_up_proj"})
"""Modules that are one in vLLM, where adapters for one of them are kept for all."""

_MIN_CPU_CACHE_BYTES = 64 * 2**20

# vLLM's plugin for Neuron gives the cache no more than a share, for what else a compiled program holds is not known
# beforehand, and ends where it is less than a least: AWS Neuron 2.32, vllm-neuron/docs/design/vllm/
# determine_available_memory_design.md, VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION and VLLM_NEURON_MIN_KV_BUDGET_GIB.
_NEURON_CACHE_SHARE = 0.30
_NEURON_MIN_CACHE_BYTES = 1 * GIB


def compute_cpu_cache_bytes(model: Architecture, load: CpuLoad) -> int:
    """Return KV cache of one rank on CPU: one request of the full context and all requests under way at once."""
    blocks = sum(divide_up(length, load.block) for length in (load.context, *load.lengths))
    # The engine keeps one block to itself.
    token_bytes = compute_kv_bytes_per_token(model, load.tensor)
    if load.draft:
        token_bytes += compute_kv_bytes_per_token(load.draft, load.tensor)
    return max(_MIN_CPU_CACHE_BYTES, (blocks + 1) * load.block * token_bytes)


def count_running(model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> int | None:
    """Return requests of so many tokens that the cache has blocks for at once; None where tokens alone limit them.

    `Fit.cache_tokens` are those of requests of the whole context. A shorter one takes as many blocks for its state, and
    where layers have a window more for each of its tokens.
    """
    if model.full_layers == model.layers or model.compressed or model.encoder:
        return None
    running = ReplicaSetup(
        setup.tensor, context=tokens, dtype=setup.dtype, batch=Batch(tokens=0, sequences=0), prefix_cache=False
    )
    blocks = count_cache_blocks(select_stage(model, setup.pipeline), cache_bytes, running)
    return max(1, blocks.total // blocks.of_request)


def compute_weight_bytes(
    model: Architecture,
    setup: ReplicaSetup,
    device: Accelerators | None = None,
    both_ends_kinds: Collection[str] = _KINDS["both-ends"],
) -> int:
    """Return bytes of weights on the fullest accelerator of a replica, as the engine holds them.

    Args:
        device: whose kernels may pad them; none of them does where left out.
        both_ends_kinds: models of which one stage has the embedding and the output layer.
    """
    if model.dtype == "float32":
        model = model.model_copy(update={"dtype": "bfloat16"})  # as the engine loads it (config/model.py)
    stage = select_stage(model, setup.pipeline)
    model = stage.model_copy(update={"tied": model.tied}) if model.kind in both_ends_kinds else stage
    total_bytes = sum(
        _compute_group_bytes(model, group, setup, device) for group in model.list_tensors() if group.loaded
    )
    if model.latent:
        # vLLM keeps the keys' and values' up-projection twice: as loaded, and in 16 bits as decode multiplies it.
        width = model.latent.nope_dim + model.latent.value_dim
        total_bytes += 2 * model.layers * model.latent.kv_rank * model.heads * width / setup.tensor
    return round(total_bytes) + 2 * model.rotary_numbers


def compute_draft_bytes(setup: ReplicaSetup) -> int:
    """Return bytes of the draft's weights on the fullest accelerator.

    It is split as the model is, but for stages of layers, of which the last has it whole, and for whole experts, unless
    it has experts itself (vLLM 0.32.0, SpeculativeConfig.create_draft_parallel_config; v1/worker/gpu/model_runner.py).
    Its own step is smaller than the model's, and is not computed beside it; an `eagle` draft may share the model's
    embedding, and is counted with one of its own.
    """
    if setup.draft is None:
        return 0
    return compute_weight_bytes(
        setup.draft, ReplicaSetup(setup.tensor, data=setup.data, whole_experts=setup.whole_experts)
    )


def select_batch(device: Accelerators | None) -> Batch:
    """Return the largest batch that vLLM chooses for its server (vLLM 0.32.0, `EngineArgs.get_batch_defaults`)."""
    if device is None:
        return Batch(tokens=2048, sequences=128)
    device_bytes = compute_rank_bytes(device)
    if device_bytes >= 160 * GIB:
        return Batch(tokens=16384, sequences=1024)
    if device_bytes >= 70 * GIB and "A100" not in device.name:
        return Batch(tokens=8192, sequences=1024)
    return Batch(tokens=2048, sequences=256)


def compute_reserve_bytes(
    model: Architecture, batch: Batch, tensor_parallel: int = 1, copies: int = 1, video_tokens: int = 0
) -> int:
    """Return memory of one accelerator beside weights and cache: the largest batch, the libraries, the CUDA graphs.

    Args:
        copies: of the attention layers, beside experts that are spread over all. Each gathers the batches of all and
            sends as much back (vLLM 0.32.0, distributed/device_communicators/all2all.py, AgRsAll2AllManager): computed
            from the code, not measured.
        video_tokens: of the largest video that requests may have; 0 where they have none.
    """
    exchanges = tensor_parallel > 1 or (model.experts > 0 and copies > 1)
    libraries = _LIBRARY_BYTES + (_COMMUNICATION_BYTES if exchanges else 0)
    graphs = 0 if model.encoder else _GRAPH_BYTES + _GRAPH_BYTES_PER_LAYER * model.layers
    return _compute_step_bytes(model, batch, tensor_parallel, copies, video_tokens) + libraries + graphs


def _compute_step_bytes(
    model: Architecture, batch: Batch, tensor_parallel: int = 1, copies: int = 1, video_tokens: int = 0
) -> int:
    activation_bytes = 2  # activations are in 16 bits
    feed_forward = model.intermediate if not model.experts else 0
    layers = batch.tokens * activation_bytes * (3 * divide_up(feed_forward, tensor_parallel) + 4 * model.hidden)
    sampler = 0 if model.encoder or model.pooled else batch.sequences * model.vocabulary * _SAMPLER_BYTES
    # Each token visits several experts, and their workspace stays allocated beside the sampler's.
    visit_bytes = batch.tokens * model.active_experts * activation_bytes
    experts = visit_bytes * (3 * divide_up(model.expert_intermediate, tensor_parallel) + model.hidden)
    experts += 2 * (copies - 1 if model.experts else 0) * batch.tokens * model.hidden * activation_bytes
    pictures = _compute_picture_bytes(model, batch, tensor_parallel, video_tokens)
    return max(layers, sampler, pictures) + experts


def _compute_picture_bytes(model: Architecture, batch: Batch, tensor_parallel: int, video_tokens: int) -> int:
    """Return memory in which the largest step's pictures become tokens: as many as have room in it, or one; or a video.

    Computed from the code (vLLM 0.32.0, v1/worker/gpu_model_runner.py, profile_run). In the starts that were measured,
    of Gemma 3 and Mistral Small 3.1, the sampler took more.
    """
    vision, activation_bytes = model.vision, 2
    if vision is None:
        return 0
    tokens = max(vision.image_tokens, video_tokens)
    patches = max(1, batch.tokens // tokens) * tokens * vision.patches // vision.image_tokens
    tower = patches * activation_bytes * (divide_up(vision.split_width, tensor_parallel) + vision.whole_width)
    return tower + max(batch.tokens, tokens) * model.hidden * vision.outputs * activation_bytes


def compute_adapter_bytes(model: Architecture, setup: ReplicaSetup) -> int:
    """Return memory of one accelerator that LoRA adapters of the largest rank take, loaded or not.

    Of a matrix of `rows` and `columns`, an adapter has one of the rank and the columns, and one of the rows and the
    rank. Accelerators split the side that is not the decoder's width, and neither of the ends (vLLM 0.32.0,
    lora/layers). The routers of experts, which are small, are left out.
    """
    if not setup.adapters:
        return 0
    numbers = 0
    for shape in model.tensors:
        is_end = shape.name in ("embedding", "output layer")
        is_matrix = is_end or shape.form in ("linear", "expert")
        name = "experts" if shape.form == "expert" else shape.module.rpartition(".")[2]
        if not (is_matrix and is_adapted(name, setup.adapter_modules)):
            continue
        ways = 1 if is_end else _count_parts(model, shape.split, setup.tensor)
        # Each end has its own adapter, also where one matrix is both.
        count = shape.times * (1 if is_end else model.count_layers(shape.layer_kind))
        if shape.routed and setup.whole_experts:
            ways, count = 1, count * divide_up(model.experts, setup.expert_ranks) // model.experts
        elif shape.routed:
            ways = setup.expert_ranks
        split, whole = (shape.columns, shape.rows) if shape.rows == model.hidden else (shape.rows, shape.columns)
        numbers += count * (divide_up(split, ways) + whole)
    return setup.adapters * ADAPTER_RANK * numbers * _ADAPTER_NUMBER_BYTES


def is_adapted(module: str, modules: Sequence[str]) -> bool:
    """Return whether adapters that may change these modules have room for one of this name; none are all of them."""
    names = next((merged for merged in _MERGED if module in merged), {module})
    return not modules or not names.isdisjoint(modules)


def compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Compute whether a replica of `model` on `instance` serves requests of its context.

    Without accelerators it has all CPUs of a node; the engine takes memory of one socket only.

    Raises:
        ValueError: `instance` has no accelerators to split a layer over.
    """
    context, device = setup.context or model.max_context, instance.accelerators
    if device is None and setup.tensor > 1:
        raise ValueError(f"{instance.name} has no accelerators")
    batch = setup.batch or select_batch(device)
    division = divide_memory(model, instance, batch, context, setup)
    if device is None:
        return _build_cpu_fit(model, instance, context, setup, division)
    reason = (
        describe_unfit(model, device, context, setup, whole_blocks=lacks_fp8(device))
        or describe_shortage(model, division, context)
        or _describe_cache_shortage(model, device, division.cache_bytes)
    )
    is_measured_split = setup.tensor == setup.ranks <= _MEASURED_WAYS and not setup.whole_experts
    has_more = setup.draft is not None or setup.adapters > 0
    is_measured = is_measured_split and _is_measured_engine(model, batch, setup.dtype) and not has_more
    calibrated = device.name == _MEASURED_DEVICE and is_measured
    return build_fit(instance, setup, context, division, reason, calibrated=calibrated)


def describe_unfit(model: Model, device: Accelerators, context: int, setup: ReplicaSetup, *, whole_blocks: bool) -> str:
    """Return why accelerators do not run such a replica, whatever its memory, as a sentence; empty where they do.

    Args:
        whole_blocks: experts in FP8 are not split within a block.
    """
    return (
        describe_misfit(model, device, context, setup)
        or _describe_missing_bf16(model, device)
        or _describe_narrow_cache(model, device, setup.dtype)
        or describe_indivisible(model, setup, whole_blocks=whole_blocks)
        or _describe_broken_draft(model, setup)
    )


def _build_cpu_fit(model: Model, instance: Instance, context: int, setup: ReplicaSetup, division: Division) -> Fit:
    reason = (
        describe_long_context(model, context)
        or describe_missing_kernels(model, "CPUs")
        or describe_shortage(model, division, context, "of a replica")
    )
    fit = build_fit(instance, setup, context, division, reason)
    if instance.memory_gb_s is None or model.encoder or model.pooled:
        return fit
    speed = estimate_tokens_per_s(model, instance.memory_gb_s / instance.sockets, context)
    return fit.model_copy(update={"tokens_per_s": speed})


def _is_measured_engine(model: Model, batch: Batch, dtype: str) -> bool:
    is_plain = not (model.encoder or model.pooled or model.linear_layers)
    is_measured_model = is_plain and model.quantization in _MEASURED_QUANTIZATIONS
    if model.vision and (model.vision.image_tokens > batch.tokens or model.vision.video_pictures):
        return False
    return is_measured_model and batch == _MEASURED_BATCH and dtype == "auto"


def _count_video_tokens(model: Model, setup: ReplicaSetup) -> int:
    return model.vision.count_video_tokens(setup.context or model.max_context) if model.vision and setup.videos else 0


def divide_memory(model: Model, instance: Instance, batch: Batch, context: int, setup: ReplicaSetup) -> Division:
    """Return what one accelerator's memory is for, or a socket's without accelerators."""
    device, stage = instance.accelerators, select_stage(model, setup.pipeline)
    video_tokens = _count_video_tokens(model, setup)
    step, with_video = (
        _compute_step_bytes(stage, batch, setup.tensor, setup.data, tokens) for tokens in (0, video_tokens)
    )
    if device is None:
        platform = engines.load_engines()["vllm"].platforms["cpu"]
        visible_bytes = instance.memory_mib * 2**20 / instance.sockets * NODE_SHARE
        weight_copies, block, dtype = platform.weight_copies, platform.kv_block, setup.dtype
        reserve = platform.base_bytes + with_video
    else:
        visible_bytes = compute_rank_bytes(device) * VISIBLE_SHARE
        weight_copies, block, dtype = 1.0, BLOCK_TOKENS, select_cache_type(model, device, setup.dtype)
        reserve = compute_reserve_bytes(stage, batch, setup.tensor, setup.data, video_tokens)
    budget = int(visible_bytes * (setup.utilization or UTILIZATION))
    draft = int(weight_copies * compute_draft_bytes(setup))
    weights = int(weight_copies * compute_weight_bytes(model, setup, device)) + draft
    adapters = compute_adapter_bytes(stage, setup)
    reserve += adapters
    cache = budget - weights - reserve
    if device and device.kind == "neuron":
        cache = min(cache, int(budget * _NEURON_CACHE_SHARE))
    blocks = count_cache_blocks(stage, cache, replace(setup, context=context, batch=batch, dtype=dtype), block)
    # A request keeps its state in a block: vLLM 0.32.0, config/compilation.py, resolve_cudagraph_mode_and_sizes.
    states = blocks.total if model.state and device else None
    return Division(budget, weights, reserve, cache, blocks.tokens, draft, with_video - step, adapters, states)


def describe_indivisible(model: Architecture, split: Split, *, whole_blocks: bool = False) -> str:
    """Return why the model cannot be split this way, as a sentence; empty where it can.

    Args:
        whole_blocks: experts in FP8 are not split within a block, which shares one scale.
    """
    t, parts = split.tensor, _count_expert_parts(split)
    if model.heads % t:
        return f"{model.heads} attention heads do not divide by {t}"
    if not model.latent and model.kv_heads % t and t % model.kv_heads:
        return f"{model.kv_heads} key and value heads neither divide by {t} nor are divided by it"
    # vLLM pads MXFP4 experts, and refuses the rest.
    if model.expert_intermediate % parts and model.quantization != "mxfp4":
        return f"an expert's width, {model.expert_intermediate}, does not divide by {parts}"
    if (not model.experts or model.dense_layers) and model.intermediate % t:
        return f"the feed-forward width, {model.intermediate}, does not divide by {t}"
    if model.quantization == "fp8" and model.fp8_block:
        return _describe_broken_blocks(model, split, whole_blocks)
    return ""


def _describe_broken_blocks(model: Architecture, split: Split, whole_blocks: bool) -> str:
    """Return why FP8 weights cannot be split within a block, which shares one scale (vllm-project/vllm#17569)."""
    parts = _count_expert_parts(split)
    widths = {}
    if whole_blocks or not _cuts_blocks_of_experts(model, parts):
        widths["an expert's width"] = (model.expert_intermediate, parts)
    for shape in model.tensors:
        if shape.name in _SHARED_EXPERTS and not _has_whole_shared_experts(model, split):
            widths["the shared experts' width"] = (int(shape.times * min(shape.rows, shape.columns)), split.tensor)
    if not model.experts or model.dense_layers:
        widths["the feed-forward width"] = (model.intermediate, split.tensor)
    for width_name, (width, ways) in widths.items():
        if ways > 1 and (width % ways or width // ways % model.fp8_block):
            return (
                f"{width_name}, {width}, split {ways} ways is {width // ways}, which cuts the FP8 blocks of "
                f"{model.fp8_block}: fewer ways, or expert parallelism"
            )
    return ""


def _count_expert_parts(split: Split) -> int:
    """Return into how many parts an expert is split: over the ways of all copies of the attention layers."""
    return 1 if split.whole_experts else split.expert_ranks


def _has_whole_shared_experts(model: Architecture, split: Split) -> bool:
    is_spread = split.whole_experts and split.tensor > 1 and split.data > 1
    return is_spread and model.kind not in _KINDS["split-shared-experts"]


def describe_misfit(model: Model, device: Accelerators, context: int, split: Split) -> str:
    """Return why these accelerators do not run the model, whatever its memory, as a sentence; empty where they do."""
    if split.tensor > count_ranks(device):
        return f"one instance has {count_ranks(device)}, not {split.tensor}"
    return describe_long_context(model, context) or describe_missing_kernels(model, device.name)


def _describe_missing_bf16(model: Architecture, device: Accelerators) -> str:
    if device.name == _WITHOUT_BF16 and (model.kind in _KINDS["without-fp16"] or model.quantization == _BF16_WEIGHTS):
        return f"it needs BF16, which {device.name} lacks"
    return ""


def _describe_narrow_cache(model: Architecture, device: Accelerators, dtype: str) -> str:
    """Return why no cache in 8 bits runs on these accelerators, as a sentence; empty where one does, or has 16."""
    if dtype != "fp8" or not lacks_fp8(device) or not (model.latent or model.kind in _KINDS["triton-attention"]):
        return ""
    return f"no kernel of its attention reads a cache in 8 bits on {device.name}: it needs kv_cache: auto"


def lacks_fp8(device: Accelerators) -> bool:
    """Return whether these are GPUs that compute in 16 bits at the least, such as A100 and A10G."""
    return device.kind == "gpu" and "fp8" not in device.dense_tflops


def _cuts_blocks_of_experts(model: Architecture, parts: int) -> bool:
    """Return whether vLLM gives parts of an expert smaller blocks of FP8 scales, so that it may be split within one."""
    width, remainder = divmod(model.expert_intermediate, parts)
    return model.fp8_block > 0 and remainder == 0 and math.gcd(model.fp8_block, width, model.hidden) >= _LEAST_BLOCK


def describe_missing_kernels(model: Model, device: str) -> str:
    """Return why the model's attention does not run on such processors, as a sentence; empty where it does."""
    if device.startswith(_SPARSE_DEVICES) or not (model.compressed or has_sparse_vectors(model)):
        return ""
    return f"no kernel of its sparse attention runs on {device}, only on Hopper and Blackwell GPUs"


def has_sparse_vectors(model: Architecture) -> bool:
    """Return whether an indexer picks of the compressed vectors of earlier tokens, as in DeepSeek V3.2 and GLM-5."""
    return model.latent is not None and model.index_bytes > 0


def select_cache_type(model: Architecture, device: Accelerators, dtype: str) -> str:
    """Return how a token is stored on these accelerators, as `compute_kv_layer_bytes` takes it.

    Sparse attention over compressed vectors has its 8 bits without scales on Blackwell, and no other than 8 bits, with
    scales, on RTX PRO.
    Source: vLLM 0.32.0, v1/attention/backends/mla/flashinfer_mla_sparse.py.
    """
    if not has_sparse_vectors(model) or dtype not in ("auto", "fp8"):
        return dtype
    if device.name.startswith(BLACKWELL):
        return "fp8_e4m3" if "fp8" in (dtype, model.cache_type) or model.kind in _KINDS["narrow-cache"] else dtype
    return "fp8" if device.name.startswith("RTX PRO") else dtype


def _describe_broken_draft(model: Model, setup: ReplicaSetup) -> str:
    """Return why the draft cannot be beside the model, or be split as it is, as a sentence; empty where it can."""
    if setup.draft is None:
        return ""
    if model.compressed:
        return f"the cache of a draft model, {setup.draft.name}, is not known beside DeepSeek V4's"
    reason = describe_indivisible(setup.draft, setup)
    return f"of the draft model {setup.draft.name}, {reason}" if reason else ""


def _describe_cache_shortage(model: Model, device: Accelerators, cache: int) -> str:
    if device.kind != "neuron" or model.encoder or cache >= _NEURON_MIN_CACHE_BYTES:
        return ""
    return f"{format_bytes(cache)} are left for the cache of a NeuronCore, and the engine ends below 1 GiB"


def _compute_group_bytes(
    model: Architecture, group: TensorGroup, setup: ReplicaSetup, device: Accelerators | None
) -> float:
    if group.name == EXPERTS:
        return _compute_expert_bytes(model, group, setup, device)
    if group.name in _SHARED_EXPERTS and _has_whole_shared_experts(model, setup):
        return group.bytes
    return group.bytes / _count_parts(model, group.split, setup.tensor)


def _compute_expert_bytes(
    model: Architecture, group: TensorGroup, setup: ReplicaSetup, device: Accelerators | None
) -> float:
    parts, count = _count_expert_parts(setup), model.experts
    if setup.whole_experts:
        count = divide_up(model.experts + setup.spare_experts, setup.expert_ranks)
    if model.quantization == "mxfp4":
        # vLLM's kernels take widths in steps: the hidden one of 256, the expert's of 128 after the split (vLLM 0.32.0,
        # fused_moe/oracle/mxfp4.py, Marlin and TensorRT-LLM). gpt-oss-20b then takes 13.7 GiB, not 12.8.
        width = divide_up(divide_up(model.expert_intermediate, parts), 128) * 128
        hidden = divide_up(model.hidden, 256) * 256
        matrices = group.parameters // (model.expert_intermediate * model.hidden)
        return matrices * count / model.experts * MXFP4.compute_bytes(hidden, width)
    return group.bytes * count / model.experts / parts * _compute_padding(model, parts, device)


def _compute_padding(model: Architecture, parts: int, device: Accelerators | None) -> float:
    if device is None or not device.name.startswith(BLACKWELL):
        return 1
    if model.scheme is not None or model.kind in _KINDS["unpadded"]:
        return 1
    width = divide_up(model.expert_intermediate, parts)
    return divide_up(width, _PADDED_WIDTH) * _PADDED_WIDTH / width


def _count_parts(model: Architecture, split: TensorSplit, tensor_parallel: int) -> int:
    parts = {"even": tensor_parallel, "kv": min(tensor_parallel, model.kv_heads), "none": 1}
    return parts.get(split) or min(tensor_parallel, model.full_heads[0])
