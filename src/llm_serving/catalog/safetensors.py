"""Whether the files of a checkpoint in safetensors are all there and whole, by its index and each file's own header.

Layout of a file: 8 bytes with the length of a header in JSON, the header with the end of each tensor, the tensors.
Source: github.com/huggingface/safetensors, README.md, "Format".
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from llm_serving.settings import untrusted_json

SUFFIX = ".safetensors"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "vocab.txt")
"""Each is a tokenizer, alone or with others: of the fast ones, SentencePiece, Mistral, BPE, Kimi and BERT."""

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""Longest header that the format allows."""


def compute_file_bytes(read: Callable[[int, int], bytes], size: int) -> int | None:
    """Return the size that a file must have by its header; None where that cannot be read.

    Args:
        read: returns `length` bytes of the file from the byte `offset` on.
    """
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little") if size > _LENGTH_BYTES else 0
    if not 0 < length <= min(_MAX_HEADER_BYTES, size):
        return None
    try:
        header = untrusted_json.parse(read(_LENGTH_BYTES, length))
        ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    return _LENGTH_BYTES + length + max(ends, default=0)


def describe_damage(size: int, expected: int | None) -> str:
    return f"incomplete or damaged: {size} bytes, expected " + (
        "a safetensors header" if expected is None else f"{expected} by its header"
    )


def list_missing(index: Any, names: Container[str]) -> list[str]:
    """Return files that an index names and that are not among `names`."""
    files = index.get("weight_map") if isinstance(index, dict) else None
    indexed_files = {str(file) for file in files.values()} if isinstance(files, dict) else set()
    return sorted(file for file in indexed_files if file not in names)


def has_tokenizer(names: Container[str]) -> bool:
    return any(name in names for name in TOKENIZER_FILES)
