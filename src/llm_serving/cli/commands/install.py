"""`blueprint install`: the main job of install.sh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving.cli import confirm
from llm_serving.cli.arguments import FLEET, LOCAL, Fleet, Yes
from llm_serving.cli.commands import deploy as deploy_commands
from llm_serving.cli.commands.fleet import WithData

if TYPE_CHECKING:
    from llm_serving.workflows.aws import ServingCommands

CDKTF = "cdktf"


def install(
    blueprint: Annotated[
        str | None,
        typer.Option("--blueprint", metavar="DIR", help="The blueprint to serve: a folder, or a pattern's name."),
    ] = None,
    fleet: Fleet = FLEET,
    target: Annotated[
        str, typer.Option("--target", metavar="TARGET", help="Where to: local, eks or ecs; the latter two on AWS.")
    ] = LOCAL,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="eks, ecs: an embedded AWS stands in, as it does without credentials.")
    ] = False,
    with_: Annotated[
        str | None, typer.Option("--with", metavar="TOOL", help="eks, ecs: `cdktf` applies the stacks by npx.")
    ] = None,
    destroy: Annotated[bool, typer.Option("--destroy", help="Undo eks or ecs: machines first, then the rest.")] = False,
    with_data: WithData = False,
    yes: Yes = False,
    set_up_seconds: Annotated[float, typer.Option(hidden=True)] = 0.0,
) -> None:
    """Serve a blueprint and load-test it: on this machine with an embedded AWS, or on AWS itself.

    For eks and ecs it shows what will be made and what an hour costs, asks once, and goes on where it was broken off.
    """
    from llm_serving.settings.errors import InputError

    if destroy:
        _undo_aws(fleet, with_data, yes)
    elif target == LOCAL:
        _run_quickstart(blueprint, fleet, set_up_seconds)
    elif with_ not in (None, CDKTF):
        raise InputError(f"--with: now {with_!r}: there is no such tool. Fix: {CDKTF}, or leave it out.")
    else:
        _run_aws(target, fleet, blueprint, rehearse, with_ == CDKTF, yes, set_up_seconds)


def _run_quickstart(blueprint: str | None, fleet: Path, set_up_s: float) -> None:
    from llm_serving.validation import run as validation
    from llm_serving.workflows import quickstart as quickstart

    folder = Path(blueprint or "blueprints/aggregated")
    result = quickstart.run(folder, fleet)
    quickstart.print_summary(result, folder, set_up_s)
    validation.require_slo(result.report)


def _run_aws(
    target: str, fleet: Path, blueprint: str | None, rehearse: bool, cdktf: bool, yes: bool, set_up_s: float
) -> None:
    from llm_serving.settings.errors import InputError
    from llm_serving.workflows import aws as aws_workflow

    if target not in aws_workflow.TARGETS:
        raise InputError(f"--target: now {target!r}: there is no such target. Fix: local, eks or ecs.")
    request = aws_workflow.read_request(target, fleet, blueprint, cdktf=cdktf)
    result = aws_workflow.run(
        request,
        _build_serving_commands(),
        lambda prompt: confirm.ask(prompt, yes),
        rehearse=rehearse,
        require_terminal=lambda: confirm.require_terminal(yes),
    )
    aws_workflow.print_summary(result, request, set_up_s)
    if result.validation_failure:
        raise result.validation_failure


def _undo_aws(fleet: Path, with_data: bool, yes: bool) -> None:
    from llm_serving.workflows import aws as aws_workflow

    confirm.require_terminal(yes)
    aws_workflow.undo(fleet, _build_serving_commands(), lambda prompt: confirm.ask(prompt, yes), with_data=with_data)


def _build_serving_commands() -> ServingCommands:
    """The commands themselves, so that the road does what a person would do by hand."""
    from llm_serving.cli.commands import validate
    from llm_serving.workflows.aws import ServingCommands

    return ServingCommands(
        deploy=lambda folder, fleet, target: deploy_commands.deploy(folder, fleet, target, yes=True),
        validate=lambda folder, fleet, target: validate.validate(folder, fleet, target),
        destroy=lambda folder, fleet, target: deploy_commands.destroy(folder, fleet, target, yes=True),
    )
