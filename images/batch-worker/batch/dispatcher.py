"""Sends the rows of open chunks to the endpoint, as many at a time as the concurrency limit allows.

It adapts this limit to the endpoint: to its engines' metrics, or to its answers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from dataclasses import dataclass

from batch.burn import Burn, BurnMeter
from batch.chunk import Outcome, PendingRow
from batch.concurrency import ConcurrencyLimit, Window
from batch.endpoint import Endpoint
from batch.fair_share import Candidate, FairShare
from batch.metrics import EngineLoad, parse_histograms, parse_load
from batch.open_chunks import OpenChunk, OpenChunks
from batch.repeat import wait_at_most
from batch.row_runner import RowRunner
from batch.settings import Settings
from batch.usage import Usage

log = logging.getLogger("batch-worker")

WAIT_S, RETRY_S = 0.3, 1.0
"""Maximum time until rows and the endpoint are looked at again, and until an endpoint that is away is."""

INTERVAL_S, GROWTH_INTERVAL_S = 1.0, 0.5
"""Between two steps of the concurrency limit; the second while it doubles: an endpoint with room is idle until then."""

IDLE_INTERVAL_S = 3.0
"""Longest further time until the next step while there are no rows: each reads the page of each engine, which takes the
engine's own time, and the next rows need a limit that has followed people's load since."""

MAX_BYTES_IN_FLIGHT = 128 * 2**20
"""Most bytes of the rows in flight: a container has 2 GiB of memory, and each takes it three to four times, as it is,
parsed and as a request. Measured with 256 rows of 0.9 MB and with 64 of 3 MB, 2026-11-30."""

FIRST_TOKENS = 256.0
"""Assumed tokens of a row until the first answers."""


@dataclass
class Counters:
    """Counters since the worker started."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        self.failed += bool(outcome.failure)
        self.completed += not outcome.failure
        self.input_tokens += outcome.input_tokens
        self.output_tokens += outcome.output_tokens


@dataclass(frozen=True)
class _Moment:
    """Counters at the last step."""

    at: float
    answers: int = 0
    tokens: int = 0
    refusals: int = 0
    load: EngineLoad | None = None


