"""Step times that fit a user's own measurements: a low load tells what a step takes, a burst what a batch adds to it.

Two low loads tell nothing of a batch: it then takes as much more, or less, as the step of one request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from llm_serving.catalog.step_times import StepTimes

BURST = 4.0
"""Times as many requests at once as in the low load, from which a load tells what a batch adds."""

_ROUNDS = 6
_HALVINGS = 11
_MOST = 64.0
"""Times as much, or as little, as the catalog says: what lies beyond is no batch cost."""


class Load(NamedTuple):
    """One measured load, and what step times predict of it."""

    ttft_s: float
    """95th percentile."""

    e2e_s: float
    """Mean."""

    predict: Callable[[StepTimes], tuple[float, float]]
    """Both, as predicted."""


def calibrate(times: StepTimes, low: Load, burst: Load | None) -> StepTimes:
    """Return step times that predict both loads; without a burst, those of one factor for all."""
    alone = batch = 1.0
    first_s = times.coefficients.first_token_s
    for _ in range(_ROUNDS):
        ttft_s, e2e_s = low.predict(times.scale(alone, batch, first_s))
        alone *= low.e2e_s / e2e_s
        first_s = max(0.0, first_s + low.ttft_s - ttft_s)
        batch = _find_batch_share(times, burst, alone, first_s) if burst else alone
    return times.scale(alone, batch, first_s)


def _find_batch_share(times: StepTimes, burst: Load, alone: float, first_s: float) -> float:
    """Return the share of what a batch adds with which the burst takes as long as measured, by halving."""
    least, most = -math.log(_MOST), math.log(_MOST)
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        _, e2e_s = burst.predict(times.scale(alone, math.exp(middle), first_s))
        least, most = (least, middle) if e2e_s > burst.e2e_s else (middle, most)
    return math.exp((least + most) / 2)
