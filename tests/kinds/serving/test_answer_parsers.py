"""Parsers of tools and reasoning, and chat templates: the catalog's by model, and the blueprint's over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import models
from llm_serving.kinds.serving import answer_parsers, blueprint
from llm_serving.settings.errors import InputError
from tests.kinds.serving.checks.test_engine_arguments import _list_words, _resolve


def _find_option(words: tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


@pytest.mark.parametrize(
    ("model", "tools", "reasoning"),
    [
        ("Qwen/Qwen3-32B", "hermes", "qwen3"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "hermes", "qwen3"),
        ("openai/gpt-oss-120b", "openai", "openai_gptoss"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3_json", ""),
        ("deepseek-ai/DeepSeek-R1", "", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-V3", "", ""),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek_v32", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", "deepseek_v4"),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
        ("moonshotai/Kimi-K2.5", "kimi_k2", "kimi_k2"),
        ("zai-org/GLM-4.6", "glm45", "glm45"),
        ("zai-org/GLM-4.7-Flash", "glm47", "glm47"),
        ("zai-org/GLM-5.3-FP8", "glm47", "glm45"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax_m2", "minimax_m2_append_think"),
        ("MiniMaxAI/MiniMax-M3", "minimax_m3", "minimax_m3"),
        ("Qwen/Qwen3.5-35B-A3B", "qwen3_xml", "qwen3"),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral", ""),
        ("google/gemma-3-27b-it", "pythonic", ""),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "qwen3_xml", "nemotron_v3"),
        ("google/gemma-4-31B-it", "gemma4", "gemma4"),
        ("XiaomiMiMo/MiMo-V2-Flash", "mimo", "mimo"),
        ("stepfun-ai/Step-3.7-Flash", "step3p5", "step3p5"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "hermes", "qwen3"),
        ("Qwen/Qwen3-VL-8B-Instruct", "hermes", ""),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4_pythonic", ""),
        ("ibm-granite/granite-4.0-h-small", "granite4", ""),
        ("microsoft/phi-4", "", ""),
        ("tiny", "hermes", "qwen3"),
        ("tiny-vision", "hermes", "qwen3"),
    ],
)
def test_a_model_has_the_parsers_of_its_name_or_its_architecture(model: str, tools: str, reasoning: str) -> None:
    row = answer_parsers.find_row("vllm", models.find(model))
    assert ("".join(row.tools[:1]), "".join(row.reasoning[:1])) == (tools, reasoning)


@pytest.mark.parametrize(
    ("model", "sglang", "tensorrt_llm"),
    [
        ("Qwen/Qwen3.6-27B", ("qwen3_coder", "qwen3"), ("qwen3_coder", "qwen3_5")),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", ("qwen25", "qwen3"), ("qwen3", "qwen3_5")),
        ("Qwen/Qwen3-32B", ("qwen25", "qwen3"), ("qwen3", "qwen3")),
        ("moonshotai/Kimi-K2-Instruct", ("kimi_k2", ""), ("kimi_k2", "")),
        ("moonshotai/Kimi-K2.6", ("kimi_k2", "kimi_k2"), ("kimi_k2", "kimi_k25")),
        ("zai-org/GLM-5.3-FP8", ("glm47", "glm45"), ("glm47", "")),
        ("google/gemma-4-31B-it", ("gemma4", "gemma4"), ("gemma4", "gemma4")),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ("qwen3_coder", "nemotron_3"), ("qwen3_coder", "nemotron-v3")),
        ("deepseek-ai/DeepSeek-V4-Pro", ("deepseekv4", "deepseek-v4"), ("deepseek_v4", "deepseek_v4")),
        ("MiniMaxAI/MiniMax-M3", ("minimax-m3", "minimax-m3"), ("minimax_m3", "minimax_m3")),
        ("stepfun-ai/Step-3.7-Flash", ("step3p5", "step3p5"), ("qwen3_coder", "qwen3_5")),
        ("XiaomiMiMo/MiMo-V2-Flash", ("mimo", "mimo"), ("", "")),
    ],
)
def test_each_engine_has_its_own_names_for_the_forms_of_a_model(
    model: str, sglang: tuple[str, str], tensorrt_llm: tuple[str, str]
) -> None:
    rows = [answer_parsers.find_row(engine, models.find(model)) for engine in ("sglang", "tensorrt-llm")]
    assert [("".join(row.tools[:1]), "".join(row.reasoning[:1])) for row in rows] == [sglang, tensorrt_llm]


def test_parsers_are_on_where_the_model_has_them_and_off_where_the_blueprint_says_so(tmp_path: Path) -> None:
    words = _list_words(_resolve(tmp_path, ""))
    assert "--enable-auto-tool-choice" in words
    assert (_find_option(words, "--tool-call-parser"), _find_option(words, "--reasoning-parser")) == ("hermes", "qwen3")
    words = _list_words(_resolve(tmp_path, "tools: off\nreasoning: off\n"))
    assert not {"--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"} & set(words)


def test_random_weights_think_nothing(tmp_path: Path) -> None:
    words = _list_words(_resolve(tmp_path, "", "local", model="tiny"))
    assert (_find_option(words, "--tool-call-parser"), _find_option(words, "--reasoning-parser")) == ("hermes", "")


def test_a_parser_of_another_family_is_refused_and_a_misspelt_one_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r'tools: "mistral": it does not read the answers of Qwen/Qwen3-8B. Fix: set tools: hermes, or off',
    ):
        _resolve(tmp_path, "tools: mistral\n")
    with pytest.raises(InputError, match=r"it does not read the answers of tiny. Fix: set tools: hermes, or off"):
        _resolve(tmp_path, "tools: mistral\n", "local", model="tiny")
    with pytest.raises(
        InputError, match=r'reasoning: "qwen": vllm has no such parser. Fix: set reasoning: qwen3, or off'
    ):
        _resolve(tmp_path, "reasoning: qwen\n")


def test_a_template_of_the_blueprint_goes_into_the_container_and_is_a_file_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }} $$ $(HOME)")
    extra = "chat_template: chat.jinja\n"
    written = _find_option(_list_words(_resolve(tmp_path, extra)), "--chat-template")
    assert written == "{{ messages }} $$$$ $$(HOME)", "what Kubernetes takes $$ for is $"
    words = _list_words(_resolve(tmp_path, extra, "local", model="tiny"))
    assert _find_option(words, "--chat-template") == str(tmp_path / "chat.jinja")


def test_a_model_that_sees_says_what_a_picture_takes_and_the_engine_is_told_how_many(tmp_path: Path) -> None:
    extra = "engine_arguments: {limit_mm_per_prompt: {image: 2}}\n"
    deployment = _resolve(tmp_path, extra, model="Qwen/Qwen3-VL-8B-Instruct")
    assert _find_option(_list_words(deployment), "--limit-mm-per-prompt") == '{"image": 2}'
    assert any("A picture takes up to 16384 of a request's" in note for note in deployment.notes)
    assert not any("picture" in note for note in _resolve(tmp_path, "").notes)


def test_a_template_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blueprint.yaml").write_text(
        "pattern: aggregated\nmodel: tiny\nchat_template: chat.jinja\nroles: {worker: {pool: small}}\n"
        "traffic: {users: 2}\nslo: {}\n"
    )
    with pytest.raises(InputError, match=r'chat_template: "chat.jinja": there is no such file'):
        blueprint.read(tmp_path)
