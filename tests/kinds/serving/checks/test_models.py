"""Models that guess ahead: where they come from, what they take, and which cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.catalog import engines, models
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving.texts import format_aggregated, get_error, get_flag, resolve_blueprint


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs"), ("local", "general")])
@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_the_model_that_guesses_comes_from_the_fleets_bucket_as_the_other_does(
    tmp_path: Path, target: str, pool: str, method: str
) -> None:
    extra = f"tuning: {{speculative: {{method: {method}, model: ORG/draft}}}}\n"
    deployment = resolve_blueprint(tmp_path, format_aggregated("tiny", pool=pool, extra=extra), target)
    bucket = deployment.environment.bucket
    uris = [f"s3://{bucket}/models/tiny/", f"s3://{bucket}/models/ORG/draft/"]
    assert [loaded_model.weights.uri for loaded_model in deployment.loaded_models] == uris
    command = deployment.workers[0].command
    config = json.loads(get_flag(command, "--speculative-config"))
    assert (command[2], config["model"]) == tuple(uris), "no hub is asked: HF_HUB_OFFLINE is set"


def test_a_draft_takes_of_the_accelerators_what_the_check_counts(tmp_path: Path) -> None:
    draft = "tuning: {speculative: {method: draft_model, model: MODEL}}\n"

    def resolve(extra: str) -> ServingDeployment:
        return resolve_blueprint(
            tmp_path, format_aggregated("Qwen/Qwen3-14B\ncontext: 40k", pool="general", extra=extra)
        )

    assert not any("draft model" in note for note in resolve("").notes)
    with pytest.raises(InputError, match="the cache holds 39024 tokens, 976 short of one request of 40000"):
        resolve(draft.replace("MODEL", "Qwen/Qwen3-0.6B"))
    [note] = [note for note in resolve(draft.replace("MODEL", "ORG/draft")).notes if "draft model" in note]
    assert note == (
        "Memory of the draft model ORG/draft: not computed, since no such model is known here. Its weights and its "
        "cache take a part of what is computed for the KV cache."
    )


def test_here_a_draft_has_its_part_of_the_cache_and_its_weights(tmp_path: Path) -> None:
    draft, cpu = models.find("mid"), engines.load_engines()["vllm"].platforms["cpu"]

    def resolve(extra: str = "") -> tuple[int, int]:
        [worker] = resolve_blueprint(tmp_path, format_aggregated("mid", pool="general", extra=extra), "local").workers
        return int(get_flag(worker.command, "--kv-cache-memory-bytes")), worker.resources.memory_bytes

    (cache, memory), (cache_with, memory_with) = (
        resolve(),
        resolve("tuning: {speculative: {method: draft_model, model: mid}}\n"),
    )
    assert cache_with == 2 * cache, "both have as many layers and heads"
    assert memory_with - memory == pytest.approx(cache + cpu.weight_copies * draft.weight_bytes, abs=1)


def test_layers_that_predict_tokens_are_the_model_s_own(tmp_path: Path) -> None:
    def resolve(model: str) -> ServingDeployment:
        text = format_aggregated(
            f"{model}\ncontext: 8k", pool="p5en", accelerators=8, extra="tuning: {speculative: {method: mtp}}\n"
        )
        return resolve_blueprint(tmp_path, text)

    def list_notes(model: str) -> list[str]:
        return [note for note in resolve(model).notes if "predict tokens" in note]

    assert list_notes("deepseek-ai/DeepSeek-V3") == []
    [note] = list_notes("MiniMaxAI/MiniMax-M3")
    assert note.startswith("Memory of the layers of MiniMaxAI/MiniMax-M3 that predict tokens: not computed.")
    with pytest.raises(
        InputError, match=r'"mtp": Qwen/Qwen3-8B has no layers that predict tokens\. Fix: set method: ngr'
    ):
        resolve("Qwen/Qwen3-8B")


def test_a_draft_that_generates_nothing_is_refused_at_its_line(tmp_path: Path) -> None:
    extra = "tuning: {speculative: {method: draft_model, model: BAAI/bge-reranker-v2-m3}}\n"
    assert get_error(tmp_path, format_aggregated("tiny", pool="general", extra=extra)) == (
        'blueprint.yaml:5:52: tuning.speculative.model: "BAAI/bge-reranker-v2-m3": it is made to rerank, and a draft '
        "generates tokens. Fix: use a small model that generates."
    )


def test_a_draft_of_another_vocabulary_is_refused_at_its_line(tmp_path: Path) -> None:
    """Otherwise the engine ends as it starts, once its accelerators are rented."""
    extra = "tuning: {speculative: {method: draft_model, model: Qwen/Qwen3-0.6B}}\n"
    text = format_aggregated("meta-llama/Llama-3.1-8B-Instruct\ncontext: 8k", pool="general", extra=extra)
    assert get_error(tmp_path, text) == (
        'blueprint.yaml:6:52: tuning.speculative.model: "Qwen/Qwen3-0.6B": its vocabulary has 151936 tokens and that of '
        "meta-llama/Llama-3.1-8B-Instruct 128256, and the engine starts with equal ones only. Fix: use a smaller model whose "
        "config.json has the same vocab_size, or set method: ngram."
    )
    # EAGLE's own models have a smaller vocabulary, and a table from it to the model's.
    eagle = text.replace("draft_model", "eagle3")
    assert resolve_blueprint(tmp_path, eagle).workers


def test_whole_experts_over_split_copies_take_no_adapters(tmp_path: Path) -> None:
    """`_ep_check` of vLLM 0.32.0 asserts it as the engine starts."""

    def format_text(split: str, extra: str = "") -> str:
        text = format_aggregated("Qwen/Qwen3-30B-A3B\ncontext: 8k", pool="p5en", accelerators=8, extra=extra)
        adapters = "adapters: {sql: 's3://demo-models-123456789012-us-west-2/sql'}"
        return text.replace("accelerators: 8", f"accelerators: 8, {split}, expert: on, {adapters}")

    assert (
        "layers of Qwen/Qwen3-30B-A3B are split 2 ways in each of 4 copies, and whole experts over all of them then take no "
        "adapters: the engine ends. Fix: set expert: off, or data: 8."
    ) in get_error(tmp_path, format_text("data: 4"))
    for text in (
        format_text("data: 8"),
        format_text("data: 1"),
        format_text("data: 4", "engine_arguments: {lora_target_modules: [q_proj, v_proj]}\n"),
    ):
        assert resolve_blueprint(tmp_path, text).workers


@pytest.mark.parametrize(
    ("model", "quantization"),
    [("openai/gpt-oss-20b", "mxfp4"), ("nvidia/Qwen3-235B-A22B-NVFP4", "nvfp4"), ("Qwen/Qwen3-235B-A22B-FP8", "fp8")],
)
def test_weights_that_are_small_already_are_made_no_smaller(tmp_path: Path, model: str, quantization: str) -> None:
    """vLLM 0.32.0 ends for the first, and takes the others as they are stored."""
    extra = "tuning: {quantization: fp8}\n"
    text = format_aggregated(f"{model}\ncontext: 8k", pool="p5en", accelerators=4, extra=extra)
    assert get_error(tmp_path, text) == (
        f'blueprint.yaml:6:24: tuning.quantization: "fp8": the weights of {model} are {quantization} already, and the '
        "engine makes none smaller. Fix: remove quantization."
    )


def test_a_method_without_a_second_model_loads_one(tmp_path: Path) -> None:
    extra = "tuning: {speculative: {method: ngram}}\n"
    deployment = resolve_blueprint(tmp_path, format_aggregated("tiny", pool="general", extra=extra))
    assert [loaded_model.model for loaded_model in deployment.loaded_models] == ["tiny"]
    assert "model" not in json.loads(get_flag(deployment.workers[0].command, "--speculative-config"))
