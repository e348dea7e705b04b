"""Made models in GGUF's form: the numbers, the tokens and the chat template of the safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors import deserialize

from llm_serving.catalog import models
from llm_serving.hub import make_gguf, make_tiny
from llm_serving.settings.errors import InputError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny.make("tiny", tmp_path_factory.mktemp("made") / "tiny")


def test_the_file_has_the_numbers_and_the_tokenizer_of_the_safetensors(source: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(make_gguf.make("tiny", tmp_path / "made") / "model.gguf")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 4)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for shard in source.glob("*.safetensors"):
        for name, tensor in deserialize(shard.read_bytes()):  # type: ignore[no-untyped-call]
            converted = tensors.pop(names.get_name(name, (".weight",)) or "")
            halves = np.frombuffer(bytes(converted.data.tobytes()), dtype="<u2")
            expected = np.frombuffer(tensor["data"], dtype="<u2")
            # Vectors are in 32 bits, whose upper halves are these.
            assert np.array_equal(halves if len(tensor["shape"]) > 1 else halves[1::2], expected), name
    assert not tensors
    settings = json.loads((source / "tokenizer_config.json").read_text())
    assert reader.fields["tokenizer.chat_template"].contents() == settings["chat_template"]
    words = reader.fields["tokenizer.ggml.tokens"].contents()
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    assert all(words[number] == word for word, number in vocabulary.items())
    assert words[reader.fields["tokenizer.ggml.eos_token_id"].contents()] == settings["eos_token"]


def test_a_file_that_embeds_says_how_its_vectors_are_pooled(tmp_path: Path) -> None:
    folder = make_gguf.make("tiny-embed", tmp_path / "made")
    assert gguf.GGUFReader(folder / "model.gguf").fields["qwen3.pooling_type"].contents() == gguf.PoolingType.LAST
    model = models.find(str(folder))
    assert (model.task, model.pooled) == ("embed", True)


def test_a_made_file_stays_and_other_content_is_not_touched(tmp_path: Path) -> None:
    folder = make_gguf.make("tiny", tmp_path / "made")
    before = (folder / "model.gguf").stat().st_mtime_ns
    make_gguf.make("tiny", folder)
    assert (folder / "model.gguf").stat().st_mtime_ns == before
    eight_bits = make_gguf.make("tiny", folder, quantization="Q8_0") / "model.gguf"
    assert eight_bits.stat().st_mtime_ns != before, "another type is made anew"
    assert sorted(path.name for path in folder.iterdir()) == [".made", "model.gguf"], "and no draft stays"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(InputError, match="it exists with other content"):
        make_gguf.make("tiny", tmp_path / "mine")
