"""Requests on one replica, step after step, as vLLM schedules them: a simulated clock, no engine.

What it follows is vLLM 0.32.0, v1/core/sched/scheduler.py and v1/core/kv_cache_manager.py: first come, first served;
requests under way before waiting ones, within the tokens of a step; a request starts where the blocks of its whole
prompt are free; where a running one finds no block, the last that started starts anew. Blocks of a finished request
keep what they hold until another takes them, the longest free one first.

Steps that are alike are taken together: those between two arrivals, ends or new blocks.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

BLOCK_TOKENS = 16
"""Of a block of the KV cache on GPUs (vLLM 0.32.0, `CacheConfig.DEFAULT_BLOCK_SIZE`)."""

RAMP_ANSWERS = 3.0
"""Answers of the warm-up in whose time the users of a closed loop begin. All at once would be a burst of prompts that
the loop never has again: of a simulated engine with 48 users of ten requests each, TTFT p95 was then 1.4 s, and 0.14 s
with this ramp as in a long run (2026-11-29)."""

_MAX_GROWTH = 0.05
"""Most that a step's time grows over steps whose gaps are recorded as one."""


class Request(NamedTuple):
    at_s: float
    input_tokens: int
    output_tokens: int
    group: int = 0
    """Prompts of a group begin with the same tokens."""
    shared_tokens: int = 0
    """Tokens of that beginning."""
    read_s: float = 0.0
    """How long before `at_s` the client sent it to a prefill replica that read its prompt; 0 where this one does."""


class Limits(NamedTuple):
    """What bounds the steps of a replica."""

    sequences: int
    batch_tokens: int
    cache_tokens: int


class Step(Protocol):
    """Seconds of a step; see `step_time.StepTime`."""

    first_token_s: float
    steps_ahead: int
    """Steps under way that the engine has scheduled already: a request that comes waits for them too."""

    def compute_base_s(self, tokens: int, sequences: int) -> float: ...
    def compute_cache_s(self, sequences: int, context: float) -> float: ...
    def compute_attention_s(self, tokens: int, before: int) -> float: ...


class Outcome(NamedTuple):
    """What became of a load on one replica."""

    ttft_s: list[float]
    e2e_s: list[float]
    gaps: list[tuple[float, int]]
    """Times between two tokens, each with the number of them."""
    output_tokens: int
    seconds: float
    preemptions: int
    busy_share: float
    """Highest share of the cache that was taken."""
    is_complete: bool
    """Whether all requests ended; a simulation of more than it can carry is cut short."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """Free blocks next to each other in the order in which they are taken; an owner may find its tokens there."""

    count: int = 0


@dataclass(slots=True, eq=False)
class _Prefix:
    """The common beginning of a group's prompts."""

    blocks: int = 0
    users: int = 0
    free: _Chunk = field(default_factory=_Chunk)


@dataclass(slots=True, eq=False)
class _Job:
    """A request under way."""

    request: Request
    at_s: float
    delay_s: float
    """Of each of its tokens, beside its steps."""
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    """Its own, without those of its prefix."""
    prefix: _Prefix | None = None
    prefix_blocks: int = 0
    free: _Chunk = field(default_factory=_Chunk)
    """Blocks that it lost and may find again."""
    due: int = -1
    """Number of the decode step that ends it; -1 while its prompt is read."""
    start_step: int = 0
    last_s: float = 0.0
    left: int = 0
    """Tokens that it had when it began to decode."""


