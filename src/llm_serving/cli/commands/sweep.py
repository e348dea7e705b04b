"""`blueprint sweep`: the highest load that a running deployment keeps its SLO at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from llm_serving import console, processes
from llm_serving.options import quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Origin, Target, require_url
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.settings import diagnostics
from llm_serving.settings.errors import InputError, require_choice
from llm_serving.settings.units import Duration
from llm_serving.tables import sweep_table
from llm_serving.targets import registry
from llm_serving.validation import base
from llm_serving.validation.search import sweep as sweeps
from llm_serving.validation.search.knee import Axis
from llm_serving.validation.search.sweep import Options

Precision = Annotated[
    float,
    typer.Option(min=0.5, max=100, metavar="PERCENT", help="Largest gap between the passing and the failing load."),
]

PointTime = Annotated[str, typer.Option(metavar="TIME", help="Minimum time per load; longer if that is inconclusive.")]
POINT_TIME = "60s"
"""In shorter loads a queue has no time to grow: docs/validation.md has by how much they find too much."""


def sweep(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", callback=require_url, help="Another endpoint of the deployment, such as a gateway's."
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="rate|users", help="What to increase; default: as in `traffic`.")
    ] = None,
    from_: Annotated[
        float | None, typer.Option("--from", min=0, metavar="LOAD", help="Lowest load: requests/s, or users.")
    ] = None,
    to: Annotated[float | None, typer.Option("--to", min=0, metavar="LOAD", help="Highest load.")] = None,
    precision: Precision = 10,
    point_time: PointTime = POINT_TIME,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Start no load after this time.")] = "1h",
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
        load_target = base.load_validator(opened.deployment.kind).build_target(opened.deployment, opened.options.logs)
        result, saved = sweeps.sweep(load_target, options, opened.options)
    if as_json:
        print(result.model_dump_json(indent=2))
    else:
        console.print_result(sweep_table.render(result, saved))
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
