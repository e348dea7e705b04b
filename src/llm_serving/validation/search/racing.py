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
from llm_serving.validation.search.knee import Axis, Point, Search

State = Literal["not tried", "refused", "failed", "dropped", "not shown", "kept", "kept nothing"]


class Trial(BaseModel):
    """One configuration, and what came of it."""

    model_config = ConfigDict(extra="forbid")

    number: int
    settings: dict[str, str]
    """Value by key, as written on the command line."""

    state: State = "not tried"
    """`dropped` where it did not keep the load by which it would be the best, `not shown` where that load shows nothing
    of it."""

    why: str = ""
    """Why it is refused, failed, dropped, not shown, or kept nothing."""

    usd_h: float | None = None
    """Of its engines' accelerators, which it is compared by; null on a target without prices."""

    instances_usd_h: float | None = None
    """Of its engines' instances, each as a whole; null on a target without prices."""

    expected_per_s: float | None = None
    """Predicted requests a second, before anything ran; null where there is none."""

    points: list[Point] = []
    kept: Point | None = None
    """The highest load that kept the SLO, of those that were tried."""

    seconds: float = 0.0
    """How long it was deployed."""

    @property
    def title(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())

    @property
    def usd(self) -> float:
        """What it cost while it was deployed; 0 without prices."""
        return (self.instances_usd_h or 0.0) * self.seconds / 3600

    @property
    def worth(self) -> float:
        """The load that it keeps, for each US dollar an hour where it has a price."""
        return 0.0 if self.kept is None else self.kept.load / (self.usd_h or 1.0)

    def carries(self, wanted: float | None) -> bool:
        """Return whether it keeps the load that the blueprint is designed for, if there is one."""
        return self.kept is not None and self.kept.load >= (wanted or 0.0)


def find_best(trials: Iterable[Trial], wanted: float | None) -> Trial | None:
    """Return what carries the most for its price, first of those that carry the wanted load; None without any."""
    passed = [trial for trial in trials if trial.kept]
    return max(passed, key=lambda trial: (trial.carries(wanted), trial.worth), default=None)


TUNE_FOLDER, STATE_FILE, PAGE_FILE = "tune-", "tune.json", "tune.html"
BEST_FILE = "best.yaml"
"""The blueprint.yaml of the best configuration, with the comments of the user's own."""


class Tuning(BaseModel):
    """The state, and in the end the result: tune.json."""

    model_config = ConfigDict(extra="forbid")

    name: str
    target: str
    digest: str
    """Of all that decides the result; a run with the same goes on with this state."""

    axis: Axis
    precision: float
    point_s: float
    started_at: str
    """UTC, ISO 8601."""

    seconds: float = 0.0
    """Over all runs that went on with this state."""

    usd: float | None = None
    """Of the engines' instances while they were deployed, by the catalog's prices; null on a target without prices."""

    finished: bool = False
    stopped: str = ""
    """Why it ended before every configuration was measured; empty where all were."""

    wanted: float | None = None
    """The load that the blueprint is designed for; null where it has none of this axis. What carries it is better than
    what does not."""

    notes: list[str] = []
    """What the result does not say, a sentence each."""

    trials: list[Trial]
    """In the order of the command line."""

    best: int | None = None
    """Number of the best configuration."""


MeasureTrial = Callable[[Trial, float, Point | None], Point]
"""Sends one load to a configuration, which it deploys first if it does not run; for longer where it was sent before."""


def order(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials, the most promising first: the better the first, the sooner the others are dropped.

    Those that failed in an earlier run come last, so that what it measured of the others still decides.
    """

    def rank(trial: Trial) -> tuple[bool, float]:
        return trial.state == "failed", -(trial.expected_per_s or 0.0) / (trial.usd_h or 1.0)

    return sorted(trials, key=rank)


def race(trials: Sequence[Trial], measure: MeasureTrial, search: Search, wanted: float | None = None) -> Trial | None:
    """Try each configuration in turn, the first by `search`; return the best, None where none keeps the SLO."""
    best: Trial | None = None
    for trial in trials:
        if trial.state == "refused":
            continue
        try:
            _run(trial, measure, _challenge(trial, best, search, wanted), best)
        except BlueprintError as error:
            trial.state, trial.why = "failed", str(error)
        best = find_best(filter(None, (best, trial)), wanted)
    return best


def _challenge(trial: Trial, best: Trial | None, search: Search, wanted: float | None) -> Search:
    """Return where to search: nowhere below the load by which the trial would be the best."""
    if best is None:
        return search
    load = best.worth * (trial.usd_h or 1.0) * (1 + search.precision)
    load = float(math.ceil(load)) if search.whole else knee.round_load(load)
    if wanted is not None:
        load = max(load, wanted) if best.carries(wanted) else min(load, wanted)
    return search._replace(start=load, lowest=load, highest=max(load, search.highest))


def _run(trial: Trial, measure: MeasureTrial, search: Search, best: Trial | None) -> None:
    bracket, _ = knee.find_knee(lambda load, earlier: measure(trial, load, earlier), search)
    trial.kept = bracket.kept
    if bracket.kept:
        trial.state, trial.why = "kept", ""
    else:
        missed = bracket.missed
        assert missed, "a search ends with a load that is kept or missed"
        trial.state = "not shown" if missed.verdict == "not shown" else "dropped" if best else "kept nothing"
        trial.why = f"at {missed.load:g}: {'; '.join(missed.reasons)}"
