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
from llm_serving.validation.load_plan import LoadPlan, draw_arrivals, draw_lengths

QUEUE_SIZE = 1000
"""Prompts made before the load starts; a longer load makes the others while it runs."""

SHOWN_ANSWERS = 5
"""Answers whose text is kept for the report when no answer is expected."""

PROGRESS_INTERVAL_S = 0.5
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

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.start_time = 0.0
        """perf_counter when the counted load began."""
        self.end_time = 0.0
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
        self._samples = (self._folder / driver_result.SAMPLES_FILE).open("w", encoding="utf-8")

    def take(self) -> Item:
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
        self.end_time = time.perf_counter()
        self._samples.write(sample.to_json() + "\n")
        if sample.error is not None:
            self._progress.failed += 1
            return
        self._progress.answered += 1
        if sample.ttft_ms is not None:
            bisect.insort(self._ttfts, sample.ttft_ms)

    def warm_up(self, source: Iterable[Prompt]) -> int:
        """Sends prompts that are not counted and waits for their answers; returns how many were sent."""
        self._progress.phase = "warm-up"
        count = 0
        for count, prompt in enumerate(source, 1):
            self._ready.put(Item(count, prompt, counted=False))
        self._drain()
        return count

    def play(self, source: Iterator[Prompt]) -> None:
        """Plays the counted load until all is sent or the time is over, and what is under way has ended."""
        traffic = self.plan.traffic
        upcoming = queue.Queue(maxsize=QUEUE_SIZE)
        producer = gevent.spawn(_fill, upcoming, itertools.islice(source, traffic.requests))
        gevent.sleep(0)  # the queue is full, or holds all, before the clock starts
        self._progress.phase = "load"
        self.start_time = self.end_time = time.perf_counter()
        reporter = gevent.spawn(self._report)
        due = draw_arrivals(traffic)
        try:
            if due is None:
                self._play_closed(upcoming)
            else:
                self._play_open(upcoming, due)
            self._drain()
        finally:
            gevent.killall([producer, reporter])
            self._samples.close()
            self._write_progress()

    def _play_closed(self, upcoming: queue.Queue) -> None:
        """Each user takes the next item when it has finished its last."""
        traffic = self.plan.traffic
        for number in range(traffic.requests):
            remaining = self.start_time + traffic.time_limit - time.perf_counter()
            try:
                self._ready.put(Item(number, upcoming.get(), counted=True), timeout=max(remaining, 0.001))
            except queue.Full:
                return
            self._progress.sent += 1

    def _play_open(self, upcoming: queue.Queue, due: Sequence[float]) -> None:
        """Each item goes out when it is due, whatever became of those before it."""
        for number, offset in enumerate(due):
            prompt = upcoming.get()
            due_time = self.start_time + offset
            gevent.sleep(max(0.0, due_time - time.perf_counter()))
            self._ready.put(Item(number, prompt, counted=True, due=due_time))
            self._progress.sent += 1

    def _drain(self) -> None:
        # Bounded: each request under way ends by its deadline.
        while self._busy:
            gevent.sleep(0.01)

    def _report(self) -> None:
        while True:
            self._write_progress()
            gevent.sleep(PROGRESS_INTERVAL_S)

    def _write_progress(self) -> None:
        progress = self._progress
        progress.ttft_p95_ms = self._ttfts[round(0.95 * (len(self._ttfts) - 1))] if self._ttfts else None
        progress.remaining_s = self._estimate_remaining()
        # A reader never sees half of it.
        temp_file = self._folder / f".{driver_result.PROGRESS_FILE}"
        temp_file.write_text(progress.model_dump_json())
        temp_file.replace(self._folder / driver_result.PROGRESS_FILE)

    def _estimate_remaining(self) -> float | None:
        """Seconds until all are sent, at the pace so far."""
        progress, traffic = self._progress, self.plan.traffic
        elapsed = time.perf_counter() - self.start_time
        if progress.sent == 0:
            return None
        return max(0.0, min((progress.total - progress.sent) * elapsed / progress.sent, traffic.time_limit - elapsed))


def _fill(upcoming: queue.Queue, source: Iterable[Prompt]) -> None:
    for prompt in source:
        upcoming.put(prompt)


def generate_prompts(plan: LoadPlan, phase: str, costs: Mapping[str, prompts.TokenCosts]) -> Iterator[Prompt]:
    """Prompts of the lengths that the plan draws for a phase, without end, for its models in turn.

    Args:
        costs: what words cost each model.
    """
    generators = {model: prompts.PromptGenerator(costs[model], f"{plan.traffic.seed}/{phase}") for model in plan.models}
    for model, length in zip(itertools.cycle(plan.models), draw_lengths(plan.traffic, phase), strict=False):
        message = {"role": "user", "content": generators[model].generate(length)}
        yield Prompt((message,), length.output_tokens, asked_input=length.input_tokens, model=model)


def cycle_prompts(plan: LoadPlan, rows: Sequence[prompts.PromptRow]) -> Iterator[Prompt]:
    """The user's prompts in their order, again and again, each put to all of the plan's models.

    An answer ends where the model ends it, or at its longest.
    """
    for row, model in itertools.cycle(itertools.product(rows, plan.models)):
        max_tokens = plan.traffic.output_tokens.max
        yield Prompt(row.messages, max_tokens, exact=False, expected=row.expected, model=model)
