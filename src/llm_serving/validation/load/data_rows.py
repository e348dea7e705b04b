"""The user's own prompts: JSONL with a prompt a line, or the published JSON of ShareGPT.

ShareGPT is a list of `{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}`. As in
`vllm bench serve` (0.32, benchmarks/datasets/datasets.py), a request is a conversation's first message, and its answer
is as long as the recorded one; conversations of fewer than two messages are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from llm_serving.services.traffic import Traffic
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Mistake, build_file_error
from llm_serving.settings.untrusted_file import open_regular

_EXAMPLE = 'write a line such as {"prompt": "2 + 2 =", "expected": "4"}'
_HUMAN, _ASSISTANT = ("human", "user"), ("gpt", "chatgpt", "assistant")


OWN = {"prompt", "messages", "expected", "output_tokens", "max_completion_tokens"}
"""Keys of a row that we read."""

SENT = {
    *("chat_template_kwargs", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "min_p", "presence_penalty"),
    *("parallel_tool_calls", "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop"),
    *("temperature", "tool_choice", "tools", "top_k", "top_logprobs", "top_p"),
}
"""Keys of a row that its request has too, by OpenAI's API and the engines'; others, such as an id, are notes."""


@dataclass(frozen=True)
class DataRow:
    """One prompt of the user's own data."""

    messages: tuple[dict[str, Any], ...]
    """Messages for the chat API; for completions the prompt is the only message's content."""

    expected: str | None = None
    output_tokens: int | None = None
    """Exact length of the answer; None leaves it to the model."""

    recorded_answer: str | None = None
    """Text whose length the answer should have."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """What its request has besides, such as tools."""

    ignored_keys: frozenset[str] = frozenset()
    """Keys that its request does not have, such as an id."""


def read_rows(path: Path, traffic: Traffic) -> list[DataRow]:
    """Read the user's prompts, by `traffic`'s API and bounds.

    JSONL has `{"prompt": ...}` or `{"messages": [...]}` per line, optionally with `"output_tokens"`, fields of the
    request such as `"tools"`, and `"expected"`: a text, or a JSON Schema for `score_by: json_schema`.

    Raises:
        InputError: the file cannot be read, or every invalid line.
    """
    try:
        with open(path, encoding="utf-8-sig", opener=open_regular) as file:  # editors on Windows begin with a mark
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"it cannot be read: {error.strerror}"
        )
        raise build_file_error(path, reason, "use a JSONL file with one JSON object per line") from None
    is_list = text.lstrip().startswith("[")
    rows = _read_sharegpt(path, text) if is_list else _read_lines(path, text, traffic)
    if not rows:
        reason = "it is a list, and none of it is a conversation of ShareGPT" if is_list else "it has no prompts"
        raise build_file_error(path, reason, _EXAMPLE)
    return rows


def _read_lines(path: Path, text: str, traffic: Traffic) -> list[DataRow]:
    rows, mistakes = [], []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also cut a text at U+2028 or U+0085
        if not line.strip():
            continue
        try:
            rows.append(_parse_row(line, traffic))
        except json.JSONDecodeError as error:
            mistakes.append(Mistake(path, number, error.colno, "", line[:60], f"it is not JSON: {error.msg}", _EXAMPLE))
        except _RowError as error:
            mistakes.append(Mistake(path, number, 1, error.field, line[:60], error.reason, error.fix))
    if mistakes:
        raise InputError(mistakes)
    return rows


class _RowError(Exception):
    def __init__(self, key: str, reason: str, fix: str = _EXAMPLE) -> None:
        super().__init__(reason)
        self.field, self.reason, self.fix = key, reason, fix


def _parse_row(line: str, traffic: Traffic) -> DataRow:
    document = untrusted_json.parse(line)
    if not isinstance(document, dict):
        raise _RowError("", "it is not a JSON object")
    expected = _parse_expected(document.get("expected"), traffic)
    fields = {key: value for key, value in document.items() if key in SENT and value is not None}
    ignored_keys = frozenset(document.keys() - OWN - SENT)
    if (most := document.get("max_completion_tokens")) is not None:
        fields["max_tokens"] = most
    output_tokens = document.get("output_tokens")
    for key, value in (("output_tokens", output_tokens), ("max_tokens", fields.get("max_tokens"))):
        _check_tokens(key, value, traffic.output_tokens.max)
    if output_tokens is not None and "max_tokens" in fields:
        raise _RowError("max_tokens", "the row's output_tokens is its exact length", "remove one of the two")
    if ("prompt" in document) == ("messages" in document):
        raise _RowError("", "exactly one of `prompt` and `messages` is required")
    if "prompt" in document:
        if not isinstance(document["prompt"], str) or not document["prompt"]:
            raise _RowError("prompt", "it is empty or not a string")
        return DataRow(
            ({"role": "user", "content": document["prompt"]},), expected, output_tokens, None, fields, ignored_keys
        )
    if traffic.api != "chat":
        raise _RowError(
            "messages", "the blueprint's traffic uses `api: completions`, which takes a prompt", "write prompt: TEXT"
        )
    messages = document["messages"]
    is_list = isinstance(messages, list) and all(map(_is_message, messages))
    if not is_list or not messages or not messages[-1].get("content"):
        raise _RowError(
            "messages", "it is not a list of chat messages", 'write "messages": [{"role": "user", "content": "Hi"}]'
        )
    return DataRow(tuple(messages), expected, output_tokens, None, fields, ignored_keys)


def _is_message(message: Any) -> bool:
    """Return whether it has a role and a content: text, parts, or none beside the tool calls of an assistant."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return bool(content) and all(isinstance(part, dict) for part in content)
    return isinstance(content, str) or bool(message.get("tool_calls"))


