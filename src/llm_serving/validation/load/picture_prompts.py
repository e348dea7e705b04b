"""Prompts for pictures: what is seen, where, and how it is drawn; no two of a load are the same, as far as words go."""

from __future__ import annotations

import random

SUBJECTS = (
    "a lighthouse",
    "a red fox",
    "a steam locomotive",
    "an old violin",
    "a bowl of oranges",
    "a sailing boat",
    "a snow leopard",
    "a glass greenhouse",
    "a street musician",
    "a wooden bridge",
    "a hot-air balloon",
    "a paper lantern",
    "a field of sunflowers",
    "a grey heron",
    "a bicycle",
    "a stone tower",
)
PLACES = (
    "on a rocky coast",
    "in a quiet forest",
    "at a railway station",
    "in a small workshop",
    "on a market square",
    "by a mountain lake",
    "under a starry sky",
    "in the morning fog",
    "after the rain",
    "on a snowy hill",
    "in a desert canyon",
    "beside a canal",
)
STYLES = (
    "oil painting",
    "watercolor",
    "black and white photograph",
    "pencil sketch",
    "woodcut",
    "wide-angle photograph",
    "isometric drawing",
    "studio photograph with soft light",
    "stained glass",
    "poster in flat colors",
)


def generate(seed: str, number: int) -> str:
    """Return the prompt of a request, which follows from the seed and its number alone."""
    rng = random.Random(f"{seed}/pictures/{number}")
    subject, place, style = (rng.choice(words) for words in (SUBJECTS, PLACES, STYLES))
    # Without the number a long load would repeat prompts, and a cache before the server would answer them.
    return f"{subject} {place}, {style}, number {number + 1}"
