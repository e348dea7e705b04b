"""The number of requests that a worker keeps in flight: enough to keep the endpoint busy, and no more.

With the engines' metrics, the goal is a short queue at each engine: a full batch then takes the next row without a
pause. A longer queue gains nothing, and preemptions waste work. Without metrics, the number of requests grows while
tokens per second do (`_Climb`). If the engines also serve people, no row waits there, and their SLO comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from batch.burn import Burn
from batch.metrics import EngineLoad

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
"""Minimum number of answers for a rate."""

FEW = 32
"""Requests in flight below which twice as many are tried: with so few, a third more shows no difference."""

LOST = 0.6
"""Share of the previous rate below which the endpoint must have slowed down: chance does not explain it."""

RETURN = 0.95
"""Factor of a step back from a number that did not raise the rate."""

SPARE_BUDGET = 0.5
"""Burn of the last minute above which no requests are added: the rest of the SLO's allowance is for people."""


@dataclass(frozen=True)
class Window:
    """What happened since the last step."""

    seconds: float
    answers: int
    tokens: float
    """Tokens of these answers and their prompts; 0 if the endpoint does not count them."""

    is_full: bool
    """Whether all allowed requests were in flight; if not, there were too few rows."""

    refusals: int
    """Answers 429 and 503."""

    load: EngineLoad | None
    preemptions: float = 0.0
    burn: Burn = field(default_factory=Burn)
    """Burn of the SLO of the deployment that shares the engines."""


class ConcurrencyLimit:
    """A number of requests in flight that follows the endpoint."""

    def __init__(self, least: int, most: int, *, is_shared: bool = False) -> None:
        """Start with the lowest number.

        Args:
            is_shared: whether the engines also serve people. No request may wait there then: people notice a queue
                first.
        """
        self._least, self._most, self._is_shared = least, most, is_shared
        self._value = float(least)
        self._climb = _Climb(least, most)

    @property
    def value(self) -> int:
        """Maximum number of requests in flight."""
        return int(self._value)

    def observe(self, window: Window) -> None:
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
        self._value = self._climb.clamp(self._value * factor + (1 if factor > 1 else 0))


class _Climb:
    """Finds the number of requests in flight with the best rate.

    The effect of a change shows once the earlier requests are answered. So a trial begins after as many answers as
    there were requests in flight, and lasts for as many again: an endpoint whose answers take a minute gets minutes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._best = self._best_rate = 0.0
        """The number to beat, and tokens a second with it."""

        self._is_growing = True
        """Whether the last step up raised the rate."""

        self._unsettled = 0.0
        """Number of answers still to come for requests from before the last change."""

        self._tokens = self._answers = self._seconds = 0.0

    def observe(self, value: float, window: Window) -> float:
        """Return the next number in flight; `value` during a trial."""
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
        chosen = self.clamp(self._choose(value, rate))
        self._best = self.clamp(self._best)
        self._unsettled = max(value, chosen) if chosen != value else 0.0
        return chosen

    def clamp(self, value: float) -> float:
        return min(float(self._most), max(float(self._least), value))

    def _choose(self, value: float, rate: float) -> float:
        """Continue while more requests gain at least half of their share; step back when the rate falls."""
        if not self._best:
            self._best, self._best_rate = value, rate
            return value * DOUBLE
        tried, gain = value / self._best, rate / self._best_rate
        if tried > 1 and gain >= 1 + (tried - 1) / 2:
            self._is_growing, self._best = True, value
            chosen = value * DOUBLE
        elif gain < LOST:  # requests in flight = rate x answer time: reduce in proportion
            self._is_growing = False
            chosen = self._best = self._best * max(gain, BACK_OFF / 2)
        elif tried > 1:  # the additional requests only waited
            self._is_growing = False
            chosen = self._best = self._best * min(tried, max(gain, BACK_OFF)) * RETURN
        else:
            self._best = value
            chosen = value * (DOUBLE if self._is_growing or value < FEW else GROW)
        self._best_rate = rate
        return chosen
