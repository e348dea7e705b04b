"""The driver's plan: when each request is due, and its length. No input or output.

Lengths and times are drawn from the seed in `traffic`, so that two runs send requests of the same lengths at the same
times. The words of a prompt also depend on the run's nonce: no engine has them in its cache from the run before.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from pydantic import Field

from llm_serving.services import tasks
from llm_serving.services.token_lengths import TokenDistribution
from llm_serving.services.traffic import Traffic
from llm_serving.settings.choices import Task
from llm_serving.settings.plain import PlainData
from llm_serving.settings.units import Bounds
from llm_serving.validation.load.driver_result import PLAN_FILE, name_part
from llm_serving.validation.load.trace import TraceRow

_T = TypeVar("_T")


class TargetRole(PlainData):
    """Replicas behind the URL that count requests."""

    name: str
    replicas: Bounds
    instances: tuple[str, ...]
    """Names of its processes, where the target names no replicas itself."""

    answers: bool = True
    """Whether clients get its answers: prefill only hands its cache on."""

    accelerators: str = ""
    """Of each replica, where other roles answer the same requests on unlike ones; else empty."""

    weight: int = 1
    """Requests that the router gives each replica, for one that it gives to a replica of weight 1."""


class PlannedLoad(PlainData):
    """What is sent, and where to."""

    url: str
    """Base URL of the deployment, without /v1."""

    models: tuple[str, ...]
    """Values of requests' `model`, in turn."""

    task: Task = tasks.GENERATE
    """What requests ask for."""

    traffic: Traffic
    admitted: int | None = None
    """Most requests at once that get no 429; None for any number."""

    @property
    def pooled(self) -> tasks.PooledTask | None:
        """The task's requests and answers; None where answers are text, and not numbers for whole texts."""
        return tasks.POOLED.get(self.task)

    @property
    def path(self) -> str:
        """Where requests go on the server."""
        if self.pooled:
            return self.pooled.path
        return "/v1/chat/completions" if self.traffic.api == "chat" else "/v1/completions"


class LoadPlan(PlannedLoad):
    """The driver's input; the validation writes it as plan.json for Locust."""

    nonce: str = ""
    """Of this run only; part of the seed of the words of generated prompts."""

    data: str | None = None
    """Absolute path of a JSONL file with the user's own prompts."""

    first_prompt: int = 0
    """Place in `data` of the first counted prompt; those of the warm-up are before it."""

    trace: tuple[TraceRow, ...] = ()
    """Requests of a trace within the bounds of the lengths, in order of time."""

    metrics_urls: dict[str, str] = Field(default={})
    """URL of the engine's metrics by replica, read before the first counted request and after the last."""

    metrics_delay_s: float = 0
    """Seconds after which these pages have what happened."""

    processes: int = 1
    """Processes that send the load, each its own share of the requests."""

    lead_s: float = 0.1
    """Time from the first process's word to the start, for the other processes to hear it, in seconds."""

    timeout_s: float = 3600.0
    """Longest time of the whole load, whatever the server does: no process waits longer for another."""

    folder: str
    """Absolute path of the driver's output directory."""

    def locate(self, name: str, index: int) -> Path:
        """Return a process's own file in the output directory."""
        return Path(self.folder) / name_part(name, index)

    def bound(self, at_once: int) -> int:
        """Return how many requests are sent at once to prepare the load, of as many or fewer."""
        return at_once if self.admitted is None else min(at_once, self.admitted)


@dataclass(frozen=True)
class Shard:
    """One process's share of the load: of every `count` requests in turn, the one at `index`."""

    index: int = 0
    count: int = 1

    def select(self, items: Iterable[_T]) -> Iterator[_T]:
        return itertools.islice(items, self.index, None, self.count)

    def count_own(self, total: int) -> int:
        """Return how many of `total` are its own."""
        return total // self.count + (self.index < total % self.count)


WHOLE = Shard()
"""The share of a load's only process."""


