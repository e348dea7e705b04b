"""Memory arithmetic compared with vLLM: its startup log, and its planner for larger models."""

from __future__ import annotations

import base64
import re
from itertools import product
from typing import Any

import pytest

from llm_serving.catalog import config_json, engines, models
from llm_serving.catalog.models import Model
from llm_serving.engines import memory, vllm, vllm_blocks
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation.load import pictures
from tests.engines.test_memory import MIXED_SETTINGS
from tests.engines_own import EngineProbe

NAMES = (
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-32B",
    "zai-org/GLM-5.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B-it",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "XiaomiMiMo/MiMo-V2-Flash",
    "MiniMaxAI/MiniMax-M3",
    "stepfun-ai/Step-3.7-Flash",
    "google/gemma-4-31B-it",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "ibm-granite/granite-4.0-h-small",
    "mid",
)
CONTEXTS = (2048, 8192, 10_000, 32_768)
CACHE_BYTES = 20 * memory.GIB
CPU_BLOCK = engines.load_engines()["vllm"].platforms["cpu"].kv_block


def _build_question(model: Model, context: int, block: int, tensor_parallel: int) -> dict[str, Any]:
    latent = model.latent
    full_heads, full_size = model.full_heads
    return {
        "layers": model.layers - model.feed_forward_layers,
        "sliding": model.sliding_layers,
        "window": model.window,
        "heads": 1 if latent else -(-model.kv_heads // tensor_parallel),
        "size": latent.kv_rank + latent.rope_dim if latent else model.head_dim,
        "full_heads": -(-full_heads // tensor_parallel),
        "full_size": full_size,
        "value_size": model.value_dim,
        "latent": bool(latent),
        "index": model.index_bytes,
        "indexed": model.indexed_layers,
        "chunked": model.chunked,
        "linear": model.linear_layers,
        "state": memory.compute_state_bytes(model, tensor_parallel) // 2,
        "context": context,
        "bytes": CACHE_BYTES,
        "batch": 8192,
        "block": max(block, model.cache_block),
    }


CACHE_SIZE_LOG = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request")


def _parse_cache_sizes(log: str) -> list[tuple[int, int]]:
    """Tokens of the cache and of the longest request, as each start of vLLM logged them."""
    return [(int(match[1].replace(",", "")), int(match[2].replace(",", ""))) for match in CACHE_SIZE_LOG.finditer(log)]


def test_the_engines_line_is_read_from_its_log() -> None:
    line = (
        "INFO 11-21 04:06:32 [kv_cache_utils.py:2327] CPU KV cache size: 524,288 tokens, Maximum concurrency for 2,048 "
    )
    assert _parse_cache_sizes(f"{line}tokens per request: 256.00x\nnothing else\n") == [(524_288, 2_048)]
    assert _parse_cache_sizes("INFO KV cache is on") == []


@pytest.mark.engine
def test_each_running_replica_reports_the_tokens_that_were_computed_for_it(running_plan: DeploymentPlan) -> None:
    deployment = running_plan.deployment
    model = models.find(deployment.served_models[0].model)
    for process in deployment.workers:
        cache_bytes = int(process.command[process.command.index("--kv-cache-memory-bytes") + 1])
        computed = vllm_blocks.count_cache_blocks(
            model, cache_bytes, ReplicaSetup(context=deployment.served_models[0].context), CPU_BLOCK
        ).tokens
        reported = _parse_cache_sizes(running_plan.directory.get_log_path(process.name).read_text())
        assert reported, "the engine's log does not speak of its cache"
        assert set(reported) == {(computed, deployment.served_models[0].context)}


@pytest.mark.engine
def test_vllms_planner_counts_the_same_tokens_for_every_kind_of_attention(engine_probe: EngineProbe) -> None:
    cases = list(product(NAMES, CONTEXTS, (vllm_blocks.BLOCK_TOKENS, CPU_BLOCK), (1, 4)))
    questions = [
        _build_question(models.find(name), context, block, tensor_parallel)
        for name, context, block, tensor_parallel in cases
    ]
    reported = [answer["result"] for answer in engine_probe("planner", questions)]
    computed = [
        vllm_blocks.count_cache_blocks(
            models.find(name), CACHE_BYTES, ReplicaSetup(tensor_parallel, context=context), block
        ).tokens
        for name, context, block, tensor_parallel in cases
    ]
    # vLLM divides in floating point, which may lose one token.
    assert [case for case, ours, theirs in zip(cases, computed, reported, strict=True) if abs(ours - theirs) > 1] == []


@pytest.mark.engine
@pytest.mark.parametrize("draft", ["Qwen/Qwen3-0.6B", "google/gemma-3-4b-it", "tiny", "microsoft/phi-4"])
def test_vllms_planner_counts_the_same_tokens_with_a_draft_s_layers(draft: str, engine_probe: EngineProbe) -> None:
    guesser = models.find(draft).model_copy(update={"sliding_layers": 0})
    cases = list(product(NAMES, CONTEXTS, (1, 4)))
    questions, computed = [], []
    for name, context, ways in cases:
        heads = {"layers": guesser.layers, "heads": -(-guesser.kv_heads // ways), "size": guesser.head_dim}
        questions.append({**_build_question(models.find(name), context, 16, ways), "draft": heads})
        computed.append(
            vllm_blocks.count_cache_blocks(
                models.find(name), CACHE_BYTES, ReplicaSetup(ways, context=context, draft=guesser)
            ).tokens
        )
    reported = [answer.get("result", answer) for answer in engine_probe("planner", questions)]
    differing = [
        (case, ours, theirs)
        for case, ours, theirs in zip(cases, computed, reported, strict=True)
        if not isinstance(theirs, int) or abs(ours - theirs) > 1
    ]
    assert differing == []


@pytest.mark.engine
def test_vllms_planner_counts_the_same_tokens_with_layers_that_predict(engine_probe: EngineProbe) -> None:
    """Each has as much of a token in the cache as a layer that looks back over everything."""
    predicting = {name: model for name in NAMES if (model := models.find(name)).prediction_tensors}
    assert len(predicting) >= 5
    cases = list(product(predicting, CONTEXTS, (1, 4)))
    questions, computed = [], []
    for name, context, ways in cases:
        model, draft = predicting[name], predicting[name].build_prediction()
        assert draft
        question = _build_question(model, context, 16, ways)
        more = {key: question[key] + draft.layers for key in ("layers", *["indexed"] * bool(model.indexed_layers))}
        questions.append(question | more)
        computed.append(
            vllm_blocks.count_cache_blocks(model, CACHE_BYTES, ReplicaSetup(ways, context=context, draft=draft)).tokens
        )
    reported = [answer["result"] for answer in engine_probe("planner", questions)]
    assert [case for case, ours, theirs in zip(cases, computed, reported, strict=True) if abs(ours - theirs) > 1] == []


@pytest.mark.engine
def test_vllms_planner_counts_the_same_tokens_for_caches_of_deepseek_v4(engine_probe: EngineProbe) -> None:
    """With its own classes of the five caches, so also their pages."""
    names = ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro")
    cases = list(product(names, (*CONTEXTS, 1_048_576), (2048, 8192, 16_384)))
    questions, computed = [], []
    for name, context, batch in cases:
        config, model = models.read_config(name), models.find(name)
        ratios = config["compress_ratios"][: model.layers]
        numbers = {"context": context, "bytes": CACHE_BYTES, "batch": batch, "window": model.window}
        questions.append({**numbers, "ratios": ratios})
        computed.append(
            vllm_blocks.count_cache_blocks(
                model, CACHE_BYTES, ReplicaSetup(context=context, batch=memory.Batch(tokens=batch, sequences=1))
            ).tokens
        )
    reported = [answer.get("result", answer) for answer in engine_probe("compressed", questions)]
    differing = [
        (case, ours, theirs)
        for case, ours, theirs in zip(cases, computed, reported, strict=True)
        if not isinstance(theirs, int) or abs(ours - theirs) > 1
    ]
    assert differing == []


@pytest.mark.engine
def test_sparse_attention_that_picks_blocks_caches_what_vllm_s_own_layers_ask_for(engine_probe: EngineProbe) -> None:
    model = models.find("MiniMaxAI/MiniMax-M3")
    assert engine_probe("minimax", [128, 64]) == [
        {"result": {"blocks": [model.cache_block, model.cache_block], "index": model.index_bytes}},
        {"result": {"blocks": [model.cache_block, model.cache_block], "index": model.index_bytes / 2}},
    ]


@pytest.mark.engine
def test_parameters_are_those_of_transformers_own_models(engine_probe: EngineProbe) -> None:
    """For all of the catalog: no checkpoint is needed, and most of them publish no size that could be read here."""
    # Models that embed are stored without the output layer that transformers makes.
    names = [name for name, model in models.load().items() if model.task == "generate"]
    answers = engine_probe("parameters", [dict(models.read_config(name)) for name in names])
    counted = {name: answer.get("result") for name, answer in zip(names, answers, strict=True)}
    assert counted == {name: models.find(name).parameters for name in names}


@pytest.mark.engine
def test_vllm_reads_the_same_scheme_for_each_module_of_mixed_precision(engine_probe: EngineProbe) -> None:
    # Several modules are one in vLLM; the layer for multi-token prediction comes last.
    names = {
        "language_model.lm_head": "W4A16_NVFP4",
        "language_model.model.layers.0.linear_attn.in_proj_qkvz": "FP8",
        "language_model.model.layers.0.linear_attn.in_proj_ba": None,
        "language_model.model.layers.0.linear_attn.out_proj": "FP8",
        "language_model.model.layers.3.self_attn.qkv_proj": "FP8",
        "language_model.model.layers.3.self_attn.o_proj": "FP8",
        "language_model.model.layers.3.mlp.experts": "W4A16_NVFP4",
        "language_model.model.layers.3.mlp.shared_expert.gate_up_proj": "W4A16_NVFP4",
        "language_model.model.layers.3.mlp.gate": None,
        "visual.blocks.0.attn.qkv": None,
        "mtp.layers.0.mlp.experts": None,
    }
    question = {"settings": MIXED_SETTINGS, "names": list(names)}
    assert engine_probe("algorithms", [question])[0]["result"] == list(names.values())


MADE_UP = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
SLIDING = {"sliding_window": 4096, "tie_word_embeddings": True}
ERNIE = {"moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 1536}
PIXTRAL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 1540,
}
FAMILIES: list[tuple[str, str, dict[str, Any]]] = [
    ("Ministral3ForCausalLM", "ministral3", {}),
    (
        "Mistral3ForConditionalGeneration",
        "mistral3",
        {"text_config": {**MADE_UP, "model_type": "ministral3"}, "vision_config": PIXTRAL, "spatial_merge_size": 2},
    ),
    ("Glm4ForCausalLM", "glm4", {"attention_bias": True}),
    ("SeedOssForCausalLM", "seed_oss", {"attention_bias": True, "attention_out_bias": True}),
    ("Olmo3ForCausalLM", "olmo3", {**SLIDING, "attention_bias": True}),
    ("Cohere2ForCausalLM", "cohere2", {**SLIDING, "attention_bias": True}),
    ("Gemma2ForCausalLM", "gemma2", {**SLIDING, "attention_bias": True}),
    ("Ernie4_5ForCausalLM", "ernie4_5", {}),
    ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", {**ERNIE, "moe_layer_start_index": 1, "moe_layer_end_index": -1}),
    (
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        {**ERNIE, "moe_layer_start_index": 3, "moe_layer_end_index": 38, "moe_layer_interval": 2},
    ),
    ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", {"attention_bias": True}),
]


@pytest.mark.engine
def test_parameters_of_families_without_a_model_in_the_catalog_are_those_of_transformers(
    engine_probe: EngineProbe,
) -> None:
    """By numbers of no model, of which no width equals another."""
    configs = [{**MADE_UP, "architectures": [name], "model_type": kind, **own} for name, kind, own in FAMILIES]
    computed = [config_json.parse(config, "made up").parameters for config in configs]
    assert [answer.get("result", answer) for answer in engine_probe("parameters", configs)] == computed


QWEN_PIXELS = {
    "Qwen/Qwen2.5-VL-7B-Instruct": {"factor": 28, "min_pixels": 3136, "max_pixels": 12_845_056},
    "Qwen/Qwen3-VL-8B-Instruct": {"factor": 32, "min_pixels": 65_536, "max_pixels": 16_777_216},
}
SIZES = ((64, 48), (16, 900), (640, 480), (1000, 1000), (1920, 1080), (4096, 4096))


@pytest.mark.engine
def test_made_pictures_are_decoded_and_have_at_most_the_tokens_that_are_counted(engine_probe: EngineProbe) -> None:
    for name, pixels in QWEN_PIXELS.items():
        vision = models.find(name).vision
        assert vision
        pngs = [base64.b64encode(pictures.make_png(*size, "seed")).decode() for size in SIZES]
        answers = [answer["result"] for answer in engine_probe("picture", [{"png": png, **pixels} for png in pngs])]
        assert [tuple(answer["size"]) for answer in answers] == list(SIZES)
        for (width, height), answer in zip(SIZES, answers, strict=True):
            most = vision.count_tokens(width, height)
            # The engine rounds to the nearest row and column, and here both are rounded up.
            rows, columns = width / vision.token_side, height / vision.token_side
            assert answer["tokens"] <= most <= answer["tokens"] + rows + columns + 1


@pytest.mark.engine
def test_a_picture_for_kimi_has_at_most_the_tokens_that_are_counted(engine_probe: EngineProbe) -> None:
    vision = models.find("moonshotai/Kimi-K2.5").vision
    assert vision
    worst = (7081, 489)  # of all sizes up to 30,000
    sizes = [*SIZES, (7168, 100), (30_000, 30_000), worst]
    counted = [answer["result"] for answer in engine_probe("kimi", [list(size) for size in sizes])]
    assert [tokens for size, tokens in zip(sizes, counted, strict=True) if tokens > vision.count_tokens(*size)] == []
    assert counted[-1] == vision.image_tokens


MEDIA = {
    "MiniMaxAI/MiniMax-M3": {"kind": "minimax_m3_vl"},
    "Qwen/Qwen2.5-VL-7B-Instruct": {
        "kind": "qwen2_5_vl", "picture": {"shortest_edge": 3136, "longest_edge": 12_845_056}, "video": None,
    },
    "Qwen/Qwen3-VL-8B-Instruct": {
        "kind": "qwen3_vl", "picture": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        "video": {"shortest_edge": 4096, "longest_edge": 25_165_824},
    },
}  # fmt: skip


@pytest.mark.engine
def test_the_largest_pictures_and_videos_have_the_tokens_that_vllm_keeps_memory_for(engine_probe: EngineProbe) -> None:
    contexts = (500, 32_768, 131_072, 1_000_000)
    answers = iter(engine_probe("media", [{**limits, "context": c} for limits in MEDIA.values() for c in contexts]))
    for name in MEDIA:
        vision = models.find(name).vision
        assert vision
        for context in contexts:
            tokens = next(answers)["result"]
            assert tokens["image"] == vision.image_tokens
            assert max(tokens.values()) == max(vision.image_tokens, vision.count_video_tokens(context))
            assert (tokens["video"] < tokens["image"]) == (vision.video_pictures == 0), (name, context)


SMALL = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
ADAPTED = (
    ("LlamaForCausalLM", "llama", {}, None),
    ("Qwen3ForCausalLM", "qwen3", {}, None),
    ("Qwen3ForCausalLM", "qwen3", {}, ["v_proj", "down_proj"]),
    ("Qwen3ForCausalLM", "qwen3", {"tie_word_embeddings": True}, None),
    ("Qwen3MoeForCausalLM", "qwen3_moe", EXPERTS, None),
    ("Qwen3MoeForCausalLM", "qwen3_moe", EXPERTS, ["qkv_proj"]),
    ("Qwen3MoeForCausalLM", "qwen3_moe", EXPERTS, ["experts", "lm_head"]),
)


@pytest.mark.engine
def test_adapters_have_the_numbers_that_vllm_keeps_for_them(engine_probe: EngineProbe) -> None:
    count, requests, computed = 2, [], []
    for name, kind, own, modules in ADAPTED:
        config = {**SMALL, "architectures": [name], "model_type": kind, **own}
        requests.append({"config": config, "count": count, "rank": memory.ADAPTER_RANK, "modules": modules})
        setup = ReplicaSetup(adapters=count, adapter_modules=tuple(modules or ()))
        computed.append(vllm.compute_adapter_bytes(config_json.parse(config, "made up"), setup) // 2)
    answers = [answer.get("result", answer) for answer in engine_probe("adapters", requests)]
    # The routers of experts, whose adapters are small, are left out.
    answers[4] -= count * memory.ADAPTER_RANK * 3 * (128 + 8)
    assert answers == computed
