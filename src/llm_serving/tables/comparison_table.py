"""Changes of validations beside the first of them, one row for each number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.validation.pages.comparison_page import format_percent, format_value
from llm_serving.validation.reports.comparison import Comparison

_STYLES = {"better": "green", "worse": "red", "no difference shown": "dim"}
_WORDS = {"no difference shown": "not shown"}
"""Verdicts in a column that is headed `difference`, for terminals of 80 columns."""


def render(comparisons: Sequence[Comparison]) -> RenderableType:
    """Render each run's changes, its notes and its verdict."""
    return Group(*(part for comparison in comparisons for part in _render_parts(comparison)))


def _render_parts(comparison: Comparison) -> Iterator[RenderableType]:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("baseline", "run", "change", "interval"):
        table.add_column(heading, justify="right")
    table.add_column("difference")
    for change in comparison.changes:
        table.add_row(
            change.metric,
            format_value(change.baseline),
            format_value(change.value),
            format_percent(change.change),
            f"{format_percent(change.low)} to {format_percent(change.high)}",
            Text(_WORDS.get(change.verdict, change.verdict), _STYLES[change.verdict]),
        )
    yield table
    yield from comparison.differences
    yield from (Text.assemble(("• ", "yellow"), note) for note in comparison.notes)
    yield Text.assemble((comparison.verdict.upper(), f"bold {_STYLES[comparison.verdict]}"), f" {comparison.title}")
