"""Memory of a replica: known answers, what vLLM reported on real machines, and properties of the arithmetic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.catalog import config_json, engines, families, instances, models, quantizations
from llm_serving.catalog.architecture import EXPERTS, Architecture, ModelError, UnknownMemoryError
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory, sglang, vllm, vllm_blocks
from llm_serving.engines.memory import ReplicaSetup, Split

CATALOG = sorted(models.load())


def _build_config(
    kind: str, layers: int, hidden: int, width: int, heads: int, kv: int, vocabulary: int, **extra: Any
) -> Any:
    config = {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    return config_json.parse(config | extra, "test")


LLAMA_8B = _build_config("llama", 32, 4096, 14336, 32, 8, 128256)
QWEN2_7B = _build_config("qwen2", 28, 3584, 18944, 28, 4, 152064)
QWEN2_72B = _build_config("qwen2", 80, 8192, 29568, 64, 8, 152064)
CODELLAMA_7B = _build_config("llama", 32, 4096, 11008, 32, 32, 32016)
MIXTRAL = _build_config("mixtral", 32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2)
DEEPSEEK_V2_LITE = _build_config(
    "deepseek_v2",
    27,
    2048,
    10944,
    16,
    16,
    102400,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
)

LLAMA_70B, MISTRAL_SMALL = (
    models.find("meta-llama/Llama-3.3-70B-Instruct"),
    models.find("mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
)


def _build_compressed(form: str, kind: str, inputs: Any) -> Any:
    weights = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FP8_DYNAMIC = _build_compressed("float-quantized", "float", {"num_bits": 8, "type": "float", "dynamic": True})
W8A8 = _build_compressed("int-quantized", "int", {"num_bits": 8, "type": "int", "dynamic": True})
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}


def _quantize(model: Architecture, settings: Any) -> Architecture:
    return model.model_copy(update={"scheme": quantizations.parse(settings)})


MEASURED_BATCH = memory.Batch(tokens=8192, sequences=1024)

# What vLLM 0.19.0 logged on H100: weights, then activations + libraries + CUDA graphs, then the cache, in GiB, and the
# tokens of the cache at 8,192 tokens a request. Source: llm-d-planner, accuracy/results/v0.19.0/results_raw.csv, commit
# 30ec05f, 2026-04.
MEASURED = [
    ("CodeLlama-7b", CODELLAMA_7B, 1, 12.56, 0.77 + 0.25 + 0.89, 61.66, 126_256),
    ("Llama-3.1-8B", LLAMA_8B, 1, 14.99, 1.89 + 0.25 + 0.91, 58.11, 476_016),
    ("Llama-3.1-8B", LLAMA_8B, 2, 7.51, 1.89 + 2.07 + 0.76, 63.76, 1_044_688),
    ("Llama-3.1-8B", LLAMA_8B, 4, 3.77, 1.89 + 2.13 + 0.67, 67.44, 2_209_792),
    ("Qwen2.5-7B", QWEN2_7B, 1, 14.25, 2.21 + 0.24 + 0.87, 58.53, 1_096_000),
    ("Qwen2.5-7B", QWEN2_7B, 2, 7.12, 2.21 + 2.06 + 0.71, 63.84, 2_390_592),
    ("Qwen2.5-7B", QWEN2_7B, 4, 3.55, 2.21 + 2.13 + 0.64, 67.34, 5_043_280),
    ("Qwen2.5-72B", QWEN2_72B, 2, 67.80, 2.29 + 2.09 + 1.61, 3.04, 19_920),
    ("Qwen3-8B", models.find("Qwen/Qwen3-8B"), 1, 15.27, 2.21 + 0.25 + 0.96, 57.50, 418_688),
    ("Qwen3-30B-A3B", models.find("Qwen/Qwen3-30B-A3B"), 1, 56.88, 2.68 + 0.27 + 1.41, 15.41, 168_288),
    ("gpt-oss-20b", models.find("openai/gpt-oss-20b"), 1, 13.64, 2.87 + 0.25 + 1.84, 58.47, 1_277_184),
    ("DeepSeek-V2-Lite", DEEPSEEK_V2_LITE, 1, 29.43, 1.93 + 0.26 + 1.57, 43.61, 1_505_552),
    ("Mixtral-8x7B", MIXTRAL, 2, 43.51, 1.21 + 2.07 + 0.93, 28.44, 465_936),
    ("gemma-3-4b", models.find("google/gemma-3-4b-it"), 1, 8.58, 3.89 + 0.25 + 0.67, 62.51, 468_144),
    ("gemma-3-12b", models.find("google/gemma-3-12b-it"), 1, 23.31, 3.94 + 0.25 + 0.94, 47.72, 130_304),
    ("gemma-3-27b", models.find("google/gemma-3-27b-it"), 1, 51.45, 3.99 + 0.26 + 1.14, 19.53, 36_560),
    (
        "granite-3.3-8b",
        models.find("ibm-granite/granite-3.3-8b-instruct"),
        1,
        15.25,
        0.85 + 0.46 + 0.98,
        58.66,
        384_432,
    ),
    ("phi-4", models.find("microsoft/phi-4"), 1, 27.39, 1.52 + 0.25 + 1.07, 46.08, 241_568),
    ("Mistral-Small-3.1", MISTRAL_SMALL, 1, 44.76, 2.03 + 0.25 + 1.06, 28.19, 184_752),
    # Quantized checkpoints: compressed-tensors in 8 bits of either type, and GPTQ.
    ("Llama-3.3-70B-FP8", _quantize(LLAMA_70B, FP8_DYNAMIC), 2, 33.88, 1.96 + 2.1 + 1.79, 37.28, 244_304),
    ("Llama-3.3-70B-FP8", _quantize(LLAMA_70B, FP8_DYNAMIC), 4, 16.96, 1.97 + 2.21 + 1.66, 54.09, 708_992),
    ("Llama-3.3-70B-W8A8", _quantize(LLAMA_70B, W8A8), 2, 33.88, 1.96 + 2.11 + 1.85, 37.28, 244_304),
    ("Qwen2.5-7B-FP8", _quantize(QWEN2_7B, FP8_DYNAMIC), 1, 8.14, 2.21 + 0.24 + 0.81, 64.64, 1_210_304),
    ("Qwen2.5-7B-W8A8", _quantize(QWEN2_7B, W8A8), 1, 8.14, 2.21 + 0.25 + 0.88, 64.64, 1_210_272),
    ("Llama-3.1-8B-W8A8", _quantize(LLAMA_8B, W8A8), 1, 8.49, 1.89 + 0.25 + 0.94, 64.60, 529_200),
    ("Llama-3.1-8B-W4A16", _quantize(LLAMA_8B, GPTQ), 1, 5.38, 1.89 + 0.25 + 0.96, 67.71, 554_704),
    ("Mistral-Small-3.1-W8A8", _quantize(MISTRAL_SMALL, W8A8), 1, 24.07, 2.18 + 0.26 + 1.22, 48.73, 319_344),
    ("Mistral-Small-3.1-W8A8", _quantize(MISTRAL_SMALL, W8A8), 2, 12.11, 2.03 + 2.07 + 1.03, 59.02, 773_584),
]
measured = pytest.mark.parametrize(
    ("model", "ways", "weights", "reserve", "cache", "tokens"),
    [pytest.param(*row[1:], id=f"{row[0]}-tp{row[2]}") for row in MEASURED],
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-32B", 64 * 8 * 128 * 2 * 2),  # 262,144
        ("deepseek-ai/DeepSeek-V3", (512 + 64) * 61 * 2),  # 70,272
        ("meta-llama/Llama-3.3-70B-Instruct", 80 * 8 * 128 * 2 * 2),
        ("Qwen/Qwen3-235B-A22B-FP8", 94 * 4 * 128 * 2 * 2),
        ("openai/gpt-oss-120b", 36 * 8 * 64 * 2 * 2),
        ("Qwen/Qwen3.5-35B-A3B", 10 * 2 * 256 * 2 * 2),  # a quarter of the layers
        ("google/gemma-4-31B-it", (50 * 16 * 256 + 10 * 4 * 512) * 2 * 2),  # layers with a window, and without
        ("XiaomiMiMo/MiMo-V2-Flash", (39 * 8 + 9 * 4) * (192 + 128) * 2),  # narrower values than keys
        ("MiniMaxAI/MiniMax-M3", 60 * 4 * 128 * 2 * 2 + 57 * 128 * 2),  # all but three layers have an indexer
        ("deepseek-ai/DeepSeek-V4-Flash", 21 * (584 + 132) // 4 + 92),  # 20 * 584 / 128
        ("zai-org/GLM-5", 78 * ((512 + 64) * 2 + 132)),
        ("zai-org/GLM-5.2", 78 * (512 + 64) * 2 + 21 * 132),  # a quarter of the layers have an indexer
        ("tiny", 2048),
        ("mid", 114_688),
        ("BAAI/bge-reranker-v2-m3", 0),
    ],
)
def test_the_bytes_of_a_token_match_the_architecture(name: str, expected: int) -> None:
    assert memory.compute_kv_bytes_per_token(models.find(name)) == expected


def test_a_cache_in_fp8_takes_half_the_memory() -> None:
    model = models.find("Qwen/Qwen3-32B")
    assert memory.compute_kv_bytes_per_token(model, dtype="fp8") * 2 == memory.compute_kv_bytes_per_token(model)


def test_sparse_attention_keeps_scales_and_positions_beside_a_cache_in_fp8() -> None:
    sparse, dense = models.load()["deepseek-ai/DeepSeek-V3.2"], models.load()["deepseek-ai/DeepSeek-V3"]
    assert memory.compute_kv_bytes_per_token(sparse, dtype="fp8") == 61 * (656 + 132)
    assert memory.compute_kv_bytes_per_token(dense, dtype="fp8") == 61 * 576


@pytest.mark.parametrize(
    ("name", "instance", "dtype", "bytes_per_layer"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "p5en.48xlarge", "auto", 1152),
        ("deepseek-ai/DeepSeek-V3.2", "p5en.48xlarge", "fp8", 656),
        ("deepseek-ai/DeepSeek-V3.2", "p6-b200.48xlarge", "auto", 1152),
        ("deepseek-ai/DeepSeek-V3.2", "p6-b200.48xlarge", "fp8", 576),
        ("deepseek-ai/DeepSeek-V3.2", "g7e.48xlarge", "auto", 656),
        ("zai-org/GLM-5-FP8", "p5en.48xlarge", "auto", 1152),
        ("zai-org/GLM-5-FP8", "p6-b300.48xlarge", "auto", 576),
    ],
)
def test_the_cache_of_sparse_attention_is_that_of_the_gpu(
    name: str, instance: str, dtype: str, bytes_per_layer: int
) -> None:
    """What vLLM 0.32.0's own layers ask for, built for a GPU of each kind."""
    model, machine = _cut_to_four_layers(models.find(name)), instances.load()[instance]
    fit = vllm.compute_fit(model, machine, ReplicaSetup(8, context=8192, dtype=dtype))
    assert fit.cache_tokens == pytest.approx(fit.cache_bytes / (4 * (bytes_per_layer + 132)), rel=1e-3)


