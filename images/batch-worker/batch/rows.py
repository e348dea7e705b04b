"""Rows: parses lines of a file in OpenAI's batch format, and formats the lines of results.

Format: https://platform.openai.com/docs/api-reference/batch/request-input (read 2026-11).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batch.layout import ENDPOINTS

INPUT_TOKENS, OUTPUT_TOKENS = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
"""Names in the usage of an answer; the second are those of /v1/responses."""

MAX_ROW_BYTES = 8 * 2**20
"""Maximum bytes of a row; a longer one is reported, and skipped without being held in memory."""

MAX_ID_CHARACTERS = 512

REPEATED = "duplicate_custom_id"
"""Code of a row with the id of an earlier row."""

_PROCESS_ID, _result_numbers = uuid.uuid4().hex[:20], itertools.count()
"""A random number for each result would take a tenth of what a row costs."""

_TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host")
"""By these a router tells engines from where to read a KV cache, which may be another team's."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line; blank lines are not rows."""

    number: int
    """Number in its range, from 1."""

    offset: int
    """Offset of its first byte in the object."""

    content: bytes | None
    """Without the line's end; None if it is too long."""

    @property
    def is_blank(self) -> bool:
        return self.content is not None and not self.content.strip()


@dataclass(frozen=True)
class Row:
    """A request that can run."""

    custom_id: str
    url: str
    body: dict[str, Any]


class RowError(Exception):
    """A row that cannot run."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


def read_lines(
    blocks: Iterable[bytes], offset: int = 0, *, skip_first: bool = False, max_bytes: int = MAX_ROW_BYTES
) -> Iterator[Line]:
    """Split blocks of bytes into lines, in constant memory.

    Args:
        offset: position of the first byte in the object.
        skip_first: whether to skip the first line, which belongs to the previous range.
    """
    buffer = bytearray()
    number, start, length, is_skipping = 0, offset, 0, skip_first

    def finish() -> Line:
        content = None if length > max_bytes else bytes(buffer)
        if content is not None:
            content = (content.removeprefix(_BOM) if start == 0 else content).rstrip(b"\r")
        return Line(number, start, content)

    for block in blocks:
        position = 0
        while position < len(block):
            end = block.find(b"\n", position)
            piece = block[position : end if end >= 0 else len(block)]
            length += len(piece)
            if length <= max_bytes and not is_skipping:
                buffer += piece
            if end < 0:
                break
            if not is_skipping:
                number += 1
                yield finish()
            start, length, is_skipping = start + length + 1, 0, False
            buffer.clear()
            position = end + 1
    if length and not is_skipping:
        number += 1
        yield finish()


def parse(content: bytes | None, endpoint: str = "") -> Row:
    """Parse a row.

    Args:
        endpoint: path of the whole job; empty if each row has its own.

    Raises:
        RowError: it cannot run.
    """
    request = _parse_object(content)
    custom_id = _read_id(request)
    if request.get("method", "POST") != "POST":
        raise RowError("invalid_method", "method: POST", custom_id)
    url = request.get("url")
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise RowError("invalid_url", f"url: {' or '.join(ENDPOINTS)}", custom_id)
    if endpoint and url != endpoint:
        raise RowError("mismatched_url", f"url: {endpoint}, as the batch has it", custom_id)
    body = request.get("body")
    if not isinstance(body, dict):
        raise RowError("invalid_body", "body: a JSON object", custom_id)
    for name in ("stream", "background", *_TRANSFER_FIELDS):
        if body.get(name):
            raise RowError("invalid_body", f"body.{name}: not in a batch", custom_id)
    return Row(custom_id, str(url), body)


def _parse_object(content: bytes | None) -> dict[str, Any]:
    if content is None:
        raise RowError("row_too_long", f"the row has more than {MAX_ROW_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError("invalid_encoding", f"the row is not UTF-8: byte {error.start}") from None
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError("invalid_json_line", f"the row is not JSON: {error}"[:300]) from None
    if not isinstance(request, dict):
        raise RowError("invalid_json_line", "the row is not a JSON object")
    return request


def _read_id(request: dict[str, Any]) -> str:
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise RowError("missing_custom_id", "custom_id: a text that no other row has")
    if len(custom_id) > MAX_ID_CHARACTERS:
        raise RowError("invalid_custom_id", f"custom_id: at most {MAX_ID_CHARACTERS} characters", custom_id[:64])
    # JSON allows half of a surrogate pair, and UTF-8, which the cache and Parquet take, does not.
    if custom_id != custom_id.encode(errors="ignore").decode():
        raise RowError("invalid_custom_id", "custom_id: a text of whole characters, in UTF-8", custom_id)
    return custom_id


def describe_repeat(first_line: int) -> str:
    """Describe a row with the id of the row in another line."""
    return f"line {first_line} has this custom_id already"


def digest_id(custom_id: str) -> bytes:
    """Hash a custom_id to 16 bytes, to find duplicates."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def format_output(custom_id: str, status: int, body: bytes, **fields: Any) -> bytes:
    """Format the line of an answer.

    Args:
        body: as the endpoint sent it, JSON.
        fields: additional keys, such as `truncated`.
    """
    if b"\n" in body or b"\r" in body:
        body = json.dumps(json.loads(body)).encode()
    result_id = _build_result_id()
    begin = json.dumps({"id": f"batch_req_{result_id}", "custom_id": custom_id})[:-1]
    response = f', "response": {{"status_code": {status}, "request_id": "{result_id}", "body": '
    end = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    return b"".join((begin.encode(), response.encode(), body, b'}, "error": null', end.encode(), b"}\n"))