@dataclass(frozen=True)
class RequestLength:
    """Requested length of one request, in tokens."""

    input_tokens: int
    shared_tokens: int
    """Tokens at the start of the prompt that all prompts of its group share."""
    group: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the blocks of a trace's prompt; prompts with the same first ones begin with the same text."""
    images: int = 0
    """Pictures beside the text."""


def draw_lengths(traffic: Traffic, phase: str, rows: Sequence[TraceRow] = ()) -> Iterator[RequestLength]:
    """Yield the lengths of a phase's requests, endlessly; each phase draws its own, or takes those of a trace."""
    # Drawn apart, so that lengths are the same with and without pictures.
    images = draw_counts(traffic, phase, "images", traffic.images.count if traffic.images else Bounds(0, 0))
    if rows:
        for row in itertools.cycle(rows):
            yield RequestLength(row.input_tokens, 0, 0, row.output_tokens, row.blocks, next(images))
    rng = random.Random(f"{traffic.seed}/{phase}/lengths")
    while True:
        input_tokens = _draw_length(traffic.input_tokens, rng)
        output_tokens = _draw_length(traffic.output_tokens, rng)
        group = rng.randrange(traffic.prefix_groups)
        shared_tokens = round(traffic.shared_prefix * input_tokens)
        yield RequestLength(input_tokens, shared_tokens, group, output_tokens, images=next(images))


def draw_counts(traffic: Traffic, phase: str, name: str, bounds: Bounds) -> Iterator[int]:
    """Yield how many each has, endlessly: turns of a session, texts or pictures of a request."""
    rng = random.Random(f"{traffic.seed}/{phase}/{name}")
    while True:
        yield rng.randint(*bounds)


MAX_DRAWS = 1000
"""Draws until a length lies within its bounds; after that it is moved to the nearest."""


def _draw_length(lengths: Bounds | TokenDistribution, rng: random.Random) -> int:
    """Draw one length: evenly from a range, or from a distribution until it lies within its bounds."""
    if isinstance(lengths, Bounds):
        return rng.randint(*lengths)
    length = lengths.mean
    for _ in range(MAX_DRAWS):
        length = round(_draw_value(lengths, rng))
        if lengths.min <= length <= lengths.max:
            return length
    return max(lengths.min, min(lengths.max, length))


def _draw_value(lengths: TokenDistribution, rng: random.Random) -> float:
    mean, cv = lengths.mean, lengths.cv
    if lengths.shape == "normal":
        return rng.gauss(mean, cv * mean)
    if lengths.shape == "gamma":
        return rng.gammavariate(1 / cv**2, mean * cv**2)
    variance = math.log(1 + cv**2)
    return rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))


def draw_arrivals(traffic: Traffic, rows: Sequence[TraceRow] = ()) -> list[float] | None:
    """Return when each session is due, in seconds from the start: drawn, or of a trace; None in the closed loop."""
    if traffic.replays_times:
        times = [row.at_s / traffic.trace_speed for row in rows[: traffic.requests]]
        return [time for time in times if time <= traffic.time_limit]
    if traffic.arrivals is None:
        return None
    rng = random.Random(f"{traffic.seed}/arrivals")
    rate = traffic.arrivals / fmean(traffic.turns)
    count = min(len(list_starts(traffic)) - 1, int(rate * traffic.time_limit))
    spaces = [_draw_space(traffic, rate, rng) for _ in range(count)]
    # As `vllm bench serve` does: else the rate is chance, of 59 Poisson arrivals with a standard deviation of 13%.
    scale = count / rate / sum(spaces) if spaces else 0.0
    return [scale * due for due in itertools.accumulate(spaces, initial=0.0)]


def count_inputs(traffic: Traffic, task: Task, texts: int) -> int:
    """Return what a request counts as, where answers have no tokens: its texts, or the pictures that it asks for."""
    return (traffic.draw.count if traffic.draw else 1) if task == tasks.DRAW else texts


