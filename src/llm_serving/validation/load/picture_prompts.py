"""Prompts for pictures: what is seen, where, and how it is drawn; no two of a load are the same, as far as words go."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from llm_serving.settings import own_yaml


@functools.cache
def load_words() -> dict[str, list[str]]:
    """Return the subjects, the places and the styles."""
    words: dict[str, list[str]] = own_yaml.read(Path(__file__).with_name("picture_prompts.yaml"))
    return words


def generate(seed: str, number: int) -> str:
    """Return the prompt of a request, which follows from the seed and its number alone."""
    rng = random.Random(f"{seed}/pictures/{number}")
    subject, place, style = (rng.choice(load_words()[part]) for part in ("subjects", "places", "styles"))
    # Without the number a long load would repeat prompts, and a cache before the server would answer them.
    return f"{subject} {place}, {style}, number {number + 1}"
