"""`blueprint fleet`: show, synthesize, plan, apply, upgrade and destroy the stacks of a fleet file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli.commands.fleet_show import show
from llm_serving.cli.commands.fleet_upgrade import show_upgrade
from llm_serving.cli.commands.network_test import test_network
from llm_serving.fleet import model
from llm_serving.operations import apply as stack_apply
from llm_serving.operations import context, plans
from llm_serving.operations import destroy as stack_destroy
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.options import confirm
from llm_serving.options.arguments import FLEET, OUT, AsJson, Fleet, Out, Yes
from llm_serving.services import inputs
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed
from llm_serving.tables import fleet_plan_table
from llm_serving.terraform import synthesis

app = typer.Typer(help="Show, plan, apply, upgrade and destroy the fleet.", no_args_is_help=True)
app.command()(show)
app.command()(test_network)
app.command("upgrade")(show_upgrade)

Stacks = Annotated[list[str] | None, typer.Argument(metavar="STACK", help="Stacks; all if left out.")]
WithData = Annotated[
    bool, typer.Option("--with-data", help="Also delete the contents of buckets and registries, with old versions.")
]


@app.command()
def synth(fleet: Fleet = FLEET, out: Out = OUT, as_json: AsJson = False) -> None:
    """Synthesize the stacks.

    Includes the deployments rendered for ECS. `terraform` and `cdktf` can use the output directly.
    """
    document = inputs.read_fleet(fleet)
    with console.step(f"Synthesize the stacks of {console.shorten_path(fleet)}"):
        folders = synthesis.synthesize(document, out, deployments=None)
    if as_json:
        console.print_json({name: str(folder) for name, folder in folders.items()})
        return
    for name, folder in folders.items():
        console.out.print(f"[bold]{name}[/bold]: {escape(console.shorten_path(folder / 'cdk.tf.json'))}")
    console.out.print(f"Next: blueprint fleet plan --fleet {console.shorten_path(fleet)}", markup=False)


@app.command()
def plan(
    stacks: Stacks = None,
    fleet: Fleet = FLEET,
    out: Out = OUT,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if there are changes.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Keep each stack's plan file, for `terraform apply`. It may hold secrets.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what `apply` would change, and the cost per hour.

    Without AWS credentials, plans against an empty embedded AWS; refuses where the fleet names its account or a bucket
    of its state. Run with --exit-code on a schedule, it finds drift.
    """
    with _lock_fleet(fleet) as (document, aws):
        fleet_context, stack_plans = _plan_stacks(document, aws, out, stacks)
        if not save:
            stack_apply.delete_plans(fleet_context)
        if as_json:
            console.print_json(fleet_plan_table.build_payload(fleet_context, stack_plans))
        else:
            _print_plan(fleet_context, stack_plans)
    if exit_code and (changed_stacks := [stack_plan.name for stack_plan in stack_plans if not stack_plan.is_empty]):
        raise CheckFailed(
            f"{console.shorten_path(fleet)}: {', '.join(changed_stacks)}: the account differs from the file"
        )


@app.command()
def apply(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False) -> None:
    """Create or update the stacks, in order.

    Shows the plan and its cost, and asks for confirmation once.
    """
    confirm.require_terminal(yes)
    with processes.handle_interrupts(), _lock_fleet(fleet, rehearse=False) as (document, aws):
        fleet_context, stack_plans = _plan_stacks(document, aws, out, stacks)
        with stack_apply.use_plans(fleet_context):
            _print_plan(fleet_context, stack_plans)
            if all(stack_plan.is_empty for stack_plan in stack_plans):
                return
            confirm.ask("Apply this?", yes)
            stack_apply.ensure_state_bucket(fleet_context)
            stack_apply.apply(fleet_context, stack_plans)


@app.command()
def destroy(fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False, with_data: WithData = False) -> None:
    """Destroy the fleet: instances first, then the stacks in reverse order.

    Shows what will be destroyed, and asks for confirmation once.
    """
    confirm.require_terminal(yes)
    with processes.handle_interrupts(), _lock_fleet(fleet, rehearse=False) as (document, aws):
        destroy_plan = stack_destroy.plan_destroy(context.prepare(document, aws, out=out), with_data=with_data)
        console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
        stack_destroy.require_no_dependents(destroy_plan)
        if destroy_plan.is_empty:
            return
        confirm.ask("Destroy this?", yes)
        stack_destroy.destroy(destroy_plan)
        console.out.print(fleet_plan_table.render_destroy_summary(destroy_plan), soft_wrap=False)


@contextmanager
def _lock_fleet(fleet: Path, *, rehearse: bool = True) -> Iterator[tuple[Document[model.Fleet], AwsSession]]:
    """Lock the fleet for this command; without credentials, start an embedded AWS if `rehearse` allows it."""
    document = inputs.read_fleet(fleet)
    with (
        context.lock_fleet(document.value),
        context.use_aws_or_emulator(document, rehearse=None if rehearse else False) as aws,
    ):
        yield document, aws


def _plan_stacks(
    document: Document[model.Fleet], aws: AwsSession, out: Path, stacks: list[str] | None
) -> tuple[FleetContext, list[StackPlan]]:
    fleet_context = context.prepare(document, aws, out=out, requested=stacks or ())
    return fleet_context, plans.create(fleet_context, stacks or None)


def _print_plan(fleet_context: FleetContext, stack_plans: list[StackPlan]) -> None:
    console.out.print(fleet_plan_table.render(fleet_context, stack_plans), soft_wrap=False)
    for name in context.find_orphan_clusters(fleet_context):
        console.out.print(
            f"left  {name}: the file has this orchestrator no more, and its cluster goes on to cost. `blueprint fleet "
            "destroy` destroys it with the fleet, once the file has it again; docs/terraform.md says how it goes alone",
            style="yellow",
            markup=False,
        )
