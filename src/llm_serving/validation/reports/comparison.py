"""Compare validations with the first of them: what differs by more than chance. No input or output.

A change is shown where its whole interval lies beyond the margin. The interval comes from those of both runs (G. Y. Zou
and A. Donner, "Construction of confidence limits about effect measures", 2008), and the confidence is shared among all
numbers of a comparison: equal services differ anywhere in at most one of twenty.

What a machine does differently from run to run is in the intervals only where both sides have repeats. Of single runs
the margin is for it, and no change counts where the driver waited for a core: then other programs had the machine. Nor
does one count of runs with few requests: in their few seconds they saw one moment of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from llm_serving.validation.pages.html_report import format_setting
from llm_serving.validation.reports import validation_run
from llm_serving.validation.reports.validation_run import BATCHES, ERRORS, GOODPUT, MORE_IS_BETTER, ValidationRun
from llm_serving.validation.statistics.sample_statistics import CONFIDENCE, Interval

MIN_REQUESTS = 10 * BATCHES
"""Requests of a single run that is compared: fewer take seconds, which are one moment of the machine."""

MARGIN = 0.05
"""Change that matters, as a share of the baseline."""

ERRORS_MARGIN = 0.2
"""Change of failed requests that matters, as a share of the margin: 1 point of 5."""

LOAD_SETTINGS = ("traffic", "driver", "slo", "target", "model", "task")
"""Settings of a report that two comparable loads share."""

COUNT_SETTINGS = {"requests", "time_limit", "warm_up", "seed"}
"""Settings of the traffic that say how long it is sent, and not what."""

COMPARED_SETTINGS = ("pattern", "engine", "tuning", "context", "replicas", "roles", "accelerators", "fleet")
"""Settings of a report that may be what is compared."""

MAX_WAITING = 0.2
"""Share of the time in which the driver waits for a core, above which single runs differ by their machines: of 15 pairs
of equal runs below it 1 differed, of 195 above it 75 (docs/validation.md)."""

Verdict = Literal["better", "worse", "no difference shown"]
NONE: Verdict = "no difference shown"


class Change(NamedTuple):
    """One number of a run beside the baseline's."""

    metric: str
    """The report's name of it, such as `ttft_ms.p95`."""

    baseline: float
    value: float
    low: float
    """Lower bound of the change, as a share of the baseline: 0.1 is 10% more."""

    change: float
    high: float
    verdict: Verdict


class Comparison(NamedTuple):
    """A run beside the baseline."""

    title: str
    verdict: Verdict
    """`worse` if anything is, else `better` if anything is."""

    changes: list[Change]
    notes: list[str]
    """What speaks against comparing the two loads, a sentence each: the doubts first."""

    doubts: list[str]
    """Why the change of failures is all that counts; empty if every change does."""

    other_load: bool
    """Whether other traffic was sent than to the baseline: then what differs may be the load's doing."""

    differences: list[str]
    """What else is not the same, a sentence each: the engine, its settings, replicas, accelerators, versions."""


def compare(baseline: ValidationRun, run: ValidationRun, margin: float = MARGIN) -> Comparison:
    """Compare a run with the baseline; a change counts from `margin` on, a share of the baseline."""
    measures = validation_run.select_measures((baseline, run))
    confidence = 1 - (1 - CONFIDENCE) / (2 * len(measures))
    doubts = list(_find_doubts(baseline, run))
    changes = []
    for name, measure in measures.items():
        change = _build_change(name, measure(baseline, confidence), measure(run, confidence), margin)
        is_of_failures = name == ERRORS or math.isinf(change.value) or math.isinf(change.baseline)
        changes.append(change if is_of_failures or not doubts else change._replace(verdict=NONE))
    verdicts = {change.verdict for change in changes}
    verdict: Verdict = "worse" if "worse" in verdicts else "better" if "better" in verdicts else NONE
    notes = [*doubts, *_list_notes(baseline, run)]
    other_load = any(_get_load(entry) != _get_load(baseline) for entry in (*baseline.repeats, run, *run.repeats))
    return Comparison(run.title, verdict, changes, notes, doubts, other_load, _list_differences(baseline, run))


