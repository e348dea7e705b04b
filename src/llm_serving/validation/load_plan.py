"""What the driver is told, and what follows from it alone: when each request is due, and how long it is. Pure.

Everything is drawn from the seed in `traffic`, so that two runs with the same plan send the same requests at the same
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
    """All that the driver needs to know; the validation writes it as plan.json, and Locust is given that file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Base URL of the deployment, without /v1."""

    models: tuple[str, ...]
    """The names to put into requests' `model`, in turn."""

    traffic: Traffic
    """The load, as the blueprint says it."""

    data: str | None = None
    """Absolute path of the JSONL file with the user's own prompts."""

    metrics_urls: dict[str, str] = {}
    """URL of the engine's own metrics by replica; read before the first counted request and after the last."""

    folder: str
    """Absolute path of the folder that the driver writes into."""


@dataclass(frozen=True)
class RequestLength:
    """How long one request is asked to be, in tokens."""

    input_tokens: int
    shared_tokens: int
    """Tokens at the start of the prompt that the other prompts of its group start with too."""
    group: int
    output_tokens: int


def draw_lengths(traffic: Traffic, phase: str) -> Iterator[RequestLength]:
    """Lengths of the requests of a phase, one after another without end; each phase draws its own."""
    rng = random.Random(f"{traffic.seed}/{phase}/lengths")
    while True:
        input_tokens = rng.randint(*traffic.input_tokens)
        output_tokens = rng.randint(*traffic.output_tokens)
        group = rng.randrange(traffic.prefix_groups)
        yield RequestLength(input_tokens, round(traffic.shared_prefix * input_tokens), group, output_tokens)


def draw_arrivals(traffic: Traffic) -> list[float] | None:
    """When each counted request is due, in seconds from the start; None in the closed loop, where users decide."""
    if traffic.arrivals is None:
        return None
    rng = random.Random(f"{traffic.seed}/arrivals")
    due, times = 0.0, list[float]()
    while len(times) < traffic.requests and due <= traffic.time_limit:
        times.append(due)
        due += rng.expovariate(traffic.arrivals) if traffic.process == "poisson" else 1 / traffic.arrivals
    return times


def count_users(traffic: Traffic) -> int:
    """How many Locust users play the plan.

    In the open loop an arrival must always find a user that waits. A request ends by its deadline, so as many are busy
    at once as fall due within one deadline, at the most.
    """
    if traffic.users is not None:
        return traffic.users
    times = draw_arrivals(traffic) or []
    return max(1, _count_max_within(times, traffic.deadline))


def _count_max_within(times: Sequence[float], window: float) -> int:
    """The most of the sorted `times` that lie within any stretch of `window` seconds, both ends included."""
    return max((bisect.bisect_right(times, start + window) - index for index, start in enumerate(times)), default=0)
