"""A validation's result in the terminal: each number with its limit, and where the report lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.validation import html_report
from llm_serving.validation.charts import number
from llm_serving.validation.html_report import Cell
from llm_serving.validation.report import Report


def draw(made: Report, kept: Path) -> RenderableType:
    """The report in the folder `kept` as a person reads it."""
    requests, rates = made.requests, made.throughput
    said = (*made.remarks, *_disagreements(made), *made.emulated)
    return Group(
        _latencies(made),
        f"{requests.total} requests, {requests.failed} failed; {number(rates.requests_per_s)} answered and "
        f"{number(rates.output_tokens_per_s)} tokens a second",
        *(Text.assemble(("• ", "yellow"), sentence) for sentence in said),
        Text.assemble(
            (made.verdict.upper(), "bold green" if made.verdict == "pass" else "bold red"),
            f" {console.near(kept / 'report.html')}",
        ),
    )


def _disagreements(made: Report) -> Iterable[str]:
    """Where client and engine differ, a sentence for each metric; the page has every statistic."""
    first: dict[str, str] = {}
    for row in made.agreement:
        if row.said:
            first.setdefault(row.metric, row.said)
    return first.values()


def _latencies(made: Report) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("ms")
    for statistic in html_report.STATISTICS:
        table.add_column(statistic, justify="right")
    for metric, row in html_report.cells(made).items():
        table.add_row(html_report.NAMES[metric], *_cells(row.values()))
    return table


def _cells(row: Iterable[Cell]) -> Iterator[Text]:
    for cell in row:
        value = "-" if cell.value is None else number(cell.value)
        if cell.limit is None:
            yield Text(value)
        else:
            yield Text(f"{value} ≤ {number(cell.limit)}", "green" if cell.holds else "red")
