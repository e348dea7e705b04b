"""`blueprint tune`: configurations of a blueprint, tried one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console, processes
from llm_serving.cli.commands.sweep import POINT_TIME, TIME_LIMIT, PointTime, Precision, TimeLimit, require_limits
from llm_serving.options import confirm, quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Origin, Target, Yes
from llm_serving.services.kinds import Capability
from llm_serving.settings import overrides
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Duration
from llm_serving.validation.pages.html_report import format_optional
from llm_serving.validation.search import racing, sweep
from llm_serving.validation.search.knee import UNITS
from llm_serving.validation.search.racing import Trial, Tuning
from llm_serving.validation.search.sweep import Options
from llm_serving.workflows import tune as tuning_workflow
from llm_serving.workflows.tune import Job, Limits

Over = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE,VALUE", help="Values of a key of blueprint.yaml to try; repeatable."),
]
SpendLimit = Annotated[
    float | None,
    typer.Option(min=0.01, metavar="USD", help="Start no load after the engines' instances have cost this much."),
]


def tune(
    folder: Folder,
    over: Over = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    time_limit: TimeLimit = TIME_LIMIT,
    spend_limit: SpendLimit = None,
    precision: Precision = 10,
    point_time: PointTime = POINT_TIME,
    origin: Origin = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Try configurations and show the best one.

    Deploys each combination as NAME-tune and drops those that cannot win early. After an interruption, run it again.
    """
    if not over:
        raise InputError("--over: there is nothing to try. Fix: use --over tuning.batch_tokens=2k,8k.")
    require_limits(folder, Capability.TUNE)
    options = Options(precision=precision / 100, point_s=quantities.parse("--point-time", point_time, Duration))
    limits = Limits(quantities.parse("--time-limit", time_limit, Duration), spend_limit)
    job = Job(folder, fleet, target, [overrides.parse("--over", text) for text in over], options, limits, origin)

    def ask(description: str) -> None:
        console.err.print(description, markup=False)
        confirm.ask("Try these?", yes)

    with processes.handle_interrupts():
        state, saved = tuning_workflow.tune(job, ask)
    if as_json:
        print(state.model_dump_json(indent=2))
    else:
        console.print_result(render(state, saved))
    tuning_workflow.require_best(state)


_STYLES = {
    "kept": "green",
    "dropped": "dim",
    "not shown": "yellow",
    "refused": "yellow",
    "failed": "red",
    "kept nothing": "red",
}


def render(state: Tuning, folder: Path) -> RenderableType:
    """Render the result that was saved in `folder`."""
    return Group(
        _render_trials(state),
        *(Text.assemble((f"{trial.number}: ", "bold"), trial.why) for trial in state.trials if trial.why),
        *([Text.assemble(("• ", "yellow"), f"{state.stopped}; the same command goes on")] if state.stopped else []),
        *(Text.assemble(("• ", "yellow"), note) for note in state.notes),
        *_list_result(state, folder),
        console.shorten_path(folder / racing.PAGE_FILE),
    )


def _render_trials(state: Tuning) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("#", justify="right")
    for key in state.trials[0].settings:
        table.add_column(key.rpartition(".")[2], overflow="fold")
    priced = any(trial.usd_h is not None for trial in state.trials)
    for heading in (UNITS[state.axis], *(("USD/h", "USD per 1,000 requests") if priced else ()), "TTFT p95", "ITL p95"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("", no_wrap=True)
    for trial in state.trials:
        is_best = trial.number == state.best
        word = Text("best", "bold green") if is_best else Text(trial.state, _STYLES.get(trial.state, ""))
        table.add_row(str(trial.number), *trial.settings.values(), *_format_cells(trial, priced), word)
    return table


def _format_cells(trial: Trial, priced: bool) -> Iterator[str]:
    point = trial.kept
    yield f"{point.load:g}" if point else "–"
    if priced:
        yield format_optional(trial.usd_h)
        yield format_optional(point.usd_per_thousand_requests if point else None)
    yield format_optional(point.ttft_p95_ms if point else None)
    yield format_optional(point.itl_p95_ms if point else None)


def _list_result(state: Tuning, folder: Path) -> Iterator[RenderableType]:
    best = next((trial for trial in state.trials if trial.number == state.best), None)
    if best is None or best.kept is None:
        yield Text("NO CONFIGURATION WAS SHOWN TO KEEP THE SLO", "bold red")
        return
    load = f"{sweep.format_load(best.kept.load, state.axis)} over {best.kept.seconds:.0f} s"
    cost = best.kept.usd_per_thousand_requests
    price = "" if cost is None else f", {cost:.3f} USD per 1,000 requests"
    yield Text.assemble((f"BEST {best.title}", "bold green"), f" keeps {load}{price}")
    yield f"Its blueprint.yaml: {console.shorten_path(folder / racing.BEST_FILE)}"
