"""Counts the rows and the tokens of an input before it is submitted: all of a small one, a sample of a large one.

Rows and bytes of a large file come from evenly spaced blocks; of a compressed one from its beginning, because it cannot
be unpacked from the middle. The endpoint counts the tokens of some rows, with the model's own tokenizer and template;
those of the others are estimated by their bytes. Errors are half the width of 95% intervals of these ratio estimates
(W. G. Cochran, "Sampling Techniques", 3rd edition 1977, chapter 6), each block a cluster.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from batch import layout, parquet_process, reader
from batch import rows as batch_rows
from batch.endpoint import Endpoint
from batch.store import Store

WHOLE_BYTES = 32 * 2**20
"""Files up to this size are read whole; of compressed ones, as much is unpacked."""

BLOCKS, BLOCK_BYTES = 64, 128 * 2**10
"""Number and size of the blocks that sample a larger file."""

PARQUET_ROWS, PARQUET_BYTES = 1024, 2**20
"""First rows that are read of each row group, and bytes after which they are enough."""

TOKEN_ROWS = 256
"""Rows whose tokens the endpoint counts."""

TOKEN_REQUESTS = 16
"""Maximum number of these requests in flight."""

_PACKED_BYTES = 2**10
"""Bytes of a compressed file that are unpacked at a time."""

_Z = 1.96
"""Standard deviations of half a 95% interval."""


class Estimate(NamedTuple):
    """A number and half of its 95% interval; 0 if it was counted exactly."""

    value: float
    error: float


@dataclass
class Block:
    """Consecutive rows of a file."""

    bytes: int
    rows: int = 0
    bad_rows: int = 0
    row_bytes: int = 0
    output_tokens: int = 0
    """Maximum tokens of the answers, by the rows' `max_tokens`."""

    open_rows: int = 0
    """Rows without `max_tokens`."""

    examples: list[tuple[int, batch_rows.Row]] = field(default_factory=list)
    """Rows with their bytes, for the endpoint."""


@dataclass(frozen=True)
class Sample:
    """The part of a file that was read."""

    blocks: Sequence[Block]
    bytes: int
    """Size of the file, in the unit of the blocks' bytes."""

    is_whole: bool


def read_sample(store: Store, key: str, size: int, endpoint: str, template: str) -> Sample:
    """Read a sample of an input of `size` bytes, or all of it.

    Raises:
        reader.CorruptFile: it cannot be unpacked.
        reader.BadTemplate: the template cannot be used with it.
    """
    read = partial(store.read_range, key)
    first_bytes = b"".join(read(0, min(4, size)))
    compression = reader.detect_compression(first_bytes)
    if first_bytes == reader.PARQUET:
        return _read_parquet(read, size, template, endpoint)
    if compression:
        return _read_beginning(read, size, compression, endpoint)
    if size <= WHOLE_BYTES:
        lines = reader.read_range_lines(read, 0, size, size)
        return Sample(list(_read_blocks(lines, endpoint)), size, is_whole=True)
    blocks = []
    for number in range(BLOCKS):
        start = (size - BLOCK_BYTES) * number // (BLOCKS - 1)
        lines = reader.read_range_lines(read, start, start + BLOCK_BYTES, size)
        blocks.append(_read_block(BLOCK_BYTES, lines, endpoint))
    return Sample(blocks, size, is_whole=False)


def _read_beginning(read: reader.ReadRange, size: int, compression: str, endpoint: str) -> Sample:
    """Unpack the beginning of a file; its bytes are those of the unpacked file."""
    packed = unpacked = 0

    def read_pieces() -> Iterator[bytes]:
        nonlocal packed
        for block in read(0, size):
            for start in range(0, len(block), _PACKED_BYTES):  # small: of the last one a part may be unpacked
                piece = block[start : start + _PACKED_BYTES]
                packed += len(piece)
                yield piece

    def unpack() -> Iterator[bytes]:
        nonlocal unpacked
        for block in reader.unpack(read_pieces(), compression):
            unpacked += len(block)
            yield block
            if unpacked > WHOLE_BYTES:
                return

    blocks = list(_read_blocks(batch_rows.read_lines(unpack()), endpoint))
    if unpacked <= WHOLE_BYTES:
        return Sample(blocks, unpacked, is_whole=True)
    return Sample(blocks, round(unpacked * size / packed), is_whole=False)


def _read_parquet(read: reader.ReadRange, size: int, template: str, endpoint: str) -> Sample:
    """Read the first rows of evenly spaced row groups; counts rows, not bytes, since the file has their number."""
    blocks = []
    with parquet_process.open_rows(read, size, template) as file_rows:
        for group in _spread(range(file_rows.group_count), BLOCKS):
            lines = batch_rows.read_lines(file_rows.read([group], most_rows=PARQUET_ROWS, most_bytes=PARQUET_BYTES))
            block = _read_block(0, lines, endpoint)
            block.bytes = block.rows
            blocks.append(block)
        total = file_rows.row_count
    return Sample(blocks, total, is_whole=sum(block.rows for block in blocks) == total)


def _read_blocks(lines: Iterable[batch_rows.Line], endpoint: str) -> Iterator[Block]:
    pending: list[batch_rows.Line] = []
    length = 0
    for line in lines:
        pending.append(line)
        length += len(line.content or b"") + 1
        if length >= BLOCK_BYTES:
            yield _read_block(length, pending, endpoint)
            pending, length = [], 0
    if pending:
        yield _read_block(length, pending, endpoint)


