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

METRIC_NAMES: dict[Metric, str] = {
    "ttft_ms": "Time to first token",
    "itl_ms": "Inter-token latency",
    "e2e_ms": "End to end",
}
_RATES = {"requests_per_s": "Answered requests a second", "output_tokens_per_s": "Output tokens a second"}
STATISTICS = (*PERCENTILES, "mean")

STEP_WIDTHS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Lengths that one step of a time line may have, in seconds."""


def render(run_report: Report, samples: Sequence[Sample]) -> str:
    """The page as HTML text."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"number": charts.format_number, "size": format_size, "plain": _format_setting}
    template = templates.get_template("report.html.j2")
    return template.render(
        report=run_report,
        started=datetime.datetime.fromisoformat(run_report.started_at).strftime("%d %B %Y, %H:%M:%S UTC"),
        names=METRIC_NAMES,
        statistics=STATISTICS,
        cells=build_cells(run_report),
        totals=list(_build_totals(run_report)),
        pictures=_render_charts(run_report, samples),
        errors=report.list_error_kinds(run_report),
        shares=list(_compute_shares(run_report)),
        agreement=[(METRIC_NAMES[row.metric], row, _format_engine_value(row)) for row in run_report.agreement],
    )


class Cell(NamedTuple):
    """A measured number with its limit, if it has one."""

    value: float | None
    limit: float | None
    holds: bool


def build_cells(run_report: Report) -> dict[Metric, dict[str, Cell]]:
    """The table metric by statistic."""
    missed = {objective.metric for objective in run_report.missed}
    slo = run_report.settings["slo"]
    return {
        metric: {
            statistic: Cell(
                getattr(run_report.metrics[metric], statistic),
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


def _build_totals(run_report: Report) -> Iterator[Total]:
    """Error rate and throughput with their limits."""
    missed = {objective.metric for objective in run_report.missed}
    slo, requests = run_report.settings["slo"], run_report.requests
    share = requests.failed / requests.total if requests.total else 0.0
    max_errors = f"at most {slo['errors'] * 100:g}%"
    yield Total(
        "Failed requests", f"{requests.failed} of {requests.total} ({share:.2%})", max_errors, "errors" not in missed
    )
    rates = run_report.throughput
    for key, name in (
        ("requests_per_s", "Answered requests a second"),
        ("output_tokens_per_s", "Output tokens a second"),
    ):
        minimum = f"at least {slo[key]:g}" if slo.get(key) else ""
        yield Total(name, charts.format_number(getattr(rates, key)), minimum, key not in missed)


def _render_charts(run_report: Report, samples: Sequence[Sample]) -> dict[str, Markup]:
    answered = [sample for sample in samples if sample.error is None]
    failed = [sample.start_s for sample in samples if sample.error]
    limits = {
        metric: {statistic: cell.limit for statistic, cell in row.items() if cell.limit is not None}
        for metric, row in build_cells(run_report).items()
    }
    svgs: dict[str, str] = {
        metric: charts.render_distribution(METRIC_NAMES[metric], values, run_report.metrics[metric], limits[metric])
        for metric, values in report.collect_latencies(answered).items()
    }
    width = next(
        (step_width for step_width in STEP_WIDTHS_S if run_report.duration_s / step_width <= charts.COLUMNS / 2),
        STEP_WIDTHS_S[-1],
    )
    for metric, points in _collect_points(answered).items():
        svgs[f"{metric}_line"] = charts.render_dots(f"{METRIC_NAMES[metric]} over time", points, failed, limits[metric])
    per_s, in_flight = compute_token_rates(answered, width), compute_in_flight(answered, width)
    caption = f"Mean over each {width:g} s."
    svgs["tokens_line"] = charts.render_steps("Output tokens a second", per_s, width, "tokens/s", caption)
    svgs["flight_line"] = charts.render_steps("Requests under way", in_flight, width, "requests", caption)
    return {name: Markup(svg) for name, svg in svgs.items()}


def _collect_points(answered: Sequence[Sample]) -> dict[Metric, list[tuple[float, float]]]:
    """Each answered request's start and latency; of its inter-token latencies the mean."""
    points: dict[Metric, list[tuple[float, float]]] = {metric: [] for metric in get_args(Metric)}
    for sample in answered:
        if sample.ttft_ms is not None:
            points["ttft_ms"].append((sample.start_s, sample.ttft_ms))
        if (mean := sample.compute_mean_gap_ms()) is not None:
            points["itl_ms"].append((sample.start_s, mean))
        if sample.e2e_ms is not None:
            points["e2e_ms"].append((sample.start_s, sample.e2e_ms))
    return points


def compute_token_rates(answered: Sequence[Sample], width_s: float) -> list[float]:
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
            step = int((first + after / 1000) / width_s)
            counts[step] = counts.get(step, 0) + gap.tokens
    return [counts.get(index, 0) / width_s for index in range(max(counts, default=-1) + 1)]


def compute_in_flight(answered: Sequence[Sample], width_s: float) -> list[float]:
    """Requests under way, as the mean over each stretch of `width_s` seconds."""
    in_flight: dict[int, float] = {}
    for sample in answered:
        start, end = sample.start_s, sample.start_s + (sample.e2e_ms or 0) / 1000
        for index in range(int(start / width_s), math.floor(end / width_s) + 1):
            overlap = min(end, (index + 1) * width_s) - max(start, index * width_s)
            in_flight[index] = in_flight.get(index, 0) + max(0.0, overlap)
    return [in_flight.get(index, 0) / width_s for index in range(max(in_flight, default=-1) + 1)]


def _compute_shares(run_report: Report) -> Iterator[tuple[str, int | None, float]]:
    """Each replica with its requests and their share of all."""
    total = sum(replica.requests or 0 for replica in run_report.replicas)
    for replica in run_report.replicas:
        yield replica.name, replica.requests, (replica.requests or 0) / total if total else 0.0


def _format_engine_value(row: Agreement) -> str:
    """The engine's number, or the bucket in which it lies."""
    if row.engine_ms is not None:
        return charts.format_number(row.engine_ms)
    if row.engine_to_ms is None:
        return f"above {charts.format_number(row.engine_from_ms or 0)}"
    return f"{charts.format_number(row.engine_from_ms or 0)} to {charts.format_number(row.engine_to_ms)}"


def format_size(count: float) -> str:
    """Bytes in the unit that a person would write."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _format_setting(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_setting(inner)}" for key, inner in value.items())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
