"""Reads rows from Parquet files by a template over their columns, and writes results as Parquet, some rows at a time.

A template is a row in OpenAI's format whose texts name columns in braces:

    {"custom_id": "{sku}", "url": "/v1/chat/completions", "method": "POST",
     "body": {"model": "m", "messages": [{"role": "user", "content": "Describe {title}: {text}"}], "max_tokens": "{n}"}}

A text that consists of one column becomes the column's value, with its type. `{{` and `}}` are braces.
"""

from __future__ import annotations

import datetime
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batch import rows
from batch.reader import BadTemplate, ReadRange, Source

BATCH_ROWS, _BATCH_BYTES = 1024, 16 * 2**20
"""Most rows that are read at a time, and most bytes of them by the file's own numbers."""

_BUFFER_BYTES = 2**20
"""Bytes of a column that are read at a time, however large the row groups are."""

GROUP_ROWS, FILE_ROWS = 4096, 262_144
"""Rows per row group and per file that is written."""

_DAMAGE = "the file cannot be read as Parquet"

_NAME = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")

_TYPES = {"string": pa.string(), "bigint": pa.int64()}
"""Types by Athena's names. Source: Athena user guide, "Data types in Amazon Athena", 2026-11."""

SCHEMA = pa.schema(
    [
        (column["name"], _TYPES[column["type"]])
        for column in json.loads(Path(__file__).with_name("result_columns.json").read_text(encoding="utf-8"))
    ]
)
"""Columns of results; the stack `batch` creates its table from the same file."""


_MAX_DEPTH = 64
"""Levels of a template: it is filled in by calls within calls."""


class Template:
    """A row with the names of columns."""

    def __init__(self, text: str) -> None:
        if not text:
            raise BadTemplate("the input is a Parquet file, and the job has no template: --template FILE")
        try:
            self._row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadTemplate(f"the template is not JSON: {error}") from None
        if not isinstance(self._row, dict) or "body" not in self._row:
            raise BadTemplate("the template is not a row: it has no body")
        self.columns = sorted(set(_find_names(self._row, _MAX_DEPTH)))
        if not self.columns:
            raise BadTemplate("the template names no column, such as {title}")

    def render(self, values: Mapping[str, Any]) -> bytes:
        """Render the row of a record, as a line without its end."""
        row = _fill(self._row, values)
        if (custom_id := row.get("custom_id")) is not None:  # an id that is missing is a fault of the row
            row["custom_id"] = _format(custom_id)
        return json.dumps(row, ensure_ascii=False, default=_format).encode()


def _find_names(node: Any, depth: int) -> Iterator[str]:
    if not depth:
        raise BadTemplate(f"the template is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(node, str):
        yield from (match[1] for match in _NAME.finditer(node) if match[1])
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _find_names(child, depth - 1)


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _fill(child, values) for key, child in node.items()}
    if isinstance(node, list):
        return [_fill(child, values) for child in node]
    if not isinstance(node, str):
        return node
    whole = _NAME.fullmatch(node)
    if whole and whole[1]:
        return values[whole[1]]
    return _NAME.sub(lambda match: _format(values[match[1]]) if match[1] else match[0][0], node)


