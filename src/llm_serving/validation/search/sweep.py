"""Sweep the load of a running deployment: validations one after the other, up to the knee. Nothing is restarted.

Each point is a whole validation, so that it has a steady state or does not count: one that is not shown is sent again,
longer, and does not keep the SLO if that shows nothing either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving import console
from llm_serving.services.environment import MeasuredCapacity
from llm_serving.services.runs import SWEEP_FILE, SWEEP_FOLDER
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.errors import BlueprintError, CheckFailed
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.pages import sweep_page
from llm_serving.validation.reports import run_folder
from llm_serving.validation.reports.report import Report, compute_lasting_rates
from llm_serving.validation.search import knee
from llm_serving.validation.search.knee import Axis, Knee, Point, Search, SearchEndedError, Sweep
from llm_serving.validation.statistics import sample_statistics, soundness
from llm_serving.validation.statistics.sample_statistics import METRICS, PERCENTILES, Latency

PAGE_FILE = "sweep.html"
POINTS = "points"
"""Folder of the points' reports, beside sweep.json."""

TURNS = 10
"""Requests of each user in the closed loop, at the least: the first and the last are ramp and end."""

LONGER = 3
"""Times as long that a load is sent again: one that showed nothing, and the highest that is kept."""

LONG_TURNS = 30
"""Answers that follow each other in the longer load that a result counts on, at the least."""

OVERLOAD = 0.8
"""Share of the offered requests, without ramp and end, below which a load is more than the deployment does."""

START = {"rate": 1.0, "users": 4.0}
"""First load where the blueprint has none of this axis."""

REACH = 64.0
"""How far above and below the first load the search goes by itself."""


_LEAST_RATES = ("requests_per_s", "output_tokens_per_s", "inputs_per_s")


@dataclass(frozen=True)
class Options:
    axis: Axis | None = None
    """None for the blueprint's own loop."""

    lowest: float | None = None
    highest: float | None = None
    precision: float = 0.1
    point_s: float = 60.0
    """Least time of sending at one load."""

    limit_s: float | None = None
    """No load but the first starts after this time; None for no limit."""


def sweep(target: LoadTarget, options: Options, validation: ValidationOptions) -> tuple[Sweep, Path]:
    """Find the knee of a running deployment; return it and the folder with its page, RUNS/NAME/sweep-TIME.

    A failure or an interruption after the first load ends the search, and the loads before it count.

    Args:
        validation: of each load; its `runs` is the folder of the result.

    Raises:
        Unavailable: the deployment does not respond to the first load, or another validation is running.
    """
    started = datetime.datetime.now(datetime.UTC)
    axis = choose_axis(target.traffic, options)
    runs = validation.runs / target.name
    with _collect_folder(runs, started) as collected:
        loader = Loader(target, axis, options.point_s, dataclasses.replace(validation, runs=collected))
        outcome = _search(loader, build_search(target.traffic, axis, options), options.limit_s)
        result = _build_result(target, options, outcome, loader.settings, started)
        (collected / SWEEP_FILE).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (collected / PAGE_FILE).write_text(sweep_page.render(result), encoding="utf-8")
        destination = _choose_path(runs, started)
        collected.rename(destination)
        return result, destination


class _Outcome(NamedTuple):
    """What a search found, and what ended it early."""

    bracket: Knee
    points: list[Point]
    end: tuple[float, BlueprintError | KeyboardInterrupt] | None
    """The load that could not be sent, and why."""

    is_late: bool
    """Whether the time limit was reached."""


def _search(loader: Loader, search: Search, limit_s: float | None) -> _Outcome:
    deadline = time.monotonic() + (math.inf if limit_s is None else limit_s)
    measured, ends = list[Point](), list[tuple[float, BlueprintError | KeyboardInterrupt]]()

    def measure(load: float, earlier: Point | None) -> Point:
        try:
            measured.append(loader.measure(load, earlier))
        except (BlueprintError, KeyboardInterrupt) as error:
            if not measured:
                raise
            ends.append((load, error))
            raise SearchEndedError from None
        return measured[-1]

    bracket, points = knee.find_knee(measure, search, lambda: time.monotonic() >= deadline)
    return _Outcome(bracket, points, next(iter(ends), None), time.monotonic() >= deadline)


