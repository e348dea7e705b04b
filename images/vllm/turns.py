"""Which of the models that share accelerators is awake, and which requests it gets: the rules of model_switch.py."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import prometheus_client
from aiohttp import web

QUEUE = "vllm:num_requests_waiting"
"""The engines' metric of requests that wait (vllm/v1/metrics/loggers.py of 0.32.0)."""

BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 30, 60, 120, 300)
"""Upper edges of the histogram of switches, in seconds."""


class Refusal(Exception):
    """An answer without a model's work."""

    def __init__(self, status: int, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s

    def build_response(self) -> web.Response:
        """Return it in the form of OpenAI's errors."""
        kinds = {429: "rate_limit_exceeded", 404: "not_found"}
        kind = "server_error" if self.status >= 500 else kinds.get(self.status, "invalid_request_error")
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s else {}
        error = {"message": str(self), "type": kind, "param": None, "code": None}
        return web.json_response({"error": error}, status=self.status, headers=headers)


def build_end() -> Refusal:
    """Return the answer of a replica that ends."""
    return Refusal(503, "this replica ends. Fix: ask again.", 1)


class Broken(Exception):
    """An engine does not do what it is asked to, or has ended."""


class Metrics:
    """What /metrics shows besides the engines' own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        by_model: dict[str, Any] = {"labelnames": ["model_name"], "registry": self.registry}
        self.awake = prometheus_client.Gauge("model_switch_awake", "1 for the model that is awake.", **by_model)
        self.queue_registry = prometheus_client.CollectorRegistry()
        self._waiting = prometheus_client.Gauge(
            QUEUE, "Requests that wait for a turn.", ["engine", "model_name"], registry=self.queue_registry
        )
        self.stopped = prometheus_client.Gauge(
            "model_switch_stopped", "Requests that stopped midway for another model's turn.", **by_model
        )
        self.refused = prometheus_client.Counter("model_switch_refused", "Requests that got 429.", **by_model)
        self.seconds = prometheus_client.Histogram(
            "model_switch_seconds", "From one model's sleep to the next awake.", buckets=BUCKETS, **by_model
        )

    def add(self, model: str) -> None:
        """Show a model from its start."""
        for metric in (self.awake, self.stopped, self.refused, self.seconds):
            metric.labels(model)
        self.find_waiting(model)

    def find_waiting(self, model: str) -> prometheus_client.Gauge:
        """Return the requests that wait for a model's turn, as of one more engine: who adds up a queue counts them."""
        return self._waiting.labels("switch", model)


@dataclass(frozen=True)
class Limits:
    """What bounds a turn and a queue."""

    max_waiting: int
    least_awake_s: float
    finish_s: float


SwitchOver = Callable[[str, str, bool], Awaitable[None]]


@dataclass(eq=False)
class _Ticket:
    """A request that waits for its model's turn; without `admitted`, the requests that stopped midway."""

    model: str
    admitted: asyncio.Future[None] | None = None


class Turns:
    """Decides which model is awake, and which requests it gets.

    Args:
        switch: puts the first model to sleep and wakes the second; the third says whether the first has requests.
        awake: the model that is awake at first.
    """

    def __init__(self, switch: SwitchOver, awake: str, limits: Limits, metrics: Metrics) -> None:
        self.awake = awake
        self._switch, self._limits, self._metrics = switch, limits, metrics
        self._tickets: list[_Ticket] = []  # in the order of arrival
        self._under_way: Counter[str] = Counter()
        self._is_open, self._is_ending = True, False
        self._awake_since = self._idle_since = time.monotonic()
        self._last_switch_s = 0.0
        self._is_broken = False
        self._gone: set[str] = set()
        self._change = asyncio.get_running_loop().create_future()
        metrics.awake.labels(awake).set(1)

    @contextlib.asynccontextmanager
    async def hold(self, model: str) -> AsyncIterator[None]:
        """Wait until a model takes a request, and keep it awake for it within the limits.

        Raises:
            Refusal: too many wait, or an engine is broken.
        """
        if self._is_open and model == self.awake:
            self._under_way[model] += 1
        else:
            await self._wait(model)
        try:
            yield
        finally:
            self._leave(model)

    async def run(self) -> None:
        """Switch as requests ask for it, for ever.

        Raises:
            Broken: a model could not be put to sleep or woken; who waits is refused.
        """
        try:
            while True:
                await self._wait_for(lambda: self._find_next() is not None)
                await self._wait_for(self._has_had_its_turn, self._count_turn_s)
                if self._find_next() is not None:  # who waited may have left
                    await self._give_turn()
        except Broken:
            self._is_open, self._is_broken = False, True
            self.refuse_all()
            self._tell()
            raise

    def refuse_all(self) -> None:
        """Answer those that wait: none of them gets a turn."""
        for ticket in self._tickets:
            if ticket.admitted and not ticket.admitted.done():
                ticket.admitted.set_exception(build_end())

    def give_up(self, model: str) -> None:
        """Answer those that wait for a model whose engine has ended: a turn of its own would only stop the others."""
        self._gone.add(model)
        others = [ticket for ticket in self._tickets if ticket.model != model]
        self._tickets = [ticket for ticket in self._tickets if ticket.model == model]
        self.refuse_all()
        self._tickets = others
        self._tell()

    def end(self) -> None:
        """Switch as soon as the awake model has no request: no new ones come."""
        self._is_ending = True
        self._tell()

    async def wait_until_idle(self) -> None:
        """Wait until no request waits or runs; after a switch that failed no model is awake, and none goes on."""
        await self._wait_for(lambda: self._is_broken or not (self._tickets or self._under_way.total()))

    async def _wait(self, model: str) -> None:
        if self._is_broken or model in self._gone:
            raise build_end()
        if sum(ticket.admitted is not None for ticket in self._tickets) >= self._limits.max_waiting:
            self._metrics.refused.labels(model).inc()
            raise Refusal(429, "too many requests wait for their model. Fix: ask again later.", self._estimate_wait_s())
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = _Ticket(model, admitted)
        self._tickets.append(ticket)
        self._metrics.find_waiting(model).inc()
        self._tell()
        try:
            await admitted
        except BaseException:  # the client left, or nothing is served any more
            if ticket in self._tickets:
                self._tickets.remove(ticket)
                self._tell()
            elif admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._leave(model)
            raise
        finally:
            self._metrics.find_waiting(model).dec()

    def _leave(self, model: str) -> None:
        self._under_way[model] -= 1
        if model == self.awake and not self._under_way[model]:
            self._idle_since = time.monotonic()
        if not self._under_way[model]:  # the last of those that stopped midway has left too
            self._tickets = [ticket for ticket in self._tickets if ticket.admitted or ticket.model != model]
        if model != self.awake:
            self._metrics.stopped.labels(model).set(self._under_way[model])
        self._tell()

    def _find_next(self) -> str | None:
        """Return the model of the oldest that waits for another than the one that is awake."""
        return next((ticket.model for ticket in self._tickets if ticket.model != self.awake), None)

    def _count_turn_s(self) -> float:
        """Count the seconds that are left of the awake model's turn.

        Its next request may come at once, and then cost two switches: an idle model keeps its turn for one's time.
        """
        end = self._awake_since + self._limits.least_awake_s
        if not self._under_way[self.awake]:
            idle_end = max(self._awake_since, self._idle_since) + self._last_switch_s
            end = 0.0 if self._is_ending else min(end, idle_end)
        return end - time.monotonic()

    def _has_had_its_turn(self) -> bool:
        return self._count_turn_s() <= 0 or self._find_next() is None

    def _estimate_wait_s(self) -> int:
        return max(1, math.ceil(self._count_turn_s() + self._last_switch_s))

    async def _give_turn(self) -> None:
        """Let the next model take the awake one's place, and admit all that wait for it."""
        last = self.awake
        self._is_open = False
        deadline = time.monotonic() + self._limits.finish_s
        await self._wait_for(lambda: not self._under_way[last], lambda: deadline - time.monotonic())
        model = self._find_next()
        if model is not None:
            stopped = self._under_way[last]
            started = time.monotonic()
            await self._switch(last, model, stopped > 0)
            self._last_switch_s = time.monotonic() - started
            self._metrics.seconds.labels(model).observe(self._last_switch_s)
            self._metrics.awake.labels(last).set(0)
            self._metrics.awake.labels(model).set(1)
            if self._under_way[last]:
                self._tickets.append(_Ticket(last))
                self._metrics.stopped.labels(last).set(self._under_way[last])
            self._metrics.stopped.labels(model).set(0)
            self.awake, self._awake_since = model, time.monotonic()
        self._is_open = True
        self._admit()

    def _admit(self) -> None:
        """Let all in that wait for the awake model."""
        for ticket in [ticket for ticket in self._tickets if ticket.model == self.awake]:
            self._tickets.remove(ticket)
            if ticket.admitted and not ticket.admitted.done():
                self._under_way[self.awake] += 1
                ticket.admitted.set_result(None)

    async def _wait_for(self, is_so: Callable[[], bool], count_left_s: Callable[[], float] | None = None) -> None:
        """Wait until a condition holds, or no time is left."""
        while not is_so():
            left_s = count_left_s() if count_left_s else None
            if left_s is not None and left_s <= 0:
                return
            await asyncio.wait([self._change], timeout=left_s)

    def _tell(self) -> None:
        """Let all look again that wait for a condition."""
        self._change.set_result(None)
        self._change = asyncio.get_running_loop().create_future()
