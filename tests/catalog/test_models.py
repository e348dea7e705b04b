"""The model catalog against published totals, and models read from their own config.json."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import config_json, models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.records import ModelRecord
from llm_serving.hub import make_tiny
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import InputError

STATED = {name: row["weight_bytes"] for name, row in own_yaml.read(models.FILE).items() if "weight_bytes" in row}

# Checkpoints that store the output layer a second time although it is the embedding itself.
TWICE = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B")


@pytest.mark.parametrize("name", sorted(STATED))
def test_the_architecture_gives_the_published_size_to_the_byte(name: str) -> None:
    model = models.find(name)
    output_embedding_bytes = 2 * model.vocabulary * model.hidden if name in TWICE else 0
    assert sum(group.bytes for group in model.list_tensors()) + output_embedding_bytes == STATED[name]


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Source: safetensors totals of the hub's model pages, 2026-11. Of DeepSeek's 684,489,845,504 the prediction layer has
    # 13,463,426,304, which are not served.
    [
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("openai/gpt-oss-120b", 116_829_156_672),
        ("deepseek-ai/DeepSeek-V3", 684_489_845_504 - 13_463_426_304),
        ("BAAI/bge-reranker-v2-m3", 567_755_777),
    ],
)
def test_parameters_are_those_of_the_hub(name: str, parameters: int) -> None:
    assert models.find(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    # Source: the names and model cards: 3.6B and 5.1B active of gpt-oss, A3B and A22B of Qwen3, 37B of DeepSeek-V3, 32B of
    # Kimi K2.5, 40B of GLM-5, A3B of Qwen3.5, 15B of MiMo-V2-Flash.
    [
        ("Qwen/Qwen3-30B-A3B", 3),
        ("Qwen/Qwen3-235B-A22B", 22),
        ("openai/gpt-oss-20b", 3.6),
        ("openai/gpt-oss-120b", 5.1),
        ("deepseek-ai/DeepSeek-V3", 37),
        ("moonshotai/Kimi-K2.5", 32),
        ("zai-org/GLM-5", 40),
        ("Qwen/Qwen3.5-35B-A3B", 3),
        ("XiaomiMiMo/MiMo-V2-Flash", 15),
    ],
)
def test_active_parameters_are_those_of_the_model_card(name: str, billions: float) -> None:
    assert models.find(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.03)


def test_a_model_is_built_when_it_is_asked_for_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = models._build_model
    monkeypatch.setattr(models, "_build_model", lambda name, *facts: built.append(name) or build(name, *facts))
    models._build_listed.cache_clear()
    assert models.find("tiny") is models.find("tiny")
    assert built == ["tiny"]


def test_each_row_names_its_source_and_date() -> None:
    for model in models.load().values():
        assert model.source
        assert model.read_on.startswith("20")


def test_only_generated_models_are_random() -> None:
    assert {model.name for model in models.load().values() if model.random} == {
        "tiny",
        "mid",
        "tiny-embed",
        "tiny-rerank",
        "tiny-classify",
        "tiny-vision",
        "tiny-draw",
    }
    assert models.find("tiny").hub is None
    assert models.find("Qwen/Qwen3-32B").hub == "Qwen/Qwen3-32B"


def test_tasks_are_known() -> None:
    assert models.find("Qwen/Qwen3-Embedding-0.6B").task == "embed"
    assert models.find("BAAI/bge-reranker-v2-m3").task == "rerank"
    assert models.find("tiny").task == "generate"


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("Qwen/Qwen3-32", "Qwen/Qwen3-32B"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("tinny", "tiny"),
        ("deepseek-ai/deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_name(written: str, named: str) -> None:
    with pytest.raises(InputError, match=rf'model: "{written}": neither in the catalog nor a folder') as error:
        models.find(written)
    assert named in str(error.value)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/model", "a\0b", "..", ""])
def test_a_name_that_cannot_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        models.find(name)


def test_a_folder_is_read_from_its_config_and_sized_by_its_weights(tmp_path: Path) -> None:
    config = {**models.read_config("tiny"), "num_hidden_layers": 7, "random_weights": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1234)
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        model = models.find(name)
        assert (model.layers, model.weight_bytes, model.random, model.hub) == (7, 1234, False, None)


def test_a_generated_folder_has_random_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(models.read_config("tiny"))))
    assert models.find(str(tmp_path)).random


def test_the_hub_is_queried_only_for_models_missing_from_the_catalog() -> None:
    requested = []

    def fetch(name: str) -> ModelRecord:
        requested.append(name)
        return ModelRecord(source=name, commit="0123", config={**models.read_config("tiny"), "random_weights": False})

    assert models.find("Qwen/Qwen3-32B", fetch=fetch).layers == 64
    assert requested == []
    model = models.find("someone/something", fetch=fetch)
    assert requested == ["someone/something"]
    assert (model.hub, model.layers, model.random) == ("someone/something", 4, False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it cannot be read as JSON"),
        ("[]", "it is not a mapping"),
        ('{"model_type": "mamba"}', 'model_type: "mamba": its memory is not known here'),
        ('{"model_type": "qwen3"}', "num_attention_heads: it is missing"),
        (
            '{"model_type": "qwen3", "num_attention_heads": "many", "hidden_size": 1}',
            "a number in it is of another kind",
        ),
        ('{"model_type": "gemma4", "text_config": [1]}', "a number in it is of another kind"),
        (
            '{"model_type": "nemotron_h", "layers_block_type": 3, "num_attention_heads": 1, "hidden_size": 1, "intermediate_size": 1}',
            "a number in it is of another kind",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_by_its_path(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=message) as error:
        models.find(str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it holds no config\.json"):
        models.find(str(tmp_path))


def test_a_model_with_more_than_its_familys_row_says_is_refused_by_the_key() -> None:
    config = models.read_config("google/gemma-4-31B-it")
    with pytest.raises(InputError, match="num_kv_shared_layers: the memory of a model of gemma4 with it is not known"):
        config_json.parse({**config, "text_config": {**config["text_config"], "num_kv_shared_layers": 18}}, "x")
    with pytest.raises(InputError, match="audio_config: the memory"):
        config_json.parse({**config, "audio_config": {"hidden_size": 1024}}, "x")
    assert config_json.parse({**config, "audio_config": None}, "x").layers == 60


def test_mistral_small_4_is_refused_by_the_key_that_mistral_small_3_lacks() -> None:
    config = models.read_config("mistralai/Mistral-Small-3.1-24B-Instruct-2503")
    text_config = {**config["text_config"], "model_type": "mistral4", "kv_lora_rank": 256}
    with pytest.raises(InputError, match="kv_lora_rank: the memory of a model of mistral3 with it is not known here"):
        config_json.parse({**config, "text_config": text_config}, "x")


def test_kinds_of_layers_for_multi_token_prediction_are_not_those_of_the_model() -> None:
    config, kinds = models.read_config("stepfun-ai/Step-3.7-Flash"), ["sliding_attention"] * 3
    text_config = {**config["text_config"], "layer_types": config["text_config"]["layer_types"] + kinds}
    longer = config_json.parse({**config, "text_config": {**text_config, "num_nextn_predict_layers": 3}}, "x")
    assert (longer.full_layers, longer.sliding_layers, longer.prediction_layers) == (12, 33, 3)
    assert longer.parameters == models.find("stepfun-ai/Step-3.7-Flash").parameters


def test_layers_with_experts_are_those_that_config_json_names_in_any_of_its_forms() -> None:
    config = {**models.read_config("Qwen/Qwen3-30B-A3B"), "num_hidden_layers": 6}
    forms: dict[str, Any] = {
        "moe_layers_enum": "2,3,4,5",
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4 + ["dense"],  # and one for multi-token prediction
        "moe_layer_freq": [0, 0, 1, 1, 1, 1],
        "first_k_dense_replace": 2,
    }
    counted = {key: config_json.parse({**config, key: value}, "x").sparse_layers for key, value in forms.items()}
    assert counted == dict.fromkeys(forms, 4)
    assert config_json.parse({**config, "moe_layers_enum": [2, 3, 4, 5]}, "x").sparse_layers == 4
    assert config_json.parse({**config, "moe_layer_freq": 1}, "x").sparse_layers == 6


def test_windows_of_families_that_name_no_layers_are_those_of_transformers() -> None:
    # transformers 5.19.0, `layer_types` of Olmo3Config, Cohere2Config and Gemma2Config where config.json has none.
    config = {**models.read_config("tiny"), "num_hidden_layers": 42, "sliding_window": 4096}
    for kind, layers in (("olmo3", 32), ("cohere2", 32), ("gemma2", 21)):
        arch = config_json.parse({**config, "model_type": kind}, "x")
        assert (arch.sliding_layers, arch.full_layers, arch.window) == (layers, 42 - layers, 4096)


def test_a_quantization_of_unknown_size_is_refused() -> None:
    config = {**models.read_config("tiny"), "quantization_config": {"quant_method": "bitsandbytes"}}
    with pytest.raises(InputError, match=r'quant_method: "bitsandbytes": the size of its weights is not known here'):
        config_json.parse(config, "config.json")


def test_a_disabled_sliding_window_gives_no_sliding_layers() -> None:
    config = {**models.read_config("tiny"), "sliding_window": 128, "max_window_layers": 3}
    assert config_json.parse({**config, "use_sliding_window": False}, "x").sliding_layers == 0
    assert config_json.parse({**config, "use_sliding_window": True}, "x").sliding_layers == 1
    assert (
        config_json.parse({**config, "layer_types": ["sliding_attention", "full_attention"]}, "x").sliding_layers == 1
    )


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny.make("tiny", tmp_path_factory.mktemp("made") / "tiny")


@pytest.fixture
def whole_folder(made_folder: Path, tmp_path: Path) -> Path:
    """A folder with all of a model."""
    return shutil.copytree(made_folder, tmp_path / "whole")


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard is missing": (
        lambda folder: (folder / "model-00002-of-00004.safetensors").unlink(),
        "model.safetensors.index.json names files that are not there, model-00002-of-00004.safetensors first. "
        "Fix: copy all files of the checkpoint.",
    ),
    "a shard is cut": (
        lambda folder: _cut(folder / "model-00002-of-00004.safetensors", 100_000),
        "incomplete or damaged: 100000 bytes, expected ",
    ),
    "a header is cut": (
        lambda folder: _cut(folder / "model-00002-of-00004.safetensors", 100),
        "incomplete or damaged: 100 bytes, expected a safetensors header. Fix: copy or download it again.",
    ),
    "no index": (
        lambda folder: (folder / "model.safetensors.index.json").unlink(),
        "it holds 4 files of weights and no model.safetensors.index.json. Fix: put the index beside them.",
    ),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "it holds no tokenizer, none of tokenizer.json, tokenizer.model, tekken.json, vocab.json, tiktoken.model, vocab.txt. "
        "Fix: put the tokenizer's files beside the weights.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_whose_checkpoint_is_not_whole_is_refused(whole_folder: Path, damage: str) -> None:
    models.check_folder(str(whole_folder))
    break_folder, message = DAMAGES[damage]
    break_folder(whole_folder)
    with pytest.raises(ModelError) as error:
        models.check_folder(str(whole_folder))
    assert message in str(error.value)


def test_a_folder_of_settings_alone_is_taken(whole_folder: Path) -> None:
    """Its weights may lie in S3."""
    for file in whole_folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    models.check_folder(str(whole_folder))
    models.check_folder("tiny")


@pytest.mark.parametrize("value", [3, "Qwen3ForCausalLM", {"a": 1}, None])
def test_architectures_of_a_wrong_type_are_none(tmp_path: Path, value: object) -> None:
    config = {**models.read_config("tiny"), "architectures": value, "id2label": 3, "num_labels": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert models.find(str(tmp_path)).architectures == ()
