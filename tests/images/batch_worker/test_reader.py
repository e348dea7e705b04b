"""Compressed inputs are unpacked in flat memory and cut at the ends of lines."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Iterator

import pytest
import zstandard
from batch import reader
from hypothesis import given
from hypothesis import strategies as st

TEXT = b"".join(b'{"custom_id": "%d"}\n' % number for number in range(20_000))

PACKED = {
    "gzip": gzip.compress(TEXT),
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    "gzip of two members": gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
    "gzip with padding": gzip.compress(TEXT) + b"\x00" * 512,
    "zstd of two frames": zstandard.compress(TEXT[:1000]) + zstandard.compress(TEXT[1000:]),
}


def blocks_of(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("size", [1, 7, 4096])  # one ends amid the two bytes that a member begins with
def test_a_compressed_file_is_unpacked_whole(name: str, size: int) -> None:
    packed = PACKED[name]
    compression = reader.detect_compression(packed[:4])
    assert compression == name.split()[0]
    assert b"".join(reader.unpack(blocks_of(packed, size), compression)) == TEXT


def test_a_plain_file_has_no_compression() -> None:
    assert reader.detect_compression(TEXT[:4]) == ""


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_damaged_file_is_refused(name: str) -> None:
    packed = bytearray(PACKED[name])
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(reader.CorruptFile, match=f"cannot be unpacked as {name}"):
        for _ in reader.unpack(blocks_of(bytes(packed), 4096), name):
            pass


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_file_that_ends_too_early_is_refused(name: str) -> None:
    with pytest.raises(reader.CorruptFile, match=r"ended before|Truncated"):
        for _ in reader.unpack(blocks_of(PACKED[name][:-20], 4096), name):
            pass


@given(st.lists(st.binary(max_size=10), max_size=30), st.integers(1, 40))
def test_chunks_end_at_the_ends_of_lines_and_lose_nothing(pieces: list[bytes], chunk_bytes: int) -> None:
    source = [piece for piece in pieces if piece]
    chunks = [b"".join(blocks) for blocks in reader.split_blocks(source, lambda _: chunk_bytes)]
    assert b"".join(chunks) == b"".join(source)
    assert all(chunk.endswith(b"\n") and len(chunk) >= min(chunk_bytes, len(chunk)) for chunk in chunks[:-1])


def test_ranges_of_a_line_of_200_mb_read_it_about_twice_and_not_once_for_each() -> None:
    before, after, length, step = b'{"a": 1}\n', b'\n{"b": 2}', 200 * 2**20, 16 * 2**20
    size = len(before) + length + len(after)
    bytes_read = 0

    def read(start: int, end: int) -> Iterator[bytes]:
        nonlocal bytes_read
        for position in range(start, end, 2**20):
            block_end = min(end, position + 2**20)
            bytes_read += block_end - position
            inside = b"x" * (min(block_end, len(before) + length) - max(position, len(before)))
            yield before[position:block_end] + inside + after[max(0, position - len(before) - length) : max(
                0, block_end - len(before) - length)]  # fmt: skip

    lines = [
        (line.offset, line.content)
        for start in range(0, size, step)
        for line in reader.read_range_lines(read, start, min(size, start + step), size)
    ]
    assert lines == [(0, before[:-1]), (len(before), None), (size - len(after) + 1, after[1:])]
    assert bytes_read < 2.2 * size


def test_memory_is_flat_while_a_file_is_unpacked() -> None:
    line = os.urandom(500).hex().encode() + b"\n"
    packed = gzip.compress(line * 100_000, compresslevel=1)  # 100 MB
    tracemalloc.start()
    try:
        length = sum(
            len(block)
            for chunk in reader.split_blocks(reader.unpack(blocks_of(packed, 65536), "gzip"), lambda _: 2**20)
            for block in chunk
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == len(line) * 100_000
    assert peak < 20 * 2**20