def test_a_cache_in_8_bits_is_refused_where_no_kernel_of_the_attention_reads_it() -> None:
    """vLLM ends there with "FP8 KV cache is not supported by the Triton attention backend"."""
    setup = ReplicaSetup(8, context=2048, dtype="fp8")
    reasons = {
        (name, kind): vllm.compute_fit(models.find(name), instances.load()[kind], setup).why
        for name in ("openai/gpt-oss-20b", "Qwen/Qwen3-14B")
        for kind in ("p4d.24xlarge", "g6e.48xlarge")
    }
    reason = "no kernel of its attention reads a cache in 8 bits on A100: it needs kv_cache: auto"
    assert {pair for pair, text in reasons.items() if text} == {("openai/gpt-oss-20b", "p4d.24xlarge")}
    assert reasons["openai/gpt-oss-20b", "p4d.24xlarge"] == reason


def test_the_indexer_beside_keys_and_values_is_whole_and_in_16_bits_on_each_accelerator() -> None:
    model = models.find("MiniMaxAI/MiniMax-M3")
    assert memory.compute_kv_bytes_per_token(model, 4) == 60 * 128 * 2 * 2 + 57 * 128 * 2
    assert memory.compute_kv_bytes_per_token(model, 4, "fp8") == 60 * 128 * 2 + 57 * 128 * 2


def test_a_request_takes_whole_blocks_of_those_that_sparse_attention_picks_by() -> None:
    model = models.find("MiniMaxAI/MiniMax-M3")
    block_bytes = 128 * memory.compute_kv_bytes_per_token(model)
    assert vllm_blocks.count_cache_blocks(model, 10 * block_bytes, ReplicaSetup(context=129)).tokens == 5 * 129
    assert vllm_blocks.count_cache_blocks(model, 10 * block_bytes, ReplicaSetup(context=128)).tokens == 10 * 128


def test_experts_of_deepseek_v4_are_in_4_bits_unless_its_config_says_8() -> None:
    config = dict(models.read_config("deepseek-ai/DeepSeek-V4-Flash"))
    numbers = 43 * 256 * 3 * 2048 * 4096
    for kind, expected in (("fp4", numbers / 2 + numbers / 32), ("fp8", numbers + numbers / 128**2 * 4)):
        model = config_json.parse({**config, "expert_dtype": kind}, "made up")
        assert sum(group.bytes for group in model.list_tensors() if group.name == "experts") == expected
    plain = config_json.parse({**config, "quantization_config": None}, "made up")
    assert sum(group.bytes for group in plain.list_tensors() if group.name == "experts") == 2 * numbers


def _cut_to_four_layers(model: Model) -> Model:
    """Return a model that fits into each GPU."""
    return model.model_copy(update={"layers": 4, "indexed_layers": 4, "dense_layers": 3})


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V3.2"])
def test_sparse_attention_runs_on_gpus_for_which_it_has_kernels(name: str) -> None:
    model, regions = models.find(name), instances.load()
    if not model.compressed:
        model = _cut_to_four_layers(model)
    reasons = {
        name: vllm.compute_fit(model, regions[name], ReplicaSetup(8, context=8192)).why
        for name in (
            "p5.48xlarge",
            "p5en.48xlarge",
            "p6-b200.48xlarge",
            "g7e.48xlarge",
            "p4de.24xlarge",
            "g6e.48xlarge",
        )
    }
    missing = "no kernel of its sparse attention runs on {}, only on Hopper and Blackwell GPUs"
    assert list(reasons.values()) == ["", "", "", "", missing.format("A100"), missing.format("L40S")]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openai/gpt-oss-20b", "it needs BF16, which T4 lacks"),
        ("google/gemma-3-4b-it", "it needs BF16, which T4 lacks"),
        ("Qwen/Qwen3-4B", ""),
    ],
)
def test_what_vllm_runs_in_bf16_only_is_refused_on_t4(name: str, why: str) -> None:
    t4, a10g = (instances.load()[kind] for kind in ("g4dn.12xlarge", "g5.12xlarge"))
    fits = [vllm.compute_fit(models.find(name), kind, ReplicaSetup(4, context=8192)) for kind in (t4, a10g)]
    assert [fit.why for fit in fits] == [why, ""]


