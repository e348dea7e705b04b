"""Share of each prompt that an earlier one began with: the most that prefix-aware routing can save.

Measured on the prompts as sent, in order, so it depends neither on the router nor on the size of the caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from llm_serving.validation.load import pictures
from llm_serving.validation.load.prompt import Prompt

DIGEST_BYTES = 8

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
        self._blocks = 0
        self._digests: set[bytes] = set()

    @property
    def share(self) -> float | None:
        """Share of all characters in whole blocks at the start that an earlier prompt to the same model had too.

        A digest is of all text up to its block: where it is known, so are those before it. All blocks but the first of
        each digest are therefore shared, in whatever order the prompts came.
        """
        return (self._blocks - len(self._digests)) * BLOCK / self._characters if self._characters else None

    def observe(self, prompts: Iterator[Prompt], unique_count: int | None) -> Iterator[Prompt]:
        """Yield the same prompts and measure them: as many as are unique, or all."""
        for number, prompt in enumerate(prompts):
            if (unique_count is None or number < unique_count) and len(self._digests) < MAX_BLOCKS:
                self.add(prompt)
            yield prompt

    def add(self, prompt: Prompt) -> None:
        """Measure the next prompt; a picture counts as a short text that only the same picture has."""
        text = json.dumps(pictures.replace_by_digests(prompt.messages), ensure_ascii=False)
        hasher = hashlib.blake2b(f"{prompt.model}\n".encode(), digest_size=DIGEST_BYTES)
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            hasher.update(text[start : start + BLOCK].encode("utf-8", "surrogatepass"))
            self._digests.add(hasher.digest())
            self._blocks += 1
        self.prompts += 1
        self._characters += len(text)

    def merge(self, other: PrefixOverlap) -> None:
        """Add the prompts that another process sent."""
        self.prompts += other.prompts
        self._characters += other._characters
        self._blocks += other._blocks
        self._digests |= other._digests

    def save(self, file: Path) -> None:
        """Write the measurement for `load`."""
        counts = f"{self.prompts} {self._characters} {self._blocks}\n".encode()
        file.write_bytes(counts + b"".join(self._digests))

    @classmethod
    def load(cls, file: Path) -> PrefixOverlap:
        overlap = cls()
        counts, _, digests = file.read_bytes().partition(b"\n")
        overlap.prompts, overlap._characters, overlap._blocks = map(int, counts.split())
        starts = range(0, len(digests), DIGEST_BYTES)
        overlap._digests = {digests[start : start + DIGEST_BYTES] for start in starts}
        return overlap
