"""A validation's result in the terminal: each number with its limit, and the path of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.validation import html_report
from llm_serving.validation.charts import format_number
from llm_serving.validation.html_report import Cell
from llm_serving.validation.report import Report


def render(report: Report, folder: Path) -> RenderableType:
    """Render the report that was saved in `folder`."""
    requests, rates = report.requests, report.throughput
    remarks = (*report.remarks, *_list_disagreements(report), *report.emulated)
    return Group(
        _render_latencies(report),
        f"{requests.total} requests, {requests.failed} failed; {format_number(rates.requests_per_s)} requests/s, "
        f"{format_number(rates.output_tokens_per_s)} output tokens/s",
        *_list_cache_lines(report),
        *(Text.assemble(("• ", "yellow"), sentence) for sentence in remarks),
        Text.assemble(
            (report.verdict.upper(), "bold green" if report.verdict == "pass" else "bold red"),
            f" {console.shorten_path(folder / 'report.html')}",
        ),
    )


def _list_cache_lines(report: Report) -> Iterable[str]:
    """Return what prompts share and what of it the engines had in their caches: the router's policy at work."""
    overlap = report.shared
    if overlap.prompts and overlap.cached is not None:
        cached = f"{overlap.cached:.0%} of prompt tokens found in engine caches"
        yield f"{overlap.prompts:.0%} of prompt text shared; {cached}"


def _list_disagreements(report: Report) -> Iterable[str]:
    """Return the first difference between client and engine for each metric; the page has all of them."""
    messages: dict[str, str] = {}
    for row in report.agreement:
        if row.said:
            messages.setdefault(row.metric, row.said)
    return messages.values()


def _render_latencies(report: Report) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("ms")
    for statistic in html_report.STATISTICS:
        table.add_column(statistic, justify="right")
    for metric, row in html_report.build_cells(report).items():
        table.add_row(html_report.METRIC_NAMES[metric], *_render_cells(row.values()))
    return table


def _render_cells(row: Iterable[Cell]) -> Iterator[Text]:
    for cell in row:
        value = "-" if cell.value is None else format_number(cell.value)
        if cell.limit is None:
            yield Text(value)
        else:
            yield Text(f"{value} ≤ {format_number(cell.limit)}", "green" if cell.holds else "red")