def _build_result(
    target: LoadTarget, options: Options, outcome: _Outcome, settings: dict[str, Any], started: datetime.datetime
) -> Sweep:
    axis, bracket = choose_axis(target.traffic, options), outcome.bracket
    capacity = _build_capacity(target, bracket, axis, started)
    shares = capacity.replicas.items() if capacity else ()
    notes = [_describe_end(outcome.end[0], axis, outcome.end[1])] if outcome.end else []
    notes += _list_notes(target, bracket, axis)
    if options.limit_s is not None and outcome.is_late:
        limit = f"{options.limit_s / 60:g} min"
        notes.append(f"The time limit of {limit} was reached: the loads may lie further apart than asked.")
    return Sweep(
        name=target.name,
        target=target.target,
        axis=axis,
        precision=options.precision,
        started_at=started.isoformat(timespec="seconds"),
        seconds=round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 1),
        kept=bracket.kept,
        missed=bracket.missed,
        capacity=capacity,
        per_replica={name: round(capacity.requests_per_s / count, 3) for name, count in shares if capacity},
        points=sorted(outcome.points, key=lambda point: point.load),
        settings=settings,
        interrupted=outcome.end is not None and isinstance(outcome.end[1], KeyboardInterrupt),
        notes=notes,
    )


def require_kept(result: Sweep) -> None:
    """Refuse a sweep of which no load keeps the SLO, with what the lowest missed.

    Raises:
        CheckFailed: with what the lowest load missed.
    """
    if result.kept is None:
        lowest = result.points[0]
        load, reasons = format_load(lowest.load, result.axis), "\n".join(f"  {reason}" for reason in lowest.reasons)
        if lowest.shown_by_no_load:
            raise CheckFailed(f"no load shows whether {result.name} keeps its SLO; that of {load}:\n{reasons}")
        raise CheckFailed(
            f"{result.name} does not keep its SLO at the lowest load, {load}:\n{reasons}\n"
            "Fix: lower --from, or set an SLO that it can keep without load."
        )


def format_load(load: float, axis: Axis) -> str:
    return f"{load:g}/s" if axis == "rate" else f"{load:g} user{'s' * (load != 1)}"


def choose_axis(traffic: Traffic, options: Options) -> Axis:
    """Return what grows: by default users where the blueprint has users only, else arrivals."""
    return options.axis or ("users" if traffic.users and traffic.arrivals is None else "rate")


def get_own_load(traffic: Traffic, axis: Axis) -> float | None:
    """Return the load that the blueprint is designed for; None where it has none of this axis."""
    return traffic.arrivals if axis == "rate" else traffic.users


def build_search(traffic: Traffic, axis: Axis, options: Options) -> Search:
    """Return where to look: from the blueprint's own load on."""
    is_whole = axis == "users"
    start = get_own_load(traffic, axis) or START[axis]
    lowest = options.lowest or (1.0 if is_whole else start / REACH)
    highest = options.highest or max(start * REACH, lowest)
    if is_whole:  # 4 and 4.5 users would be the same load
        lowest, highest = (knee.round_load(load, whole=True) for load in (lowest, highest))
    return Search(float(start), lowest, highest, options.precision, is_whole)


