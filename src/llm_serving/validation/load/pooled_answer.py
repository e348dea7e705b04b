"""One answer for whole texts: vectors, scores, labels or pictures, in one JSON document. No input or output."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from llm_serving.services.tasks import PooledTask
from llm_serving.settings import untrusted_json
from llm_serving.validation.load.answer import Answer, read_count

SHOWN_SCORES = 8
_PNG_START, _PNG_SIZE = b"\x89PNG\r\n\x1a\n", slice(16, 24)
"""What each file begins with, and where its width and height are. Source: the PNG specification, 11.2.2 IHDR."""


def parse(chunks: Sequence[tuple[float, bytes]], task: PooledTask, inputs: int) -> Answer:
    """Parse a response from its chunks and their times; one with another number of items than inputs has failed."""
    answer = Answer()
    try:
        response = untrusted_json.parse(b"".join(chunk for _, chunk in chunks))
        items = response[task.field]
        answer.input_tokens = read_count(response.get("usage") or {}, "prompt_tokens")
        answer.text = _describe(items)
        answer.picture = items[0].get("b64_json", "")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if chunks:
            answer.failure = f"no {task.answer} in the answer: {type(error).__name__}: {error}"
        return answer
    answer.done = True
    if len(items) != inputs:
        answer.failure = f"{len(items)} {task.answer} for {inputs} {task.counted}"
    return answer


def _describe(items: Sequence[Any]) -> str:
    """Describe the answer in words: labels as they are, scores by document, the length of vectors."""
    first = items[0]
    if "label" in first:
        return ", ".join(str(item["label"]) for item in items)
    if "b64_json" in first:
        return ", ".join("{} x {} pixels".format(*read_size(item["b64_json"])) for item in items)
    if "relevance_score" in first:
        scores = sorted((item["index"], item["relevance_score"]) for item in items)
        return ", ".join(f"{score:.4g}" for _, score in scores[:SHOWN_SCORES])
    counts = [_count_numbers(item["embedding"]) for item in items]
    return f"{len(items)} x {counts[0]} numbers"


def read_size(picture: str) -> tuple[int, int]:
    """Return width and height of a PNG file in base64; raises `ValueError` where it is none."""
    try:
        content = base64.b64decode(picture, validate=True)
    except binascii.Error:
        raise ValueError("a picture is not base64") from None
    if not content.startswith(_PNG_START) or len(content) < _PNG_SIZE.stop:
        raise ValueError("a picture is not a PNG file")
    width, height = struct.unpack(">II", content[_PNG_SIZE])
    return width, height


def _count_numbers(vector: str | Sequence[float]) -> int:
    """Count a vector's numbers.

    Raises:
        TypeError: one is null, as some servers write NaN.
        ValueError: it has none, or one that is NaN or infinite: what overflows in the model comes with HTTP 200.
    """
    numbers: Sequence[float]
    if isinstance(vector, str):
        try:
            numbers = array("f", base64.b64decode(vector, validate=True))
        except ValueError:
            raise ValueError("a vector is neither base64 nor numbers") from None
    else:
        numbers = vector
    if not numbers or not math.isfinite(sum(numbers)):
        raise ValueError("a vector has no numbers, or one that is not finite")
    return len(numbers)