def list_starts(traffic: Traffic) -> Sequence[int]:
    """Return the number of the first request of each session; together they have as many as are counted.

    The last session is cut where they would have more.
    """
    if traffic.turns.max == 1:
        return range(traffic.requests)
    starts = itertools.accumulate(draw_counts(traffic, "load", "turns", traffic.turns), initial=0)
    return list(itertools.takewhile(lambda start: start < traffic.requests, starts))


def _draw_space(traffic: Traffic, rate: float, rng: random.Random) -> float:
    """Draw the seconds between two arrivals; a gamma distribution of shape 1 is the exponential one."""
    if traffic.process == "constant":
        return 1 / rate
    if traffic.burstiness == 1:
        return rng.expovariate(rate)
    return rng.gammavariate(traffic.burstiness, 1 / (rate * traffic.burstiness))


def count_users(traffic: Traffic, rows: Sequence[TraceRow] = (), shard: Shard = WHOLE) -> int:
    """Return the number of Locust users of a process.

    In the open loop every arrival needs an idle user, up to the most requests at once. A request ends by its deadline,
    so the most users are busy when the most requests fall due within one deadline.
    """
    if traffic.users is not None:
        return shard.count_own(traffic.users)
    times = list(shard.select(draw_arrivals(traffic, rows) or []))
    pauses = (traffic.turns.max - 1) * MAX_PAUSES * (traffic.think_time or 0.0)
    window = traffic.turns.max * traffic.deadline + pauses  # the longest session
    most = max((bisect.bisect_right(times, start + window) - index for index, start in enumerate(times)), default=1)
    return most if traffic.max_concurrency is None else min(most, shard.count_own(traffic.max_concurrency))


def build_command(plan: LoadPlan, user_file: str, shard: int) -> list[str]:
    """Return the command of one process of the load, whose Locust user is in a Python file."""
    program = (sys.executable, "-m", "llm_serving.validation.load.locust_process")
    return [*program, "--user", user_file, "--plan", f"{plan.folder}/{PLAN_FILE}", "--shard", str(shard)]


MAX_PAUSES = 10
"""Pause in mean pauses that is hardly exceeded: one in 22,000 exponential ones is longer."""


STREAMS_PER_PROCESS = 500
TOKENS_PER_PROCESS = 4000
"""Streamed tokens a second of one process."""


ANSWERS_PER_PROCESS = 1000
"""Answers without tokens a second of one process: a third of what a core does, 0.33 CPU-milliseconds for a text of 256
tokens. Measured over loopback against a server that computes nothing, 2026-11-23."""


PIXELS_PER_PROCESS = 30_000_000
"""Pixels of made pictures a second of one process: a third of what a core does, 3.2 CPU-milliseconds to make one of
640 x 480 with its JSON, the best of five, 2026-11-23."""


def count_processes(
    traffic: Traffic, cores: int, rows: Sequence[TraceRow] = (), *, least: int = 1, pooled: bool = False
) -> int:
    """Return how many processes send the load: as many as its streams and tokens take, at most one a core."""
    most = traffic.users or traffic.max_concurrency or traffic.requests
    if traffic.users is not None:
        needed = traffic.users / STREAMS_PER_PROCESS
    else:
        # The streams at once of the open loop depend on the server, and the tokens a second do not.
        rate = traffic.arrivals or len(rows) / max(1.0, rows[-1].at_s / traffic.trace_speed)
        tokens_each = _compute_mean_output(traffic, rows)
        needed = rate / ANSWERS_PER_PROCESS if pooled else rate * tokens_each / TOKENS_PER_PROCESS
        if images := traffic.images:
            needed += rate * fmean(images.count) * images.width * images.height / PIXELS_PER_PROCESS
    return max(1, min(max(math.ceil(needed), least), cores, most))


def _compute_mean_output(traffic: Traffic, rows: Sequence[TraceRow]) -> float:
    if rows:
        return fmean(row.output_tokens for row in rows)
    lengths = traffic.output_tokens
    return fmean(lengths) if isinstance(lengths, Bounds) else lengths.mean
