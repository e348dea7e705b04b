"""Loads on which the simulation is held against vLLM's own scheduler."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from llm_serving.prediction.simulation import Limits, Request


class LinearStep:
    """A step whose seconds are a sum of products, as `vllm_schedule.py` computes them."""

    first_token_s, steps_ahead = 0.0, 0

    def __init__(self, times_us: tuple[float, float, float, float]) -> None:
        self.fixed, self.token, self.sequence, self.context = (microseconds * 1e-6 for microseconds in times_us)

    def compute_base_s(self, tokens: int, sequences: int) -> float:
        return self.fixed + tokens * self.token + sequences * self.sequence

    def compute_cache_s(self, sequences: int, context: float) -> float:  # noqa: ARG002
        return context * self.context

    def compute_attention_s(self, tokens: int, before: int) -> float:  # noqa: ARG002
        return 0.0


class Load(NamedTuple):
    requests: list[Request]
    limits: Limits
    times_us: tuple[float, float, float, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": [request._asdict() for request in self.requests],
            "limits": self.limits._asdict(),
            "times_us": list(self.times_us),
        }


TIMES_US = (6000.0, 25.0, 20.0, 0.02)


def make(
    count: int,
    rate: float,
    inputs: tuple[int, int],
    outputs: tuple[int, int],
    limits: Limits,
    *,
    shared: int = 0,
    groups: int = 1,
    seed: int = 0,
    times_us: tuple[float, float, float, float] = TIMES_US,
) -> Load:
    """Return a load of Poisson arrivals with lengths drawn uniformly."""
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / rate, count))
    lengths = random.integers(*inputs, count, endpoint=True), random.integers(*outputs, count, endpoint=True)
    group = random.integers(0, groups, count)
    rows = zip(at.tolist(), lengths[0].tolist(), lengths[1].tolist(), group.tolist(), strict=True)
    return Load([Request(*row, shared) for row in rows], limits, times_us)


WIDE = Limits(sequences=256, batch_tokens=2048, cache_tokens=400_000)

LOADS = {
    "idle": make(300, 0.5, (200, 800), (50, 200), WIDE),
    "half": make(400, 4, (200, 800), (50, 200), WIDE),
    "busy": make(600, 16, (200, 800), (50, 200), WIDE),
    "near the knee": make(800, 28, (200, 800), (50, 200), WIDE),
    "few sequences": make(400, 8, (200, 800), (50, 200), WIDE._replace(sequences=8)),
    "prompts longer than a chunk": make(300, 2, (3000, 9000), (50, 200), WIDE),
    "small chunks": make(400, 6, (500, 3000), (50, 200), WIDE._replace(batch_tokens=512)),
    "long answers": make(200, 1, (100, 400), (500, 3000), WIDE),
    "one shared beginning": make(600, 16, (600, 1200), (50, 200), WIDE, shared=500),
    "many shared beginnings": make(600, 12, (600, 1200), (50, 200), WIDE, shared=500, groups=40),
    "beginnings that are evicted": make(
        500, 6, (600, 1200), (50, 200), WIDE._replace(cache_tokens=24_000), shared=500, groups=40
    ),
    "preemption": make(400, 7, (200, 800), (100, 600), WIDE._replace(cache_tokens=12_000)),
    "heavy preemption": make(400, 8, (100, 300), (300, 900), WIDE._replace(cache_tokens=16_000)),
    "preemption with shared beginnings": make(
        400, 12, (600, 900), (100, 500), WIDE._replace(cache_tokens=12_000), shared=500, groups=3
    ),
}  # fmt: skip
