"""Prompts of an exact number of tokens for any server that reports `usage`.

Tokenizers split a text at its spaces first, so that a word has the same number of tokens everywhere. A few requests
measure the tokens of each word of a small vocabulary on this server, and those of the chat template; a prompt is then
words drawn from the seed until the requested number is reached. The server's `usage` has the actual number of tokens of
each prompt, and the report shows both.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving.services.traffic import Images
from llm_serving.validation.load import pictures, trace
from llm_serving.validation.load.load_plan import RequestLength

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
    """Tokens of a prompt of FIRST_WORD alone, of each further word, and of each picture."""

    base: int
    words: Mapping[str, int]
    picture: int = 0


def measure_costs(
    count: Callable[[Any], int],
    map_function: Callable[..., Iterable[int]] = map,
    images: Images | None = None,
    nonce: str = "",
) -> TokenCosts:
    """Measure the tokens of words on a server, and of a picture if the load has any.

    Args:
        count: returns the prompt tokens of a message's content, from the server's usage.
        map_function: a `map` that may run concurrently.
        nonce: of this run only, for a picture that no server has seen.
    """
    base = count(FIRST_WORD)
    picture = count(pictures.build_content(FIRST_WORD, images, 1, f"{nonce}/measure")) - base if images else 0
    totals = map_function(count, [" ".join([FIRST_WORD, *[word] * REPETITIONS]) for word in VOCABULARY])
    words = {}
    for word, total in zip(VOCABULARY, totals, strict=True):
        cost, remainder = divmod(total - base, REPETITIONS)
        # Skip words whose tokens depend on their neighbours.
        if remainder == 0 and cost > 0:
            words[word] = cost
    return TokenCosts(base, words or dict.fromkeys(VOCABULARY, 1), max(0, picture))


MEASURED_CHARACTERS = 4000
"""Text of recorded answers that measures how many characters a token has."""


def measure_tokens_per_character(count: Callable[[str], int], texts: Iterable[str]) -> float:
    """Return the tokens of a character in texts like these; `count` asks the server for those of one text."""
    text = "\n".join(texts)[:MEASURED_CHARACTERS]
    return max(1, count(f"{FIRST_WORD} {text}") - count(FIRST_WORD)) / max(1, len(text))


class PromptGenerator:
    """Generates prompts of exact length; the same seed gives the same prompts."""

    def __init__(self, costs: TokenCosts, seed: str, images: Images | None = None) -> None:
        self._costs = costs
        self._seed = seed
        self._images = images
        self._groups: dict[int, _WordSequence] = {}
        self._take_whole = functools.lru_cache(maxsize=1024)(self._take_block)

    def generate(self, length: RequestLength, number: int) -> str:
        """Return the prompt of a request, of its input tokens with the chat template, or of the fewest possible."""
        budget = length.input_tokens - self._costs.base
        own_sequence = _WordSequence(self._costs, random.Random(f"{self._seed}/words/{number}"))
        if length.blocks:
            words, used = self._generate_blocks(length.blocks, budget)
            return " ".join([FIRST_WORD, *words, *own_sequence.take(max(0, budget - used))[0]])
        shared = min(budget, length.shared_tokens - self._costs.base)
        sequence = self._groups.setdefault(
            length.group, _WordSequence(self._costs, random.Random(f"{self._seed}/{length.group}"))
        )
        words, used = sequence.take(shared)
        return " ".join([FIRST_WORD, *words, *own_sequence.take(budget - used)[0]])

    def generate_content(self, length: RequestLength, number: int) -> str | list[dict[str, Any]]:
        text = self.generate(length, number)
        return pictures.build_content(text, self._images, length.images, f"{self._seed}/pictures/{number}")

    def count_tokens(self, length: RequestLength) -> int:
        """Return the tokens of a request's prompt, those of its pictures included."""
        return length.input_tokens + length.images * self._costs.picture

    def _generate_blocks(self, blocks: Sequence[int], budget: int) -> tuple[list[str], int]:
        """Return the words of a trace's blocks within a number of tokens, and their tokens."""
        words: list[str] = []
        total = 0
        for block in blocks:
            # A block that is cut at the end of a prompt begins as the whole one does.
            left = max(0, budget - total)
            take = self._take_whole if left >= trace.BLOCK_TOKENS else self._take_block
            block_words, used = take(block, min(left, trace.BLOCK_TOKENS))
            words += block_words
            total += used
        return words, total

    def _take_block(self, block: int, tokens: int) -> tuple[list[str], int]:
        return _WordSequence(self._costs, random.Random(f"{self._seed}/block/{block}")).take(tokens)


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
