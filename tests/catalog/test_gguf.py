"""Headers of GGUF files: read as llama.cpp's own package writes them, and refused where the file cannot be served."""

from __future__ import annotations

from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest

from llm_serving.catalog import gguf, models
from llm_serving.catalog.architecture import ModelError
from llm_serving.engines import llama_cpp
from llm_serving.hub import make_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf.make("tiny", tmp_path_factory.mktemp("gguf") / "tiny")


def _write(path: Path, architecture: str = "qwen3", parts: int = 1) -> Path:
    """A GGUF file of one tensor."""
    writer = gguf_package.GGUFWriter(path, architecture)
    writer.add_uint16("split.count", parts)
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_sizes_of_types_are_those_of_llama_cpps_own_package() -> None:
    for number, (name, block, block_bytes) in gguf.TYPES.items():
        kind = gguf_package.GGMLQuantizationType(number)
        assert (kind.name, gguf_package.GGML_QUANT_SIZES[kind]) == (name, (block, block_bytes))


def test_a_header_has_the_files_own_numbers(tiny_gguf: Path) -> None:
    header, row = gguf.read_file(tiny_gguf / gguf.FILE), models.find("tiny")
    assert header.file_bytes == (tiny_gguf / gguf.FILE).stat().st_size
    package = gguf_package.GGUFReader(tiny_gguf / gguf.FILE)
    assert {tensor.name: tensor.bytes for tensor in header.tensors} == {
        tensor.name: int(tensor.n_bytes) for tensor in package.tensors
    }
    model = models.find(str(tiny_gguf))
    assert model.formats == ("gguf",)
    assert model.weight_bytes == header.weight_bytes
    for field in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary", "max_context"):
        assert getattr(model, field) == getattr(row, field), field


def test_a_file_that_was_cut_short_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    content = (tiny_gguf / gguf.FILE).read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ModelError) as error:
        models.find(str(tmp_path))
    assert str(error.value) == (
        f"{path}: it is cut short: {len(content) - 1} bytes, {len(content)} by its header. Fix: copy or download it again."
    )
    path.write_bytes(content[:5000])
    with pytest.raises(ModelError, match=r"it is cut short within its header\. Fix: copy or download it again\."):
        models.find(str(tmp_path))


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "m-00001-of-00003.gguf", parts=3)
    with pytest.raises(ModelError) as error:
        models.find(str(tmp_path))
    assert str(error.value) == (
        f"{path}: it is one of 3 parts, and llama.cpp is given one file. "
        "Fix: name the file that `llama-gguf-split --merge FIRST-PART model.gguf` makes of all parts."
    )
    _write(tmp_path / "m-00002-of-00003.gguf", parts=3)
    with pytest.raises(ModelError, match="it is one of 3 parts"):
        models.find(str(tmp_path))


def test_an_architecture_that_llama_cpp_does_not_know_is_refused_with_near_ones(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.gguf", architecture="qwenn3")
    with pytest.raises(ModelError) as error:
        models.find(str(tmp_path))
    assert str(error.value) == (
        f'{path}: general.architecture: "qwenn3": llama.cpp\'s version here runs no such model. '
        "Fix: use a model of qwen3 or qwen35 or qwen."
    )
    assert {"llama", "qwen3", "gemma3", "gpt-oss", "deepseek2"} <= set(gguf.load_architectures())


def test_what_is_no_gguf_file_and_several_files_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "m.gguf")
    _write(tmp_path / "n.gguf")
    with pytest.raises(
        ModelError, match=r"it holds 2 GGUF files, m\.gguf, n\.gguf\. Fix: name a folder with one of them"
    ):
        models.find(str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"PK\3\4 an archive")
    with pytest.raises(ModelError, match="it is not a readable GGUF file: it does not begin with GGUF"):
        models.find(str(tmp_path))


def test_a_quantization_names_a_file_of_a_repository_and_an_unknown_one_names_the_others() -> None:
    model = models.find("bartowski/Qwen_Qwen3-4B-GGUF:Q4_K_M")
    assert (model.hub, model.weight_bytes, model.layers) == ("bartowski/Qwen_Qwen3-4B-GGUF", 2_500_000_000, 36)
    with pytest.raises(ModelError, match=r"no file of the type Q1\. Fix: bartowski/Qwen_Qwen3-4B-GGUF:BF16 or "):
        models.find("bartowski/Qwen_Qwen3-4B-GGUF:Q1")


def test_sizes_of_eight_bit_files_follow_from_the_model_they_are_of() -> None:
    for name, row in models.load_repositories().items():
        computed = models.find(row.of).parameters * 34 / 32
        assert row.weight_bytes["Q8_0"] == pytest.approx(computed, rel=0.003), name


@pytest.mark.parametrize(
    ("pooling", "task"),
    [
        ({}, "generate"),
        ({"qwen3.pooling_type": 0}, "generate"),
        ({"qwen3.pooling_type": 3}, "embed"),
        ({"qwen3.pooling_type": 4}, "rerank"),
    ],
)
def test_the_header_says_whether_a_model_embeds_or_ranks(pooling: dict[str, int], task: str) -> None:
    header = gguf.Header(architecture="qwen3", values=pooling, tensors=(), file_bytes=0, parts=1)
    assert header.task == task


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 3072, "ssm.state_size": 128, "ssm.group_count": 1}


@pytest.mark.parametrize(
    ("architecture", "values", "linear", "feed_forward"),
    [
        ("granitehybrid", {"attention.head_count_kv": (0, 0, 0, 4), "feed_forward_length": (512,) * 4}, 3, 0),
        ("granitehybrid", {"attention.head_count_kv": (0, 0, 0, 4), "feed_forward_length": 512}, 3, 0),
        ("nemotron_h_moe", {"attention.head_count_kv": (0, 0, 4, 0), "feed_forward_length": (0, 512, 0, 0)}, 2, 1),
        ("qwen3next", {"attention.head_count_kv": 4}, 3, 0),
        ("qwen35", {"attention.head_count_kv": 4, "full_attention_interval": 2}, 2, 0),
    ],
)
def test_each_slot_keeps_the_states_of_layers_without_keys_and_values(
    architecture: str, values: dict[str, object], linear: int, feed_forward: int
) -> None:
    numbers = {
        "block_count": 4, "embedding_length": 1024, "attention.head_count": 16, "vocab_size": 1000,
        "context_length": 8192, **SSM, **values,
    }  # fmt: skip
    named = {f"{architecture}.{key}": value for key, value in numbers.items()}
    header = gguf.Header(architecture=architecture, values=named, tensors=(), file_bytes=0, parts=1)
    model = gguf.build_architecture(header, "here")
    assert (model.linear_layers, model.feed_forward_layers) == (linear, feed_forward)
    state_bytes = 4 * (3 * (3072 + 2 * 128) + 128 * 3072)
    token_bytes = (4 - linear - feed_forward) * 4 * 64 * 2 * 2
    assert llama_cpp.compute_cache_bytes(model, 3, 512) == 3 * (512 * token_bytes + linear * state_bytes)
