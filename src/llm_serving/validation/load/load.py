"""The load in progress: the next prompt, its time, and the progress. Runs inside Locust."""

from __future__ import annotations

import bisect
import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import gevent
from gevent import queue

from llm_serving import processes
from llm_serving.prediction.simulation import RAMP_ANSWERS
from llm_serving.services import tasks
from llm_serving.services.traffic import Traffic
from llm_serving.settings import own_yaml
from llm_serving.validation.load import driver_result, pictures, prompts
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.data_rows import DataRow
from llm_serving.validation.load.load_plan import (
    WHOLE,
    LoadPlan,
    RequestLength,
    Shard,
    count_users,
    draw_arrivals,
    draw_counts,
    draw_lengths,
    list_starts,
)
from llm_serving.validation.load.prefix_overlap import PrefixOverlap
from llm_serving.validation.load.prompt import Prompt

QUEUE_SIZE, QUEUE_BYTES = 1000, 256 * 2**20
"""Prompts generated before the load starts, and the most memory of their pictures; a longer load generates the others
while it runs."""

SHOWN_ANSWERS = 5
"""Answers whose text the report shows if the prompts have no expected answers."""

PROGRESS_INTERVAL_S = 0.5

RAMP_POLL_S = 0.002


@dataclass(frozen=True)
class Item:
    """A prompt with its position in the load."""

    number: int
    prompt: Prompt
    counted: bool
    due: float | None = None
    """When to send it, on perf_counter's clock; None: as soon as a user is idle."""
    turn: int = 1
    """Its place in its session."""


