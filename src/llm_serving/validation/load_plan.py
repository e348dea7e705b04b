"""The driver's plan: when each request is due, and its length. No input or output.

Everything is drawn from the seed in `traffic`, so that two runs of the same plan send the same requests at the same
times.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from llm_serving.workloads.serving.traffic import Traffic


class LoadPlan(BaseModel):
    """The driver's input; the validation writes it as plan.json for Locust."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Base URL of the deployment, without /v1."""

    models: tuple[str, ...]
    """Values of requests' `model`, in turn."""

    traffic: Traffic
    """The load, from the blueprint."""

    data: str | None = None
    """Absolute path of a JSONL file with the user's own prompts."""

    metrics_urls: dict[str, str] = {}
    """URL of the engine's metrics by replica, read before the first counted request and after the last."""

    folder: str
    """Absolute path of the driver's output directory."""


@dataclass(frozen=True)
class RequestLength:
    """Requested length of one request, in tokens."""

    input_tokens: int
    shared_tokens: int
    """Tokens at the start of the prompt that all prompts of its group share."""
    group: int
    output_tokens: int


def draw_lengths(traffic: Traffic, phase: str) -> Iterator[RequestLength]:
    """Yield the lengths of a phase's requests, endlessly; each phase draws its own."""
    rng = random.Random(f"{traffic.seed}/{phase}/lengths")
    while True:
        input_tokens = rng.randint(*traffic.input_tokens)
        output_tokens = rng.randint(*traffic.output_tokens)
        group = rng.randrange(traffic.prefix_groups)
        yield RequestLength(input_tokens, round(traffic.shared_prefix * input_tokens), group, output_tokens)


def draw_arrivals(traffic: Traffic) -> list[float] | None:
    """Return when each counted request is due, in seconds from the start; None in the closed loop."""
    if traffic.arrivals is None:
        return None
    rng = random.Random(f"{traffic.seed}/arrivals")
    due, times = 0.0, list[float]()
    while len(times) < traffic.requests and due <= traffic.time_limit:
        times.append(due)
        due += rng.expovariate(traffic.arrivals) if traffic.process == "poisson" else 1 / traffic.arrivals
    return times


def count_users(traffic: Traffic) -> int:
    """Return the number of Locust users for the plan.

    In the open loop every arrival needs an idle user. A request ends by its deadline, so the most users are busy when
    the most requests fall due within one deadline.
    """
    if traffic.users is not None:
        return traffic.users
    times = draw_arrivals(traffic) or []
    return max(1, _count_max_within(times, traffic.deadline))


def _count_max_within(times: Sequence[float], window: float) -> int:
    """Return the largest number of the sorted `times` within `window` seconds, both ends included."""
    return max((bisect.bisect_right(times, start + window) - index for index, start in enumerate(times)), default=0)
