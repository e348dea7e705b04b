"""report.html: the report as one self-contained page, in light and dark and for print. No input or output."""

from __future__ import annotations

import datetime
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
from markupsafe import Markup

from llm_serving.services import tasks
from llm_serving.settings.units import format_bytes
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.pages import charts
from llm_serving.validation.reports import report, report_builder
from llm_serving.validation.reports.report import Report, Throughput, compute_judged_rates
from llm_serving.validation.statistics import further_latencies, time_series
from llm_serving.validation.statistics.engine_metrics import Agreement
from llm_serving.validation.statistics.sample_statistics import PERCENTILES, Metric
from llm_serving.validation.statistics.time_series import Steady
from llm_serving.validation.statistics.unlike_workers import EngineLatency

METRIC_NAMES: dict[Metric, str] = {
    "ttft_ms": "Time to first token",
    "itl_ms": "Inter-token latency",
    "e2e_ms": "End-to-end latency",
}
STATISTICS = (*PERCENTILES, "mean")


def render_page(
    name: str, folder: Path | None = None, *, filters: Mapping[str, Any] | None = None, **values: Any
) -> str:
    """Return a page from its template in `folder`, or in this package; `page.html.j2` is the base of all."""
    return _open_templates(folder, tuple((filters or {}).items())).get_template(name).render(**values)


@functools.cache  # compiling a template takes longer than rendering it, and `tune` renders its page at every load
def _open_templates(folder: Path | None, filters: tuple[tuple[str, Any], ...]) -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([folder] if folder else []), Path(__file__).parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"number": format_optional, "time": _format_time, **dict(filters)}
    return templates


def format_optional(value: float | None) -> str:
    """Format a number that may be missing."""
    return "–" if value is None else charts.format_number(value)


def _format_time(iso_time: str) -> str:
    return datetime.datetime.fromisoformat(iso_time).strftime("%d %B %Y, %H:%M:%S UTC")


def render(run_report: Report, samples: Sequence[Sample]) -> str:
    counted = sum(replica.requests or 0 for replica in run_report.replicas) or 1
    return render_page(
        "report.html.j2",
        filters={"size": format_bytes, "bucket": format_bucket, "plain": format_setting},
        report=run_report,
        infinity=math.inf,
        names={metric: METRIC_NAMES[metric] for metric in run_report.metrics},
        statistics=STATISTICS,
        cells=build_cells(run_report),
        by_model=build_model_table(run_report),
        totals=list(_build_totals(run_report)),
        pictures=_render_charts(run_report, samples),
        drawn=[
            (sample.prompt, sample.picture)
            for sample in sorted(samples, key=lambda sample: sample.number)
            if sample.picture
        ],
        further=[
            (text, run_report.further[name])
            for name, text in further_latencies.DEFINITIONS.items()
            if not is_pooled(run_report)  # all of them are of tokens
        ],
        throughput=_describe_throughput(run_report),
        errors=[(kind, count, report.describe_error(kind)) for kind, count in run_report.requests.by_error.items()],
        shares=[(replica.name, replica.requests, (replica.requests or 0) / counted) for replica in run_report.replicas],
        agreement=[(METRIC_NAMES[row.metric], row, _format_engine_value(row)) for row in run_report.agreement],
    )


State = Literal["met", "missed", "not shown"]
"""What a load shows of a limit."""


class Cell(NamedTuple):
    """A statistic, and what holds of its limit, if it has one."""

    value: float | None
    """Of answered requests; with a limit of all, unless failures make that infinite."""

    limit: float | None
    state: State
    upper: float | None
    """Upper bound over all requests; None where there is none, and infinite where failed requests make it so."""


def _build_cell(run_report: Report, metric: Metric, statistic: str, limit: float | None) -> Cell:
    bound = run_report.bounds[metric][statistic]
    upper = math.inf if bound.infinite else bound.upper
    missed = any(objective.metric == f"{metric}.{statistic}" for objective in run_report.missed)
    shown = limit is None or (upper is not None and upper <= limit)
    state: State = "missed" if missed else "met" if shown else "not shown"
    value = getattr(run_report.metrics[metric], statistic)
    if limit is not None and bound.value is not None:
        value = bound.value  # what the limit is held against
    return Cell(value, limit, state, upper)