def test_deepseek_v4_beside_a_draft_is_refused() -> None:
    model, p5 = models.find("deepseek-ai/DeepSeek-V4-Flash"), instances.load()["p5.48xlarge"]
    fit = vllm.compute_fit(model, p5, ReplicaSetup(8, context=8192, draft=models.find("tiny")))
    assert fit.why == "the cache of a draft model, tiny, is not known beside DeepSeek V4's"


def test_sglang_counts_windows_for_a_tenth_of_deepseek_v4_s_tokens() -> None:
    """7,705.45 bytes a token are what its DSV4PoolConfigurator computes for Flash by default."""
    model, p5 = models.find("deepseek-ai/DeepSeek-V4-Flash"), instances.load()["p5.48xlarge"]
    fits = [
        sglang.compute_fit(model, p5, ReplicaSetup(8, context=8192, batch=memory.Batch(tokens=8192, sequences=count)))
        for count in (256, sglang.SEQUENCES, 512)
    ]
    states = [rows * 2 * 512 * 4 * 20 for rows in (259 * 128, 259 * 128, 515 * 128)]
    for fit, state in zip(fits, states, strict=True):
        assert fit.cache_tokens == pytest.approx((fit.cache_bytes - state) / 7705.45, rel=2e-4)
    assert fits[0].cache_tokens > fits[2].cache_tokens
    a100 = sglang.compute_fit(model, instances.load()["p4de.24xlarge"], ReplicaSetup(8, context=8192))
    assert a100.why.startswith("no kernel of its sparse attention runs on A100")


@pytest.mark.parametrize("other", [{"compress_ratios": [2] * 44}, {"vision_n_layers": 24}])
def test_a_deepseek_v4_of_another_kind_is_refused(other: dict[str, Any]) -> None:
    config = dict(models.read_config("deepseek-ai/DeepSeek-V4-Flash"))
    with pytest.raises(ModelError):
        config_json.parse({**config, **other}, "made up")


def test_layers_of_deepseek_v4_may_be_told_by_names() -> None:
    config = dict(models.read_config("deepseek-ai/DeepSeek-V4-Flash"))
    kinds = ["sliding_attention"] * 2 + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
    named = {**config, "compress_ratios": None, "layer_types": [*kinds, "compressed_sparse_attention"]}
    model = config_json.parse(named, "made up")
    assert (model.sliding_layers, model.indexed_layers, model.full_layers) == (2, 21, 41)


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_a_model_of_one_kind_of_compression_has_tokens(ratio: int) -> None:
    config = dict(models.read_config("deepseek-ai/DeepSeek-V4-Flash"))
    model = config_json.parse({**config, "compress_ratios": [ratio] * 44}, "made up")
    assert vllm_blocks.count_cache_blocks(model, 20 * memory.GIB, ReplicaSetup(context=8192)).tokens > 8192


def test_a_stage_of_deepseek_v4_has_its_share_of_each_kind_of_layers() -> None:
    stage = memory.select_stage(models.find("deepseek-ai/DeepSeek-V4-Flash"), 2)
    assert (stage.layers, stage.sliding_layers, stage.indexed_layers) == (22, 1, 11)


def test_heads_are_split_until_each_accelerator_has_one() -> None:
    model = models.find("Qwen/Qwen3-235B-A22B")  # 4 key and value heads
    assert [memory.compute_kv_bytes_per_token(model, tensor_parallel) for tensor_parallel in (1, 2, 4, 8, 16)] == [
        192512,
        96256,
        48128,
        48128,
        48128,
    ]


def test_weights_of_layers_with_fewer_heads_are_split_into_fewer_parts() -> None:
    mimo = models.find("XiaomiMiMo/MiMo-V2-Flash")
    parts = {"even": 8, "kv": 8, "full-kv": 4, "none": 1}
    expected = sum(group.bytes / parts[group.split] for group in mimo.list_tensors())
    assert vllm.compute_weight_bytes(mimo, ReplicaSetup(8)) == round(expected) + 2 * mimo.rotary_numbers
    assert {group.name for group in mimo.list_tensors() if group.split == "full-kv"} == {"key", "value"}


