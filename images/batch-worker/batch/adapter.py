"""Adapts the concurrency limit to the endpoint: to its engines' metrics, or to its answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from batch.burn import Burn, BurnMeter
from batch.concurrency import ConcurrencyLimit, Window
from batch.dispatcher import Dispatcher
from batch.endpoint import Endpoint
from batch.metrics import EngineLoad, parse_histograms, parse_load
from batch.open_chunks import OpenChunks
from batch.row_runner import RowRunner
from batch.settings import Settings

INTERVAL_S, GROWTH_INTERVAL_S = 1.0, 0.5
"""Between two steps of the concurrency limit; the second while it doubles: an endpoint with room is idle until then."""


@dataclass(frozen=True)
class _Moment:
    """Counters at the last step."""

    at: float
    answers: int = 0
    tokens: int = 0
    refusals: int = 0
    load: EngineLoad | None = None


@dataclass
class Adapter:
    """Follows the endpoint until it is cancelled."""

    _settings: Settings
    _chunks: OpenChunks
    _limit: ConcurrencyLimit
    _endpoint: Endpoint
    _runner: RowRunner
    _dispatcher: Dispatcher

    def __post_init__(self) -> None:
        self._meter = BurnMeter(self._settings.objectives)
        self._last = _Moment(time.monotonic())
        self.burn = Burn()

    async def follow_endpoint(self) -> None:
        """Adapt the concurrency limit, in quick steps while the endpoint has plenty of room."""
        while True:
            before = self._limit.value
            await self.adapt()
            is_doubled = self._limit.value >= 2 * before
            await asyncio.sleep(GROWTH_INTERVAL_S if is_doubled else INTERVAL_S)

    async def adapt(self) -> None:
        """Take one step of the concurrency limit."""
        pages = await self._endpoint.read_metrics()
        histograms = self._meter.metrics
        scrape = {url: parse_histograms(page, histograms) for url, page in pages.items()} if histograms else {}
        counters, last = self._dispatcher.counters, self._last
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
            is_full=len(self._dispatcher.requests) >= 0.9 * self._limit.value,
            refusals=now.refusals - last.refusals,
            load=now.load,
            preemptions=max(0.0, preemptions),
            burn=self.burn,
        )
        self._limit.observe(window)
        self._chunks.changed.set()