class Load:
    """Hands items to the users of this process and collects their samples."""

    def __init__(self, plan: LoadPlan, shard: Shard = WHOLE) -> None:
        self.plan, self.shard = plan, shard
        self.start_time = 0.0
        """perf_counter at the start of the counted load."""
        self.end_time = 0.0
        """perf_counter at the end of the last counted request."""
        self.engine_dialect = False
        """Whether the server accepts the engines' own parameters."""
        self.answer_s = 0.0
        """Mean time of an answer of the warm-up."""
        self.warm_up_failed = 0
        self._warm_up_ms: list[float] = []
        starts = list_starts(plan.traffic)
        self._starts = list(shard.select(starts)) if plan.traffic.turns.max > 1 else shard.select(starts)
        self._sessions = shard.count_own(len(starts))
        self._progress = driver_result.Progress(phase="start", total=self._count_requests(starts))
        self.overlap = PrefixOverlap()
        """Measures what prompts share, later turns of sessions too."""
        # A channel holds nothing: an item leaves the load when a user takes it.
        self._ready = queue.Channel()
        self._busy = 0
        self._ttfts: list[float] = []
        self._upcoming = queue.Queue(maxsize=_compute_queue_size(plan.traffic))
        self._producer: gevent.Greenlet | None = None
        self._pauses = random.Random(f"{plan.traffic.seed}/pauses/{shard.index}")
        self._samples = plan.locate(driver_result.SAMPLES_FILE, shard.index).open("w", encoding="utf-8")

    def _count_requests(self, starts: Sequence[int]) -> int:
        requests = self.plan.traffic.requests
        if self.plan.traffic.turns.max == 1:
            return self._sessions
        lengths = (end - start for start, end in itertools.pairwise([*starts, requests]))
        return sum(self.shard.select(lengths))

    def take(self) -> Item:
        item: Item = self._ready.get()
        self._busy += 1
        return item

    def release(self) -> None:
        """End the session of an item that was taken."""
        self._busy -= 1

    def continue_session(self, item: Item, sample: Sample, answer: str) -> Item | None:
        """Wait as a user thinks, and return the session's next item; None at its end.

        A session ends with its last turn, with a failed request, and at the time limit.
        """
        prompt, number = item.prompt, item.number + 1
        is_over = sample.error is not None or number >= self.plan.traffic.requests
        if not item.counted or not prompt.follow_ups or is_over or not self.pause():
            return None
        following, *later_turns = prompt.follow_ups
        history = (*prompt.messages, {"role": "assistant", "content": answer})
        merged = replace(following, messages=(*history, *following.messages), follow_ups=tuple(later_turns))
        self.overlap.add(merged)
        self._progress.sent += 1
        return Item(number, merged, counted=True, turn=item.turn + 1)

    def finish(self, item: Item, sample: Sample) -> None:
        if not item.counted:
            self.warm_up_failed += sample.error is not None
            self._warm_up_ms += [sample.e2e_ms] if sample.e2e_ms is not None else []
            return
        self.end_time = time.perf_counter()
        if self.plan.models == (sample.model,):
            sample.model = ""
        self._samples.write(sample.to_json() + "\n")
        if sample.error is not None:
            self._progress.failed += 1
            return
        self._progress.answered += 1
        if sample.ttft_ms is not None:
            bisect.insort(self._ttfts, sample.ttft_ms)

    def warm_up(self, source: Iterable[Prompt]) -> int:
        """Send prompts that are not counted, within what the server admits; return how many, once they are answered."""
        self._progress.phase = "warm-up"
        count = 0
        for count, prompt in enumerate(source, 1):
            self._ready.put(Item(count, prompt, counted=False))
            gevent.sleep(0)  # the user that took it counts as busy
            self._drain(self.plan.bound(sys.maxsize))
        self._drain()
        self.answer_s = fmean(self._warm_up_ms or [0.0]) / 1000
        return count

    def prepare(self, source: Iterator[Prompt]) -> None:
        """Begin to generate the counted prompts."""
        self._producer = gevent.spawn(_fill, self._upcoming, itertools.islice(source, self._sessions))
        gevent.sleep(0)  # fill the queue before the clock starts

    def play(self, start_time: float) -> None:
        """Send the load from a time of perf_counter on, until its end or the time limit; wait for all answers."""
        gevent.sleep(max(0.0, start_time - time.perf_counter()))
        self._progress.phase = "load"
        self.start_time = self.end_time = start_time
        reporter = gevent.spawn(self._report)
        due = draw_arrivals(self.plan.traffic, self.plan.trace)
        try:
            if due is None:
                self._play_closed()
            else:
                self._play_open(list(zip(self._starts, self.shard.select(due), strict=False)))
            self._drain()
        finally:
            gevent.killall([greenlet for greenlet in (self._producer, reporter) if greenlet])
            self._samples.close()
            self._write_progress()

    def pause(self) -> bool:
        """Let a user think before its next request; return whether that is within the time limit."""
        end = self.start_time + self.plan.traffic.time_limit
        if self.plan.traffic.think_time:
            thought = self._pauses.expovariate(1 / self.plan.traffic.think_time)
            gevent.sleep(max(0.0, min(thought, end - time.perf_counter())))
        return time.perf_counter() < end

    def _play_closed(self) -> None:
        """Hand out the next item as soon as a user is idle."""
        traffic = self.plan.traffic
        for number in self._starts:
            self._wait_for_ramp()
            remaining = self.start_time + traffic.time_limit - time.perf_counter()
            try:
                self._ready.put(Item(number, self._upcoming.get(), counted=True), timeout=max(remaining, 0.001))
            except queue.Full:
                return
            self._progress.sent += 1

    @property
    def ramp_s(self) -> float:
        """Time in which the users of the closed loop begin one after the other; 0 in the open loop."""
        return 0.0 if self.plan.traffic.is_open_loop else RAMP_ANSWERS * self.answer_s

    def _wait_for_ramp(self) -> None:
        """Wait until one more user of the closed loop may begin."""
        ramp_s, users = self.ramp_s, count_users(self.plan.traffic, shard=self.shard)
        while (elapsed := time.perf_counter() - self.start_time) < ramp_s and self._busy > users * elapsed / ramp_s:
            gevent.sleep(RAMP_POLL_S)

    def _play_open(self, due: Sequence[tuple[int, float]]) -> None:
        """Hand out each item, a number and when it is due, independent of earlier ones."""
        for number, offset in due:
            prompt = self._upcoming.get()
            due_time = self.start_time + offset
            gevent.sleep(max(0.0, due_time - time.perf_counter()))
            self._ready.put(Item(number, prompt, counted=True, due=due_time))
            self._progress.sent += 1

    def _drain(self, limit: int = 1) -> None:
        """Wait until fewer than `limit` requests are under way: bounded, for each ends by its deadline."""
        while self._busy >= limit:
            gevent.sleep(0.01)

    def _report(self) -> None:
        while True:
            self._write_progress()
            gevent.sleep(PROGRESS_INTERVAL_S)

    def _write_progress(self) -> None:
        progress = self._progress
        progress.ttft_p95_ms = self._ttfts[round(0.95 * (len(self._ttfts) - 1))] if self._ttfts else None
        progress.remaining_s = self._estimate_remaining()
        file = self.plan.locate(driver_result.PROGRESS_FILE, self.shard.index)
        processes.write_whole(file, progress.model_dump_json())

    def _estimate_remaining(self) -> float | None:
        progress, traffic = self._progress, self.plan.traffic
        elapsed = time.perf_counter() - self.start_time
        if progress.sent == 0:
            return None
        return max(0.0, min((progress.total - progress.sent) * elapsed / progress.sent, traffic.time_limit - elapsed))


