"""Find the highest load that keeps the SLO: double or halve until it lies between two loads, then bisect.

No input or output: `measure` sends one load. Doubling takes few loads however far away the knee is, and the middle of
an interval is the geometric one, so that each step gains the same relative precision.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from llm_serving.services.environment import MeasuredCapacity
from llm_serving.settings.plain import PublishedData

FACTOR = 2.0
"""From one load to the next while the knee is not yet between two."""

FIGURES = 3
"""Significant figures of a load: more would claim what a run cannot tell."""

Axis = Literal["rate", "users"]
"""What grows: arrivals a second in the open loop, or users of the closed loop."""

UNITS: dict[Axis, str] = {"rate": "requests/s", "users": "users"}

QUIET = 0.2
"""Requests under way on average below which 82% of Poisson arrivals meet no other: what misses the SLO then misses it
without load too, and each lower load would take twice as long."""


class Point(PublishedData):
    """One load and what came of it."""

    load: float
    """Offered requests a second, or users."""

    verdict: Literal["pass", "fail", "not shown"]
    """Of the SLO; only `pass` keeps it."""

    reasons: list[str]
    """Why it does not pass, a sentence each."""

    requests: int
    failed: int
    requests_per_s: float
    """Answered, as in a load that goes on."""

    output_tokens_per_s: float
    goodput_share: float | None
    goodput_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    e2e_p50_ms: float | None = None
    e2e_p95_ms: float | None = None
    usd_per_thousand_requests: float | None
    """Of the report; null on a target without prices."""

    seconds: float
    """From the start of the first counted request to the end of the last."""

    longer: bool = False
    """Whether it was sent for longer than the least time, so that a queue would have grown."""

    shown_by_no_load: bool = False
    """Whether another load of the same prompts would show no more."""

    run: str
    """Folder of its report, relative to the result's file."""

    @property
    def kept(self) -> bool:
        """Whether the SLO was shown to hold."""
        return self.verdict == "pass"

    @property
    def is_hopeless(self) -> bool:
        """Whether no other load can keep the SLO: its requests were nearly alone, or no load shows anything."""
        is_alone = self.requests_per_s * (self.e2e_p50_ms or math.inf) < QUIET * 1000
        return not self.kept and (is_alone or self.shown_by_no_load)


class Search(NamedTuple):
    """Where to look."""

    start: float
    lowest: float
    highest: float
    precision: float
    """Ratio, less one, of the two loads that the knee lies between in the end: 0.1 is 10%."""

    whole: bool = False
    """Whether a load is a whole number, as of users."""


class Knee(NamedTuple):
    """The end of a search."""

    kept: Point | None
    """The highest load that kept the SLO; None where the lowest did not, and where requests alone did not."""

    missed: Point | None
    """The lowest load above it that did not; None where the highest kept it."""


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


Measure = Callable[[float, Point | None], Point]
"""Sends one load; where it is given what came of the load before, for longer."""


class SearchEndedError(Exception):
    """No further load can be sent: the search ends with what is known."""


def find_knee(
    measure: Measure, search: Search, is_over: Callable[[], bool] = lambda: False
) -> tuple[Knee, list[Point]]:
    """Search the knee; return it and every load's last point.

    In a short load a queue has no time to grow, so that the highest that is kept counts once it is kept for longer too.

    Args:
        measure: may raise SearchEndedError.
        is_over: asked before each load but the first; ends the search with what is known.
    """
    points: dict[float, Point] = {}
    load: float | None = min(max(search.start, search.lowest), search.highest)
    with contextlib.suppress(SearchEndedError):
        while load and not (points and is_over()):
            points[load] = measure(load, points.get(load))
            load = _choose_next(find_bracket(points.values()), search)
    return find_bracket(points.values()), list(points.values())


def find_bracket(points: Collection[Point]) -> Knee:
    """Return the highest load that was kept, and the lowest above it that was not."""
    highest = max((point for point in points if point.kept), key=lambda point: point.load, default=None)
    above = (point for point in points if not point.kept and (highest is None or point.load > highest.load))
    return Knee(highest, min(above, key=lambda point: point.load, default=None))


def _choose_next(bracket: Knee, search: Search) -> float | None:
    """Return the load to send next, the highest one that is kept in the end; None where the knee is found."""
    highest, lowest_missed = bracket
    if lowest_missed and lowest_missed.is_hopeless:
        return None
    if highest and lowest_missed and (middle := _choose_middle(highest.load, lowest_missed.load, search)):
        return middle
    if highest and not lowest_missed and highest.load < search.highest:
        return min(round_load(highest.load * FACTOR, search.whole), search.highest)
    if highest:
        return None if highest.longer else highest.load
    assert lowest_missed, "a load is kept or missed"
    return (
        max(round_load(lowest_missed.load / FACTOR, search.whole), search.lowest)
        if lowest_missed.load > search.lowest
        else None
    )


def _choose_middle(low: float, high: float, search: Search) -> float | None:
    middle = round_load(math.sqrt(low * high), search.whole)
    return middle if high / low > 1 + search.precision and low < middle < high else None


def round_load(load: float, whole: bool = False) -> float:
    """Return a load with as many figures as a run can tell."""
    if whole:
        return float(max(1, round(load)))
    digits = FIGURES - 1 - math.floor(math.log10(load))
    return round(load, digits)
