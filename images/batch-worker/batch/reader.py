"""Reads the lines of a range of a file, and unpacks compressed files, in flat memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from batch.rows import Line, read_lines

ReadRange = Callable[[int, int], Iterable[bytes]]
"""Reads bytes [start, end) of an object in blocks."""

_READ_ON_BYTES = 256 * 2**10
"""Bytes read at a time after a range, to complete its last line."""

_UNPACKED_BYTES = 2**20
"""Maximum bytes that are unpacked at a time."""

MAX_RATIO, FREE_BYTES = 1000, 64 * 2**20
"""Most that a file may grow by unpacking, beyond its first unpacked bytes: texts grow tenfold, and a hundredfold where
most of a row is the same in all."""

GZIP, ZSTD = "gzip", "zstd"
_MAGIC = {b"\x1f\x8b": GZIP, b"\x28\xb5\x2f\xfd": ZSTD}


PARQUET = b"PAR1"
"""First bytes of a Parquet file (https://parquet.apache.org/docs/file-format/, read 2026-11)."""


class CorruptFile(Exception):
    """A compressed file cannot be unpacked."""


class BadTemplate(Exception):
    """A Parquet file's template is missing or invalid, or does not match the file."""


def detect_compression(first_bytes: bytes) -> str:
    """Detect the compression of a file by its first four bytes; empty for none."""
    return next((name for magic, name in _MAGIC.items() if first_bytes.startswith(magic)), "")


def read_range_lines(read: ReadRange, start: int, end: int, size: int) -> Iterator[Line]:
    """Read the lines whose first byte lies in [start, end) of an object of `size` bytes.

    The last line may end after the range. Line numbers count from the first line of the range.
    """
    # One byte earlier: if it ends a line, the next line belongs to this range.
    first = max(0, start - 1)
    blocks = _read_on(read, first, end, size, is_inside=start > 0)
    for line in read_lines(blocks, first, skip_first=start > 0):
        if line.offset >= end:
            return
        yield line


def _read_on(read: ReadRange, first: int, end: int, size: int, *, is_inside: bool) -> Iterator[bytes]:
    """Read a range and the rest of its last line.

    Args:
        is_inside: whether it may begin inside a line. If that line does not end in the range, no line begins there, and
            the rest stays unread: otherwise each range of a long line would read all of it.
    """
    has_line, position = not is_inside, first
    for block in read(first, end):
        has_line = has_line or block.find(b"\n", 0, end - 1 - position) >= 0
        position += len(block)
        yield block
    while end < size and has_line:
        following = min(size, end + _READ_ON_BYTES)
        yield from read(end, following)
        end = following


def unpack(blocks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    """Unpack a file block by block, including all gzip members or zstd frames.

    Raises:
        CorruptFile: it is damaged or truncated, or unpacks to a thousand times its size.
    """
    source, unpacked = _Blocks(blocks), 0
    with source.report_damage(f"the file cannot be unpacked as {compression}"):
        for block in _gunzip(source) if compression == GZIP else _unzstd(source):
            unpacked += len(block)
            if unpacked > FREE_BYTES + MAX_RATIO * source.count:
                raise CorruptFile(f"the file unpacks to more than {MAX_RATIO:,} times its size")
            yield block


def split_blocks(blocks: Iterable[bytes], get_chunk_bytes: Callable[[int], int]) -> Iterator[Iterator[bytes]]:
    """Cut a stream into chunks, each at the end of a line; consume each before the next.

    Args:
        get_chunk_bytes: minimum bytes of the chunk with an index.
    """
    source = iter(blocks)
    rest = [next(source, b"")]

    def take(chunk_bytes: int) -> Iterator[bytes]:
        length, block = 0, rest.pop()
        while block:
            if length + len(block) >= chunk_bytes:
                cut = block.find(b"\n", max(0, chunk_bytes - length - 1)) + 1
                if cut:
                    rest.append(block[cut:] or next(source, b""))
                    yield block[:cut]
                    return
            length += len(block)
            yield block
            block = next(source, b"")

    index = 0
    while rest and rest[0]:
        yield take(get_chunk_bytes(index))
        index += 1


class Source(io.RawIOBase):
    """A file for Arrow, which tells damage from a failed read: Arrow raises OSError for much of both."""

    _failure: Exception | None = None

    def readable(self) -> bool:
        return True

    @contextlib.contextmanager
    def keep_failure(self) -> Iterator[None]:
        """Remember why a read failed."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    @contextlib.contextmanager
    def report_damage(self, message: str) -> Iterator[None]:
        """Raise why a read failed if one did, and anything else as damage.

        Raises:
            CorruptFile: the file is damaged.
        """
        try:
            yield
        except MemoryError:  # one of Arrow's exceptions too
            raise
        # Of the last two, texts that are not UTF-8, and times that Python has not.
        except (zlib.error, pa.ArrowException, EOFError, OSError, ValueError, OverflowError) as error:
            raise self._failure or CorruptFile(f"{message}: {error}"[:300]) from None


class _Blocks(Source):
    """Blocks as a file, which counts its bytes."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), b""
        self.count = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes; a block where it is negative, and nothing at the end."""
        with self.keep_failure():
            # Two bytes at the least: gzip takes those that a member begins with by one read.
            while len(self._rest) < 2 and (block := next(self._blocks, b"")):
                self._rest += block
        end = len(self._rest) if size is None or size < 0 else size
        piece, self._rest = self._rest[:end], self._rest[end:]
        self.count += len(piece)
        return piece


def _gunzip(source: _Blocks) -> Iterator[bytes]:
    # Python's reads all members, and the padding after each.
    with gzip.GzipFile(fileobj=source) as stream:
        while block := stream.read(_UNPACKED_BYTES):
            yield block


def _unzstd(source: _Blocks) -> Iterator[bytes]:
    # Arrow's reads as much output as is asked for, whatever its input grows to, and knows a truncated frame.
    with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd") as stream:
        while block := stream.read(_UNPACKED_BYTES):
            yield block
