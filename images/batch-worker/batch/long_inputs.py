"""Rows that are longer than the model's context: detected by the endpoint's refusal, and shortened by a rule.

The endpoint counts the tokens, with the model's own tokenizer and template. A worker has neither: it cuts the longest
text of the row by the share that the refusal names, and a little more, until the endpoint takes it; or it splits that
text into pieces of that length, and reduces the answers to one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from batch import rows

TRUNCATE_HEAD, TRUNCATE_MIDDLE, TRUNCATE_TAIL, SPLIT = (
    "truncate-head",
    "truncate-middle",
    "truncate-tail",
    "split-and-reduce",
)
"""Rules that shorten such a row; any other rejects it."""

MAX_CUTS = 6
"""How often a text is cut or split before the row fails."""

MAX_PIECES = 256

_CODES = ("context_length_exceeded", "string_above_max_length")
_REFUSALS = re.compile(
    r"max_(?:model_len|seq_len|num_tokens)|longer than the maximum model length|context (?:length|size)"
    r"|too many tokens",
    re.I,
)
_LIMIT = re.compile(
    r"(?:context (?:length|size)(?: of| is)?|max_(?:model_len|seq_len|num_tokens)[= ]*|model length of) \(?(\d+)", re.I
)
_ACTUAL = re.compile(
    r"(?:(?:requested|resulted in|contains|total of|length of|you passed|has|request|input) \(?"
    r"(?=\d+ (?:input |prompt |output )?tokens)|prompt[_ ]len(?:`|gth) \()(\d+)",
    re.I,
)

_Location = tuple[str | int, ...]
"""The keys that lead to a text of a row."""

_MARGIN = 0.97
_BLIND_SHARE = 0.7
"""Share to keep if the refusal does not state the length: vLLM 0.32 says \"at least\" one token too many."""

_TOKEN_CHARACTERS = 4
"""Characters per token of English text: the first guess for a text many times longer than the context."""


def is_too_long(status: int, body: Any) -> bool:
    """Return whether an answer says that the row is longer than the context."""
    if status not in (400, 413, 422):
        return False
    error = _get_error(body)
    return error.get("code") in _CODES or bool(_REFUSALS.search(str(error.get("message", ""))))


def cut(body: dict[str, Any], refusal: Any, rule: str) -> tuple[dict[str, Any], int] | None:
    """Cut the longest text of a row; returns the row and the number of removed characters, None without a text.

    Args:
        refusal: the endpoint's answer.
    """
    if rule not in (TRUNCATE_HEAD, TRUNCATE_MIDDLE, TRUNCATE_TAIL):
        return None
    location = _find_longest(body)
    if location is None:
        return None
    text = _read(body, location)
    kept_length = _compute_length(text, body, refusal)
    if kept_length < 1 or kept_length >= len(text):
        return None
    return _replace(body, location, _keep(text, kept_length, rule)), len(text) - kept_length


def split(body: dict[str, Any], refusal: Any) -> list[dict[str, Any]]:
    """Split a row into rows with one piece of its longest text each, at white space; none if its answer has no text.

    Args:
        refusal: the endpoint's answer.
    """
    location = _find_longest(body)
    if location is None or "input" in body:  # embeddings of pieces do not add up to one of the whole
        return []
    text = _read(body, location)
    length = _compute_length(text, body, refusal)
    if length < 1 or len(text) / length > MAX_PIECES:
        return []
    return [_replace(body, location, piece) for piece in _cut_pieces(text, length)]


def reduce(body: dict[str, Any], answers: list[str]) -> dict[str, Any] | None:
    """Replace the longest text of a row by the numbered answers to its pieces; None if that is not shorter."""
    location = _find_longest(body)
    text = "\n\n".join(f"[{number}/{len(answers)}] {answer}" for number, answer in enumerate(answers, 1))
    if location is None or len(text) >= len(_read(body, location)):
        return None
    return _replace(body, location, text)


def _cut_pieces(text: str, length: int) -> Iterator[str]:
    """Cut a text into pieces of at most `length` characters, at white space if a piece's second half has any."""
    start = 0
    while start < len(text):
        end = start + length
        if end < len(text):
            end = next((cut for cut in range(end, start + length // 2, -1) if text[cut - 1].isspace()), end)
        yield text[start:end]
        start = end


def _keep(text: str, length: int, rule: str) -> str:
    if rule == TRUNCATE_HEAD:
        return text[len(text) - length :]
    if rule == TRUNCATE_TAIL:
        return text[:length]
    head = length // 2
    return text[:head] + text[len(text) - (length - head) :]


def _compute_length(text: str, body: dict[str, Any], refusal: Any) -> int:
    """Estimate how many characters of a text fit into the context."""
    message = str(_get_error(refusal).get("message", ""))
    limit, actual = _LIMIT.search(message), [int(count) for count in _ACTUAL.findall(message)]
    room = int(limit[1]) - (rows.read_max_tokens(body) or 0) if limit else 0
    if room > 0 and actual and room < max(actual):
        return int(_MARGIN * len(text) * room / max(actual))
    blind = int(_BLIND_SHARE * len(text))
    return min(blind, _TOKEN_CHARACTERS * room) if room > 0 else blind


def _find_longest(body: dict[str, Any]) -> _Location | None:
    return max(_find_texts(body), key=lambda location: len(_read(body, location)), default=None)


def _find_texts(body: dict[str, Any]) -> Iterator[_Location]:
    for name in ("prompt", "input"):
        value = body.get(name)
        if isinstance(value, str):
            yield (name,)
        elif isinstance(value, list):
            yield from ((name, index) for index, item in enumerate(value) if isinstance(item, str))
    for name in ("messages", "input"):
        messages = body.get(name)
        for number, message in enumerate(messages if isinstance(messages, list) else ()):
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, str):
                yield (name, number, "content")
            for index, part in enumerate(content if isinstance(content, list) else ()):
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    yield (name, number, "content", index, "text")


def _read(body: Any, location: _Location) -> str:
    for key in location:
        body = body[key]
    return str(body)


def _replace(body: dict[str, Any], location: _Location, text: str) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    holder: Any = changed
    for key in location[:-1]:
        holder = holder[key]
    holder[location[-1]] = text
    return changed


def _get_error(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": str(error)}