def _get_load(run: ValidationRun) -> tuple[Any, ...]:
    """Return what was sent to a deployment, however long, and by which driver."""
    settings = run.report["settings"]
    traffic = {key: value for key, value in settings["traffic"].items() if key not in COUNT_SETTINGS}
    return traffic, settings.get("driver"), settings.get("task")


def _find_doubts(baseline: ValidationRun, run: ValidationRun) -> Iterator[str]:
    """Yield why what differs may be the machine's doing: single runs that are short, or while other programs had it."""
    if baseline.repeats and run.repeats:
        return
    for entry in (baseline, run):
        if not entry.repeats and len(entry.samples) < MIN_REQUESTS:
            yield (
                f"{entry.title}: {len(entry.samples)} requests: the moment may be what differs; needs {MIN_REQUESTS}, "
                "or --runs 5 of blueprints"
            )
        if entry.waiting_share > MAX_WAITING:
            yield (
                f"{entry.title}: the load driver waited for a core for {entry.waiting_share:.0%} of the time: the "
                "machine may be what differs; needs an idle machine, or --runs 5 of blueprints"
            )


def _build_change(name: str, before: Interval, after: Interval, margin: float) -> Change:
    """Build the change with its bounds; of shares in points of the whole, of all else relative to the baseline."""
    verdict: Verdict = NONE
    if math.isinf(after.value) or math.isinf(before.value):
        change = math.nan
        if math.isinf(before.value) != math.isinf(after.value):
            verdict, change = ("worse", math.inf) if math.isinf(after.value) else ("better", -math.inf)
        return Change(name, before.value, after.value, change, change, change, verdict)
    scale = 1.0 if name in (ERRORS, GOODPUT) else before.value
    change = after.value - before.value
    low = change - math.hypot(after.value - after.low, before.high - before.value)
    high = change + math.hypot(after.high - after.value, before.value - before.low)
    bounds = [value / scale if scale else value and math.copysign(math.inf, value) for value in (low, change, high)]
    least = margin * ERRORS_MARGIN if name == ERRORS else margin
    rises, falls = bounds[0] > least, bounds[2] < -least
    is_better = rises if name in MORE_IS_BETTER else falls
    verdict = "better" if is_better else "worse" if rises or falls else NONE
    return Change(name, before.value, after.value, bounds[0], bounds[1], bounds[2], verdict)


def _list_notes(baseline: ValidationRun, run: ValidationRun) -> list[str]:
    """Return what speaks against a comparison: settings that differ, and what each report says against its own load."""
    notes = [
        f"{entry.title}: another {text}"
        for entry in (*baseline.repeats, run, *run.repeats)
        for text in _compare_settings(baseline, entry, LOAD_SETTINGS)
    ]
    for entry in (baseline, *baseline.repeats, run, *run.repeats):
        notes += [f"{entry.title}: {reason}" for reason in entry.report.get("not_shown", ())]
    return notes


def _list_differences(baseline: ValidationRun, run: ValidationRun) -> list[str]:
    """Return what was compared: everything but the load that is not the same."""
    differences = list(_compare_settings(baseline, run, COMPARED_SETTINGS))
    for part in ("versions", "images"):
        before, after = baseline.report.get(part, {}), run.report.get(part, {})
        if before != after:
            differences.append(f"{part}: {_describe_difference(before, after)}")
    return differences


def _compare_settings(baseline: ValidationRun, run: ValidationRun, parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        before, after = (entry.report["settings"].get(part) for entry in (baseline, run))
        if before != after:
            yield f"{part}: {_describe_difference(before, after)}"


def _describe_difference(before: Any, after: Any) -> str:
    old, new = (value or {} for value in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict) or not (old or new):
        return " instead of ".join("none" if value is None else format_setting(value) for value in (after, before))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {_describe_difference(old.get(key), new.get(key))}" for key in keys)
