"""Unique PNG pictures for multimodal models, of colors drawn from a seed.

A picture is rows of random pixels, each repeated ROW_REPEATS times: as many bytes for a pixel as a photo's JPEG of high
quality has, made without a loop over pixels.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from llm_serving.services.traffic import Images, Traffic

ROW_REPEATS = 12
"""Rows of equal pixels: three random bytes for twelve pixels are 2 bits each."""

_CHANNELS = 3
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXELS_AS_THEY_ARE, _SAME_AS_THE_ROW_ABOVE = b"\x00", b"\x02"
"""Filters of a row: none, and the difference from the row above."""


def make_png(width: int, height: int, seed: str) -> bytes:
    """Return a picture of that many pixels, 8 bits for each of red, green and blue (PNG, ISO/IEC 15948)."""
    rng, row_bytes = random.Random(seed), _CHANNELS * width
    repeated_row = _SAME_AS_THE_ROW_ABOVE + bytes(row_bytes)
    rows = (
        repeated_row if row % ROW_REPEATS else _PIXELS_AS_THEY_ARE + rng.randbytes(row_bytes) for row in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(rows), level=1)
    return _SIGNATURE + _build_chunk(b"IHDR", header) + _build_chunk(b"IDAT", pixels) + _build_chunk(b"IEND", b"")


def _build_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def build_content(text: str, images: Images | None, count: int, seed: str) -> str | list[dict[str, Any]]:
    """Return the content of a chat message: its text only, or with pictures behind it that follow from the seed."""
    if images is None or not count:
        return text
    pngs = (make_png(images.width, images.height, f"{seed}/{number}") for number in range(count))
    urls = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs)
    # Text first, as in OpenAI's documentation: what prompts share then lies before what they do not.
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def get_text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if not isinstance(content, list):
        return str(content)
    return " ".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def replace_by_digests(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with a digest in place of each picture: equal where the picture is."""
    return [
        {**message, "content": [_replace(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _replace(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
        return part
    return {"image": hashlib.blake2b(str(part.get("image_url")).encode(), digest_size=8).hexdigest()}


def estimate_bytes(traffic: Traffic) -> int:
    """Return the most bytes of a session's pictures in its requests' bodies."""
    images = traffic.images
    if images is None:
        return 0
    png_bytes = _CHANNELS * images.width * -(-images.height // ROW_REPEATS)
    return traffic.turns.max * images.count.max * png_bytes * 4 // 3