def test_a_state_has_the_type_that_the_model_names() -> None:
    convolution, heads = 3 * (2 * 16 * 128 + 32 * 128), 32 * 128 * 128
    for name, number_bytes in (("Qwen/Qwen3.5-35B-A3B", 4), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2)):
        assert memory.compute_state_bytes(models.find(name)) == 2 * convolution + number_bytes * heads
    nemotron = models.find("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert memory.compute_state_bytes(nemotron) == 2 * 3 * (64 * 64 + 2 * 8 * 128) + 4 * 64 * 64 * 128


def test_a_model_whose_layers_have_one_part_each_caches_in_those_of_attention() -> None:
    nemotron = models.find("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert (nemotron.layers, nemotron.full_layers, nemotron.linear_layers, nemotron.sparse_layers) == (52, 6, 23, 23)
    assert memory.compute_kv_bytes_per_token(nemotron) == 6 * 2 * 128 * 2 * 2
    stage = memory.select_stage(nemotron, 2)
    assert (stage.full_layers, stage.linear_layers, stage.sparse_layers) == (3, 11, 12)


@pytest.mark.parametrize(
    ("settings", "number_bytes"),
    # As in the files of nvidia/Kimi-K2.5-NVFP4, nvidia/GLM-5-NVFP4 and nvidia/MiniMax-M3-NVFP4; the last is of none.
    [
        ({"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, 1),
        ({"kv_cache_quant_algo": "FP8"}, 1),
        ({"kv_cache_quant_algo": None}, 2),
        ({"kv_cache_scheme": {"dynamic": True, "num_bits": 8, "type": "float"}}, 2),
    ],
)
def test_a_checkpoint_with_scales_for_it_has_its_cache_in_8_bits_unless_another_type_is_chosen(
    settings: dict[str, Any], number_bytes: int
) -> None:
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4", **settings}
    model = _build_config("llama", 32, 4096, 14336, 32, 8, 128256, quantization_config=settings)
    assert memory.compute_kv_bytes_per_token(model) == 32 * 8 * 128 * 2 * number_bytes
    assert memory.compute_kv_bytes_per_token(model, dtype="bfloat16") == 32 * 8 * 128 * 2 * 2
    assert memory.compute_kv_bytes_per_token(model, dtype="fp8") == 32 * 8 * 128 * 2


def test_latent_attention_is_replicated_on_each_accelerator() -> None:
    model = models.find("deepseek-ai/DeepSeek-V3")
    assert memory.compute_kv_bytes_per_token(model, 8) == memory.compute_kv_bytes_per_token(model, 1) == 70272


@measured
def test_weights_match_vllms_measurements(
    model: Architecture, ways: int, weights: float, reserve: float, cache: float, tokens: int
) -> None:
    assert vllm.compute_weight_bytes(model, ReplicaSetup(ways)) / memory.GIB == pytest.approx(weights, abs=0.1)


@measured
def test_the_reserve_matches_vllms_measurement(
    model: Architecture, ways: int, weights: float, reserve: float, cache: float, tokens: int
) -> None:
    assert vllm.compute_reserve_bytes(model, MEASURED_BATCH, ways) / memory.GIB == pytest.approx(reserve, abs=0.52)


@measured
def test_cache_tokens_match_vllms_report(
    model: Architecture, ways: int, weights: float, reserve: float, cache: float, tokens: int
) -> None:
    # The log gives the cache in hundredths of a GiB, which is up to 0.16% of the smallest.
    computed = vllm_blocks.count_cache_blocks(model, int(cache * memory.GIB), ReplicaSetup(ways, context=8192)).tokens
    assert computed == pytest.approx(tokens, rel=0.002)


@pytest.mark.parametrize(
    ("name", "weights", "tokens", "computed"),
    [("Qwen/Qwen3-8B", 15.27, 794_016, 788_240), ("Qwen/Qwen3-32B", 61.03, 257_856, 250_864)],
)
def test_a_newer_vllm_on_an_h200_has_the_cache_that_is_computed_and_up_to_3_percent_more(
    name: str, weights: float, tokens: int, computed: int
) -> None:
    # What vLLM 0.25.1 logged on one H200, started by this project with random weights, `--max-num-seqs 256` and
    # `--gpu-memory-utilization 0.9`, 2026-11-26.
    batch = memory.Batch(tokens=8192, sequences=256)
    instance = instances.load()["p5en.48xlarge"]
    fit = vllm.compute_fit(models.find(name), instance, ReplicaSetup(1, context=8192, utilization=0.9, batch=batch))
    assert fit.weight_bytes / memory.GIB == pytest.approx(weights, abs=0.01)
    assert fit.cache_tokens == computed
    assert 0.97 * tokens <= fit.cache_tokens <= tokens
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"{tokens:,}" in page
    assert f"{computed:,}" in page


@pytest.mark.parametrize(("name", "tokens"), [("Qwen/Qwen3-8B", 770_288), ("Qwen/Qwen3-14B", 607_744)])
def test_the_pinned_vllm_on_an_h200_has_the_cache_that_is_computed_within_1_percent(name: str, tokens: int) -> None:
    # What vLLM 0.32.0 with torch 2.11 logged on one H200, started by this project's rendered command of two models that
    # share it, with random weights, 2026-11-28.
    instance = instances.load()["p5en.48xlarge"]
    fit = vllm.compute_fit(models.find(name), instance, ReplicaSetup(1, context=8000, utilization=0.888))
    assert fit.cache_tokens == pytest.approx(tokens, rel=0.01)
    assert f"{tokens:,}" in (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_page_on_models_shows_these_starts_and_no_others() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [_format_start(*row) for row in MEASURED]
    assert [line for line in page.splitlines() if line.startswith("| H100 ")] == rows


def test_the_page_on_models_says_of_every_other_family_that_no_start_was_found() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    notes = [line for line in page.splitlines() if line.startswith("| none found |")]
    without_start = set(families.load()) - {model.kind for _, model, *_ in MEASURED} - {"gguf"}
    assert {name for note in notes for name in re.findall(r"`(\w+[-\w]*)`", note)} == without_start


def _format_start(
    name: str, model: Architecture, ways: int, weights: float, reserve: float, cache: float, tokens: int
) -> str:
    computed_tokens = vllm_blocks.count_cache_blocks(
        model, int(cache * memory.GIB), ReplicaSetup(ways, context=8192)
    ).tokens
    cells = (
        f"H100 x {ways}",
        name,
        f"{weights:.2f}",
        f"{vllm.compute_weight_bytes(model, ReplicaSetup(ways)) / memory.GIB:.2f}",
        f"{reserve:.2f}",
        f"{vllm.compute_reserve_bytes(model, MEASURED_BATCH, ways) / memory.GIB:.2f}",
        f"{tokens:,}",
        f"{computed_tokens:,}",
    )
    return f"| {' | '.join(cells)} |"


def test_weights_split_over_four_gpus_match_vllms_load() -> None:
    # "Model loading took 14.2474 GiB" for Qwen3-30B-A3B over 4 GPUs. Source: vllm-project/vllm#17327, 2025-04-29.
    assert vllm.compute_weight_bytes(models.find("Qwen/Qwen3-30B-A3B"), ReplicaSetup(4)) / memory.GIB == pytest.approx(
        14.2474, abs=0.02
    )


def test_padded_experts_match_vllms_load() -> None:
    # "Model loading took 65.9651 GiB" for gpt-oss-120b on one H100. Source: vllm-project/vllm#23278, 2025-08-20.
    model = models.find("openai/gpt-oss-120b")
    assert vllm.compute_weight_bytes(model, ReplicaSetup()) / memory.GIB == pytest.approx(65.97, abs=0.1)
    assert model.weight_bytes / memory.GIB == pytest.approx(60.77, abs=0.01)  # the checkpoint alone would mislead


def test_the_layer_for_multi_token_prediction_is_stored_and_not_loaded() -> None:
    model = models.find("deepseek-ai/DeepSeek-V3")
    assert vllm.compute_weight_bytes(model, ReplicaSetup()) < model.weight_bytes


@pytest.mark.parametrize(
    ("name", "context", "ways", "tokens"),
    # vLLM 0.32.0 on CPU with VLLM_CPU_KVCACHE_SPACE=1, --max-model-len and --tensor-parallel-size as here, 2026-11-21.
    [("tiny", 2048, 1, 524_288), ("mid", 2048, 1, 9_344), ("mid", 3000, 1, 9_125), ("tiny", 3000, 2, 1_024_000)],
)
def test_a_gibibyte_of_cache_fits_as_many_tokens_as_vllm_on_cpu_reports(
    name: str, context: int, ways: int, tokens: int
) -> None:
    model, block = models.find(name), engines.load_engines()["vllm"].platforms["cpu"].kv_block
    assert (
        vllm_blocks.count_cache_blocks(model, memory.GIB, ReplicaSetup(ways, context=context), block).tokens == tokens
    )


def test_a_cache_with_a_draft_fits_as_many_tokens_as_vllm_on_cpu_reports() -> None:
    """vLLM 0.32.0 with --max-model-len 2048, --kv-cache-memory-bytes 67108864 and itself as draft_model, 2026-11-27."""
    tiny, block = models.find("tiny"), engines.load_engines()["vllm"].platforms["cpu"].kv_block
    assert vllm_blocks.count_cache_blocks(tiny, 2**26, ReplicaSetup(context=2048, draft=tiny), block).tokens == 16_384
    assert vllm_blocks.count_cache_blocks(tiny, 2**26, ReplicaSetup(context=2048), block).tokens == 32_768


DRAFT = models.find("Qwen/Qwen3-0.6B")
"""28 layers, 16 heads, 8 of them of keys and values, of 128 numbers each."""


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
def test_a_draft_has_its_weights_and_its_layers_of_each_block_on_every_accelerator(ways: int) -> None:
    model, instance = models.find("Qwen/Qwen3-32B"), instances.find("p5.48xlarge")
    alone = vllm.compute_fit(model, instance, ReplicaSetup(ways, context=8192))
    fit = vllm.compute_fit(model, instance, ReplicaSetup(ways, context=8192, draft=DRAFT))
    # Embedding and layers are split, but for norms and tables of positions.
    assert fit.draft_bytes == pytest.approx(2 * 596_049_920 / ways, rel=0.08)
    assert fit.weight_bytes == alone.weight_bytes + fit.draft_bytes
    assert (fit.reserve_bytes, fit.cache_bytes) == (alone.reserve_bytes, alone.cache_bytes - fit.draft_bytes)
    block_bytes = 16 * (64 + 28) * 2 * (8 // ways) * 128 * 2  # of both models' layers, keys and values of 8 heads
    assert fit.cache_tokens == fit.cache_bytes // block_bytes * 16
    assert not fit.calibrated


def test_the_last_of_several_stages_has_a_draft_whole() -> None:
    model, instance = models.find("Qwen/Qwen3-32B"), instances.find("p5.48xlarge")
    staged = vllm.compute_fit(model, instance, ReplicaSetup(4, pipeline=2, context=8192, draft=DRAFT))
    assert staged.draft_bytes == vllm.compute_weight_bytes(DRAFT, ReplicaSetup(4))


def test_experts_are_spread_and_a_draft_without_any_is_split() -> None:
    model, spread = models.find("Qwen/Qwen3-30B-A3B"), ReplicaSetup(2, data=2, whole_experts=True, draft=DRAFT)
    assert vllm.compute_draft_bytes(spread) == vllm.compute_weight_bytes(DRAFT, ReplicaSetup(2))
    own_experts = ReplicaSetup(2, data=2, whole_experts=True, draft=model)
    without_draft = ReplicaSetup(2, data=2, whole_experts=True)
    assert vllm.compute_draft_bytes(own_experts) == vllm.compute_weight_bytes(model, without_draft)


def test_a_draft_that_vllm_cannot_split_as_the_model_does_not_fit() -> None:
    draft = DRAFT.model_copy(update={"heads": 14, "kv_heads": 2})
    model, instance = models.find("Qwen/Qwen3-32B"), instances.find("p5.48xlarge")
    fit = vllm.compute_fit(model, instance, ReplicaSetup(4, context=8192, draft=draft))
    assert fit.why == "of the draft model Qwen/Qwen3-0.6B, 14 attention heads do not divide by 4"


def test_a_draft_too_much_for_the_accelerator_is_named() -> None:
    model = models.find("Qwen/Qwen3-4B")
    fit = vllm.compute_fit(model, instances.find("g6e.xlarge"), ReplicaSetup(context=8192, draft=LARGE_DRAFT))
    assert fit.why.startswith("weights 73.6 GB, 65.5 GB of them the draft's, and reserve ")


LARGE_DRAFT = models.find("Qwen/Qwen3-32B")


def test_on_cpu_a_draft_counts_too() -> None:
    model, instance = models.find("Qwen/Qwen3-4B"), instances.find("m8i.4xlarge")
    alone, fit = (vllm.compute_fit(model, instance, ReplicaSetup(context=8192, draft=row)) for row in (None, DRAFT))
    copies = engines.load_engines()["vllm"].platforms["cpu"].weight_copies
    assert fit.cache_bytes == alone.cache_bytes - int(copies * vllm.compute_weight_bytes(DRAFT, ReplicaSetup()))
    load = memory.CpuLoad(8192, [1000] * 9, 32, 1, 64)
    token_bytes = [memory.compute_kv_bytes_per_token(row) for row in (model, DRAFT)]
    with_draft = vllm.compute_cpu_cache_bytes(model, load._replace(draft=DRAFT))
    assert with_draft == vllm.compute_cpu_cache_bytes(model, load) // token_bytes[0] * sum(token_bytes)


def test_a_sliding_window_limits_the_cache_of_long_requests() -> None:
    model = models.find("openai/gpt-oss-120b")
    full_attention = model.model_copy(update={"sliding_layers": 0})
    short_context, long_context = 8192, 131072
    cache_bytes = 20 * memory.GIB
    assert (
        vllm_blocks.count_cache_blocks(model, cache_bytes, ReplicaSetup(context=short_context)).tokens
        <= vllm_blocks.count_cache_blocks(full_attention, cache_bytes, ReplicaSetup(context=short_context)).tokens
    )
    assert (
        vllm_blocks.count_cache_blocks(model, cache_bytes, ReplicaSetup(context=long_context)).tokens
        > 1.7 * vllm_blocks.count_cache_blocks(full_attention, cache_bytes, ReplicaSetup(context=long_context)).tokens
    )


@pytest.mark.parametrize(
    ("name", "ways", "reason"),
    [
        ("Qwen/Qwen3-14B", 16, "40 attention heads do not divide by 16"),
        (
            "Qwen/Qwen3-235B-A22B-FP8",
            8,
            "an expert's width, 1536, split 8 ways is 192, which cuts the FP8 blocks of 128",
        ),
        (
            "deepseek-ai/DeepSeek-V3",
            32,
            "an expert's width, 2048, split 32 ways is 64, which cuts the FP8 blocks of 128",
        ),
    ],
)
def test_splits_that_engines_refuse_are_refused_with_the_reason(name: str, ways: int, reason: str) -> None:
    assert vllm.describe_indivisible(models.find(name), Split(ways), whole_blocks=True).startswith(reason)


def test_vllm_splits_experts_within_blocks_of_scales_on_gpus_that_compute_in_8_bits() -> None:
    """It gives each part smaller blocks; SGLang, and vLLM on an A100, start with an error."""
    model, setup = models.find("Qwen/Qwen3-235B-A22B-FP8"), ReplicaSetup(8, context=8192)
    cut = "an expert's width, 1536, split 8 ways is 192, which cuts the FP8 blocks of 128"
    assert vllm.compute_fit(model, instances.load()["p5.48xlarge"], setup).fits
    assert vllm.compute_fit(model, instances.load()["p4de.24xlarge"], setup).why.startswith(cut)
    assert sglang.compute_fit(model, instances.load()["p5.48xlarge"], setup).why.startswith(cut)


def test_shared_experts_are_split_by_whole_blocks_of_scales() -> None:
    config = {
        **models.read_config("Qwen/Qwen3-Next-80B-A3B-Instruct"),
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    model = config_json.parse(config, "made up")
    assert vllm.describe_indivisible(model, Split(4, whole_experts=True)) == ""
    assert vllm.describe_indivisible(model, Split(8, whole_experts=True)).startswith(
        "the shared experts' width, 512, split 8 ways is 64, which cuts the FP8 blocks of 128"
    )


@pytest.mark.parametrize(
    ("name", "ways", "width", "padded"),
    [
        ("zai-org/GLM-4.5-Air", 2, 704, 768),
        ("zai-org/GLM-4.5-Air", 1, 1408, 1408),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 1, 1856, 1920),
        ("google/gemma-4-26B-A4B-it", 1, 704, 704),  # the kernel lacks its activation
    ],
)
def test_experts_in_16_bits_are_padded_on_blackwell(name: str, ways: int, width: int, padded: int) -> None:
    """As vLLM 0.32.0's own layers are, built for a GPU of each kind."""
    model, setup = models.find(name), ReplicaSetup(ways)
    hopper, blackwell = (
        vllm.compute_weight_bytes(model, setup, instances.load()[kind].accelerators)
        for kind in ("p5.48xlarge", "p6-b200.48xlarge")
    )
    groups = [group for group in model.list_tensors() if group.name == EXPERTS and group.loaded]
    experts = sum(group.bytes for group in groups) / ways
    assert blackwell - hopper == pytest.approx(experts * (padded / width - 1), abs=2)


def test_a_checkpoint_in_32_bits_is_loaded_in_16() -> None:
    model = models.find("BAAI/bge-m3")
    assert model.dtype == "float32"
    assert vllm.compute_weight_bytes(model, ReplicaSetup()) == pytest.approx(model.weight_bytes / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "ways"),
    [("Qwen/Qwen3-235B-A22B-FP8", 4), ("Qwen/Qwen3-235B-A22B", 8), ("deepseek-ai/DeepSeek-V3", 16), ("mid", 8)],
)
def test_splits_that_vllm_accepts_are_accepted(name: str, ways: int) -> None:
    assert vllm.describe_indivisible(models.find(name), Split(ways)) == ""


def test_235_billion_parameters_in_fp8_fit_no_single_h200() -> None:
    fit = vllm.compute_fit(
        models.find("Qwen/Qwen3-235B-A22B-FP8"), instances.find("p5en.48xlarge"), ReplicaSetup(1, context=8192)
    )
    assert not fit.fits
    assert fit.cache_tokens == 0
    assert fit.why == "weights 236 GB and reserve 6.26 GB are 105 GB more than the 138 GB of one accelerator"


def test_a_cache_too_small_for_one_request_does_not_fit() -> None:
    fit = vllm.compute_fit(models.find("Qwen/Qwen3-32B"), instances.find("p5.48xlarge"), ReplicaSetup(1, context=40960))
    assert not fit.fits
    assert fit.why == f"the cache holds 31344 tokens, {40960 - 31344} short of one request of 40960"


def test_a_request_beyond_the_models_context_does_not_fit() -> None:
    fit = vllm.compute_fit(
        models.find("Qwen/Qwen3-32B"), instances.find("p5.48xlarge"), ReplicaSetup(8, context=100_000)
    )
    assert fit.why == "the model was made for 40960 tokens a request, not 100000"


def test_a_split_over_more_accelerators_than_the_machine_has_does_not_fit() -> None:
    assert (
        vllm.compute_fit(models.find("mid"), instances.find("g6e.12xlarge"), ReplicaSetup(8)).why
        == "one instance has 4, not 8"
    )


def test_an_encoder_needs_no_cache() -> None:
    fit = vllm.compute_fit(models.find("BAAI/bge-reranker-v2-m3"), instances.find("g6e.2xlarge"), ReplicaSetup(1))
    assert fit.fits
    assert fit.cache_tokens == 0


def test_neuron_is_split_by_cores_and_marked_uncalibrated() -> None:
    fit = vllm.compute_fit(
        models.find("Qwen/Qwen3-8B"), instances.find("trn2.48xlarge"), ReplicaSetup(32, context=8192)
    )
    assert fit.fits
    assert not fit.calibrated


@pytest.mark.parametrize(
    ("name", "ways", "changed", "calibrated"),
    [
        ("p5.48xlarge", 1, {}, True),
        ("p5.48xlarge", 4, {}, True),
        ("p5.48xlarge", 8, {}, False),
        ("p5.48xlarge", 4, {"pipeline": 2}, False),
        ("p5.48xlarge", 1, {"data": 8, "whole_experts": True}, False),
        ("p5en.48xlarge", 1, {}, False),
        ("g6e.12xlarge", 4, {}, False),
        ("p5.48xlarge", 1, {"batch": memory.Batch(tokens=16384, sequences=1024)}, False),
        ("p5.48xlarge", 1, {"dtype": "fp8"}, False),
    ],
)
def test_a_reserve_is_calibrated_where_it_was_measured(
    name: str, ways: int, changed: dict[str, Any], calibrated: bool
) -> None:
    fit = vllm.compute_fit(
        models.find("Qwen/Qwen3-30B-A3B"), instances.find(name), ReplicaSetup(ways, context=8192, **changed)
    )
    assert fit.calibrated is calibrated


@pytest.mark.parametrize(
    ("model", "calibrated"),
    [
        ("openai/gpt-oss-20b", True),
        ("Qwen/Qwen3-235B-A22B-FP8", False),
        ("nvidia/Qwen3-235B-A22B-NVFP4", False),
        ("BAAI/bge-reranker-v2-m3", False),
    ],
)
def test_a_reserve_is_calibrated_for_weights_that_were_measured(model: str, calibrated: bool) -> None:
    assert (
        vllm.compute_fit(models.find(model), instances.find("p5.48xlarge"), ReplicaSetup(1, context=512)).calibrated
        is calibrated
    )


def test_experts_over_data_parallel_ranks_need_buffers_for_the_batches_of_all() -> None:
    model, batch = models.find("deepseek-ai/DeepSeek-V3"), memory.Batch(tokens=8192, sequences=1024)
    alone = vllm.compute_reserve_bytes(model, batch)
    spread = vllm.compute_reserve_bytes(model, batch, 1, 16)
    gathered = 15 * 8192 * 7168 * 2
    assert spread - alone == pytest.approx(2 * gathered + 1.95 * memory.GIB, abs=1)
    dense = models.find("Qwen/Qwen3-8B")
    copies = vllm.compute_reserve_bytes(dense, batch, 1, 16)
    assert copies == vllm.compute_reserve_bytes(dense, batch), "copies of a model without experts exchange nothing"


def _build_405b(**quantization: Any) -> Architecture:
    extra = {"quantization_config": {"quant_method": "fbgemm_fp8", **quantization}}
    return _build_config("llama", 126, 16384, 53248, 128, 8, 128256, **extra)


PLAIN_MODULES = [
    *(f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(126) for name in "qkvo"),
    *(f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 125) for name in ("gate", "up", "down")),
    "lm_head",
]
"""Of meta-llama/Llama-3.1-405B-FP8: the attention of all layers, and the feed-forward part of the first and the last.

The form of the names is that of its config.json, as public tests of other projects quote it.
"""


def test_modules_that_a_checkpoint_does_not_quantize_keep_their_size() -> None:
    plain, quantized = _build_405b(modules_to_not_convert=PLAIN_MODULES), _build_405b()
    assert _list_spared(plain) == {"query": 126, "key": 126, "value": 126, "attention output": 126, "feed-forward": 2}
    assert plain.parameters == quantized.parameters
    attention, feed_forward = 126 * 2 * (16384**2 + 1024 * 16384), 2 * 3 * 16384 * 53248
    difference = vllm.compute_weight_bytes(plain, ReplicaSetup(8)) - vllm.compute_weight_bytes(
        quantized, ReplicaSetup(8)
    )
    assert difference == pytest.approx((attention + feed_forward) / 8, rel=0.001)
    assert difference == pytest.approx(9.64e9, rel=0.001), "on each of eight accelerators"


def test_a_part_that_is_spared_without_a_layers_number_is_spared_in_all() -> None:
    assert _list_spared(_build_405b(modules_to_not_convert=["self_attn", "lm_head"]))["query"] == 126
    assert _list_spared(_build_405b(modules_to_not_convert=["lm_head"])) == {}


@pytest.mark.parametrize(
    ("rule", "spared"),
    [
        ("re:.*mlp.*", {"feed-forward": 126}),
        ("re:.*mlp$", {}),
        ("model.layers.1*", {}),  # a glob, whose end is the name's
        ("model.layers.10*.mlp.*", {"feed-forward": 11}),
        ("mlp.gate", {}),  # the router's name, which gate_proj's only begins with
    ],
)
def test_spared_modules_are_named_by_pattern_too(rule: str, spared: dict[str, int]) -> None:
    model = _build_405b(modules_to_not_convert=[rule])
    if rule == "model.layers.1*":
        assert set(_list_spared(model).values()) == {37}, "layers 1, 10 to 19 and 100 to 125"
    else:
        assert _list_spared(model) == spared


def _list_spared(model: Architecture) -> dict[str, int]:
    return {shape.name: count for shape in model.tensors for scheme, count in shape.named if scheme is None}


FP4, FP8 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}, {"quant_algo": "FP8"}
ATTENTION_MODULES = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
FULL_ATTENTION_MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
EXPERT_MODULES = ("experts", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj")
MIXED_MODULES = {
    f"model.language_model.layers.{layer}.{module}": scheme
    for layer in range(40)
    for modules, scheme in (
        (FULL_ATTENTION_MODULES if layer % 4 == 3 else ATTENTION_MODULES, FP8),
        ([f"mlp.{name}" for name in EXPERT_MODULES], FP4),
    )
    for module in modules
} | {"lm_head": FP4}
"""Of nvidia/Qwen3.6-35B-A3B-NVFP4, all 291, as in aiconfigurator-core 0.12.0, model_configs."""
MIXED_SETTINGS = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "ignore": ["mtp*"],
    "quantized_layers": MIXED_MODULES,
}


def _build_mixed(modules: Any) -> Architecture:
    settings = {**MIXED_SETTINGS, "quantized_layers": modules}
    return config_json.parse({**models.read_config("Qwen/Qwen3.6-35B-A3B"), "quantization_config": settings}, "test")


def test_each_module_of_a_checkpoint_of_mixed_precision_has_the_bytes_of_its_own_scheme() -> None:
    mixed, plain = _build_mixed(MIXED_MODULES), models.find("Qwen/Qwen3.6-35B-A3B")
    assert (mixed.parameters, mixed.quantization) == (plain.parameters, "nvfp4")
    loaded = {group.name: 8 * group.bytes // group.parameters for group in mixed.list_tensors() if group.loaded}
    assert [loaded[name] for name in ("experts", "output layer", "query and gate", "expert router")] == [4, 4, 8, 16]
    eight_bits = 2048 * (30 * (8192 + 4096 + 4096) + 10 * (8192 + 512 + 512 + 4096))
    four_bits = 2048 * (40 * (256 + 1) * 3 * 512 + 248320)
    saved = vllm.compute_weight_bytes(plain, ReplicaSetup()) - vllm.compute_weight_bytes(mixed, ReplicaSetup())
    assert saved == pytest.approx(eight_bits + four_bits * (2 - 9 / 16), rel=1e-5)
    # The layer for multi-token prediction is not named.
    assert [group.bytes for group in mixed.list_tensors() if not group.loaded] == [
        group.bytes for group in plain.list_tensors() if not group.loaded
    ]


def test_layers_of_one_kind_may_have_different_schemes_and_a_stage_the_largest_of_them() -> None:
    names = {
        name: FP8 if "layers.3." in name and "experts" in name else scheme for name, scheme in MIXED_MODULES.items()
    }
    del names["model.language_model.layers.7.mlp.experts"]
    experts = {bits: 3 * 256 * 512 * 2048 * bits / 8 for bits in (16, 8, 4.5)}

    def sum_experts(layers: int) -> float:
        model = _build_mixed(names).model_copy(update={"layers": layers})
        return sum(group.bytes for group in model.list_tensors() if group.name == "experts" and group.loaded)

    assert sum_experts(40) == pytest.approx(experts[16] + experts[8] + 38 * experts[4.5], rel=1e-4)
    assert sum_experts(2) == pytest.approx(experts[16] + experts[8], rel=1e-4)


@pytest.mark.parametrize(
    ("modules", "key"),
    [
        ({**MIXED_MODULES, "lm_head": {"quant_algo": "INT4_AWQ"}}, 'quant_algo: "INT4_AWQ"'),
        ({**MIXED_MODULES, "visual.blocks.0.mlp": FP8}, 'quantized_layers: "visual.blocks.0.mlp"'),
        ({}, 'quantized_layers: "{}"'),
        (None, 'quantized_layers: "None"'),
    ],
)
def test_mixed_precision_of_unknown_size_is_refused_by_its_key(modules: Any, key: str) -> None:
    with pytest.raises(UnknownMemoryError) as error:
        _build_mixed(modules)
    assert f"test: quantization_config.{key}: the size of its weights is not known here" in str(error.value)


def test_the_cache_uses_at_most_three_tenths_of_a_neuroncores_24_gib() -> None:
    trn2 = instances.find("trn2.48xlarge")
    fit = vllm.compute_fit(models.find("Qwen/Qwen3-0.6B"), trn2, ReplicaSetup(16, context=8192))
    assert trn2.accelerators
    assert memory.compute_rank_bytes(trn2.accelerators) == 24 * memory.GIB
    assert fit.cache_bytes == pytest.approx(0.3 * fit.budget_bytes, rel=0.001)
    assert fit.cache_bytes < fit.budget_bytes - fit.weight_bytes - fit.reserve_bytes


def test_a_neuroncore_with_less_than_a_gibibyte_for_the_cache_does_not_fit() -> None:
    batch = memory.Batch(tokens=2048, sequences=8)
    trn2, llama = instances.find("trn2.48xlarge"), models.find("meta-llama/Llama-3.3-70B-Instruct")
    reason = vllm.compute_fit(llama, trn2, ReplicaSetup(8, context=512, batch=batch, utilization=0.9)).why
    assert vllm.compute_fit(llama, trn2, ReplicaSetup(16, context=512, batch=batch)).fits
    assert reason.endswith("are left for the cache of a NeuronCore, and the engine ends below 1 GiB"), reason


def test_a_machine_without_accelerators_has_no_sizes() -> None:
    machine = _build_machine(80_000).model_copy(update={"accelerators": None})
    assert memory.list_tensor_sizes(models.find("mid"), machine) == ()
    with pytest.raises(ValueError, match="no accelerators"):
        vllm.compute_fit(models.find("mid"), machine, ReplicaSetup(2))


# Properties.

names = st.sampled_from(CATALOG)
parallel_degrees = st.sampled_from([1, 2, 4, 8])


def _build_machine(memory_mib: int) -> Instance:
    device = Accelerators(kind="gpu", name="X", count=8, memory_mib=memory_mib)
    p5 = instances.find("p5.48xlarge")
    return p5.model_copy(update={"name": "x.large", "accelerators": device})


@given(names, parallel_degrees)
def test_a_wider_split_never_adds_weights_or_cache_to_one_accelerator(name: str, ways: int) -> None:
    model = models.find(name)
    assert vllm.compute_weight_bytes(model, ReplicaSetup(2 * ways)) <= vllm.compute_weight_bytes(
        model, ReplicaSetup(ways)
    )
    assert memory.compute_kv_bytes_per_token(model, 2 * ways) <= memory.compute_kv_bytes_per_token(model, ways)


@given(names, parallel_degrees)
def test_all_accelerators_together_fit_at_least_the_weights(name: str, ways: int) -> None:
    model = models.find(name)
    loaded = sum(group.bytes for group in model.list_tensors() if group.loaded) / (2 if model.dtype == "float32" else 1)
    assert vllm.compute_weight_bytes(model, ReplicaSetup(ways)) * ways >= loaded - ways


@given(names, parallel_degrees, st.integers(8_000, 300_000), st.integers(0, 100_000))
def test_more_memory_never_fits_fewer_tokens(name: str, ways: int, memory_mib: int, more: int) -> None:
    model = models.find(name)
    # The largest batch grows in steps with the memory, as vLLM's does: within one step, more memory is more cache.
    smaller, larger = _build_machine(memory_mib), _build_machine(memory_mib + more)
    if vllm.select_batch(_get_device(smaller)) != vllm.select_batch(_get_device(larger)):
        return
    before, after = (
        vllm.compute_fit(model, smaller, ReplicaSetup(ways, context=512)),
        vllm.compute_fit(model, larger, ReplicaSetup(ways, context=512)),
    )
    assert after.cache_tokens >= before.cache_tokens
    assert after.fits or not before.fits


@given(names, parallel_degrees, st.integers(8_000, 300_000), st.integers(1, 512))
def test_a_fit_covers_one_request_and_a_misfit_has_a_reason(
    name: str, ways: int, memory_mib: int, context: int
) -> None:
    model = models.find(name)
    fit = vllm.compute_fit(model, _build_machine(memory_mib), ReplicaSetup(ways, context=context))
    assert fit.fits == (not fit.why)
    assert not fit.fits or model.encoder or fit.cache_tokens >= context
    assert fit.fits or fit.cache_tokens == 0
    assert fit.weight_bytes + fit.reserve_bytes + fit.cache_bytes == fit.budget_bytes


@given(names, st.integers(0, 2**40), st.integers(0, 2**36), st.integers(1, 4096))
def test_a_larger_cache_never_fits_fewer_tokens(name: str, size: int, more: int, context: int) -> None:
    model = models.find(name)
    assert (
        vllm_blocks.count_cache_blocks(model, size + more, ReplicaSetup(context=context)).tokens
        >= vllm_blocks.count_cache_blocks(model, size, ReplicaSetup(context=context)).tokens
    )


def _get_device(instance: Instance) -> Accelerators:
    assert instance.accelerators
    return instance.accelerators


def test_pictures_of_many_patches_need_memory_that_text_does_not() -> None:
    batch = memory.Batch(tokens=8192, sequences=256)
    model = models.find("Qwen/Qwen3-VL-8B-Instruct")
    text = model.model_copy(update={"vision": None})
    more = vllm.compute_reserve_bytes(model, batch) - vllm.compute_reserve_bytes(text, batch)
    # 65,536 patches of 1,152 numbers, the feed-forward part of 4,304, and 16,384 tokens for the decoder and three of its
    # layers, less what text takes in its place.
    pictures = 65_536 * 2 * (2 * 4304 + 4 * 1152) + 16_384 * 4096 * 4 * 2
    assert more == pictures - max(8192 * 2 * (3 * 12_288 + 4 * 4096), 256 * 151_936 * 16)
    assert not vllm.compute_fit(model, instances.find("p5.48xlarge"), ReplicaSetup(1, context=8192)).calibrated


def test_a_video_of_the_whole_context_needs_memory_until_it_is_refused() -> None:
    model, p5 = models.find("Qwen/Qwen2.5-VL-7B-Instruct"), instances.find("p5.48xlarge")
    fits = [vllm.compute_fit(model, p5, ReplicaSetup(1, context=context)) for context in (16_384, 32_768, 128_000)]
    # Each of the pictures has 65,536 patches of 3 x 3,420 and 4 x 1,280 numbers, and 16,384 tokens of 3,584.
    picture = 65_536 * 2 * (3 * 3420 + 4 * 1280) + 16_384 * 2 * 3584
    sampler = 1024 * 152_064 * 16  # more than one of them takes
    assert [fit.video_bytes for fit in fits] == [0, 2 * picture - sampler, 7 * picture - sampler]
    refused = vllm.compute_fit(model, p5, ReplicaSetup(1, context=128_000, videos=False))
    assert refused.cache_bytes == fits[-1].cache_bytes + fits[-1].video_bytes
    text = vllm.compute_fit(models.find("Qwen/Qwen3-8B"), p5, ReplicaSetup(1, context=32_768))
    assert text.video_bytes == 0


def test_patches_of_minimax_m3_have_the_decoder_s_width_before_they_become_tokens() -> None:
    model, batch = models.find("MiniMaxAI/MiniMax-M3"), memory.Batch(tokens=8192, sequences=1)
    videos = [vllm.compute_reserve_bytes(model, batch, 8, video_tokens=count * 768) for count in (50, 250)]
    patch_bytes = 2 * (2 * 6144 // 8 + 1280 + 2 * 6144)
    assert videos[1] - videos[0] == 200 * 768 * (4 * patch_bytes + 2 * 6144)


def test_adapters_take_memory_for_each_matrix_of_the_largest_rank() -> None:
    model, p5 = models.find("Qwen/Qwen3-8B"), instances.find("p5.48xlarge")
    fits = [vllm.compute_fit(model, p5, ReplicaSetup(ways, context=8192, adapters=2)) for ways in (1, 4)]
    hidden, heads, keys, wide, vocabulary = 4096, 4096, 1024, 12_288, 151_936
    for fit, ways in zip(fits, (1, 4), strict=True):
        sides = 3 * hidden + (heads + 2 * keys) // ways + hidden + heads // ways + 3 * (hidden + wide // ways)
        assert fit.adapter_bytes == 2 * 64 * 2 * (36 * sides + 2 * (vocabulary + hidden))
    without = vllm.compute_fit(model, p5, ReplicaSetup(1, context=8192))
    assert without.adapter_bytes == 0
    assert without.calibrated and not fits[0].calibrated, "no start with adapters was measured"
    assert without.cache_bytes == fits[0].cache_bytes + fits[0].adapter_bytes


def test_adapters_of_attention_alone_leave_the_memory_of_those_of_experts() -> None:
    model, p5 = models.find("Qwen/Qwen3-30B-A3B"), instances.find("p5.48xlarge")

    def compute(*modules: str, **ways: int | bool) -> int:
        setup = ReplicaSetup(context=8192, adapters=1, adapter_modules=modules, **ways)
        return vllm.compute_fit(model, p5, setup).adapter_bytes

    experts, attention = 48 * 128 * 3 * (2048 + 768), 48 * (3 * 2048 + 4096 + 2 * 512)
    assert compute("experts") == 2 * 64 * experts
    assert compute("q_proj") == compute("qkv_proj") == 2 * 64 * attention
    assert compute() > compute("experts", "qkv_proj") == 2 * 64 * (experts + attention)
    assert compute("experts", tensor=4, whole_experts=True) == 2 * 64 * experts // 4


def test_layers_that_predict_tokens_are_a_model_without_ends() -> None:
    model, p5en = models.find("deepseek-ai/DeepSeek-V3"), instances.find("p5en.48xlarge")
    draft = model.build_prediction()
    assert draft
    # A layer with experts, two projections into one and three norms: 671 billion parameters have 61, three without experts.
    assert draft.parameters == 11_610_068_224
    assert (draft.layers, draft.sparse_layers, draft.dense_layers) == (1, 1, 0)
    with_draft, without = (
        vllm.compute_fit(model, p5en, ReplicaSetup(8, context=8192, draft=each)) for each in (draft, None)
    )
    assert with_draft.draft_bytes == vllm.compute_weight_bytes(draft, ReplicaSetup(8)) > 1.6e9
    cache_bytes = [fit.cache_bytes / fit.cache_tokens for fit in (with_draft, without)]
    assert cache_bytes[0] / cache_bytes[1] == pytest.approx(62 / 61, rel=1e-3)
    assert models.find("Qwen/Qwen3-8B").build_prediction() is None