def build_cells(run_report: Report) -> dict[Metric, dict[str, Cell]]:
    slo = run_report.settings["slo"]
    return {
        metric: {
            statistic: _build_cell(run_report, metric, statistic, slo.get(metric, {}).get(statistic))
            for statistic in STATISTICS
        }
        for metric in run_report.metrics
    }


def is_pooled(run_report: Report) -> bool:
    """Return whether answers are for whole texts, without tokens."""
    return run_report.throughput.inputs_per_s is not None


def name_counted(run_report: Report) -> str:
    """Return what throughput counts where answers have no tokens: texts, or pictures."""
    return tasks.POOLED[run_report.settings["task"]].counted if "task" in run_report.settings else "texts"


def _describe_throughput(run_report: Report) -> tuple[str, float]:
    name = f"{name_counted(run_report).capitalize()}/s" if is_pooled(run_report) else "Output tokens/s"
    return name, _get_rate(run_report.throughput)


def _get_rate(throughput: Throughput) -> float:
    return throughput.output_tokens_per_s if throughput.inputs_per_s is None else throughput.inputs_per_s


_MODEL_COLUMNS: tuple[tuple[str, Metric, str], ...] = (
    ("TTFT p50", "ttft_ms", "p50"),
    ("TTFT p95", "ttft_ms", "p95"),
    ("End-to-end p95", "e2e_ms", "p95"),
)


