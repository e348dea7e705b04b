"""Lines and rows of a file in OpenAI's batch format, and what is reported of those that cannot run."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from batch import reader, rows
from hypothesis import given
from hypothesis import strategies as st

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def build_row(**changes: Any) -> bytes:
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY, **changes}
    return json.dumps({key: value for key, value in row.items() if value is not None}).encode()


def split(content: bytes, sizes: list[int]) -> list[bytes]:
    blocks, start = [], 0
    for size in sizes:
        blocks.append(content[start : start + size])
        start += size
    return [*blocks, content[start:]]


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=20), st.data())
def test_every_line_is_in_exactly_one_range_whatever_the_ranges(lines: list[bytes], data: st.DataObject) -> None:
    content = b"\n".join(lines)
    step = data.draw(st.integers(1, max(1, len(content))))
    size = len(content)

    def read(start: int, end: int) -> list[bytes]:
        return split(content[start:end], [3])

    lines_of_ranges = [
        line
        for start in range(0, size, step)
        for line in reader.read_range_lines(read, start, min(size, start + step), size)
    ]
    whole = list(rows.read_lines([content]))
    assert [(line.offset, line.content) for line in lines_of_ranges] == [(line.offset, line.content) for line in whole]


@given(st.binary(max_size=200), st.lists(st.integers(0, 9), max_size=20))
def test_lines_are_the_same_however_the_bytes_arrive(content: bytes, sizes: list[int]) -> None:
    assert list(rows.read_lines(split(content, sizes))) == list(rows.read_lines([content]))


def test_byte_order_mark_and_carriage_returns_are_no_part_of_a_row() -> None:
    lines = list(rows.read_lines([b"\xef\xbb\xbf" + build_row() + b"\r\n\r\n" + build_row(custom_id="b") + b"\r\n"]))
    assert [line.is_blank for line in lines] == [False, True, False]
    assert rows.parse(lines[0].content).custom_id == "a"
    assert rows.parse(lines[2].content).custom_id == "b"


def test_a_line_that_is_too_long_is_reported_and_not_held() -> None:
    def read() -> Iterator[bytes]:
        yield build_row() + b"\n"
        yield from (b"x" * 2**20 for _ in range(200))
        yield b"\n" + build_row(custom_id="b")

    tracemalloc.start()
    lines = list(rows.read_lines(read(), max_bytes=2**20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 2**20
    assert [line.content is None for line in lines] == [False, True, False]
    with pytest.raises(rows.RowError) as refusal:
        rows.parse(lines[1].content)
    assert refusal.value.code == "row_too_long"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{broken", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b"[" * 100_000, "invalid_json_line"),
        (b'{"custom_id": "\xff"}', "invalid_encoding"),
        (build_row().decode().encode("utf-16"), "invalid_encoding"),
        (build_row(custom_id=None), "missing_custom_id"),
        (build_row(custom_id=7), "missing_custom_id"),
        (build_row(custom_id="x" * 600), "invalid_custom_id"),
        (build_row(custom_id="\ud800"), "invalid_custom_id"),
        (build_row(method="GET"), "invalid_method"),
        (build_row(url="/v1/images"), "invalid_url"),
        (build_row(url="/v1/embeddings"), "mismatched_url"),
        (build_row(body=[]), "invalid_body"),
        (build_row(body={**BODY, "stream": True}), "invalid_body"),
        (build_row(body={**BODY, "background": True}), "invalid_body"),
        (build_row(body={**BODY, "kv_transfer_params": {"do_remote_prefill": True}}), "invalid_body"),
    ],
)
def test_a_row_that_cannot_run_has_a_code(content: bytes, code: str) -> None:
    with pytest.raises(rows.RowError) as refusal:
        rows.parse(content, "/v1/chat/completions")
    assert refusal.value.code == code


def test_a_row_is_parsed() -> None:
    row = rows.parse(build_row(), "/v1/chat/completions")
    assert (row.custom_id, row.url, row.body) == ("a", "/v1/chat/completions", BODY)


@pytest.mark.parametrize("body", [b'{"a": "\xc3\xa9"}', b'{\n"a":\r\n1}'])
def test_an_answer_is_one_line_with_the_body_as_it_came(body: bytes) -> None:
    line = rows.format_output("a\n", 200, body, truncated={"characters": 7})
    assert line.count(b"\n") == 1
    result = json.loads(line)
    assert result["custom_id"] == "a\n"
    assert result["response"]["body"] == json.loads(body)
    assert (result["response"]["status_code"], result["error"], result["truncated"]) == (200, None, {"characters": 7})


def test_an_error_line_can_hold_what_utf_8_cannot() -> None:
    line = rows.format_error("\ud800", "code", "text", line=3)
    assert json.loads(line)["custom_id"] == "\ud800"
    assert json.loads(line)["error"] == {"code": "code", "message": "text", "line": 3}
    rows.digest_id("\ud800")


def test_no_two_results_have_the_same_id() -> None:
    answers = [rows.format_output("a", 200, b"{}") for _ in range(100)]
    answers += [rows.format_error("a", "code", "text", status=500) for _ in range(100)]
    for result in map(json.loads, answers):
        assert result["id"] == f"batch_req_{result['response']['request_id']}"
    assert len({json.loads(line)["id"] for line in answers}) == 200