def _read_block(length: int, lines: Iterable[batch_rows.Line], endpoint: str) -> Block:
    block = Block(length)
    for line in lines:
        if line.is_blank:
            continue
        block.rows += 1
        try:
            row = batch_rows.parse(line.content, endpoint)
        except batch_rows.RowError:
            block.bad_rows += 1
            continue
        size = len(line.content or b"")
        block.row_bytes += size
        if layout.ENDPOINTS[row.url] in layout.WRITTEN:
            most = batch_rows.read_max_tokens(row.body)
            block.output_tokens += most or 0
            block.open_rows += most is None
        block.examples.append((size, row))
    return block


def choose_examples(sample: Sample) -> list[list[tuple[int, batch_rows.Row]]]:
    """Choose rows for the endpoint: equally many of each block, or of fewer, evenly spaced blocks."""
    blocks = [block for block in sample.blocks if block.examples]
    chosen = _spread(blocks, TOKEN_ROWS)
    each = max(1, TOKEN_ROWS // max(1, len(chosen)))
    return [_spread(block.examples, each) for block in chosen]


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[len(items) * number // count] for number in range(count)]


async def count_tokens(endpoint: Endpoint, row: batch_rows.Row, model: str) -> int | None:
    """Have the endpoint count the tokens of a row, with its template; None where it cannot."""
    body = {"model": model or row.body.get("model")}
    if "messages" in row.body:
        names = ("messages", "tools", "chat_template_kwargs")
        body |= {name: row.body[name] for name in names if name in row.body}
    else:
        parameters = {name: value for name, value in row.body.items() if name != "model"}
        text = row.body.get("prompt", row.body.get("input", parameters))
        body["prompt"] = text if isinstance(text, str) else json.dumps(text)
    return await endpoint.count_tokens(body)


async def estimate(sample: Sample, endpoint: Endpoint, model: str) -> dict[str, Any]:
    """Estimate rows and tokens of the whole file, as the Batch API shows them."""
    room = asyncio.Semaphore(TOKEN_REQUESTS)

    async def ask(row: batch_rows.Row) -> int | None:
        async with room:
            return await count_tokens(endpoint, row, model)

    examples = choose_examples(sample)
    answers = iter(await asyncio.gather(*(ask(row) for block in examples for _, row in block)))
    clusters = []
    for block in examples:
        counted = [(size, next(answers)) for size, _ in block]
        answered = [(size, tokens) for size, tokens in counted if tokens is not None]
        if answered:
            clusters.append((sum(size for size, _ in answered), sum(tokens for _, tokens in answered)))
    rows_asked = sum(len(block) for block in examples)
    row_count = sum(len(block.examples) for block in sample.blocks)
    return _summarize(sample, clusters, rows_asked, is_every_row=rows_asked == row_count)


def _summarize(
    sample: Sample, clusters: Sequence[tuple[int, int]], rows_asked: int, *, is_every_row: bool
) -> dict[str, Any]:
    """Scale the counted sample to the whole file.

    Args:
        clusters: bytes and tokens of the rows that the endpoint counted, by block.
        rows_asked: how many it was asked to count.
    """

    def scale(name: str) -> Estimate:
        counted = [(block.bytes, getattr(block, name)) for block in sample.blocks]
        if sample.is_whole:
            return Estimate(sum(count for _, count in counted), 0.0)
        return scale_ratio(counted, sample.bytes)

    row_bytes = scale("row_bytes")
    if not clusters:
        input_tokens = None
    elif sample.is_whole and is_every_row:
        input_tokens = Estimate(sum(tokens for _, tokens in clusters), 0.0)
    else:
        by_bytes = scale_ratio(clusters, row_bytes.value)
        scale_error = by_bytes.value * row_bytes.error / row_bytes.value if row_bytes.value else 0.0
        input_tokens = Estimate(by_bytes.value, math.hypot(by_bytes.error, scale_error))
    numbers = {name: scale(name) for name in ("rows", "bad_rows", "output_tokens", "open_rows")}
    numbers |= {"input_tokens": input_tokens} if input_tokens else {}
    return {
        "is_whole": sample.is_whole,
        "bytes_read": sum(block.row_bytes for block in sample.blocks),
        "rows_asked": rows_asked,
        "input_tokens": None,
        **{name: {"value": round(number.value), "error": math.ceil(number.error)} for name, number in numbers.items()},
    }


def scale_ratio(clusters: Sequence[tuple[float, float]], total: float) -> Estimate:
    """Estimate the sum of y over all clusters from a sample of them and the total of x.

    Args:
        clusters: x and y of each sampled cluster.
        total: the sum of x over all clusters.
    """
    x, y, n = sum(pair[0] for pair in clusters), sum(pair[1] for pair in clusters), len(clusters)
    if not x:
        return Estimate(0.0, 0.0)
    ratio = y / x
    if n < 2:
        return Estimate(total * ratio, total * ratio)
    spread = n / (n - 1) * sum((pair[1] - ratio * pair[0]) ** 2 for pair in clusters)
    return Estimate(total * ratio, _Z * total * math.sqrt(spread) / x)
