"""A sweep in the terminal: a row for each load, then the knee and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.validation.pages.html_report import format_optional
from llm_serving.validation.search import sweep
from llm_serving.validation.search.knee import UNITS, Point, Sweep

WORDS = {"pass": ("kept", "green"), "fail": ("missed", "red"), "not shown": ("not shown", "yellow")}
"""What a verdict says of one load, and its style."""

TOKEN_COLUMNS = {"TTFT p95": "ttft_p95_ms", "ITL p95": "itl_p95_ms", "tokens/s": "output_tokens_per_s"}
TEXT_COLUMNS = {"E2E p50": "e2e_p50_ms", "E2E p95": "e2e_p95_ms"}
"""Field of a point by the heading of its column, where answers have tokens and where they have none."""


def render(result: Sweep, folder: Path) -> RenderableType:
    """Render the sweep that was saved in `folder`."""
    return Group(
        _render_points(result),
        *_list_reasons(result),
        *(Text.assemble(("• ", "yellow"), note) for note in result.notes),
        _render_result(result),
        console.shorten_path(folder / sweep.PAGE_FILE),
    )


def _render_points(result: Sweep) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(UNITS[result.axis], justify="right")
    table.add_column("SLO", no_wrap=True)
    has_tokens = any(point.ttft_p95_ms is not None for point in result.points)
    columns = TOKEN_COLUMNS if has_tokens else TEXT_COLUMNS
    for heading in ("answered/s", "goodput", *columns):
        table.add_column(heading, justify="right")
    for point in result.points:
        table.add_row(f"{point.load:g}", Text(*WORDS[point.verdict]), *_format_cells(point, columns.values()))
    return table


def _format_cells(point: Point, fields: Iterable[str]) -> Iterator[str]:
    yield format_optional(point.requests_per_s)
    yield "–" if point.goodput_share is None else f"{point.goodput_share:.0%}"
    for field in fields:
        yield format_optional(getattr(point, field))


def _list_reasons(result: Sweep) -> Iterator[Text]:
    if result.missed and result.kept:
        load = sweep.format_load(result.missed.load, result.axis)
        yield from (Text.assemble((f"{load}: ", "bold"), reason) for reason in result.missed.reasons)


def _render_result(result: Sweep) -> RenderableType:
    if result.kept is None:
        return Text("NO LOAD WAS SHOWN TO KEEP THE SLO", "bold red")
    load = sweep.format_load(result.kept.load, result.axis)
    each = "".join(f", {rate:.3g} requests/s for each {role}" for role, rate in result.per_replica.items())
    cost = result.kept.usd_per_thousand_requests
    price = "" if cost is None else f", {cost:.3f} USD per 1,000 requests"
    return Text.assemble((f"KEPT UP TO {load}", "bold green"), f" over {result.kept.seconds:.0f} s{each}{price}")