def _compute_queue_size(traffic: Traffic) -> int:
    return max(1, min(QUEUE_SIZE, QUEUE_BYTES // max(1, pictures.estimate_bytes(traffic))))


def _fill(upcoming: queue.Queue, source: Iterable[Prompt]) -> None:
    for prompt in source:
        upcoming.put(prompt)


def generate_prompts(
    plan: LoadPlan, phase: str, costs: Mapping[str, prompts.TokenCosts], shard: Shard = WHOLE
) -> Iterator[Prompt]:
    """Yield a process's prompts of a phase's lengths, endlessly, for the plan's models in turn.

    Args:
        costs: tokens of each word, by model.
    """
    seed = f"{plan.traffic.seed}/{phase}/{plan.nonce}"
    if plan.task == tasks.DRAW:
        yield from _generate_picture_prompts(plan, seed, shard)
    images = plan.traffic.images
    generators = {model: prompts.PromptGenerator(costs[model], seed, images) for model in plan.models}
    lengths = draw_lengths(plan.traffic, phase, plan.trace)
    # Lengths are drawn in groups: the turns of a session, or the texts of one request.
    name, bounds, build = (
        ("inputs", plan.traffic.inputs, _build_texts) if plan.pooled else ("turns", plan.traffic.turns, _build_session)
    )
    sessions = ([*itertools.islice(lengths, count)] for count in draw_counts(plan.traffic, phase, name, bounds))
    starts = itertools.accumulate(draw_counts(plan.traffic, phase, name, bounds), initial=0)
    requests = zip(starts, itertools.cycle(plan.models), sessions, strict=False)
    for start, model, group in shard.select(requests):
        yield build(generators[model], group, start, model)


def _generate_picture_prompts(plan: LoadPlan, seed: str, shard: Shard) -> Iterator[Prompt]:
    """Yield prompts for pictures: what is seen, where and how it is drawn, by the seed and the number of each."""
    words: dict[str, list[str]] = own_yaml.read(Path(__file__).with_name("picture_prompts.yaml"))
    for number, model in shard.select(zip(itertools.count(), itertools.cycle(plan.models), strict=False)):
        rng = random.Random(f"{seed}/pictures/{number}")
        subject, place, style = (rng.choice(words[part]) for part in ("subjects", "places", "styles"))
        # Without the number a long load would repeat prompts, and a cache before the server would answer them.
        message = {"role": "user", "content": f"{subject} {place}, {style}, number {number + 1}"}
        yield Prompt((message,), max_tokens=0, exact=False, model=model)


def _build_session(
    generator: prompts.PromptGenerator, lengths: Sequence[RequestLength], start: int, model: str
) -> Prompt:
    first, *others = lengths
    follow_ups = tuple(
        _build_turn(generator, replace(length, shared_tokens=0), number, model)
        for number, length in enumerate(others, start + 1)
    )
    asked_input = generator.count_tokens(first)
    return replace(_build_turn(generator, first, start, model), asked_input=asked_input, follow_ups=follow_ups)


def _build_texts(
    generator: prompts.PromptGenerator, lengths: Sequence[RequestLength], start: int, model: str
) -> Prompt:
    """Build a request of several texts, whose answer has no tokens."""
    first, *others = (generator.generate(length, number) for number, length in enumerate(lengths, start))
    return Prompt(
        ({"role": "user", "content": first},),
        max_tokens=0,
        exact=False,
        asked_input=sum(length.input_tokens for length in lengths),
        model=model,
        further_texts=tuple(others),
    )


def _build_turn(generator: prompts.PromptGenerator, length: RequestLength, number: int, model: str) -> Prompt:
    """Build a request from its message alone; of a later turn, the server counts what came before too."""
    message = {"role": "user", "content": generator.generate_content(length, number)}
    return Prompt((message,), length.output_tokens, model=model)


def cycle_prompts(
    plan: LoadPlan,
    phase: str,
    rows: Sequence[DataRow],
    tokens_per_character: Mapping[str, float],
    shard: Shard = WHOLE,
) -> Iterator[Prompt]:
    """Yield a process's share of a phase's prompts of the user, in order, endlessly, each for all of the plan's models.

    A row's own length, or that of its recorded answer, is exact; otherwise the model decides, up to the traffic's most.

    Args:
        tokens_per_character: of recorded answers, by model.
    """
    most = plan.traffic.output_tokens.max
    first = plan.first_prompt - (plan.traffic.warm_up if phase == "warm-up" else 0)
    endless = itertools.cycle(itertools.product(rows, plan.models))
    for row, model in shard.select(itertools.islice(endless, first % (len(rows) * len(plan.models)), None)):
        length = row.output_tokens
        if row.recorded_answer is not None:
            length = max(1, min(most, round(len(row.recorded_answer) * tokens_per_character[model])))
        is_exact = length is not None
        yield Prompt(row.messages, length or most, is_exact, expected=row.expected, model=model, fields=row.fields)