def format_error(
    custom_id: str | None, code: str, message: str, *, line: int = 0, status: int = 0, body: Any = None
) -> bytes:
    """Format the line of a failed row.

    Args:
        line: number in the input, if that identifies the row.
        status: of the endpoint's answer, with its body; 0 without an answer.
    """
    result_id = _build_result_id()
    response = {"status_code": status, "request_id": result_id, "body": body} if status else None
    error: dict[str, Any] = {"code": code, "message": message}
    if line:
        error["line"] = line
    row = {"id": f"batch_req_{result_id}", "custom_id": custom_id, "response": response, "error": error}
    return encode_json(row, separators=(",", ":")) + b"\n"


def read_answer(body: Any) -> Any:
    """Read the text of an answer, or its vectors, scores or labels; None if it has none."""
    if not isinstance(body, dict):
        return None
    if choices := body.get("choices"):
        choice = choices[0] if isinstance(choices, list) else {}
        return (choice.get("message") or {}).get("content") or choice.get("text")
    if isinstance(items := body.get("output"), list):
        parts = [part for item in items if item.get("type") == "message" for part in item.get("content") or ()]
        return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
    entries = body.get("data") or body.get("results")
    return [entry.get("embedding", entry.get("score", entry)) for entry in entries] if entries else None


def read_usage(body: Any, *names: str) -> int | None:
    """Read a number of tokens of an answer, by the first of its names; None if it has none."""
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    return next((count for count in counts if type(count) is int and 0 <= count < 2**63), None)


def read_max_tokens(body: Mapping[str, Any]) -> int | None:
    """Read the most tokens that an answer to a row may have; None if the row does not say."""
    counts = [body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens")]
    return next((count for count in counts if isinstance(count, int)), None)


def group(lines: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """Group lines, `count` at a time."""
    source = iter(lines)
    while lines_of_group := list(itertools.islice(source, count)):
        yield lines_of_group


def encode_json(value: Any, separators: tuple[str, str] | None = None) -> bytes:
    """Encode a value as JSON in UTF-8, in ASCII if it has half of a surrogate pair: JSON allows it, UTF-8 does not."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=separators).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators).encode()


def _build_result_id() -> str:
    return f"{_PROCESS_ID}{next(_result_numbers):012x}"
