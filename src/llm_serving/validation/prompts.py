"""Prompts of an exact number of tokens for any server that reports `usage`, and the user's own prompts from JSONL.

Tokenizers split a text at its spaces first, so that a word has the same number of tokens everywhere. A few requests
measure the tokens of each word of a small vocabulary on this server, and those of the chat template; a prompt is then
words drawn from the seed until the requested number is reached. The server's `usage` has the actual number of tokens of
each prompt, and the report shows both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving.settings.errors import InputError, Mistake
from llm_serving.validation.load_plan import RequestLength

FIRST_WORD = "Read"
"""First word of each generated prompt: it may have other tokens than the same word after a space."""

VOCABULARY = (
    "the", "of", "and", "to", "in", "is", "it", "on", "that", "by", "for", "was", "with",
    "as", "at", "be", "this", "from", "or", "an", "are", "which", "you", "not", "all",
)  # fmt: skip
"""Words that are one token for tokenizers trained on English."""

REPETITIONS = 8
"""How often a word occurs in the text that measures its tokens."""

CONCURRENCY = 8
"""Concurrent requests while measuring words."""


@dataclass(frozen=True)
class TokenCosts:
    """Tokens of a prompt of FIRST_WORD alone, and of each further word."""

    base: int
    words: Mapping[str, int]


def measure_costs(count: Callable[[str], int], map_function: Callable[..., Iterable[int]] = map) -> TokenCosts:
    """Measure the tokens of words on a server.

    Args:
        count: returns the prompt tokens of a text, from the server's usage.
        map_function: a `map` that may run concurrently.
    """
    base = count(FIRST_WORD)
    totals = map_function(count, [" ".join([FIRST_WORD, *[word] * REPETITIONS]) for word in VOCABULARY])
    words = {}
    for word, total in zip(VOCABULARY, totals, strict=True):
        cost, remainder = divmod(total - base, REPETITIONS)
        # Skip words whose tokens depend on their neighbours.
        if remainder == 0 and cost > 0:
            words[word] = cost
    return TokenCosts(base, words or dict.fromkeys(VOCABULARY, 1))


class PromptGenerator:
    """Generates prompts of exact length; the same seed gives the same prompts."""

    def __init__(self, costs: TokenCosts, seed: str) -> None:
        self._costs = costs
        self._seed = seed
        self._rng = random.Random(f"{seed}/words")
        self._groups: dict[int, _WordSequence] = {}

    def generate(self, length: RequestLength) -> str:
        """Return a prompt of `length.input_tokens` tokens, chat template included, or the shortest possible one."""
        budget = length.input_tokens - self._costs.base
        shared = min(budget, length.shared_tokens - self._costs.base)
        sequence = self._groups.setdefault(
            length.group, _WordSequence(self._costs, random.Random(f"{self._seed}/{length.group}"))
        )
        words, used = sequence.take(shared)
        own_words, _ = _WordSequence(self._costs, self._rng).take(budget - used)
        return " ".join([FIRST_WORD, *words, *own_words])


class _WordSequence:
    """A sequence of words from a seed that grows on demand."""

    def __init__(self, costs: TokenCosts, rng: random.Random) -> None:
        self._costs = costs.words
        self._names = sorted(costs.words)
        self._smallest = min(self._names, key=lambda word: costs.words[word])
        self._rng = rng
        self._words: list[str] = []

    def take(self, tokens: int) -> tuple[list[str], int]:
        """Return the first words of the sequence with `tokens` tokens, and their tokens.

        If the next word is too long, the shortest word fills the rest, so the number is exact if any word is one token.
        """
        words: list[str] = []
        used = 0
        while True:
            if len(words) == len(self._words):
                self._words.append(self._rng.choice(self._names))
            word = self._words[len(words)]
            if used + self._costs[word] > tokens:
                break
            words.append(word)
            used += self._costs[word]
        fill = max(0, tokens - used) // self._costs[self._smallest]
        return words + [self._smallest] * fill, used + fill * self._costs[self._smallest]


@dataclass(frozen=True)
class PromptRow:
    """One line of the user's own data."""

    messages: tuple[dict[str, Any], ...]
    """Messages for the chat API; for completions the prompt is the only message's content."""

    expected: str | None


def read_rows(path: Path, api: str) -> list[PromptRow]:
    """Read the user's prompts from JSONL: `{"prompt": ...}` or `{"messages": [...]}` per line, optionally with
    `"expected"`.

    Raises:
        InputError: the file cannot be read, or every invalid line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"it cannot be read: {error.strerror}"
        )
        raise InputError([Mistake(path, 1, 1, "", "", reason, "a JSONL file with one JSON object per line")]) from None
    rows, mistakes = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_parse_row(line, api))
        except json.JSONDecodeError as error:
            mistakes.append(Mistake(path, number, error.colno, "", line[:60], f"it is not JSON: {error.msg}", _EXAMPLE))
        except _RowError as error:
            mistakes.append(Mistake(path, number, 1, error.field, line[:60], error.reason, error.fix))
    if mistakes:
        raise InputError(mistakes)
    if not rows:
        raise InputError([Mistake(path, 1, 1, "", "", "it has no prompts", _EXAMPLE)])
    return rows


_EXAMPLE = '{"prompt": "2 + 2 =", "expected": "4"}'


class _RowError(Exception):
    def __init__(self, field: str, reason: str, fix: str = _EXAMPLE) -> None:
        super().__init__(reason)
        self.field, self.reason, self.fix = field, reason, fix


def _parse_row(line: str, api: str) -> PromptRow:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise _RowError("", "it is not a JSON object")
    expected = data.get("expected")
    if expected is not None and not isinstance(expected, str):
        raise _RowError("expected", "it is not a string")
    if ("prompt" in data) == ("messages" in data):
        raise _RowError("", "exactly one of `prompt` and `messages` is required")
    if "prompt" in data:
        if not isinstance(data["prompt"], str) or not data["prompt"]:
            raise _RowError("prompt", "it is empty or not a string")
        return PromptRow(({"role": "user", "content": data["prompt"]},), expected)
    if api != "chat":
        raise _RowError(
            "messages", "the blueprint's traffic uses `api: completions`, which takes a prompt", "prompt: TEXT"
        )
    messages = data["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise _RowError(
            "messages", "it is not a list of chat messages", '"messages": [{"role": "user", "content": "Hi"}]'
        )
    return PromptRow(tuple(messages), expected)
