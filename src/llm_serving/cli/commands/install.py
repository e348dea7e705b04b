"""`blueprint install`: the workflow of install.sh."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving.cli.commands.fleet import WithData
from llm_serving.options.arguments import FLEET, TARGET, Fleet, Target, Yes
from llm_serving.settings.errors import InputError, quote_value
from llm_serving.targets import registry
from llm_serving.validation import base
from llm_serving.workflows import aws as aws_workflow
from llm_serving.workflows import quickstart

CDKTF = "cdktf"


def install(
    blueprint: Annotated[
        str | None, typer.Option("--blueprint", metavar="DIR", help="The blueprint to serve: a folder or a pattern.")
    ] = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="On AWS: use the embedded AWS, as without credentials.")
    ] = False,
    with_: Annotated[
        str | None, typer.Option("--with", metavar="TOOL", help="On AWS: apply the stacks with `cdktf`, run by npx.")
    ] = None,
    destroy: Annotated[bool, typer.Option("--destroy", help="On AWS: destroy instances first, then the rest.")] = False,
    with_data: WithData = False,
    yes: Yes = False,
    set_up_seconds: Annotated[float, typer.Option(hidden=True)] = 0.0,
) -> None:
    """Run the whole workflow: fleet, weights, deploy, validate.

    On AWS, shows the plan and the cost per hour, asks for confirmation once, and resumes an interrupted run.
    """
    runs_on_aws = registry.load_target(target).needs_aws and not destroy
    for option, is_set, has_effect, place in (
        ("--with-data", with_data, destroy, "with --destroy"),
        ("--rehearse", rehearse, runs_on_aws, "with --target eks or ecs, without --destroy"),
        ("--with", with_ is not None, runs_on_aws, "with --target eks or ecs, without --destroy"),
    ):
        if is_set and not has_effect:
            raise InputError(f"{option}: it would have no effect. Fix: use it {place}, or remove it.")
    if destroy:
        aws_workflow.undo(fleet, with_data=with_data, yes=yes)
    elif not runs_on_aws:
        _run_quickstart(blueprint, fleet, set_up_seconds)
    elif with_ not in (None, CDKTF):
        raise InputError(f"--with: {quote_value(with_)}: there is no such tool. Fix: use {CDKTF}, or remove --with.")
    else:
        _run_aws(target, fleet, blueprint, rehearse, with_ == CDKTF, yes, set_up_seconds)


def _run_quickstart(blueprint: str | None, fleet: Path, set_up_s: float) -> None:
    folder = aws_workflow.find_folder(blueprint)
    result = quickstart.run(folder, fleet)
    quickstart.print_summary(result, folder, set_up_s)
    base.require_slo(result.report)


def _run_aws(
    target: str, fleet: Path, blueprint: str | None, rehearse: bool, cdktf: bool, yes: bool, set_up_s: float
) -> None:
    request = aws_workflow.read_request(target, fleet, blueprint, cdktf=cdktf)
    result = aws_workflow.run(request, rehearse=rehearse, yes=yes)
    aws_workflow.print_summary(result, request, set_up_s)
    if result.validation_failure:
        raise result.validation_failure
