"""How many requests a worker keeps in flight: enough that the endpoint is never idle, no more than it can use.

With the engines' metrics: a short queue at the engine is what is wanted, since a batch that is full takes the next row
without a pause; a long one brings nothing, and preemptions cost work that was done. Without metrics: more requests as
long as that brings more tokens a second.
"""

from __future__ import annotations

from dataclasses import dataclass

GROW, SHRINK, BACK_OFF = 1.3, 0.9, 0.7
"""Factors of one step: no waiting row, a long queue or preemptions, and refusals."""

SHORT_QUEUE, LONG_QUEUE = 0.05, 0.5
"""Waiting requests as a share of running ones: below the first the engine may run dry, above the second it has
enough."""

FULL_CACHE = 0.97
"""Share of the KV cache in use above which an engine soon preempts."""

SAME = 0.04
"""Changes of throughput below this share say nothing."""


@dataclass(frozen=True)
class EngineLoad:
    """Sums over the engines at one moment; `kv_usage` is the fullest one's."""

    running: float
    waiting: float
    kv_usage: float
    preemptions: float
    """Since the engine started."""


@dataclass(frozen=True)
class Window:
    """What happened since the last step."""

    tokens_per_s: float
    """Of answers that arrived."""

    is_full: bool
    """Whether as many requests were in flight as allowed: if not, the rows were the limit."""

    refusals: int
    """Answers 429 and 503."""

    load: EngineLoad | None
    preemptions: float = 0.0
    """Within the window."""


class ConcurrencyLimit:
    """A number of requests in flight that follows the endpoint."""

    def __init__(self, least: int, most: int, *, is_shared: bool = False) -> None:
        """Begin at the least number.

        Args:
            is_shared: whether the engines answer people too. Nothing may wait there then, whosever it is: a queue is
                what people notice first.
        """
        self._least, self._most, self._is_shared = least, most, is_shared
        self._value = float(least)
        self._last_rate = 0.0
        self._step = GROW

    @property
    def value(self) -> int:
        """Most requests in flight."""
        return int(self._value)

    def observe(self, window: Window) -> None:
        """Adapt to what happened."""
        if window.refusals:
            self._change(BACK_OFF)
        elif window.load is not None:
            self._follow_engine(window, window.load)
        elif window.is_full:
            self._climb(window.tokens_per_s)

    def _follow_engine(self, window: Window, load: EngineLoad) -> None:
        short, long = 1 + load.running * SHORT_QUEUE, 2 + load.running * LONG_QUEUE
        if self._is_shared:
            short = long = 0.5  # not one
        is_cache_short = load.kv_usage > FULL_CACHE and load.waiting > short
        if window.preemptions or is_cache_short or load.waiting > long:
            self._change(BACK_OFF if self._is_shared else SHRINK)
        elif window.is_full and load.waiting < short:
            self._change(GROW)

    def _climb(self, rate: float) -> None:
        """Go on as long as it brings more; turn round where it brings less, and where it brings nothing go down."""
        if rate < self._last_rate * (1 - SAME):
            self._step = 1 / self._step if self._step > 1 else GROW
        elif rate <= self._last_rate * (1 + SAME):
            self._step = SHRINK
        self._last_rate = rate
        self._change(self._step)

    def _change(self, factor: float) -> None:
        changed = self._value * factor + (1 if factor > 1 else 0)
        self._value = min(float(self._most), max(float(self._least), changed))
