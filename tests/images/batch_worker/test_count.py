"""Rows and tokens are counted before a job is submitted: all of a small file, a sample of a large one with its error."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from batch import count

TOKENS_OF_A_TEMPLATE = 7
VOCABULARY = [f"{number:x}" for number in range(0, 10**6, 997)]


class FakeStore:
    """One object."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.bytes_read = 0

    def read_range(self, _: str, start: int, end: int) -> Iterator[bytes]:
        for position in range(start, end, 2**12):
            block = self.content[position : min(end, position + 2**12)]
            self.bytes_read += len(block)
            yield block


class WordEndpoint:
    """Counts words as tokens, as /tokenize does, with those of a template."""

    requests = 0

    async def count_tokens(self, body: dict[str, Any]) -> int | None:
        self.requests += 1
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        return len(text.split()) + TOKENS_OF_A_TEMPLATE


class SilentEndpoint:
    """One without /tokenize."""

    async def count_tokens(self, _: dict[str, Any]) -> None:
        return None


def build_file(row_count: int, seed: int = 1) -> tuple[bytes, int, int]:
    """A file of rows of many lengths; its input and output tokens."""
    chance, lines, input_tokens, output_tokens = random.Random(seed), [], 0, 0
    for number in range(row_count):
        words = chance.randint(5, 400)
        most = chance.randint(1, 64)
        text = " ".join(chance.choices(VOCABULARY, k=words))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": most}
        row = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(row).encode())
        input_tokens += words + TOKENS_OF_A_TEMPLATE
        output_tokens += most
    return b"\n".join(lines) + b"\n", input_tokens, output_tokens


def estimate(content: bytes, endpoint: Any = None) -> tuple[dict[str, Any], FakeStore]:
    store = FakeStore(content)
    sample = count.read_sample(store, "key", len(content), "", "")  # type: ignore[arg-type]
    return asyncio.run(count.estimate(sample, endpoint or WordEndpoint(), "")), store


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_every_row_of_a_small_file_is_counted(pack: Any) -> None:
    content, input_tokens, output_tokens = build_file(100)
    counted, _ = estimate(pack(content + b"{broken\n\n"))
    assert counted["is_whole"]
    assert counted["rows"] == {"value": 101, "error": 0}
    assert counted["bad_rows"] == {"value": 1, "error": 0}
    assert counted["input_tokens"] == {"value": input_tokens, "error": 0}
    assert counted["output_tokens"] == {"value": output_tokens, "error": 0}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_sample_of_a_large_file_says_its_error_and_keeps_within_it(pack: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(count, "WHOLE_BYTES", 2**20)
    monkeypatch.setattr(count, "BLOCK_BYTES", 16 * 2**10)
    row_count = 8000
    content, input_tokens, output_tokens = build_file(row_count)
    endpoint = WordEndpoint()
    counted, store = estimate(pack(content), endpoint)
    assert not counted["is_whole"]
    assert store.bytes_read < len(content) / 4
    assert endpoint.requests <= count.TOKEN_ROWS
    for name, truth in (("rows", row_count), ("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        number = counted[name]
        assert 0 < number["error"] < 0.15 * truth, name
        assert abs(number["value"] - truth) < 1.5 * number["error"], name  # of a fixed seed


def test_rows_without_a_limit_of_their_answer_are_told_apart() -> None:
    row = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "a b"}}
    embedding = {**row, "custom_id": "b", "url": "/v1/embeddings", "body": {"model": "m", "input": "a b c"}}
    counted, _ = estimate(b"\n".join(json.dumps(entry).encode() for entry in (row, embedding)))
    assert counted["open_rows"]["value"] == 1
    assert counted["input_tokens"]["value"] == 5 + 2 * TOKENS_OF_A_TEMPLATE


def test_an_endpoint_that_counts_nothing_leaves_tokens_unknown() -> None:
    content, _, _ = build_file(3)
    counted, _ = estimate(content, SilentEndpoint())
    assert (counted["rows"]["value"], counted["input_tokens"]) == (3, None)
