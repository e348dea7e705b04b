"""Models of kinds whose memory is not known here: refused, or taken by the size of their weights alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.catalog import models, records
from llm_serving.catalog.records import ModelRecord
from llm_serving.kinds.serving import summary
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.settings.errors import InputError
from tests.kinds.serving.checks.test_engine_arguments import FLEET, _resolve

GB = 10**9


def _make_folder(folder: Path, weight_bytes: int) -> Path:
    model = folder / "model"
    model.mkdir()
    config = {"model_type": "zebra", "text_config": {"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100}}
    (model / "config.json").write_text(json.dumps(config))
    if weight_bytes:
        index = {"metadata": {"total_size": weight_bytes}, "weight_map": {}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model


def _resolve_unknown(folder: Path, weight_bytes: int, extra: str) -> ServingDeployment:
    return _resolve(folder, extra, model=str(_make_folder(folder, weight_bytes)))


def test_a_model_of_an_unknown_kind_is_refused_at_its_line_with_the_way_round(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        _resolve_unknown(tmp_path, 8 * GB, "")
    message = str(refusal.value)
    assert message.startswith(f'{tmp_path}/blueprint.yaml:3:8: model: "')
    assert 'model_type: "zebra": its memory is not known here. Fix: set memory: unchecked, which counts' in message


def test_unchecked_takes_it_and_says_that_nothing_is_computed(tmp_path: Path) -> None:
    deployment = _resolve_unknown(tmp_path, 8 * GB, "memory: unchecked\n")
    assert deployment.served_models[0].weights.bytes == 8 * GB
    assert any("not computed, since its kind, zebra, is not known here" in note for note in deployment.notes)
    assert summary.build_payload(deployment)["models"][0]["memory"] == "not computed"
    assert len(list(validate.list_remarks(deployment))) == 1
    assert list(validate.list_remarks(_resolve(tmp_path, ""))) == []
    assert summary.build_payload(_resolve(tmp_path, ""))["models"][0]["memory"] == "computed"


def test_weights_that_have_no_room_are_refused_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights 56.1 GB, with a tenth for what is not computed, are more than the"):
        _resolve_unknown(tmp_path, 51 * GB, "memory: unchecked\n")


def test_weights_of_unknown_size_are_refused_with_the_file_that_says_it(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"neither safetensors nor model.safetensors.index.json. Fix: put model.safetensors"
    ):
        _resolve_unknown(tmp_path, 0, "memory: unchecked\n")


def test_a_known_model_is_checked_whatever_the_blueprint_says(tmp_path: Path) -> None:
    notes = _resolve(tmp_path, "memory: unchecked\n").notes
    assert not any("not computed" in note for note in notes)
    with pytest.raises(InputError, match="it does not fit into 1 accelerator"):
        _resolve(tmp_path, "memory: unchecked\n", model="Qwen/Qwen3-32B")


HUB_ID = "someone/some-model"


def _save_record(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    config = {**models.read_config("Qwen/Qwen3-0.6B"), **changes}
    records.save(ModelRecord(source=HUB_ID, revision="main", commit="0123456789abcdef", config=config, weight_bytes=GB))


def test_a_hub_id_that_nothing_is_known_of_is_refused_with_the_command_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=rf"neither in the catalog .* or `blueprint model fit {HUB_ID}`, which asks"):
        _resolve(tmp_path, "", model=HUB_ID)


def test_a_hub_id_of_a_known_kind_is_computed_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_record(monkeypatch, tmp_path)
    deployment = _resolve(tmp_path, "", model=HUB_ID)
    assert deployment.served_models[0].weights.bytes == GB
    assert not any("not computed" in note for note in deployment.notes)


def test_a_hub_id_of_an_unknown_kind_deploys_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_record(monkeypatch, tmp_path, model_type="zebra")
    with pytest.raises(InputError, match=r'model_type: "zebra": .* Fix: set memory: unchecked'):
        _resolve(tmp_path, "", model=HUB_ID)
    assert any("not computed" in note for note in _resolve(tmp_path, "memory: unchecked\n", model=HUB_ID).notes)


def test_a_revision_other_than_the_one_that_was_copied_is_refused_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_record(monkeypatch, tmp_path)
    for revision in ("main", '"0123456789ab"'):
        assert _resolve(tmp_path, f"revision: {revision}\n", model=HUB_ID).served_models[0].weights.revision
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, "revision: v2\n", model=HUB_ID)
    assert 'revision: "v2": what is known here is someone/some-model at main, commit 0123456789ab. Fix: ' in str(
        refusal.value
    )
    with pytest.raises(InputError, match=r'revision: "v2": tiny is not from a hub\. Fix: remove'):
        _resolve(tmp_path, "revision: v2\n", model="tiny")


def test_a_model_in_s3_that_nothing_recorded_is_deployed_from_there_once_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "s3://bring-your-own/models/zebra-7b"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, "", model=uri)
    assert str(refusal.value) == (
        f'{tmp_path}/blueprint.yaml:3:8: model: "{uri}": what lies there was not read yet. '
        f"Fix: run `blueprint model fit {uri}`, which reads it once."
    )
    config = {"model_type": "zebra", "text_config": {"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100}}
    records.save(ModelRecord(source=uri, config=config, weight_bytes=8 * GB), name=f"{uri}/")
    with pytest.raises(InputError, match=r"its memory is not known here\. Fix: set memory: unchecked"):
        _resolve(tmp_path, "", model=uri)
    with pytest.raises(InputError, match=r":3:8: model: .+ the fleet lets its engines read no bucket bring-your-own"):
        _resolve(tmp_path, "memory: unchecked\n", model=uri)
    fleet = FLEET.replace("pools:", "storage: {model_buckets: {bucket: bring-your-own}}\npools:")
    monkeypatch.setattr("tests.kinds.serving.checks.test_engine_arguments.FLEET", fleet)
    [served] = _resolve(tmp_path, "memory: unchecked\n", model=uri).served_models
    assert (served.name, served.weights.uri, served.weights.bytes) == ("zebra-7b", f"{uri}/", 8 * GB)
    with pytest.raises(InputError, match=r'revision: "main": s3://\S+ is not from a hub'):
        _resolve(tmp_path, "memory: unchecked\nrevision: main\n", model=uri)


@pytest.mark.parametrize("memory", ["", "memory: unchecked\n"])
def test_a_model_that_the_engine_dropped_is_refused_with_its_last_version(tmp_path: Path, memory: str) -> None:
    model = _make_folder(tmp_path, 8 * GB)
    config = {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"], "text_config": {}}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, memory, model=str(model))
    assert str(refusal.value).startswith(f'{tmp_path}/blueprint.yaml:3:8: model: "')
    assert str(refusal.value).endswith(
        '": vLLM 0.32.0 has no MllamaForConditionalGeneration: 0.10.2 was the last that ran it. Fix: use another model.'
    )


@pytest.mark.parametrize("memory", ["", "memory: unchecked\n"])
def test_a_model_that_the_engine_never_had_is_refused_with_an_engine_to_take(tmp_path: Path, memory: str) -> None:
    model, engine = _make_folder(tmp_path, 8 * GB), "engine: tensorrt-llm\n"
    config = {"model_type": "zebra", "architectures": ["ZebraForCausalLM"], "text_config": {}}
    (model / "config.json").write_text(json.dumps(config))
    refusal = r'": TensorRT-LLM has no ZebraForCausalLM\. Fix: set engine: vllm, or use another model\.$'
    with pytest.raises(InputError, match=refusal):
        _resolve(tmp_path, memory + engine, model=str(model))
    with pytest.raises(InputError, match=r"TensorRT-LLM has no GraniteForCausalLM"):
        _resolve(tmp_path, engine, model="ibm-granite/granite-3.3-8b-instruct")
    # vLLM hands what it does not know to transformers, and TensorRT-LLM takes what it knows.
    _resolve(tmp_path, "memory: unchecked\n", model=str(model))
    _resolve(tmp_path, engine, model="Qwen/Qwen3-8B")