@dataclass
class Dispatcher:
    """Sends rows until it is cancelled."""

    _settings: Settings
    _chunks: OpenChunks
    _limit: ConcurrencyLimit
    _usage: Usage
    _endpoint: Endpoint
    _runner: RowRunner

    def __post_init__(self) -> None:
        self._share = FairShare({name: team.weight for name, team in self._settings.teams.items()})
        self._row_tokens = FIRST_TOKENS
        self.requests: set[asyncio.Task[None]] = set()
        self._bytes_in_flight = 0
        self.counters = Counters()
        self._meter = BurnMeter(self._settings.objectives)
        self._last = _Moment(time.monotonic())
        self.burn = Burn()

    async def send_rows(self) -> None:
        """Send rows while there are any and the endpoint accepts more."""
        while True:
            chunk = self.choose() if self.has_room and not self._runner.is_suspect else None
            if chunk is None:
                self._chunks.changed.clear()
                await wait_at_most(self._chunks.changed, WAIT_S)
                if self._runner.is_suspect:
                    await self._wait_for_endpoint()
                continue
            self.send(chunk)
            if len(self.requests) % 64 == 0:
                await asyncio.sleep(0)  # let answers arrive

    @property
    def has_room(self) -> bool:
        """Whether another row may be in flight."""
        return len(self.requests) < self._limit.value and self._bytes_in_flight < MAX_BYTES_IN_FLIGHT

    def choose(self) -> OpenChunk | None:
        """Choose the chunk whose row is next; None if there is none."""
        alone = [chunk for chunk in self._chunks if chunk.state.runs_alone]
        if any(chunk.unsaved_rows for chunk in alone):
            return None
        chunks = [chunk for chunk in self._chunks if chunk.has_next and not self._usage.is_spent(chunk.job["team"])]
        if suspect := next((chunk for chunk in chunks if chunk in alone), None):
            return None if self.requests else suspect
        rank = self._settings.priorities.index
        candidates = [
            Candidate(position, chunk.job["team"], rank(chunk.job["priority"]), chunk.job["deadline_at"])
            for position, chunk in enumerate(chunks)
        ]
        chosen = self._share.choose(candidates)
        return chunks[chosen.key] if chosen else None

    def send(self, chunk: OpenChunk) -> None:
        row = chunk.state.pending.popleft()
        self._chunks.share_time()
        chunk.in_flight += 1
        self._bytes_in_flight += len(row.content)
        self._share.charge(chunk.job["team"], self._row_tokens)
        request = asyncio.create_task(self._run_row(chunk, row, self._row_tokens))
        self.requests.add(request)
        request.add_done_callback(self._forget)

    def _forget(self, request: asyncio.Task[None]) -> None:
        self.requests.discard(request)
        self._chunks.changed.set()

    async def _wait_for_endpoint(self) -> None:
        if not await self._endpoint.is_up():
            log.warning("rows wait: %s is away, or refuses the key", self._settings.endpoint)
            while not await self._endpoint.is_up():
                await asyncio.sleep(RETRY_S)
        self._runner.is_suspect = False

    async def _run_row(self, chunk: OpenChunk, row: PendingRow, charged: float) -> None:
        """Send a row until it has a result; an interrupted one stays in its chunk, for the next worker."""
        used = 0
        try:
            count_tokens = functools.partial(self._usage.add, chunk.job["team"])
            outcome = await self._runner.run(row, chunk.job, lambda: chunk.is_cancelled, count_tokens)
            used = outcome.tokens
            self._chunks.share_time()  # before the row is added: both are saved together
            chunk.state.add(outcome)
            self.counters.add(outcome)
        except asyncio.CancelledError:
            chunk.state.pending.appendleft(row)  # without it the chunk would count as complete
            raise
        finally:
            self._chunks.share_time()
            chunk.in_flight -= 1
            self._bytes_in_flight -= len(row.content)
            self._chunks.note_end(chunk)
            self._share.charge(chunk.job["team"], used - charged)
        if used:
            self._row_tokens += 0.05 * (used - self._row_tokens)

    async def follow_endpoint(self) -> None:
        """Adapt the concurrency limit, in quick steps while the endpoint has plenty of room."""
        while True:
            before = self._limit.value
            await self.adapt()
            is_doubled = self._limit.value >= 2 * before
            await asyncio.sleep(GROWTH_INTERVAL_S if is_doubled else INTERVAL_S)
            if not self._chunks:
                await wait_at_most(self._chunks.changed, IDLE_INTERVAL_S)

    async def adapt(self) -> None:
        """Take one step of the concurrency limit."""
        pages = await self._endpoint.read_metrics()
        histograms = self._meter.metrics
        scrape = {url: parse_histograms(page, histograms) for url, page in pages.items()} if histograms else {}
        counters, last = self.counters, self._last
        self._last = now = _Moment(
            at=time.monotonic(),
            answers=counters.completed + counters.failed,
            tokens=counters.input_tokens + counters.output_tokens,
            refusals=self._runner.refusals,
            load=parse_load(pages.values(), self._settings.metrics),
        )
        self.burn = self._meter.observe(scrape, now.at)
        preemptions = now.load.preemptions - last.load.preemptions if now.load and last.load else 0.0
        window = Window(
            seconds=max(1e-3, now.at - last.at),
            answers=now.answers - last.answers,
            tokens=now.tokens - last.tokens,
            is_full=len(self.requests) >= 0.9 * self._limit.value,
            refusals=now.refusals - last.refusals,
            load=now.load,
            preemptions=max(0.0, preemptions),
            burn=self.burn,
        )
        self._limit.observe(window)
        self._chunks.changed.set()
