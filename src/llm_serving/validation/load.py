"""The load while it is played: which prompt is next and when, and how far it is. Runs inside Locust."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from gevent import queue

from llm_serving.validation import driver_result, prompts
from llm_serving.validation.answer import Sample
from llm_serving.validation.load_plan import Plan, arrivals, lengths

AHEAD = 1000
"""Prompts made before the load starts; a longer load makes the others while it runs."""

SHOWN = 5
"""Answers whose text is kept for the report when no answer is expected."""

EVERY_S = 0.5
"""How often progress is written."""


@dataclass(frozen=True)
class Prompt:
    """What a user sends."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    exact: bool = True
    """Whether the answer should have exactly `max_tokens` tokens."""
    asked_input: int | None = None
    expected: str | None = None
    model: str | None = None
    """Whom to ask; the plan's first where left out."""

    @property
    def text(self) -> str:
        """The one prompt of the completions API; of a chat its last message."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True)
class Item:
    """A prompt with its place in the load."""

    number: int
    prompt: Prompt
    counted: bool
    due: float | None = None
    """When it should be sent, on perf_counter's clock; None: as soon as a user is free."""


class Load:
    """Hands items to the users and takes in their samples."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.zero = 0.0
        """perf_counter when the counted load began."""
        self.end = 0.0
        """perf_counter when the last counted request ended."""
        self.vllm_dialect = False
        """Whether the server takes vLLM's own parameters."""
        self.warm_up_failed = 0
        self._progress = driver_result.Progress(phase="start", total=plan.traffic.requests)
        # Nothing waits in a channel: an item leaves the load when a user takes it.
        self._ready = queue.Channel()
        self._busy = 0
        self._ttfts: list[float] = []
        self._folder = Path(plan.folder)
        self._samples = (self._folder / driver_result.SAMPLES).open("w", encoding="utf-8")

    def next(self) -> Item:
        """The next item; waits until there is one."""
        item: Item = self._ready.get()
        self._busy += 1
        return item

    def finish(self, item: Item, sample: Sample) -> None:
        """Takes in how an item went."""
        self._busy -= 1
        if not item.counted:
            self.warm_up_failed += sample.error is not None
            return
        self.end = time.perf_counter()
        self._samples.write(sample.to_json() + "\n")
        if sample.error is not None:
            self._progress.failed += 1
            return
        self._progress.answered += 1
        if sample.ttft_ms is not None:
            bisect.insort(self._ttfts, sample.ttft_ms)

    def warm_up(self, made: Iterable[Prompt]) -> int:
        """Sends prompts that are not counted and waits for their answers; returns how many were sent."""
        self._progress.phase = "warm-up"
        count = 0
        for count, prompt in enumerate(made, 1):
            self._ready.put(Item(count, prompt, counted=False))
        self._drain()
        return count

    def play(self, made: Iterator[Prompt]) -> None:
        """Plays the counted load until all is sent or the time is over, and what is under way has ended."""
        traffic = self.plan.traffic
        ahead = queue.Queue(maxsize=AHEAD)
        maker = gevent.spawn(_fill, ahead, itertools.islice(made, traffic.requests))
        gevent.sleep(0)  # the queue is full, or holds all, before the clock starts
        self._progress.phase = "load"
        self.zero = self.end = time.perf_counter()
        reporter = gevent.spawn(self._report)
        due = arrivals(traffic)
        try:
            if due is None:
                self._closed(ahead)
            else:
                self._open(ahead, due)
            self._drain()
        finally:
            gevent.killall([maker, reporter])
            self._samples.close()
            self._write()

    def _closed(self, ahead: queue.Queue) -> None:
        """Each user takes the next item when it has finished its last."""
        traffic = self.plan.traffic
        for number in range(traffic.requests):
            left = self.zero + traffic.time_limit - time.perf_counter()
            try:
                self._ready.put(Item(number, ahead.get(), counted=True), timeout=max(left, 0.001))
            except queue.Full:
                return
            self._progress.sent += 1

    def _open(self, ahead: queue.Queue, due: Sequence[float]) -> None:
        """Each item goes out when it is due, whatever became of those before it."""
        for number, after in enumerate(due):
            prompt = ahead.get()
            when = self.zero + after
            gevent.sleep(max(0.0, when - time.perf_counter()))
            self._ready.put(Item(number, prompt, counted=True, due=when))
            self._progress.sent += 1

    def _drain(self) -> None:
        # Bounded: each request under way ends by its deadline.
        while self._busy:
            gevent.sleep(0.01)

    def _report(self) -> None:
        while True:
            self._write()
            gevent.sleep(EVERY_S)

    def _write(self) -> None:
        now = self._progress
        now.ttft_p95_ms = self._ttfts[round(0.95 * (len(self._ttfts) - 1))] if self._ttfts else None
        now.left_s = self._left()
        # A reader never sees half of it.
        fresh = self._folder / f".{driver_result.PROGRESS}"
        fresh.write_text(now.model_dump_json())
        fresh.replace(self._folder / driver_result.PROGRESS)

    def _left(self) -> float | None:
        """Seconds until all are sent, at the pace so far."""
        now, traffic = self._progress, self.plan.traffic
        elapsed = time.perf_counter() - self.zero
        if now.sent == 0:
            return None
        return max(0.0, min((now.total - now.sent) * elapsed / now.sent, traffic.time_limit - elapsed))


def _fill(ahead: queue.Queue, made: Iterable[Prompt]) -> None:
    for prompt in made:
        ahead.put(prompt)


def made_prompts(plan: Plan, phase: str, costs: Mapping[str, prompts.Costs]) -> Iterator[Prompt]:
    """Prompts of the lengths that the plan draws for a phase, without end, for its models in turn.

    Args:
        costs: what words cost each model.
    """
    makers = {model: prompts.Maker(costs[model], f"{plan.traffic.seed}/{phase}") for model in plan.models}
    for model, length in zip(itertools.cycle(plan.models), lengths(plan.traffic, phase), strict=False):
        message = {"role": "user", "content": makers[model].make(length)}
        yield Prompt((message,), length.output_tokens, asked_input=length.input_tokens, model=model)


def own_prompts(plan: Plan, rows: Sequence[prompts.Row]) -> Iterator[Prompt]:
    """The user's prompts in their order, again and again, each put to all of the plan's models.

    An answer ends where the model ends it, or at its longest.
    """
    for row, model in itertools.cycle(itertools.product(rows, plan.models)):
        most = plan.traffic.output_tokens.most
        yield Prompt(row.messages, most, exact=False, expected=row.expected, model=model)
