"""How many requests a worker keeps in flight: enough that the endpoint is never idle, no more than it can use.

With the engines' metrics: a short queue at the engine is what is wanted, since a batch that is full takes the next row
without a pause; a long one brings nothing, and preemptions cost work that was done. Without metrics: more requests as
long as that brings more tokens a second (`_Climb`). Where the engines answer people too, nothing waits there, and
their SLO comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from batch.burn import Burn

GROW, DOUBLE = 1.3, 2.0
"""Factors of a step up: no waiting row, and plenty of room."""

SHRINK, BACK_OFF = 0.9, 0.7
"""Factors of a step down: preemptions, and refusals; a long queue takes a step between them, by its length."""

SHORT_QUEUE, LONG_QUEUE = 0.05, 0.5
"""Waiting requests as a share of running ones: below the first the engine may run dry, above the second it has
enough."""

FULL_CACHE = 0.97
"""Share of the KV cache in use above which an engine soon preempts."""

ROOMY_CACHE = 0.5
"""Share of the KV cache in use below which twice as many requests may fit."""

MIN_ANSWERS = 32
"""Fewest answers that say something of a rate."""

FEW = 32
"""Requests in flight below which twice as many are tried: so few say little of what a third more would bring."""

LOST = 0.6
"""Share of the former rate below which the endpoint itself must take less: chance alone does not do that."""

RETURN = 0.95
"""Factor of a step back from a number that brought nothing more."""

SPARE_BUDGET = 0.5
"""Burn of the last minute above which there are no more requests: the rest of what the SLO allows is people's own."""


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

    seconds: float
    answers: int
    tokens: float
    """Of these answers and their prompts; 0 where the endpoint counts none."""

    is_full: bool
    """Whether as many requests were in flight as allowed: if not, the rows were the limit."""

    refusals: int
    """Answers 429 and 503."""

    load: EngineLoad | None
    preemptions: float = 0.0
    """Within the window."""

    burn: Burn = field(default_factory=Burn)
    """Of the deployment's SLO that the engines are shared with."""


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
        self._climb = _Climb(least, most)

    @property
    def value(self) -> int:
        """Most requests in flight."""
        return int(self._value)

    def observe(self, window: Window) -> None:
        """Adapt to what happened."""
        if window.refusals or window.burn.recent > 1:
            self._change(BACK_OFF)
            self._climb = _Climb(self._least, self._most)
        elif window.load is not None:
            self._follow_engine(window, window.load)
        elif window.is_full:
            self._value = self._climb.observe(self._value, window)

    def _follow_engine(self, window: Window, load: EngineLoad) -> None:
        short, long = 1 + load.running * SHORT_QUEUE, 2 + load.running * LONG_QUEUE
        if self._is_shared:
            short = long = 0.5  # not one
        is_cache_short = load.kv_usage > FULL_CACHE and load.waiting > short
        if window.preemptions or is_cache_short:
            self._change(BACK_OFF if self._is_shared else SHRINK)
        elif load.waiting > long:
            surplus = (load.running + long) / (load.running + load.waiting)
            self._change(BACK_OFF if self._is_shared else max(BACK_OFF, surplus))
        elif window.is_full and load.waiting < short and window.burn.budget < SPARE_BUDGET:
            is_roomy = not load.waiting and load.kv_usage < ROOMY_CACHE and not self._is_shared
            self._change(DOUBLE if is_roomy else GROW)

    def _change(self, factor: float) -> None:
        changed = self._value * factor + (1 if factor > 1 else 0)
        self._value = min(float(self._most), max(float(self._least), changed))


class _Climb:
    """Finds a number in flight by what it brings.

    What a change brings shows once the requests from before it are answered. So a trial begins after as many answers as
    there were requests in flight, and lasts as many again: an endpoint whose answers take a minute is given minutes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._best = self._best_rate = 0.0
        """The number to beat, and tokens a second with it."""

        self._is_growing = True
        """Whether the last step up brought something."""

        self._unsettled = 0.0
        """Answers that are still those of requests from before the last change."""

        self._tokens = self._answers = self._seconds = 0.0

    def observe(self, value: float, window: Window) -> float:
        """The next number in flight: `value` itself while a trial lasts."""
        if self._unsettled > 0:
            self._unsettled -= window.answers
            return value
        self._tokens += window.tokens
        self._answers += window.answers
        self._seconds += window.seconds
        if self._answers < max(MIN_ANSWERS, value):
            return value
        rate = (self._tokens or self._answers) / self._seconds
        self._tokens = self._answers = self._seconds = 0.0
        chosen = self._clamp(self._choose(value, rate))
        self._best = self._clamp(self._best)
        self._unsettled = max(value, chosen) if chosen != value else 0.0
        return chosen

    def _clamp(self, value: float) -> float:
        return min(float(self._most), max(float(self._least), value))

    def _choose(self, value: float, rate: float) -> float:
        """Go on while more requests bring at least half of what they promise; go back where the rate does."""
        if not self._best:
            self._best, self._best_rate = value, rate
            return value * DOUBLE
        tried, gain = value / self._best, rate / self._best_rate
        if tried > 1 and gain >= 1 + (tried - 1) / 2:
            self._is_growing, self._best = True, value
            chosen = value * DOUBLE
        elif gain < LOST:  # requests in flight are rate times answer time: as much less is enough
            self._is_growing = False
            chosen = self._best = self._best * max(gain, BACK_OFF / 2)
        elif tried > 1:  # the surplus only waited
            self._is_growing = False
            chosen = self._best = self._best * min(tried, max(gain, BACK_OFF)) * RETURN
        else:
            self._best = value
            chosen = value * (DOUBLE if self._is_growing or value < FEW else GROW)
        self._best_rate = rate
        return chosen