class ModelTable(NamedTuple):
    """The load by model, as texts."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    """None where the load asked one model."""


def build_model_table(run_report: Report) -> ModelTable:
    columns = [column for column in _MODEL_COLUMNS if column[1] in run_report.metrics]
    rows = [
        (
            load.model,
            f"{load.requests:,}",
            f"{load.failed:,}",
            *(format_optional(getattr(load.metrics[metric], statistic)) for _, metric, statistic in columns),
            charts.format_number(_get_rate(load.throughput)),
        )
        for load in run_report.by_model
    ]
    latencies = (f"{head} ms" for head, *_ in columns)
    return ModelTable(["Model", "Requests", "Failed", *latencies, _describe_throughput(run_report)[0]], rows)


class Total(NamedTuple):
    """A number of the whole run and its limit."""

    name: str
    value: str
    limit: str
    state: State


def _build_totals(run_report: Report) -> Iterator[Total]:
    """Yield error rate, goodput, stall and throughput with their limits."""
    slo, requests = run_report.settings["slo"], run_report.requests
    expected, goodput = run_report.expected, run_report.goodput
    number, missed = charts.format_number, {objective.metric for objective in run_report.missed}

    def build_total(name: str, value: str, limit: str = "", key: str = "", *, is_shown: bool = True) -> Total:
        is_met = is_shown and key not in run_report.not_measured
        return Total(name, value, limit, "missed" if key in missed else "met" if is_met else "not shown")

    limit, bounds = slo["errors"], run_report.share_bounds.get("errors")
    share = requests.failed / requests.total if requests.total else 0.0
    value, is_shown = f"{requests.failed} of {requests.total} ({share:.2%})", True
    if bounds:
        value, is_shown = f"{value}, at most {bounds.upper:.2%}", not limit or bounds.upper <= limit
    limit_text = f"limit {limit * 100:g}%" + ("" if limit else " of this load")
    yield build_total("Failed requests", value, limit_text, "errors", is_shown=is_shown)
    if goodput.share is not None:
        limit, lower = slo.get("goodput"), run_report.share_bounds["goodput"].lower
        bound = f", at least {lower:.2%}" if limit else ""
        value = f"{goodput.share:.2%}{bound}; {number(goodput.requests_per_s)} requests/s"
        minimum, is_shown = f"minimum {limit * 100:g}%" if limit else "", not limit or lower >= limit
        yield build_total("Goodput: every limit met at once", value, minimum, "goodput", is_shown=is_shown)
    if expected and expected.score is not None:
        minimum = f"minimum {slo['score'] * 100:g}%" if slo.get("score") else ""
        yield build_total(f"Mean score of answers ({expected.score_by})", f"{expected.score:.2%}", minimum, "score")
    if requests.total:
        most = f"limit {slo['stall']:g} s" if slo.get("stall") else ""
        yield build_total("Longest stall", f"{number(run_report.longest_stall_s)} s", most, "stall")
    yield from _build_rates(run_report, build_total)
    if steady := run_report.steady:
        yield build_total("Without ramp and drain", describe_steady(run_report, steady))


def describe_steady(run_report: Report, steady: Steady) -> str:
    """Describe the rates without ramp and drain, and of which time they are."""
    number = charts.format_number
    answered = f"{number(steady.requests_per_s)} of {number(steady.offered_per_s)} offered requests/s"
    tokens = "" if is_pooled(run_report) else f", {number(steady.output_tokens_per_s)} tokens/s"
    return f"{answered}{tokens}, from {number(steady.from_s)} s to {number(steady.to_s)} s"


def _build_rates(run_report: Report, build_total: Callable[..., Total]) -> Iterator[Total]:
    slo, users = run_report.settings["slo"], run_report.settings["traffic"].get("users")
    rates = compute_judged_rates(run_report.throughput, run_report.steady, users)
    counted = "inputs_per_s" if is_pooled(run_report) else "output_tokens_per_s"
    for key, name in (("requests_per_s", "Requests/s"), (counted, _describe_throughput(run_report)[0])):
        limit, value = slo.get(key) or 0, charts.format_number(getattr(run_report.throughput, key))
        if limit and users and run_report.steady:
            value += f", {charts.format_number(rates[key])} without ramp and drain"
        yield build_total(name, value, f"minimum {limit:g}" if limit else "", key, is_shown=rates[key] >= limit)


def _render_charts(run_report: Report, samples: Sequence[Sample]) -> dict[str, Markup]:
    answered = [sample for sample in samples if sample.error is None]
    failed = [sample.start_s for sample in samples if sample.error]
    limits = {
        metric: {statistic: cell.limit for statistic, cell in row.items() if cell.limit is not None}
        for metric, row in build_cells(run_report).items()
    }
    svgs: dict[str, str] = {
        metric: charts.render_distribution(METRIC_NAMES[metric], values, run_report.metrics[metric], limits[metric])
        for metric, values in report_builder.collect_latencies(answered).items()
        if metric in limits
    }
    for metric, points in time_series.collect_points(answered).items():
        if metric not in limits:
            continue
        svgs[f"{metric}_line"] = charts.render_dots(f"{METRIC_NAMES[metric]} over time", points, failed, limits[metric])
    width = time_series.choose_width(run_report.duration_s, charts.COLUMNS / 2)
    compute_rates = time_series.compute_input_rates if is_pooled(run_report) else time_series.compute_token_rates
    (title, _), rates = _describe_throughput(run_report), compute_rates(answered, width)
    in_flight = time_series.compute_in_flight(samples, width)
    caption = f"Mean over each {width:g} s."
    svgs["tokens_line"] = charts.render_steps(title, rates, width, title.split()[-1].lower(), caption)
    svgs["flight_line"] = charts.render_steps("Requests in flight", in_flight, width, "requests", caption)
    return {name: Markup(svg) for name, svg in svgs.items()}


def _format_engine_value(row: Agreement) -> str:
    if row.engine_ms is not None:
        return charts.format_number(row.engine_ms)
    return _format_range(row.engine_from_ms or 0, row.engine_to_ms, "above")


def format_bucket(latency: EngineLatency) -> str:
    """Format the bucket of a percentile, or a mean."""
    if latency.to_ms == latency.from_ms:
        return charts.format_number(latency.from_ms)
    return _format_range(latency.from_ms, latency.to_ms, "over")


def _format_range(low: float, high: float | None, beyond: str) -> str:
    shown = charts.format_number(low)
    return f"{beyond} {shown}" if high is None else f"{shown} to {charts.format_number(high)}"


def format_setting(value: Any) -> str:
    """Format a setting of a report; what is nested comes after its keys."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_setting(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_setting, value))
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
