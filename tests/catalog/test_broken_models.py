"""Files of models as somebody might damage or forge them: each is refused with one message, at once."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import gguf, models
from llm_serving.settings.errors import InputError

CONFIG = dict(models.read_config("Qwen/Qwen3-8B"))
SHAPES: tuple[Any, ...] = (None, True, -1, 0, 10**9, 10**30, 1e300, float("inf"), "", "x", [], [[]], {}, {"a": 1})


def _read(folder: Path, config: Any) -> str:
    """Return the message about a folder with such a config.json; "" where it is a model."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        models.read_folder(folder, unchecked=True)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", sorted({*CONFIG, "rope_scaling", "layer_types", "quantization_config", "text_config"}))
def test_any_value_of_any_key_of_a_config_is_read_or_refused(tmp_path: Path, key: str) -> None:
    for value in SHAPES:
        _read(tmp_path, CONFIG | {key: value})


def test_a_config_with_more_layers_than_any_model_is_refused(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "ignore": ["lm_head"]}
    message = _read(tmp_path, CONFIG | {"num_hidden_layers": 10**9, "quantization_config": quantization})
    assert "1000000000 layers, more than 1000" in message


@pytest.mark.parametrize("pattern", ["^(.*.*)*.*Q$", "(a|a)+Q", "a?" * 30 + "Q", ".*" * 20 + "Q", "(", "a" * 501])
def test_a_pattern_that_may_never_end_is_not_tried(tmp_path: Path, pattern: str) -> None:
    quantization = {"quant_method": "fp8", "ignore": [f"re:{pattern}"]}
    with pytest.raises(InputError, match="the size of its weights is not known here"):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
        models.read_folder(tmp_path)


@pytest.mark.parametrize("pattern", ["re:.*lm_head", "re:.*self_attn.*", r"re:model\.layers\.(0|1|2)\..*", "*.mlp.*"])
def test_a_pattern_as_tools_write_them_is_taken(tmp_path: Path, pattern: str) -> None:
    assert not _read(tmp_path, CONFIG | {"quantization_config": {"quant_method": "fp8", "ignore": [pattern]}})


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _header(tensors: int, pairs: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


NAME = _text("general.architecture") + struct.pack("<I", 8) + _text("qwen3")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_header(2**28), "268435456 tensors"),
        (_header(1, 0, _text("w") + struct.pack("<I", 10**6)), "w has 1000000 dimensions"),
        (_header(0, 1, _text("a") + struct.pack("<IIQ", 9, 10, 2**28)), "a header of more than 64000000 bytes"),
        (_header(0, 2, NAME + _text("general.alignment") + struct.pack("<II", 4, 0)), "division"),
        (_header(0, 2, NAME + _text("general.alignment") + struct.pack("<IIQI", 9, 4, 1, 0)), "int()"),
        (_header(0, 2, NAME + _text("split.count") + struct.pack("<IIQI", 9, 4, 1, 0)), "int()"),
        (_header(0, 2, NAME + _text("qwen3.pooling_type") + struct.pack("<If", 6, float("inf"))), "infinity"),
        (_header(0, 2, NAME + _text("qwen3.pooling_type") + struct.pack("<I", 8) + _text("x")), "invalid literal"),
    ],
)
def test_a_forged_gguf_header_is_refused_before_it_takes_time(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    with file.open("wb") as stream:
        stream.write(content)
        stream.truncate(2**33)  # zeros, which take no room
    with pytest.raises(InputError) as error:
        gguf.read_file(file)
    assert reason in str(error.value)


def test_damaged_gguf_headers_are_read_or_refused() -> None:
    pairs = NAME + _text("qwen3.block_count") + struct.pack("<II", 4, 2)
    tensor = _text("w") + struct.pack("<IQQIQ", 2, 32, 32, 0, 0)
    whole, chance = _header(1, 2, pairs + tensor), random.Random(27)
    assert gguf.parse_bytes(whole, "whole").architecture == "qwen3"
    for _ in range(2000):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
        try:
            gguf.parse_bytes(bytes(content), "damaged")
        except InputError:
            continue
