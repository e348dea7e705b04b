"""How much of each prompt an earlier one began with: what a router by cached beginnings could spare, at the best.

Measured on what was sent, in its order, so it is the same whatever the router did and however large the caches were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from llm_serving.validation.load import Prompt

BLOCK = 64
"""Characters of a block: about the 16 tokens of a block of vLLM's cache, which holds whole ones alone."""

MAX_BLOCKS = 1_000_000
"""Blocks that are kept, in about 100 MB; prompts after that are not looked at."""


class PrefixOverlap:
    """Takes prompts in, one after another."""

    def __init__(self) -> None:
        self.prompts = 0
        """How many were looked at."""
        self._characters = 0
        self._shared = 0
        self._digests: set[bytes] = set()

    @property
    def share(self) -> float | None:
        """Of all their characters, those in whole blocks at the start that an earlier prompt to the model had too."""
        return self._shared / self._characters if self._characters else None

    def observe(self, prompts: Iterator[Prompt], unique_count: int | None) -> Iterator[Prompt]:
        """The same prompts, looked at in passing.

        Args:
            first: how many there are before they come again, which says nothing of real traffic; None: they do not.
        """
        for number, prompt in enumerate(prompts):
            if (unique_count is None or number < unique_count) and len(self._digests) < MAX_BLOCKS:
                self.add(prompt)
            yield prompt

    def add(self, prompt: Prompt) -> None:
        """Looks at the next one."""
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