class Simulation:
    """One replica and the load on it."""

    def __init__(self, step: Step, limits: Limits) -> None:
        self._step, self._limits = step, limits
        self._total_blocks = limits.cache_tokens // BLOCK_TOKENS
        self._free = self._total_blocks
        self._queue: deque[_Chunk] = deque([_Chunk(self._total_blocks)])
        self._prefixes: dict[int, _Prefix] = {}
        self._waiting: deque[_Job] = deque()
        self._running: dict[_Job, None] = {}
        self._prefilling: list[_Job] = []
        self._ends: list[tuple[int, int, _Job]] = []
        self._pushed = 0
        self._decoding = 0
        self._context = 0
        self._steps = 0
        self._paid_step = -1
        """Decode step for which the blocks are taken already."""
        self._residues = [0] * BLOCK_TOKENS
        self._bases: dict[int, float] = {}
        self.now_s = 0.0
        self.preemptions = 0
        self.ended = 0
        self.output_tokens = 0
        self.ttft_s: list[float] = []
        self.e2e_s: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.least_free = self._free

    def run(self, requests: Sequence[Request], users: int = 0, limit_s: float = math.inf) -> Outcome:
        """Return what becomes of requests that come at their times, or of so many users, each with the next one.

        The first request of each user comes at its time.
        """
        jobs = [_Job(request, request.at_s, request.read_s) for request in requests]
        arrivals, following = deque(jobs[: users or None]), deque(jobs[users:] if users else ())
        while self._waiting or self._running or arrivals:
            if not self._waiting and not self._running:
                self.now_s = max(self.now_s, arrivals[0].at_s)
            while arrivals and arrivals[0].at_s <= self.now_s:
                self._waiting.append(arrivals.popleft())
            ended = self.ended
            if not self._advance(arrivals[0].at_s if arrivals else math.inf) or self.now_s > limit_s:
                break
            for _ in range(min(self.ended - ended, len(following))):
                job = following.popleft()
                job.at_s = self.now_s
                self._waiting.append(job)
        is_complete = self.ended == len(requests)
        busy = 1 - self.least_free / self._total_blocks if self._total_blocks else 1.0
        return Outcome(
            self.ttft_s, self.e2e_s, self.gaps, self.output_tokens, self.now_s, self.preemptions, busy, is_complete
        )

    def _advance(self, next_s: float) -> bool:
        """Run one step, or several that are alike; returns whether there was anything to run."""
        is_whole = self._make_room()
        budget = self._limits.batch_tokens - self._decoding
        chunks: list[tuple[_Job, int]] = []
        is_whole = self._continue_prompts(chunks, budget) and is_whole
        budget -= sum(tokens for _, tokens in chunks)
        if is_whole:
            self._start_waiting(chunks, budget)
        if chunks:
            self._run_mixed(chunks)
        elif self._decoding:
            self._run_decodes(next_s)
        else:
            return not is_whole  # the blocks of a job that lost them serve the next step
        return True

    # Blocks

    def _take(self, count: int) -> None:
        """Take free blocks, the longest free ones first."""
        self._free -= count
        while count:
            chunk = self._queue[0]
            block_count = min(count, chunk.count)
            chunk.count -= block_count
            count -= block_count
            if not chunk.count:
                self._queue.popleft()
        self.least_free = min(self.least_free, self._free)

    def _give(self, count: int) -> _Chunk:
        chunk = _Chunk(count)
        if count:
            self._queue.append(chunk)
            self._free += count
        return chunk

    def _take_back(self, chunk: _Chunk, count: int) -> None:
        """Take blocks of which the tokens are still there."""
        chunk.count -= count
        self._free -= count
        self.least_free = min(self.least_free, self._free)

    def _release(self, job: _Job, *, is_preempted: bool) -> None:
        """Give a job's blocks back: the last ones are taken first."""
        full = max(0, min(job.computed // BLOCK_TOKENS - job.prefix_blocks, job.blocks))
        self._give(job.blocks - full)
        full_blocks = self._give(full)
        job.free = full_blocks if is_preempted else _Chunk()
        job.blocks = 0
        if job.prefix:
            job.prefix.users -= 1
            if not job.prefix.users:
                job.prefix.free = self._give(job.prefix.blocks)
                job.prefix.blocks = 0
            job.prefix, job.prefix_blocks = None, 0

    def _make_room(self) -> bool:
        """Take the blocks of the next decode step; returns False where a job had to lose its own."""
        is_whole = True
        while True:
            needed_blocks = self._residues[-self._steps % BLOCK_TOKENS]
            if needed_blocks <= self._free:
                break
            self._preempt_last()
            is_whole = False
        self._take(needed_blocks)
        self._paid_step = self._steps
        return is_whole

    def _preempt_last(self) -> None:
        job, _ = self._running.popitem()
        self.preemptions += 1
        if job.due >= 0:
            self._stop_decoding(job)
        else:
            self._prefilling.remove(job)
        self._release(job, is_preempted=True)
        job.computed = 0
        self._waiting.appendleft(job)

    # Prompts

    def _continue_prompts(self, chunks: list[tuple[_Job, int]], budget: int) -> bool:
        """Take the next tokens of prompts under way; returns False where a job had to lose its blocks."""
        is_whole = True
        for job in list(self._prefilling):
            if budget <= 0:
                break
            if job not in self._running:
                continue
            tokens = min(self._count_tokens(job) - job.computed, budget)
            needed_blocks = self._count_needed(job, job.computed + tokens)
            while needed_blocks > self._free and job in self._running:
                self._preempt_last()
                is_whole = False
            if job not in self._running:
                break
            self._grow(job, needed_blocks, tokens)
            chunks.append((job, tokens))
            budget -= tokens
        return is_whole

    def _start_waiting(self, chunks: list[tuple[_Job, int]], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.sequences:
            job = self._waiting[0]
            total = self._count_tokens(job)
            prefix, shared, own = self._find_hits(job, total)
            hits = shared + own
            needed_blocks = -(-total // BLOCK_TOKENS) - (shared if prefix and prefix.users else 0)
            if needed_blocks > self._free:
                return
            self._waiting.popleft()
            self._adopt(job, prefix, shared, own)
            is_read = job.request.read_s and not job.generated
            job.computed = total - 1 if is_read else hits * BLOCK_TOKENS
            tokens = min(total - job.computed, budget)
            self._running[job] = None
            self._prefilling.append(job)
            self._grow(job, self._count_needed(job, job.computed + tokens), tokens)
            chunks.append((job, tokens))
            budget -= tokens

    def _find_hits(self, job: _Job, total: int) -> tuple[_Prefix | None, int, int]:
        """Return a job's prefix, and the blocks that are there of it and of what the job had itself."""
        most = (total - 1) // BLOCK_TOKENS
        prefix, shared = None, 0
        if job.request.shared_tokens >= BLOCK_TOKENS:
            prefix = self._prefixes.setdefault(job.request.group, _Prefix())
            shared = min(prefix.blocks if prefix.users else prefix.free.count, self._count_shared(job), most)
        is_prefix_whole = not prefix or shared == min(self._count_shared(job), most)
        return prefix, shared, min(job.free.count, most - shared) if is_prefix_whole else 0

    def _count_shared(self, job: _Job) -> int:
        return min(job.request.shared_tokens, job.request.input_tokens) // BLOCK_TOKENS

    def _adopt(self, job: _Job, prefix: _Prefix | None, shared: int, own: int) -> None:
        if prefix:
            if not prefix.users and shared:
                self._take_back(prefix.free, shared)
            if not prefix.users:
                prefix.blocks = shared
            prefix.users += 1
            job.prefix, job.prefix_blocks = prefix, shared
        if own:
            self._take_back(job.free, own)
        job.blocks = own
        job.free = _Chunk()

    def _count_needed(self, job: _Job, tokens: int) -> int:
        return max(0, -(-tokens // BLOCK_TOKENS) - job.prefix_blocks - job.blocks)

    def _grow(self, job: _Job, needed_blocks: int, tokens: int) -> None:
        """Give a job blocks; those of its prefix are the group's from now on."""
        self._take(needed_blocks)
        job.blocks += needed_blocks
        if job.prefix:
            full = min(self._count_shared(job), (job.computed + tokens) // BLOCK_TOKENS)
            if full > job.prefix_blocks and job.prefix.blocks == job.prefix_blocks:
                gained = full - job.prefix_blocks
                job.prefix.blocks += gained
                job.prefix_blocks += gained
                job.blocks -= gained

    @staticmethod
    def _count_tokens(job: _Job) -> int:
        return job.request.input_tokens + job.generated

    # Steps

    def _run_mixed(self, chunks: list[tuple[_Job, int]]) -> None:
        decoding = self._decoding
        tokens = decoding + sum(count for _, count in chunks)
        sequences = decoding + len(chunks)
        before = sum(job.computed for job, _ in chunks)
        delay_s = self._step.first_token_s + self._compute_ahead_s()
        seconds = self._step.compute_base_s(tokens, sequences)
        seconds += self._step.compute_cache_s(sequences, self._context + before)
        seconds += sum(self._step.compute_attention_s(count, job.computed) for job, count in chunks)
        self.now_s += seconds
        if decoding:
            self.gaps.append((seconds, decoding))
        self._count_decodes(1)
        for job, count in chunks:
            job.computed += count
            if job.computed == self._count_tokens(job):
                self._prefilling.remove(job)
                if not job.generated:
                    job.delay_s += delay_s
                self._emit_first(job)

    def _compute_ahead_s(self) -> float:
        """Return seconds of the steps that are scheduled already: those of the requests that decode."""
        if not (self._step.steps_ahead and self._decoding):
            return 0.0
        cache_s = self._step.compute_cache_s(self._decoding, self._context)
        return self._step.steps_ahead * (self._compute_decode_base_s(self._decoding) + cache_s)

    def _compute_decode_base_s(self, count: int) -> float:
        base_s = self._bases.get(count)
        if base_s is None:
            base_s = self._bases[count] = self._step.compute_base_s(count, count)
        return base_s

    def _emit_first(self, job: _Job) -> None:
        if job.generated:
            self.gaps.append((self.now_s - job.last_s, 1))
        else:
            self.ttft_s.append(self.now_s - job.at_s + job.delay_s)
        job.generated += 1
        self.output_tokens += 1
        tokens_left = job.request.output_tokens - job.generated
        if tokens_left <= 0:
            self._end(job)
            return
        job.due, job.start_step, job.left = self._steps + tokens_left, self._steps, job.generated
        self._pushed += 1
        heapq.heappush(self._ends, (job.due, self._pushed, job))
        self._decoding += 1
        self._context += job.computed
        self._residues[(job.computed - self._steps) % BLOCK_TOKENS] += 1

    def _stop_decoding(self, job: _Job) -> None:
        """Take a job out of the decode steps, with what it has until now."""
        done = self._steps - job.start_step
        self._residues[(job.computed - job.start_step) % BLOCK_TOKENS] -= 1
        computed = job.computed + done
        job.blocks = -(-computed // BLOCK_TOKENS) - job.prefix_blocks
        if self._paid_step == self._steps and computed % BLOCK_TOKENS == 0:
            job.blocks += 1
        job.computed = computed
        job.generated = job.left + done
        job.due, job.last_s = -1, self.now_s
        self._decoding -= 1
        self._context -= computed

    def _end(self, job: _Job) -> None:
        del self._running[job]
        self._release(job, is_preempted=False)
        self.e2e_s.append(self.now_s - job.at_s + job.delay_s)
        self.ended += 1

    def _count_decodes(self, steps: int) -> None:
        """Give each decoding job its tokens, and end those that have all."""
        self._steps += steps
        self._context += steps * self._decoding
        self.output_tokens += steps * self._decoding
        while self._ends and self._ends[0][0] <= self._steps:
            due, _, job = heapq.heappop(self._ends)
            if job.due == due:
                self._stop_decoding(job)
                self._end(job)

    def _run_decodes(self, next_s: float) -> None:
        """Run decode steps until one ends, a waiting request can start, or blocks run out."""
        count = self._decoding
        while self._ends[0][2].due != self._ends[0][0]:
            heapq.heappop(self._ends)
        steps = self._ends[0][0] - self._steps
        base_s = self._compute_decode_base_s(count)
        steps = self._bound_by_blocks(steps)
        first_s = base_s + self._step.compute_cache_s(count, self._context)
        last_s = base_s + self._step.compute_cache_s(count, self._context + count * (steps - 1))
        growth_s = (last_s - first_s) / (steps - 1) if steps > 1 else 0.0
        if not self._waiting and next_s < math.inf:
            steps = _count_steps_until(next_s - self.now_s, first_s, growth_s, steps)
        if steps > 1:
            self._take(self._count_blocks(steps))
        self.now_s += steps * (first_s + growth_s * (steps - 1) / 2)
        self._record_gaps(count, steps, first_s, growth_s)
        self._count_decodes(steps)

    def _record_gaps(self, count: int, steps: int, first_s: float, growth_s: float) -> None:
        parts = min(steps, 1 + int(growth_s * steps / (first_s * _MAX_GROWTH)), 8)
        for part in range(parts):
            start, end = steps * part // parts, steps * (part + 1) // parts
            self.gaps.append((first_s + growth_s * (start + end - 1) / 2, count * (end - start)))

    def _bound_by_blocks(self, steps: int) -> int:
        """Return the steps for which there are blocks, at least the one that has them already."""
        if self._count_blocks(steps) <= self._free:
            return steps
        rounds = self._free // self._decoding
        return max(1, min(steps, rounds * BLOCK_TOKENS))

    def _count_blocks(self, steps: int) -> int:
        """Return the blocks that steps after the next one take."""
        rounds, remainder = divmod(steps - 1, BLOCK_TOKENS)
        start = self._steps + 1
        return rounds * self._decoding + sum(
            self._residues[-step % BLOCK_TOKENS] for step in range(start, start + remainder)
        )


def _count_steps_until(wait_s: float, first_s: float, growth_s: float, most: int) -> int:
    """Return the steps, the first of `first_s` and each longer by `growth_s`, after which `wait_s` have passed."""
    if growth_s <= 0:
        return max(1, min(most, math.ceil(wait_s / first_s)))
    half = first_s / growth_s - 0.5
    return max(1, min(most, math.ceil(math.sqrt(half * half + 2 * wait_s / growth_s) - half)))


def compute_percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, between two values by their distance."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def compute_weighted_percentile(gaps: Sequence[tuple[float, int]], percent: float) -> float:
    """Return a percentile of values that stand for several."""
    ordered = sorted(gaps)
    rank = sum(weight for _, weight in ordered) * percent / 100
    for value, weight in ordered:
        rank -= weight
        if rank <= 0:
            return value
    return ordered[-1][0]


def run_users(simulation: Callable[[], Simulation], requests: Sequence[Request], users: int, warm_up: int) -> Outcome:
    """Return what becomes of a closed loop whose users begin one after the other, as those of `validate` do.

    Args:
        simulation: builds a replica that has served nothing.
        warm_up: requests that are sent first, as many at once as there are users, and are not counted.
    """
    warm = requests[: min(warm_up, users)]
    e2e_s = simulation().run(warm).e2e_s if warm else []
    ramp_s = RAMP_ANSWERS * sum(e2e_s) / len(e2e_s) if e2e_s else 0.0
    begun = [request._replace(at_s=ramp_s * user / users) for user, request in enumerate(requests[:users])]
    return simulation().run([*begun, *requests[users:]], users)