class Loader:
    """Sends one load after the other to a deployment and keeps their reports in the options' `runs`."""

    def __init__(self, target: LoadTarget, axis: Axis, point_s: float, options: ValidationOptions) -> None:
        # Least rates are objectives of one load: a lower load would miss them by itself.
        slo = target.slo.model_copy(update=dict.fromkeys(_LEAST_RATES))
        self.target = target.model_copy(update={"slo": slo})
        self.settings: dict[str, Any] = {}
        """The settings of the last report."""
        self._axis, self._point_s, self._rate = axis, point_s, 0.0
        self._sent = 0
        """Prompts of `traffic.data` that the caches may have."""
        self._options = options

    def measure(self, load: float, earlier: Point | None = None) -> Point:
        """Send one load; for longer where it was sent before, and where it shows nothing.

        Args:
            earlier: what came of the load before.
        """
        with console.step(f"Load of {format_load(load, self._axis)}{' for longer' * bool(earlier)}") as step:
            if earlier:
                answers_s = LONG_TURNS * (earlier.e2e_p50_ms or 0.0) / 1000
                point, report = self._measure_for(load, LONGER, max(self._point_s, answers_s / LONGER))
            else:
                point, report = self._measure_for(load, 1, self._point_s)
                if point.verdict == "not shown" and not (is_overloaded(report) or point.shown_by_no_load):
                    point_s = max(self._point_s, compute_least_time(report) / LONGER)
                    point, report = self._measure_for(load, LONGER, point_s)
            if point.kept:  # a higher load has answers as long at least
                self._point_s = max(self._point_s, compute_least_time(report))
            step.note = f"{point.verdict}, {point.requests_per_s:.3g} requests/s answered"
            return point

    def _measure_for(self, load: float, times: int, point_s: float) -> tuple[Point, Report]:
        traffic = build_traffic(self.target, self._axis, load, point_s, self._rate, times)
        target = self.target.model_copy(update={"traffic": traffic})
        report, saved = run.validate(target, dataclasses.replace(self._options, first_prompt=self._sent))
        self.settings = report.settings
        self._sent += traffic.requests + traffic.warm_up
        results = self._options.runs
        kept_folder = results / POINTS / f"{load:g}"
        kept_folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept_folder, ignore_errors=True)  # of the shorter load
        saved.rename(kept_folder)
        # What the validation made around its folder: that of the deployment, and the link to the newest.
        with contextlib.suppress(OSError):
            saved.parent.rmdir()
        (results / run_folder.LATEST).unlink(missing_ok=True)
        folder = str(kept_folder.relative_to(results))
        point = build_point(report, load, folder)
        self._rate = point.requests_per_s / load
        return point.model_copy(update={"longer": times > 1}), report


def build_traffic(target: LoadTarget, axis: Axis, load: float, point_s: float, rate: float, times: int) -> Traffic:
    """Return the traffic of one load, `times` as long as the least; `rate` is what was answered of a unit before."""
    least = count_least_requests(target.slo)
    if axis == "rate":
        requests = times * max(least, math.ceil(load * point_s))
        time_limit = 2 * requests / load + point_s
        think_time = target.traffic.think_time if target.traffic.turns.max > 1 else None  # else that of users
        loop: dict[str, Any] = {"arrivals": load, "users": None, "think_time": think_time}
    else:
        requests = times * max(least, math.ceil(TURNS * load), math.ceil(rate * load * point_s))
        time_limit = times * max(target.traffic.time_limit, point_s)
        loop = {"users": int(load), "arrivals": None, "max_concurrency": None}
    return target.traffic.model_copy(update={**loop, "requests": requests, "time_limit": time_limit})


def count_least_requests(slo: Slo) -> int:
    """Return the requests without which no bound of the SLO's percentiles and shares exists."""
    limited = {name for metric in METRICS for name in getattr(slo, metric).model_dump(exclude_none=True)}
    exceeding = [1 - PERCENTILES[name] for name in limited if name in PERCENTILES]
    exceeding += [share for share in (slo.errors, 1 - (slo.goodput or 1)) if share]
    return max((sample_statistics.compute_share_samples(share, 0.0) or 1 for share in exceeding), default=1)


def is_overloaded(report: Report) -> bool:
    """Return whether so many fewer requests were answered than offered that a longer load would show no more."""
    steady = report.steady
    return steady is not None and steady.requests_per_s < OVERLOAD * steady.offered_per_s


def compute_least_time(report: Report) -> float:
    """Return the seconds of sending below which a load with such answers is all ramp and end."""
    return soundness.MIN_TURNS * (report.metrics["e2e_ms"].p95 or 0.0) / 1000


