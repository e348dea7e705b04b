"""`blueprint sweep`: the highest load that a running deployment keeps its SLO at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console, processes
from llm_serving.options import quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Origin, Target, require_url
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.settings import diagnostics
from llm_serving.settings.errors import InputError, require_choice
from llm_serving.settings.units import Duration
from llm_serving.targets import registry
from llm_serving.validation import base
from llm_serving.validation.pages.html_report import format_optional
from llm_serving.validation.search import sweep as sweeps
from llm_serving.validation.search.knee import UNITS, Axis, Point, Sweep
from llm_serving.validation.search.sweep import Options
from llm_serving.workflows import serving

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", callback=require_url, help="Another endpoint of the deployment, such as a gateway's."),
]
By = Annotated[str | None, typer.Option(metavar="rate|users", help="What to increase; default: as in `traffic`.")]
Lowest = Annotated[
    float | None, typer.Option("--from", min=0, metavar="LOAD", help="Lowest load: requests/s, or users.")
]
Highest = Annotated[float | None, typer.Option("--to", min=0, metavar="LOAD", help="Highest load.")]
Precision = Annotated[
    float,
    typer.Option(min=0.5, max=100, metavar="PERCENT", help="Largest gap between the passing and the failing load."),
]
PointTime = Annotated[str, typer.Option(metavar="TIME", help="Minimum time per load; longer if that is inconclusive.")]
TimeLimit = Annotated[str, typer.Option(metavar="TIME", help="Start no load after this time.")]

POINT_TIME = "60s"
"""In shorter loads a queue has no time to grow: docs/validation.md has by how much they find too much."""

TIME_LIMIT = "1h"


def sweep(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    url: Url = None,
    by: By = None,
    from_: Lowest = None,
    to: Highest = None,
    precision: Precision = 10,
    point_time: PointTime = POINT_TIME,
    time_limit: TimeLimit = TIME_LIMIT,
    origin: Origin = None,
    as_json: AsJson = False,
) -> None:
    """Find the highest load that meets the SLO.

    Sends one load after the other to a running deployment and saves its capacity, which `check` and `deploy` use.
    """
    require_limits(folder, Capability.SWEEP)
    if by is not None:
        require_choice("--by", by, "load", ("rate", "users"))
    options = Options(
        cast(Axis | None, by),
        *_read_bounds(from_, to),
        precision / 100,
        quantities.parse("--point-time", point_time, Duration),
        quantities.parse("--time-limit", time_limit, Duration),
    )
    selected_target = registry.load_target(target)
    with processes.handle_interrupts(), selected_target.open_validation(folder, fleet, url, origin=origin) as opened:
        serving.print_changes(selected_target, folder, fleet)
        load_target = base.load_validator(opened.deployment.kind).build_target(opened.deployment, opened.options.logs)
        result, saved = sweeps.sweep(load_target, options, opened.options)
    if as_json:
        print(result.model_dump_json(indent=2))
    else:
        console.print_result(render(result, saved))
    if result.interrupted:
        raise KeyboardInterrupt
    sweeps.require_kept(result)


def require_limits(folder: Path, capability: Capability) -> None:
    """Check that a blueprint has limits that a load can miss.

    Raises:
        InputError: it has none, or its kind cannot do the command.
    """
    inputs.require_capability(folder, capability)
    document = inputs.read_blueprint(folder)
    if not document.value.slo.limits_load:
        reason = "it has no limit on a latency that a higher load could miss"
        fix = "write ttft_ms: {p95: 800}, for example"
        raise InputError([diagnostics.build_mistake(document.path, document.positions, ("slo",), "", reason, fix)])


def _read_bounds(lowest: float | None, highest: float | None) -> tuple[float | None, float | None]:
    for option, value in (("--from", lowest), ("--to", highest)):
        if value == 0:
            raise InputError(f"{option}: 0: it is not a load. Fix: use a number above 0.")
    if lowest and highest and lowest >= highest:
        raise InputError(f"--from: {lowest:g}: it is not below --to, {highest:g}. Fix: use {highest / 8:g}.")
    return lowest, highest


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
        console.shorten_path(folder / sweeps.PAGE_FILE),
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
        load = sweeps.format_load(result.missed.load, result.axis)
        yield from (Text.assemble((f"{load}: ", "bold"), reason) for reason in result.missed.reasons)


def _render_result(result: Sweep) -> RenderableType:
    if result.kept is None:
        return Text("NO LOAD WAS SHOWN TO KEEP THE SLO", "bold red")
    load = sweeps.format_load(result.kept.load, result.axis)
    each = "".join(f", {rate:.3g} requests/s for each {role}" for role, rate in result.per_replica.items())
    cost = result.kept.usd_per_thousand_requests
    price = "" if cost is None else f", {cost:.3f} USD per 1,000 requests"
    return Text.assemble((f"KEPT UP TO {load}", "bold green"), f" over {result.kept.seconds:.0f} s{each}{price}")
