"""Generated models: the same bytes each time, complete or absent, and no random end-of-text token."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from llm_serving.catalog import models
from llm_serving.hub import make_tiny, make_vision
from llm_serving.settings.errors import InputError, Unavailable


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny.make("tiny", tmp_path_factory.mktemp("model") / "tiny")


def _compute_hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_two_processes_generate_the_same_bytes(tiny_folder: Path, tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from llm_serving.hub import make_tiny; make_tiny.make('tiny', pathlib.Path(sys.argv[1]))"
    )
    # The order of Python's sets and of the trainer's threads must not show in the result.
    environment = {**os.environ, "PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "b")], check=True, env=environment, timeout=60)
    assert _compute_hashes(tmp_path / "b") == _compute_hashes(tiny_folder)


def test_the_weights_are_several_files_of_the_index(tiny_folder: Path) -> None:
    from safetensors import safe_open

    index = json.loads((tiny_folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) == 4
    weight_map: dict[str, str] = {}
    for name in files:
        with safe_open(tiny_folder / name, framework="numpy") as shard:
            weight_map |= dict.fromkeys(shard.keys(), name)
            assert {shard.get_slice(key).get_dtype() for key in shard.keys()} == {"BF16"}  # noqa: SIM118 (no mapping)
    assert weight_map == index["weight_map"]
    assert index["metadata"]["total_size"] == models.find("tiny").weight_bytes


@pytest.mark.parametrize("size", make_tiny.SIZES)
def test_the_catalog_counts_the_generated_parameters(size: make_tiny.Size) -> None:
    assert (
        sum(tensor.bytes for shard in make_tiny.list_shards(size).values() for tensor in shard)
        == models.find(size).weight_bytes
    )


@pytest.mark.parametrize("size", ["tiny-embed", "tiny-rerank", "tiny-classify"])
def test_a_folder_of_another_task_says_so_and_is_made_once(tmp_path: Path, size: make_tiny.Size) -> None:
    folder = make_tiny.make(size, tmp_path / size)
    model, row = models.find(str(folder)), models.find(size)
    assert (model.task, model.labels, model.list_tensors()) == (row.task, row.labels, row.list_tensors())
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert "lm_head.weight" not in weight_map
    assert ("score.weight" in weight_map) == bool(row.labels)
    changed_at = (folder / make_tiny.MARKER).stat().st_mtime_ns
    assert make_tiny.make(size, folder) == folder
    assert (folder / make_tiny.MARKER).stat().st_mtime_ns == changed_at


def test_mid_is_about_nine_tenths_of_a_gigabyte() -> None:
    assert models.find("mid").weight_bytes == pytest.approx(0.9e9, rel=0.02)


def test_the_generated_folder_matches_the_catalog_and_is_random(tiny_folder: Path) -> None:
    model, row = models.find(str(tiny_folder)), models.find("tiny")
    assert model.random
    assert model.list_tensors() == row.list_tensors()


def test_the_tokenizer_round_trips_any_text(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    for text in ("What is prefill?", "Größe: 漢字 🙂\n\ttab", make_tiny.CORPUS.read_text()):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    words = make_tiny.CORPUS.read_text()
    assert len(words) / len(tokenizer.encode(words).ids) > 3.5  # characters a token: it has learnt words


def test_the_tokenizer_fills_the_vocabulary_with_the_special_tokens_last(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    config = json.loads((tiny_folder / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]
    assert tokenizer.token_to_id("<|endoftext|>") == config["vocab_size"] - 9


def _render(messages: list[dict[str, Any]], **arguments: Any) -> str:
    environment = jinja2.Environment()
    environment.filters["tojson"] = json.dumps  # as transformers has it, without HTML's escapes
    template = environment.from_string(make_tiny.CHAT_TEMPLATE.read_text())
    return template.render(messages=messages, add_generation_prompt=True, **arguments)


def test_the_chat_template_writes_turns_as_qwen_does() -> None:
    asked, begun = "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|>assistant\n"
    messages = [{"role": "user", "content": "hi"}]
    assert _render(messages) == asked + begun
    assert _render(messages, enable_thinking=False) == f"{asked}{begun}<think>\n\n</think>\n\n"
    parts = [{"type": "text", "text": "hi"}, {"type": "image"}]
    picture = make_vision.TOKENS["vision_start"] + make_vision.TOKENS["image"] + make_vision.TOKENS["vision_end"]
    assert _render([{"role": "user", "content": parts}]) == asked.replace("hi", f"hi{picture}") + begun


def test_the_chat_template_writes_tools_calls_and_their_results() -> None:
    call = {"function": {"name": "find", "arguments": {"city": "Oslo"}}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "north"}]
    text = _render(messages, tools=[{"type": "function", "function": {"name": "find"}}])
    assert '<tools>\n{"type": "function", "function": {"name": "find"}}\n</tools>' in text
    assert '<tool_call>\n{"name": "find", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\nnorth\n</tool_response><|im_end|>" in text


def test_a_model_that_sees_has_the_tokens_and_the_sizes_of_pictures(tmp_path: Path) -> None:
    folder = make_tiny.make("tiny-vision", tmp_path / "tiny-vision")
    model, row = models.find(str(folder)), models.find("tiny-vision")
    assert (model.random, model.vision, model.list_tensors()) == (True, row.vision, row.list_tensors())
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert {
        name: tokenizer.id_to_token(config[f"{name}_token_id"]) for name in make_vision.TOKENS
    } == make_vision.TOKENS
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert row.vision
    side = row.vision.token_side
    assert processor["size"]["longest_edge"] == row.vision.image_tokens * side**2
    assert row.vision.count_tokens(5000, 5000) == row.vision.image_tokens


def test_only_tokens_that_print_nothing_are_suppressed(tiny_folder: Path) -> None:
    output = _load_tensor(tiny_folder, "lm_head.weight")
    silent_tokens = make_tiny.find_silent_tokens(make_tiny.train_tokenizer("tiny"))
    ordinary = sorted(set(range(1280)) - set(silent_tokens))
    assert (output[silent_tokens, 0] == -64).all()
    assert (output[ordinary, 0] == 0).all()
    assert (_load_tensor(tiny_folder, "model.embed_tokens.weight")[:, 0] == 0.5).all()
    assert (_load_tensor(tiny_folder, "model.layers.0.mlp.down_proj.weight")[0] == 0).all()
    assert {1279, 1271, 0xFF - 0x21} <= set(silent_tokens)  # the last mark, the end of text, and half a character


def test_weights_are_normal_with_the_documented_spread(tiny_folder: Path) -> None:
    values = _load_tensor(tiny_folder, "model.layers.1.mlp.gate_proj.weight")
    assert abs(values.mean()) < 2e-4
    assert values.std() == pytest.approx(0.02, rel=0.01)
    other = _load_tensor(tiny_folder, "model.layers.2.mlp.gate_proj.weight")
    assert (values != other).mean() > 0.99


def test_a_complete_result_is_not_generated_again(tmp_path: Path) -> None:
    folder = make_tiny.make("tiny", tmp_path / "tiny")
    before = (folder / "config.json").stat().st_mtime_ns
    assert make_tiny.make("tiny", folder) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_a_result_with_a_truncated_file_is_generated_again(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "tiny")
    shard = folder / "model-00002-of-00004.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    make_tiny.make("tiny", folder)
    assert _compute_hashes(folder) == _compute_hashes(tiny_folder)


def test_a_result_of_another_recipe_is_generated_again(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "tiny")
    marker = json.loads((folder / make_tiny.MARKER).read_text())
    marker["recipe"]["version"] = 0
    (folder / make_tiny.MARKER).write_text(json.dumps(marker))
    make_tiny.make("tiny", folder)
    assert _compute_hashes(folder) == _compute_hashes(tiny_folder)


def test_a_folder_with_other_content_is_never_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="it exists with other content"):
        make_tiny.make("tiny", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="it exists with other content"):
        make_tiny.make("tiny", tmp_path / "file")


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5, 5))
    with pytest.raises(Unavailable, match=r"5 B free, the model mid needs 888 MB"):
        make_tiny.make("mid", tmp_path / "mid")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_generation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make_tiny, "_write_weights", raise_disk_full)
    with pytest.raises(Unavailable, match=r"tiny: no space left on device\. Fix: make room on that disk\."):
        make_tiny.make("tiny", tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'size: "huge": there is no such size\. Fix: use one of tiny, mid'):
        make_tiny.make("huge", tmp_path / "x")  # type: ignore[arg-type]


def _load_tensor(folder: Path, name: str):  # type: ignore[no-untyped-def]
    """A bfloat16 tensor as float32: numpy has no bfloat16, and the library's numpy reader refuses it."""
    import numpy as np
    from safetensors import deserialize

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = dict(deserialize((folder / index["weight_map"][name]).read_bytes()))
    raw = np.frombuffer(tensors[name]["data"], dtype="<u2").astype("<u4") << 16
    return raw.view("<f4").reshape(tensors[name]["shape"])


def test_an_adapter_depends_on_its_name_alone(tmp_path: Path) -> None:
    adapter, same_adapter, other = (make_tiny.make_adapter(tmp_path / name) for name in ("a/tone", "b/tone", "a/other"))
    assert _compute_hashes(adapter) == _compute_hashes(same_adapter)
    assert _compute_hashes(adapter)["adapter_model.safetensors"] != _compute_hashes(other)["adapter_model.safetensors"]


def test_an_adapter_never_overwrites(tmp_path: Path) -> None:
    make_tiny.make_adapter(tmp_path / "tone")
    with pytest.raises(InputError) as error:
        make_tiny.make_adapter(tmp_path / "tone")
    assert str(error.value) == f"{tmp_path}/tone: it exists already. Fix: name a new folder."
