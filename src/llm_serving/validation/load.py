"""The load in progress: the next prompt, its time, and the progress. Runs inside Locust."""

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
"""Prompts generated before the load starts; a longer load generates the others while it runs."""

SHOWN_ANSWERS = 5
"""Answers whose text the report shows if the prompts have no expected answers."""

PROGRESS_INTERVAL_S = 0.5
"""Interval of progress updates."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one request."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    exact: bool = True
    """Whether the answer should have exactly `max_tokens` tokens."""
    asked_input: int | None = None
    expected: str | None = None
    model: str | None = None
    """Name of the model; None means the plan's first."""

    @property
    def text(self) -> str:
        """The prompt for the completions API: the last message."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True)
class Item:
    """A prompt with its position in the load."""

    number: int
    prompt: Prompt
    counted: bool
    due: float | None = None
    """When to send it, on perf_counter's clock; None: as soon as a user is idle."""


class Load:
    """Hands items to the users and collects their samples."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.start_time = 0.0
        """perf_counter at the start of the counted load."""
        self.end_time = 0.0
        """perf_counter at the end of the last counted request."""
        self.vllm_dialect = False
        """Whether the server accepts vLLM's own parameters."""
        self.warm_up_failed = 0
        self._progress = driver_result.Progress(phase="start", total=plan.traffic.requests)
        # A channel holds nothing: an item leaves the load when a user takes it.
        self._ready = queue.Channel()
        self._busy = 0
        self._ttfts: list[float] = []
        self._folder = Path(plan.folder)
        self._samples = (self._folder / driver_result.SAMPLES_FILE).open("w", encoding="utf-8")

    def take(self) -> Item:
        """Wait for the next item and return it."""
        item: Item = self._ready.get()
        self._busy += 1
        return item

    def finish(self, item: Item, sample: Sample) -> None:
        """Record the result of an item."""
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
        """Send prompts that are not counted and wait for their answers; return how many were sent."""
        self._progress.phase = "warm-up"
        count = 0
        for count, prompt in enumerate(source, 1):
            self._ready.put(Item(count, prompt, counted=False))
        self._drain()
        return count

    def play(self, source: Iterator[Prompt]) -> None:
        """Send the counted load until all is sent or the time limit is reached, and wait for requests in flight."""
        traffic = self.plan.traffic
        upcoming = queue.Queue(maxsize=QUEUE_SIZE)
        producer = gevent.spawn(_fill, upcoming, itertools.islice(source, traffic.requests))
        gevent.sleep(0)  # fill the queue before the clock starts
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
        """Hand out the next item as soon as a user is idle."""
        traffic = self.plan.traffic
        for number in range(traffic.requests):
            remaining = self.start_time + traffic.time_limit - time.perf_counter()
            try:
                self._ready.put(Item(number, upcoming.get(), counted=True), timeout=max(remaining, 0.001))
            except queue.Full:
                return
            self._progress.sent += 1

    def _play_open(self, upcoming: queue.Queue, due: Sequence[float]) -> None:
        """Hand out each item when it is due, independent of earlier ones."""
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
        # Replace the file at once: readers never see a part of it.
        temp_file = self._folder / f".{driver_result.PROGRESS_FILE}"
        temp_file.write_text(progress.model_dump_json())
        temp_file.replace(self._folder / driver_result.PROGRESS_FILE)

    def _estimate_remaining(self) -> float | None:
        """Return the seconds until all are sent, at the rate so far."""
        progress, traffic = self._progress, self.plan.traffic
        elapsed = time.perf_counter() - self.start_time
        if progress.sent == 0:
            return None
        return max(0.0, min((progress.total - progress.sent) * elapsed / progress.sent, traffic.time_limit - elapsed))


def _fill(upcoming: queue.Queue, source: Iterable[Prompt]) -> None:
    for prompt in source:
        upcoming.put(prompt)


def generate_prompts(plan: LoadPlan, phase: str, costs: Mapping[str, prompts.TokenCosts]) -> Iterator[Prompt]:
    """Yield prompts of a phase's lengths, endlessly, for the plan's models in turn.

    Args:
        costs: tokens of each word, by model.
    """
    generators = {model: prompts.PromptGenerator(costs[model], f"{plan.traffic.seed}/{phase}") for model in plan.models}
    for model, length in zip(itertools.cycle(plan.models), draw_lengths(plan.traffic, phase), strict=False):
        message = {"role": "user", "content": generators[model].generate(length)}
        yield Prompt((message,), length.output_tokens, asked_input=length.input_tokens, model=model)


def cycle_prompts(plan: LoadPlan, rows: Sequence[prompts.PromptRow]) -> Iterator[Prompt]:
    """Yield the user's prompts in order, endlessly, each for all of the plan's models.

    The model decides the length of an answer, up to the traffic's maximum.
    """
    for row, model in itertools.cycle(itertools.product(rows, plan.models)):
        max_tokens = plan.traffic.output_tokens.max
        yield Prompt(row.messages, max_tokens, exact=False, expected=row.expected, model=model)
