"""Race configurations: each must beat the best so far at once, or is dropped after one load. No input or output.

The first is swept for the highest load that keeps the SLO. Every other one starts at the load by which it would be the
best, and only one that keeps it is swept on from there. So a loser costs one load, and a load is judged by its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from llm_serving.settings.errors import BlueprintError
from llm_serving.validation.search import knee
from llm_serving.validation.search.knee import Point, Search

State = Literal["not tried", "refused", "failed", "dropped", "kept", "kept nothing"]


class Trial(BaseModel):
    """One configuration, and what came of it."""

    model_config = ConfigDict(extra="forbid")

    number: int
    settings: dict[str, str]
    """Value by key, as written on the command line."""

    state: State = "not tried"
    """`dropped` where it did not keep the load by which it would be the best."""

    why: str = ""
    """Why it is refused, failed, dropped, or kept nothing."""

    usd_h: float | None = None
    """Of its engines; null on a target without prices."""

    expected_per_s: float | None = None
    """Predicted requests a second, before anything ran; null where there is none."""

    points: list[Point] = []
    kept: Point | None = None
    """The highest load that kept the SLO, of those that were tried."""

    seconds: float = 0.0
    """How long it was deployed."""

    @property
    def usd(self) -> float:
        """What it cost while it was deployed; 0 without prices."""
        return (self.usd_h or 0.0) * self.seconds / 3600

    @property
    def worth(self) -> float:
        """The load that it keeps, for each US dollar an hour where it has a price."""
        return 0.0 if self.kept is None else self.kept.load / (self.usd_h or 1.0)


MeasureTrial = Callable[[Trial, float], Point]
"""Sends one load to a configuration, which it deploys first if it does not run."""


def order(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials, the most promising first: the better the first, the sooner the others are dropped."""
    return sorted(trials, key=lambda trial: -(trial.expected_per_s or 0.0) / (trial.usd_h or 1.0))


def race(trials: Sequence[Trial], measure: MeasureTrial, search: Search) -> Trial | None:
    """Try each configuration in turn; return the best, None where none keeps the SLO.

    Args:
        search: how the first one is swept; the others start where they would be the best.
    """
    best: Trial | None = None
    for trial in trials:
        if trial.state == "refused":
            continue
        try:
            _run(trial, measure, _challenge(trial, best, search), best)
        except BlueprintError as error:
            trial.state, trial.why = "failed", str(error)
            continue
        if trial.kept and (best is None or trial.worth > best.worth):
            best = trial
    return best


def _challenge(trial: Trial, best: Trial | None, search: Search) -> Search:
    """Return where to search: nowhere below the load by which the trial would be the best."""
    if best is None:
        return search
    load = best.worth * (trial.usd_h or 1.0) * (1 + search.precision)
    load = float(math.ceil(load)) if search.whole else knee.round_load(load)
    return search._replace(start=load, lowest=load, highest=max(load, search.highest))


def _run(trial: Trial, measure: MeasureTrial, search: Search, best: Trial | None) -> None:
    bracket, _ = knee.find_knee(lambda load: measure(trial, load), search)
    trial.kept = bracket.kept
    if bracket.kept:
        trial.state, trial.why = "kept", ""
    else:
        assert bracket.missed, "a search ends with a load that is kept or missed"
        trial.state = "dropped" if best else "kept nothing"
        trial.why = "; ".join(bracket.missed.reasons)