def _format(value: Any) -> str:
    """Format a value within a text; bytes are a text whose writer did not name its type, as older ones do not."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False, default=_format)
    return "" if value is None else str(value)


class _RangeFile(Source):
    """A seekable file over an object."""

    def __init__(self, read: ReadRange, size: int) -> None:
        self._read, self._size, self._position = read, size, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._position + size)
        with self.keep_failure():
            content = b"".join(self._read(self._position, end)) if end > self._position else b""
        self._position += len(content)
        return content


class OpenFile(NamedTuple):
    """A Parquet file, and what its bytes come from."""

    source: Source
    file: pq.ParquetFile


def open_file(read: ReadRange, size: int) -> OpenFile:
    """Open an object.

    Raises:
        CorruptFile: it is not a Parquet file, or damaged.
    """
    source = _RangeFile(read, size)
    with source.report_damage(_DAMAGE):
        return OpenFile(source, pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False))


def read_rows(opened: OpenFile, template: Template, groups: Iterable[int] | None = None) -> Iterator[bytes]:
    """Read the rows of a file, as lines with their ends, some at a time.

    Args:
        groups: row groups to read; default is all.

    Raises:
        BadTemplate: the file lacks a column.
        CorruptFile: it is damaged.
    """
    file = opened.file
    columns = file.schema_arrow.names
    missing = [name for name in template.columns if name not in columns]
    if missing:
        raise BadTemplate(f"the template names {missing[0]}, and the file has the columns {', '.join(columns)}")
    selected = list(range(file.num_row_groups) if groups is None else groups)
    batch_rows = min((_count_batch_rows(file.metadata.row_group(group)) for group in selected), default=BATCH_ROWS)
    batches = file.iter_batches(batch_rows, row_groups=selected, columns=template.columns, use_threads=False)
    while (records := _read_records(opened.source, batches)) is not None:
        yield from (template.render(record) + b"\n" for record in records)


def _count_batch_rows(group: Any) -> int:
    rows = _BATCH_BYTES * int(group.num_rows) // max(1, int(group.total_byte_size))
    return max(1, min(BATCH_ROWS, rows))


def _read_records(source: Source, batches: Iterator[Any]) -> list[dict[str, Any]] | None:
    with source.report_damage(_DAMAGE):
        batch = next(batches, None)
        if batch is None:
            return None
        columns = [_cut_nanoseconds(column) for column in batch.columns]
        return list(pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist())


def _cut_nanoseconds(column: Any) -> Any:
    """Cut times to microseconds, which are the finest that Python's have."""
    kind = column.type
    is_cut = pa.types.is_timestamp(kind) and kind.unit == "ns"
    return column.cast(pa.timestamp("us", kind.tz), safe=False) if is_cut else column


def get_result_prefix(prefix: str, team: str, job_id: str, created_at: float) -> str:
    """Build the prefix of a job's table: Hive partitions, which Athena, Glue and Spark read."""
    date = datetime.datetime.fromtimestamp(created_at, datetime.UTC).strftime("%Y-%m-%d")
    return f"{prefix}/results/team={team}/date={date}/batch={job_id}/"


def write_results(job_id: str, lines: Iterable[bytes], open_sink: Callable[[int], Any]) -> int:
    """Write result lines of both kinds as Parquet files; returns how many files.

    Args:
        open_sink: opens the file with a number; has `write(bytes)` and `close()`.
    """
    groups, files = rows.group(lines, GROUP_ROWS), 0
    while first := next(groups, None):
        sink = open_sink(files)
        with pq.ParquetWriter(_Sink(sink), SCHEMA, compression="zstd") as writer:
            for group in itertools.chain([first], itertools.islice(groups, FILE_ROWS // GROUP_ROWS - 1)):
                writer.write_table(pa.Table.from_pylist([_flatten(job_id, line) for line in group], SCHEMA))
        sink.close()
        files += 1
    return files


class _Sink(io.RawIOBase):
    """A sink for pyarrow that stays open when pyarrow closes it."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._position = sink, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, block: Any) -> int:
        content = bytes(block)
        self._sink.write(content)
        self._position += len(content)
        return len(content)


def _flatten(job_id: str, line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    response, error = row["response"] or {}, row["error"] or {}
    body = response.get("body") or {}
    return {
        "job": job_id,
        "custom_id": _to_text(row["custom_id"]),
        "answer": None if error else _read_text(body),
        "model": _to_text(body.get("model")) if isinstance(body, dict) else None,
        "input_tokens": rows.read_usage(body, *rows.INPUT_TOKENS),
        "output_tokens": rows.read_usage(body, *rows.OUTPUT_TOKENS),
        "error_code": error.get("code"),
        "error_message": _to_text(error.get("message")),
        "line": error.get("line"),
        "response": _to_text(body) if response else None,
    }


def _to_text(value: Any) -> str | None:
    """Return a text that Parquet takes: other values as JSON, and halves of surrogate pairs replaced."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _read_text(body: Any) -> str | None:
    """Read the text of an answer; of one text its vector, score or label, of several all of them as JSON."""
    answer = rows.read_answer(body)
    is_single = isinstance(answer, list) and len(answer) == 1 and not body.get("choices")
    return _to_text(answer[0] if is_single else answer)
