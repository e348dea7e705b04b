"""Prompts of an exact number of tokens for any server that reports `usage`, and the user's own prompts from JSONL.

Tokenizers of today split a text at its spaces before anything else, so that a word costs the same number of tokens
wherever it stands. A few requests tell what each word of a small vocabulary costs on this server, and what the chat
template adds; from then on a prompt is words drawn from the seed until the number asked for is reached. The server's
`usage` says how many tokens each prompt really had, and the report shows both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving.settings.errors import InputError, Mistake
from llm_serving.validation.load_plan import Length

FIRST = "Read"
"""What each made prompt begins with: a first word may cost other tokens than the same word after a space."""

VOCABULARY = (
    "the", "of", "and", "to", "in", "is", "it", "on", "that", "by", "for", "was", "with",
    "as", "at", "be", "this", "from", "or", "an", "are", "which", "you", "not", "all",
)  # fmt: skip
"""Words that tokenizers trained on English have whole."""

REPEAT = 8
"""How often a word stands in the text that tells what it costs."""


AT_ONCE = 8
"""Questions asked at once while learning what words cost."""


@dataclass(frozen=True)
class Costs:
    """Tokens of a prompt of FIRST alone, and of each word that follows it."""

    base: int
    words: Mapping[str, int]


def measure(count: Callable[[str], int], many: Callable[..., Iterable[int]] = map) -> Costs:
    """What words cost on a server.

    Args:
        count: prompt tokens of a text, by the server's own usage.
        many: a `map` that may ask for several at once.
    """
    base = count(FIRST)
    totals = many(count, [" ".join([FIRST, *[word] * REPEAT]) for word in VOCABULARY])
    words = {}
    for word, total in zip(VOCABULARY, totals, strict=True):
        cost, rest = divmod(total - base, REPEAT)
        # A word whose cost depends on its neighbours cannot be counted on.
        if rest == 0 and cost > 0:
            words[word] = cost
    return Costs(base, words or dict.fromkeys(VOCABULARY, 1))


class Maker:
    """Makes prompts of exact length; the same seed gives the same prompts."""

    def __init__(self, costs: Costs, seed: str) -> None:
        self._costs = costs
        self._seed = seed
        self._draw = random.Random(f"{seed}/words")
        self._groups: dict[int, _Words] = {}

    def make(self, length: Length) -> str:
        """A prompt of `length.input_tokens` tokens, template included, or the shortest possible where that is fewer."""
        room = length.input_tokens - self._costs.base
        shared = min(room, length.shared_tokens - self._costs.base)
        group = self._groups.setdefault(
            length.group, _Words(self._costs, random.Random(f"{self._seed}/{length.group}"))
        )
        words, used = group.upto(shared)
        own, _ = _Words(self._costs, self._draw).upto(room - used)
        return " ".join([FIRST, *words, *own])


class _Words:
    """A sequence of words from a seed that grows as it is needed."""

    def __init__(self, costs: Costs, draw: random.Random) -> None:
        self._costs = costs.words
        self._names = sorted(costs.words)
        self._smallest = min(self._names, key=lambda word: costs.words[word])
        self._draw = draw
        self._words: list[str] = []

    def upto(self, tokens: int) -> tuple[list[str], int]:
        """The first words of the sequence that take `tokens` tokens, and what they take.

        What is left when the next word is too long is filled with the shortest word, so the number is met exactly
        wherever a word of one token exists.
        """
        taken: list[str] = []
        used = 0
        while True:
            if len(taken) == len(self._words):
                self._words.append(self._draw.choice(self._names))
            word = self._words[len(taken)]
            if used + self._costs[word] > tokens:
                break
            taken.append(word)
            used += self._costs[word]
        fill = max(0, tokens - used) // self._costs[self._smallest]
        return taken + [self._smallest] * fill, used + fill * self._costs[self._smallest]


@dataclass(frozen=True)
class Row:
    """One line of the user's own data."""

    messages: tuple[dict[str, Any], ...]
    """What the chat API is sent; for completions the one prompt is its content."""

    expected: str | None


def read_rows(path: Path, api: str) -> list[Row]:
    """The user's prompts from JSONL: `{"prompt": ...}` or `{"messages": [...]}` a line, each with `"expected"` if
    there is one.

    Raises:
        InputError: the file cannot be read, or with every line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (
            "it is not text in UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else f"it cannot be read: {error.strerror}"
        )
        raise InputError([Mistake(path, 1, 1, "", "", why, "a JSONL file, one JSON object a line")]) from None
    rows, mistakes = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line, api))
        except json.JSONDecodeError as error:
            mistakes.append(Mistake(path, number, error.colno, "", line[:60], f"it is not JSON: {error.msg}", _EXAMPLE))
        except _Wrong as error:
            mistakes.append(Mistake(path, number, 1, error.field, line[:60], error.why, error.write))
    if mistakes:
        raise InputError(mistakes)
    if not rows:
        raise InputError([Mistake(path, 1, 1, "", "", "it holds no prompt", _EXAMPLE)])
    return rows


_EXAMPLE = '{"prompt": "2 + 2 =", "expected": "4"}'


class _Wrong(Exception):
    def __init__(self, field: str, why: str, write: str = _EXAMPLE) -> None:
        super().__init__(why)
        self.field, self.why, self.write = field, why, write


def _row(line: str, api: str) -> Row:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise _Wrong("", "it is not a JSON object")
    expected = data.get("expected")
    if expected is not None and not isinstance(expected, str):
        raise _Wrong("expected", "it is not a text")
    if ("prompt" in data) == ("messages" in data):
        raise _Wrong("", "it needs exactly one of `prompt` and `messages`")
    if "prompt" in data:
        if not isinstance(data["prompt"], str) or not data["prompt"]:
            raise _Wrong("prompt", "it is not a text, or empty")
        return Row(({"role": "user", "content": data["prompt"]},), expected)
    if api != "chat":
        raise _Wrong(
            "messages", "the blueprint's traffic uses `api: completions`, which takes a prompt", "prompt: TEXT"
        )
    messages = data["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise _Wrong("messages", "it is not a list of chat messages", '"messages": [{"role": "user", "content": "Hi"}]')
    return Row(tuple(messages), expected)
