"""Configurations of a blueprint compared: the state of a tuning, which in the end is its result. No input or output."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from llm_serving.validation.search.knee import Axis
from llm_serving.validation.search.racing import Trial

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


def describe(trial: Trial) -> str:
    return ", ".join(f"{key}={value}" for key, value in trial.settings.items())
