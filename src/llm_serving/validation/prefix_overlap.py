"""Share of each prompt that an earlier one began with: the most that prefix-aware routing can save.

Measured on the prompts as sent, in order, so it depends neither on the router nor on the size of the caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from llm_serving.validation.load import Prompt

BLOCK = 64
"""Characters of a block: about 16 tokens, a block of vLLM's cache on GPUs, which holds whole blocks only."""

MAX_BLOCKS = 1_000_000
"""Blocks kept in memory, about 100 MB; later prompts are not measured."""


class PrefixOverlap:
    """Measures prompts one after another."""

    def __init__(self) -> None:
        self.prompts = 0
        """Number of measured prompts."""
        self._characters = 0
        self._shared = 0
        self._digests: set[bytes] = set()

    @property
    def share(self) -> float | None:
        """Share of all characters in whole blocks at the start that an earlier prompt to the same model had too."""
        return self._shared / self._characters if self._characters else None

    def observe(self, prompts: Iterator[Prompt], unique_count: int | None) -> Iterator[Prompt]:
        """Yield the same prompts and measure them.

        Args:
            unique_count: measure this many, after which they repeat; None: they do not repeat.
        """
        for number, prompt in enumerate(prompts):
            if (unique_count is None or number < unique_count) and len(self._digests) < MAX_BLOCKS:
                self.add(prompt)
            yield prompt

    def add(self, prompt: Prompt) -> None:
        """Measure the next prompt."""
        text = json.dumps(prompt.messages, ensure_ascii=False)
        hasher = hashlib.blake2b(f"{prompt.model}\n".encode(), digest_size=8)
        is_shared, blocks = True, 0
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            hasher.update(text[start : start + BLOCK].encode("utf-8", "surrogatepass"))
            digest = hasher.digest()
            is_shared = is_shared and digest in self._digests
            blocks += is_shared
            self._digests.add(digest)
        self.prompts += 1
        self._characters += len(text)
        self._shared += blocks * BLOCK