def _parse_expected(value: Any, traffic: Traffic) -> str | None:
    """Return the expected answer as text; of `score_by: json_schema` a JSON Schema."""
    if value is None:
        return None
    if traffic.score_by != "json_schema":
        if not isinstance(value, str):
            raise _RowError("expected", "it is not a string")
        return value
    if not isinstance(value, dict):
        raise _RowError(
            "expected", "it is not a JSON Schema, for `score_by: json_schema`", 'write "expected": {"type": "object"}'
        )
    try:
        jsonschema.validators.validator_for(value).check_schema(value)
    except (jsonschema.SchemaError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"it is not a JSON Schema: {getattr(error, 'message', error)}"
        raise _RowError("expected", reason, 'write "expected": {"type": "object"}') from None
    return json.dumps(value)


def _check_tokens(key: str, value: Any, most: int) -> None:
    """Check that a row's own length is a whole number that the blueprint's memory and context cover."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _RowError(key, "it is not a number of tokens", f'write "{key}": 64')
    if value > most:
        reason = f"the blueprint's traffic has `output_tokens` of at most {most}"
        raise _RowError(key, reason, f"write {most} or less, or output_tokens: {value} in blueprint.yaml")


def _read_sharegpt(path: Path, text: str) -> list[DataRow]:
    try:
        conversations = untrusted_json.parse(text)
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error.msg}"
        raise InputError(
            [Mistake(path, error.lineno, error.colno, "", "", reason, "use the JSON of ShareGPT as published")]
        ) from None
    rows = []
    for conversation in conversations:
        messages = conversation.get("conversations") if isinstance(conversation, dict) else None
        if not isinstance(messages, list) or len(messages) < 2:
            continue
        question, answer = _get_text(messages[0], _HUMAN), _get_text(messages[1], _ASSISTANT)
        if question and answer:
            rows.append(DataRow(({"role": "user", "content": question},), recorded_answer=answer))
    return rows


def _get_text(message: Any, senders: tuple[str, ...]) -> str:
    """Return the text of a message from one of the senders; "" of any other, as of what is no message."""
    if not isinstance(message, dict) or message.get("from") not in senders:
        return ""
    text = message.get("value")
    return text if isinstance(text, str) else ""
