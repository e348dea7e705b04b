"""report.html: the report as one page that needs nothing but itself, in light and dark and on paper. Pure."""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2
from markupsafe import Markup

from llm_serving.validation import charts, report
from llm_serving.validation.answer import Sample
from llm_serving.validation.engine_metrics import Agreement
from llm_serving.validation.report import Report
from llm_serving.validation.statistics import PERCENTILES, Metric

NAMES: dict[Metric, str] = {
    "ttft_ms": "Time to first token",
    "itl_ms": "Inter-token latency",
    "e2e_ms": "End to end",
}
_RATES = {"requests_per_s": "Answered requests a second", "output_tokens_per_s": "Output tokens a second"}
STATISTICS = (*PERCENTILES, "mean")

BAR_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Lengths that one step of a time line may have, in seconds."""


def render(made: Report, samples: Sequence[Sample]) -> str:
    """The page as HTML text."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"number": charts.number, "size": size, "plain": _plain}
    template = templates.get_template("report.html.j2")
    return template.render(
        report=made,
        started=datetime.datetime.fromisoformat(made.started_at).strftime("%d %B %Y, %H:%M:%S UTC"),
        names=NAMES,
        statistics=STATISTICS,
        cells=cells(made),
        totals=list(_totals(made)),
        pictures=_pictures(made, samples),
        errors=report.error_kinds(made),
        shares=list(_shares(made)),
        agreement=[(NAMES[row.metric], row, _engine_side(row)) for row in made.agreement],
    )


class Cell(NamedTuple):
    """A measured number with its limit, if it has one."""

    value: float | None
    limit: float | None
    holds: bool


def cells(made: Report) -> dict[Metric, dict[str, Cell]]:
    """The table metric by statistic."""
    missed = {miss.metric for miss in made.missed}
    slo = made.settings["slo"]
    return {
        metric: {
            statistic: Cell(
                getattr(made.metrics[metric], statistic),
                slo.get(metric, {}).get(statistic),
                f"{metric}.{statistic}" not in missed,
            )
            for statistic in STATISTICS
        }
        for metric in get_args(Metric)
    }


class Total(NamedTuple):
    """A number of the whole run beside its limit."""

    name: str
    value: str
    limit: str
    holds: bool


def _totals(made: Report) -> Iterator[Total]:
    """Error rate and throughput with their limits."""
    missed = {miss.metric for miss in made.missed}
    slo, requests = made.settings["slo"], made.requests
    share = requests.failed / requests.total if requests.total else 0.0
    most = f"at most {slo['errors'] * 100:g}%"
    yield Total("Failed requests", f"{requests.failed} of {requests.total} ({share:.2%})", most, "errors" not in missed)
    rates = made.throughput
    for key, name in (
        ("requests_per_s", "Answered requests a second"),
        ("output_tokens_per_s", "Output tokens a second"),
    ):
        least = f"at least {slo[key]:g}" if slo.get(key) else ""
        yield Total(name, charts.number(getattr(rates, key)), least, key not in missed)


def _pictures(made: Report, samples: Sequence[Sample]) -> dict[str, Markup]:
    answered = [sample for sample in samples if sample.error is None]
    failed = [sample.start_s for sample in samples if sample.error]
    limits = {
        metric: {statistic: cell.limit for statistic, cell in row.items() if cell.limit is not None}
        for metric, row in cells(made).items()
    }
    drawn: dict[str, str] = {
        metric: charts.distribution(NAMES[metric], found, made.metrics[metric], limits[metric])
        for metric, found in report.latencies(answered).items()
    }
    width = next((bar for bar in BAR_S if made.duration_s / bar <= charts.COLUMNS / 2), BAR_S[-1])
    for metric, points in _points(answered).items():
        drawn[f"{metric}_line"] = charts.dots(f"{NAMES[metric]} over time", points, failed, limits[metric])
    per_s, busy = tokens_by_time(answered, width), under_way(answered, width)
    said = f"Mean over each {width:g} s."
    drawn["tokens_line"] = charts.steps("Output tokens a second", per_s, width, "tokens/s", said)
    drawn["flight_line"] = charts.steps("Requests under way", busy, width, "requests", said)
    return {name: Markup(picture) for name, picture in drawn.items()}


def _points(answered: Sequence[Sample]) -> dict[Metric, list[tuple[float, float]]]:
    """Each answered request's start and latency; of its inter-token latencies the mean."""
    points: dict[Metric, list[tuple[float, float]]] = {metric: [] for metric in get_args(Metric)}
    for sample in answered:
        if sample.ttft_ms is not None:
            points["ttft_ms"].append((sample.start_s, sample.ttft_ms))
        if (mean := sample.mean_gap_ms()) is not None:
            points["itl_ms"].append((sample.start_s, mean))
        if sample.e2e_ms is not None:
            points["e2e_ms"].append((sample.start_s, sample.e2e_ms))
    return points


def tokens_by_time(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Tokens a second in each stretch of `width_s` seconds, by when each token came."""
    counts: dict[int, float] = {}
    for sample in answered:
        if sample.ttft_ms is None:
            continue
        first = sample.start_s + sample.ttft_ms / 1000
        gaps = sum(gap.tokens for gap in sample.gaps)
        # The event with the first token may carry more than one.
        counts[int(first / width_s)] = counts.get(int(first / width_s), 0) + max(1, (sample.output_tokens or 1) - gaps)
        for after, gap in zip(itertools.accumulate(g.ms * g.tokens for g in sample.gaps), sample.gaps, strict=True):
            at = int((first + after / 1000) / width_s)
            counts[at] = counts.get(at, 0) + gap.tokens
    return [counts.get(index, 0) / width_s for index in range(max(counts, default=-1) + 1)]


def under_way(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Requests under way, as the mean over each stretch of `width_s` seconds."""
    busy: dict[int, float] = {}
    for sample in answered:
        start, end = sample.start_s, sample.start_s + (sample.e2e_ms or 0) / 1000
        for index in range(int(start / width_s), math.floor(end / width_s) + 1):
            inside = min(end, (index + 1) * width_s) - max(start, index * width_s)
            busy[index] = busy.get(index, 0) + max(0.0, inside)
    return [busy.get(index, 0) / width_s for index in range(max(busy, default=-1) + 1)]


def _shares(made: Report) -> Iterator[tuple[str, int | None, float]]:
    """Each replica with its requests and their share of all."""
    total = sum(replica.requests or 0 for replica in made.replicas)
    for replica in made.replicas:
        yield replica.name, replica.requests, (replica.requests or 0) / total if total else 0.0


def _engine_side(row: Agreement) -> str:
    """The engine's number, or the bucket in which it lies."""
    if row.engine_ms is not None:
        return charts.number(row.engine_ms)
    if row.engine_to_ms is None:
        return f"above {charts.number(row.engine_from_ms or 0)}"
    return f"{charts.number(row.engine_from_ms or 0)} to {charts.number(row.engine_to_ms)}"


def size(count: float) -> str:
    """Bytes in the unit that a person would write."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _plain(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
