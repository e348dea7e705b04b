"""Traces of real services: when each request came, and how long its prompt and its answer were.

A trace is known by its first line:

- Azure LLM inference, 2023 and 2024: CSV `TIMESTAMP,ContextTokens,GeneratedTokens`, times of day
  (https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2024.md, read 2026-11-23).
- Mooncake: JSONL with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`, each of which names
  a block of 512 tokens; prompts with the same first ids begin with the same text
  (https://github.com/kvcache-ai/Mooncake, FAST25-release/README.md, read 2026-11-23).
- BurstGPT: CSV with `Timestamp` in seconds, `Request tokens` and `Response tokens`; a failed request has 0 response
  tokens and is left out (https://github.com/HPMLL/BurstGPT, README.md, read 2026-11-23).
"""

from __future__ import annotations

import csv
import datetime
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Bounds
from llm_serving.settings.untrusted_file import open_regular

BLOCK_TOKENS = 512


class TraceRow(NamedTuple):
    at_s: float
    """When it came, in seconds from the first one."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the blocks of BLOCK_TOKENS that the prompt consists of; the last may be shorter."""


class _TraceFormat(NamedTuple):
    name: str
    matches: Callable[[str], bool]
    read: Callable[[Iterator[str]], Iterator[TraceRow]]


def read(path: Path, limit: int, *, is_sorted: bool = False) -> list[TraceRow]:
    """Read the first requests of a trace, at most `limit`, in order of time; the first comes at 0.

    Raises:
        InputError: the file cannot be read, has another form, holds an invalid line, or times out of order where
            `is_sorted` is asked for.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=open_regular) as lines:
            rows = _read_rows(path, lines, limit)
        for number, (row, following) in enumerate(itertools.pairwise(rows if is_sorted else ()), 2):
            if following.at_s < row.at_s:
                reason = f"request {number} came before the one above it"
                raise InputError([Mistake(path, number + 1, 1, "", "", reason, "sort the trace by its times")])
        rows.sort(key=lambda row: row.at_s)
        return [row._replace(at_s=row.at_s - rows[0].at_s) for row in rows]
    except UnicodeDecodeError:
        raise _build_error(path, 0, "", "it is not UTF-8 text") from None
    except OSError as error:
        raise _build_error(path, 0, "", f"it cannot be read: {error.strerror}") from None


def _read_rows(path: Path, lines: Iterator[str], limit: int) -> list[TraceRow]:
    first = next(lines, "")
    trace_format = next((candidate for candidate in _FORMATS if candidate.matches(first)), None)
    if trace_format is None:
        raise _build_error(path, 1, first, "it is not a trace of Azure LLM inference, Mooncake or BurstGPT")
    try:
        all_rows = trace_format.read(itertools.chain([first], lines))
        # Makers keep requests that failed with 0 tokens.
        rows = list(itertools.islice((row for row in all_rows if row.input_tokens and row.output_tokens), limit))
    except _LineError as error:
        raise _build_error(
            path, error.number, error.line, f"it is not a request as {trace_format.name} traces have it"
        ) from None
    if not rows:
        raise _build_error(path, 0, "", "it has no requests")
    return rows


def _build_error(path: Path, number: int, line: str, reason: str) -> InputError:
    fix = (
        "use a trace as its makers publish it, such as AzureLLMInferenceTrace_conv.csv, Mooncake's "
        "conversation_trace.jsonl or BurstGPT_without_fails_1.csv"
    )
    return InputError([Mistake(path, number, min(number, 1), "", line.strip()[:60], reason, fix)])


class _LineError(Exception):
    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number, self.line = number, line


def _read_azure(lines: Iterator[str]) -> Iterator[TraceRow]:
    def parse(row: dict[str, str]) -> TraceRow:
        # Seven digits of a second; Python reads six.
        text, zone, offset = row["TIMESTAMP"].partition("+")
        whole, _, fraction = text.partition(".")
        time = datetime.datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}{offset}")
        time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
        return _build_row(time.timestamp(), row["ContextTokens"], row["GeneratedTokens"])

    return _parse_csv(lines, parse)


def _read_burstgpt(lines: Iterator[str]) -> Iterator[TraceRow]:
    return _parse_csv(
        lines, lambda row: _build_row(float(row["Timestamp"]), row["Request tokens"], row["Response tokens"])
    )


def _build_row(at_s: float, input_tokens: Any, output_tokens: Any, blocks: tuple[int, ...] = ()) -> TraceRow:
    row = TraceRow(at_s, int(input_tokens), int(output_tokens), blocks)
    if not math.isfinite(row.at_s) or min(row.input_tokens, row.output_tokens) < 0:
        raise ValueError("neither a time nor lengths")
    return row


def _parse_csv(lines: Iterator[str], parse: Callable[[dict[str, str]], TraceRow]) -> Iterator[TraceRow]:
    reader, row = csv.DictReader(lines), dict[str, str]()
    try:
        for row in reader:
            yield parse(row)
    except csv.Error:
        raise _LineError(reader.reader.line_num, "") from None
    except (ValueError, TypeError, KeyError, OverflowError):
        text = ",".join(value for value in row.values() if isinstance(value, str))
        raise _LineError(reader.reader.line_num, text) from None


def _read_mooncake(lines: Iterator[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request: dict[str, Any] = untrusted_json.parse(line)
            blocks = tuple(int(block) for block in request.get("hash_ids", ()))
            row = _build_row(
                float(request["timestamp"]) / 1000, request["input_length"], request["output_length"], blocks
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise _LineError(number, line) from None
        yield row


_FORMATS = (
    _TraceFormat("Azure LLM inference", lambda line: line.strip().startswith("TIMESTAMP,ContextTokens"), _read_azure),
    _TraceFormat("Mooncake", lambda line: line.lstrip().startswith("{") and '"input_length"' in line, _read_mooncake),
    _TraceFormat("BurstGPT", lambda line: line.startswith("Timestamp,") and ",Request tokens," in line, _read_burstgpt),
)


def cut(row: TraceRow, inputs: Bounds, outputs: Bounds) -> TraceRow:
    """Return a request with its lengths moved into the bounds."""
    return row._replace(
        input_tokens=max(inputs.min, min(inputs.max, row.input_tokens)),
        output_tokens=max(outputs.min, min(outputs.max, row.output_tokens)),
    )