def build_point(report: Report, load: float, folder: str) -> Point:
    metrics, throughput = report.metrics, report.throughput
    rates = compute_lasting_rates(throughput, report.steady)
    growth = rates["requests_per_s"] / (throughput.requests_per_s or 1)
    ttft, itl = (metrics.get(metric, Latency(count=0)) for metric in ("ttft_ms", "itl_ms"))
    return Point(
        load=load,
        verdict=report.verdict,
        reasons=[*(f"{missed.metric}: {missed.why}" for missed in report.missed), *report.not_shown],
        shown_by_no_load=bool(report.shown_by_no_load),
        requests=report.requests.total,
        failed=report.requests.failed,
        requests_per_s=round(rates["requests_per_s"], 3),
        output_tokens_per_s=round(rates["output_tokens_per_s"], 3),
        goodput_share=report.goodput.share,
        goodput_per_s=round(report.goodput.requests_per_s * growth, 3),
        ttft_p50_ms=ttft.p50,
        ttft_p95_ms=ttft.p95,
        itl_p50_ms=itl.p50,
        itl_p95_ms=itl.p95,
        e2e_p50_ms=metrics["e2e_ms"].p50,
        e2e_p95_ms=metrics["e2e_ms"].p95,
        usd_per_thousand_requests=report.cost and report.cost.per_thousand_requests,
        seconds=round(report.duration_s, 1),
        run=folder,
    )


def _build_capacity(
    target: LoadTarget, bracket: Knee, axis: Axis, started: datetime.datetime
) -> MeasuredCapacity | None:
    """Build what the planner goes by; None where no load was kept, and where replicas may have come or gone meanwhile.

    In the open loop it is the offered rate: the answered one has the ramp and the end of the load in it.
    """
    if bracket.kept is None or _list_scaled(target):
        return None
    return MeasuredCapacity(
        key=target.capacity_key,
        axis=axis,
        requests_per_s=bracket.kept.load if axis == "rate" else bracket.kept.requests_per_s,
        replicas={role.name: role.replicas.min for role in target.roles},
        measured_at=started.isoformat(timespec="seconds"),
        source=SWEEP_FILE,
    )


def _list_scaled(target: LoadTarget) -> list[str]:
    return [role.name for role in target.roles if role.replicas.min != role.replicas.max]


def _list_notes(target: LoadTarget, bracket: Knee, axis: Axis) -> Iterator[str]:
    if bracket.kept and bracket.missed is None:
        yield f"The highest load, {format_load(bracket.kept.load, axis)}, is kept: the knee lies above it."
    if bracket.kept:
        yield from list_unconfirmed(bracket.kept, axis)
    if scaled := ", ".join(_list_scaled(target)):
        yield f"Replicas of {scaled} come and go by load: no capacity of one replica follows from it."
    yield from list_left_out(target.slo)


def list_unconfirmed(knee: Point, axis: Axis) -> Iterator[str]:
    """Yield that the highest load was kept for a short time only, where the search ended before it was sent again."""
    if not knee.longer:
        yield f"The load of {format_load(knee.load, axis)} was not sent again for longer, in which a queue may grow."


def list_left_out(slo: Slo) -> Iterator[str]:
    """Yield which objectives no load is held against."""
    if least := [name for name in _LEAST_RATES if getattr(slo, name)]:
        yield f"slo.{' and slo.'.join(least)} left out: a low load would miss them by itself."


def _describe_end(load: float, axis: Axis, error: BlueprintError | KeyboardInterrupt) -> str:
    """Say why a load was not measured, as where a higher one before it broke the service."""
    if isinstance(error, KeyboardInterrupt):
        return f"The load of {format_load(load, axis)} was interrupted, and the search ended there."
    reason = str(error).partition("\n")[0]
    return f"The load of {format_load(load, axis)} could not be sent, and the search ended there: {reason}"


@contextlib.contextmanager
def _collect_folder(runs: Path, started: datetime.datetime) -> Iterator[Path]:
    """Yield a hidden folder, for this user only, that is gone after the block unless it was renamed."""
    folder = runs / f".{_choose_path(runs, started).name}.{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose_path(runs: Path, started: datetime.datetime) -> Path:
    return runs / f"{SWEEP_FOLDER}{started.strftime('%Y-%m-%dT%H-%M-%SZ')}"
