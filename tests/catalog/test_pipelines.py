"""Pipelines of diffusers in folders: which files are loaded, what they take, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import models, pipelines
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.records import ModelRecord, RecordedFile
from llm_serving.hub import make_tiny

INDEX: dict[str, Any] = {
    "_class_name": "StableDiffusionXLPipeline",
    "_diffusers_version": "0.19.0",
    "force_zeros_for_empty_prompt": True,
    "feature_extractor": [None, None],
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "unet": ["diffusers", "UNet2DConditionModel"],
}
WANTED = {
    "model_index.json": 600,
    "scheduler/scheduler_config.json": 479,
    "tokenizer/merges.txt": 524_619,
    "tokenizer/vocab.json": 1_059_962,
    "text_encoder/config.json": 565,
    "text_encoder/model.fp16.safetensors": 246_144_152,
    "unet/config.json": 1_680,
    "unet/diffusion_pytorch_model.fp16.safetensors": 5_135_149_760,
}
OTHERS = {
    "README.md": 10,
    "sd_xl_base_1.0.safetensors": 6_938_078_334,
    "text_encoder/model.safetensors": 492_265_168,
    "text_encoder/flax_model.msgpack": 492_242_672,
    "unet/diffusion_pytorch_model.safetensors": 10_270_077_736,
    "unet/openvino_model.bin": 10_269_856_428,
    "vae_1_0/config.json": 607,
    "vae_1_0/diffusion_pytorch_model.fp16.safetensors": 167_335_342,
}
"""Names of the repository of SDXL's base, and sizes of like files."""


def test_of_all_files_those_of_the_parts_in_16_bits_are_taken() -> None:
    assert pipelines.select_names({**WANTED, **OTHERS}, INDEX) == set(WANTED)


def test_files_in_several_parts_are_taken_with_their_index_and_other_variants_are_not() -> None:
    names = {
        "model_index.json", "unet/model-00001-of-00002.safetensors", "unet/model-00002-of-00002.safetensors",
        "unet/model.safetensors.index.json",
    }  # fmt: skip
    index = {"_class_name": "X", "unet": ["diffusers", "Y"]}
    assert pipelines.select_names({*names, "unet/model.non_ema.safetensors"}, index) == names


def test_a_model_on_the_hub_or_in_s3_is_counted_by_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: RecordedFile(bytes=size) for name, size in WANTED.items()}
    record = ModelRecord(source="someone/sdxl", commit="1" * 40, config=INDEX, files=files)
    monkeypatch.setattr(models.records, "find", lambda _name: record)
    model = models.find("someone/sdxl")
    assert (model.task, model.formats, model.kind) == ("draw", ("diffusers",), "StableDiffusionXLPipeline")
    assert model.weight_bytes == 246_144_152 + 5_135_149_760
    assert not model.random


def test_a_made_pipeline_is_read_from_its_folder_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    folder = make_tiny.make("tiny-draw", tmp_path / "tiny-draw")
    model = models.find(str(folder))
    assert (model.task, model.random) == ("draw", True)
    assert models.find(str(folder / pipelines.INDEX_FILE)).name == str(folder)
    headers = model.weight_bytes - models.find("tiny-draw").weight_bytes
    assert 0 < headers < 60_000, "the catalog counts the numbers alone"
    models.check_folder(str(folder))
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ModelError, match="incomplete or damaged"):
        models.check_folder(str(folder))
    (folder / "vae").rename(tmp_path / "vae")
    with pytest.raises(ModelError, match="names parts that are not there, vae first"):
        models.check_folder(str(folder))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "it names no class of a pipeline. Fix: copy or download it again."),
        ({"_class_name": "X", "unet": ["a", "b"]}, "none of its parts has safetensors. Fix: use a pipeline whose parts have."),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_pipeline_is_refused(tmp_path: Path, index: dict[str, Any], message: str) -> None:
    (tmp_path / pipelines.INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ModelError) as error:
        models.find(str(tmp_path))
    assert str(error.value) == f"{tmp_path / pipelines.INDEX_FILE}: {message}"
