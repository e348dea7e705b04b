from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llm_serving.settings import untrusted_json
from llm_serving.settings.untrusted_file import NotAFile


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "more than 100 levels"),
        ("[" * 102 + "]" * 102, "more than 100 levels"),
        ("9" * 5000, "a number of 5000 digits"),
        ("1e999", "a number without bound"),
        ("NaN", "NaN, which JSON does not have"),
        (b'"\xff"', "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte"),
    ],
)
def test_json_beyond_the_limits_is_refused_like_broken_json(text: str | bytes, reason: str) -> None:
    with pytest.raises(json.JSONDecodeError) as error:
        untrusted_json.parse(text)
    assert error.value.msg == reason


def test_json_within_the_limits_is_read() -> None:
    text = "[" * 100 + "18446744073709551615" + "]" * 100
    assert untrusted_json.parse(text) == json.loads(text)
    assert untrusted_json.parse('{"time_step_limit": [0.0, Infinity]}', infinite=True) == {
        "time_step_limit": [0.0, float("inf")]
    }


def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAFile, match="a pipe or a device, not a file"):
        untrusted_json.read(tmp_path / "pipe")


def test_a_file_larger_than_any_of_its_kind_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as content:
        content.truncate(2**33)
    with pytest.raises(json.JSONDecodeError, match="8589934592 bytes, more than 256000000"):
        untrusted_json.read(file)
