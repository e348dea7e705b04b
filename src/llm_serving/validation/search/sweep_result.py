"""What a sweep found: sweep.json."""

from __future__ import annotations

from typing import Any

from llm_serving.services.environment import MeasuredCapacity
from llm_serving.settings.plain import PublishedData
from llm_serving.validation.search.knee import Axis, Point


class Sweep(PublishedData):
    """The result: sweep.json."""

    name: str
    target: str
    axis: Axis
    precision: float
    started_at: str
    """UTC, ISO 8601."""

    seconds: float
    kept: Point | None
    """The highest load that kept the SLO."""

    missed: Point | None
    """The lowest load above it that did not; null where the highest one tried kept it."""

    capacity: MeasuredCapacity | None
    """What `check` and `deploy` go by; null where no load was kept, and where replicas come and go."""

    per_replica: dict[str, float]
    """The capacity for each replica of a role."""

    points: list[Point]
    """In the order of their load."""

    settings: dict[str, Any]
    """Deployment, load and SLO, as in the reports."""

    interrupted: bool = False
    """Whether the search was interrupted before its end."""

    notes: list[str]
