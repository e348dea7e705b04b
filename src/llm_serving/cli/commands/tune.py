"""`blueprint tune`: configurations of a blueprint, tried one after the other."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving import console, processes
from llm_serving.cli.commands.sweep import POINT_TIME, PointTime, Precision, require_limits
from llm_serving.options import confirm, quantities
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Origin, Target, Yes
from llm_serving.services.kinds import Capability
from llm_serving.settings import overrides
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Duration
from llm_serving.tables import tune_table
from llm_serving.validation.search.sweep import Options
from llm_serving.workflows import tune as tuning_workflow
from llm_serving.workflows.tune import Job, Limits


def tune(
    folder: Folder,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,VALUE", help="Values of a key of blueprint.yaml to try; repeatable."),
    ] = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Start no load after this time.")] = "1h",
    spend_limit: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="USD", help="Start no load after the engines' instances have cost this much."),
    ] = None,
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
        console.print_result(tune_table.render(state, saved))
    tuning_workflow.require_best(state)
