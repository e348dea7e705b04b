"""report.html: the report as one self-contained page, in light and dark and for print. No input or output."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2
from markupsafe import Markup

from llm_serving.validation import charts, report, time_series
from llm_serving.validation.answer import Sample
from llm_serving.validation.engine_metrics import Agreement
from llm_serving.validation.report import Report
from llm_serving.validation.statistics import PERCENTILES, Metric

METRIC_NAMES: dict[Metric, str] = {
    "ttft_ms": "Time to first token",
    "itl_ms": "Inter-token latency",
    "e2e_ms": "End-to-end latency",
}
STATISTICS = (*PERCENTILES, "mean")


def render(run_report: Report, samples: Sequence[Sample]) -> str:
    """Return the page as HTML."""
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
    """A measured number and its limit, if any."""

    value: float | None
    limit: float | None
    holds: bool


def build_cells(run_report: Report) -> dict[Metric, dict[str, Cell]]:
    """Return the table of metrics by statistic."""
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
    """A number of the whole run and its limit."""

    name: str
    value: str
    limit: str
    holds: bool


def _build_totals(run_report: Report) -> Iterator[Total]:
    """Yield error rate and throughput with their limits."""
    missed = {objective.metric for objective in run_report.missed}
    slo, requests = run_report.settings["slo"], run_report.requests
    share = requests.failed / requests.total if requests.total else 0.0
    max_errors = f"at most {slo['errors'] * 100:g}%"
    yield Total(
        "Failed requests", f"{requests.failed} of {requests.total} ({share:.2%})", max_errors, "errors" not in missed
    )
    rates = run_report.throughput
    for key, name in (
        ("requests_per_s", "Requests/s"),
        ("output_tokens_per_s", "Output tokens/s"),
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
    for metric, points in time_series.collect_points(answered).items():
        svgs[f"{metric}_line"] = charts.render_dots(f"{METRIC_NAMES[metric]} over time", points, failed, limits[metric])
    width = time_series.choose_width(run_report.duration_s, charts.COLUMNS / 2)
    rates = time_series.compute_token_rates(answered, width)
    in_flight = time_series.compute_in_flight(answered, width)
    caption = f"Mean over each {width:g} s."
    svgs["tokens_line"] = charts.render_steps("Output tokens/s", rates, width, "tokens/s", caption)
    svgs["flight_line"] = charts.render_steps("Requests in flight", in_flight, width, "requests", caption)
    return {name: Markup(svg) for name, svg in svgs.items()}


def _compute_shares(run_report: Report) -> Iterator[tuple[str, int | None, float]]:
    """Yield each replica with its requests and their share of the total."""
    total = sum(replica.requests or 0 for replica in run_report.replicas)
    for replica in run_report.replicas:
        yield replica.name, replica.requests, (replica.requests or 0) / total if total else 0.0


def _format_engine_value(row: Agreement) -> str:
    """Format the engine's number, or its bucket."""
    if row.engine_ms is not None:
        return charts.format_number(row.engine_ms)
    if row.engine_to_ms is None:
        return f"above {charts.format_number(row.engine_from_ms or 0)}"
    return f"{charts.format_number(row.engine_from_ms or 0)} to {charts.format_number(row.engine_to_ms)}"


def format_size(count: float) -> str:
    """Format bytes in their largest unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _format_setting(value: Any) -> str:
    """Format a setting as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_setting(inner)}" for key, inner in value.items())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
