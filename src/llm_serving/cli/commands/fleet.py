"""`blueprint fleet synth`, `plan`, `apply` and `destroy`: the fleet file in, stacks out, and stacks to AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli import confirm
from llm_serving.cli.arguments import FLEET, OUT, AsJson, Fleet, Out, Yes

if TYPE_CHECKING:
    from llm_serving.fleet import model as fleets
    from llm_serving.operations.context import FleetContext
    from llm_serving.operations.plans import StackPlan
    from llm_serving.settings.document import Document

Stacks = Annotated[list[str] | None, typer.Argument(metavar="[STACK]...", help="Stacks; all by default.")]
WithData = Annotated[
    bool, typer.Option("--with-data", help="Delete what buckets and registries hold, old versions too.")
]


def synth(
    fleet: Fleet = FLEET,
    out: Out = OUT,
    as_json: AsJson = False,
) -> None:
    """Synthesize the fleet's stacks, and what is rendered for ECS; terraform and cdktf take them as they are."""
    from llm_serving.terraform import synthesis
    from llm_serving.workloads import inputs

    document = inputs.read_fleet(fleet)
    with console.step(f"Synthesize the stacks of {console.shorten_path(fleet)}"):
        folders = synthesis.synthesize(document, out, deployments=None)
    if as_json:
        print(json.dumps({name: str(folder) for name, folder in folders.items()}, indent=2))
        return
    for name, folder in folders.items():
        console.out.print(f"[bold]{name}[/bold]: {console.shorten_path(folder / 'cdk.tf.json')}")
    console.out.print(f"next: blueprint fleet plan --fleet {console.shorten_path(fleet)}", markup=False)


def plan(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, as_json: AsJson = False) -> None:
    """Have Terraform plan the stacks, and show what it would do and what an hour costs; changes nothing.

    Without AWS credentials the plan is one for an embedded AWS with nothing in it.
    """
    from llm_serving.catalog import instances
    from llm_serving.operations import apply
    from llm_serving.tables import fleet_plan_table

    with _lock_fleet(fleet) as document:
        fleet_context, stack_plans = _plan_stacks(document, out, stacks)
        apply.delete_plans(fleet_context)
        if as_json:
            print(json.dumps(fleet_plan_table.build_payload(fleet_context, stack_plans, instances.load()), indent=2))
        else:
            console.out.print(fleet_plan_table.render(fleet_context, stack_plans, instances.load()), soft_wrap=False)


def apply(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False) -> None:
    """Have Terraform make the stacks, in order; shows the plan and its cost, and asks once."""
    from llm_serving import processes
    from llm_serving.catalog import instances
    from llm_serving.operations import apply
    from llm_serving.tables import fleet_plan_table

    confirm.require_terminal(yes)
    with processes.handle_interrupts(), _lock_fleet(fleet, rehearse=False) as document:
        fleet_context, stack_plans = _plan_stacks(document, out, stacks)
        console.out.print(fleet_plan_table.render(fleet_context, stack_plans, instances.load()), soft_wrap=False)
        if all(stack_plan.is_empty for stack_plan in stack_plans):
            return
        confirm.ask("Apply this?", yes)
        apply.ensure_state_bucket(fleet_context)
        apply.apply(fleet_context, stack_plans)


def destroy(fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False, with_data: WithData = False) -> None:
    """Take the fleet away: machines first, then the rest in reverse; shows what goes, and asks once."""
    from llm_serving import processes
    from llm_serving.operations import context, destroy
    from llm_serving.tables import fleet_plan_table

    confirm.require_terminal(yes)
    with processes.handle_interrupts(), _lock_fleet(fleet, rehearse=False) as document:
        destroy_plan = destroy.plan_destroy(context.prepare(document, out=out), with_data=with_data)
        console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
        destroy.require_no_dependents(destroy_plan)
        if not destroy_plan.stacks:
            return
        confirm.ask("Destroy this?", yes)
        destroy.destroy(destroy_plan)
        console.out.print(fleet_plan_table.render_destroy_summary(destroy_plan), soft_wrap=False)


@contextmanager
def _lock_fleet(fleet: Path, *, rehearse: bool = True) -> Iterator[Document[fleets.Fleet]]:
    """The fleet, held by this command alone, with an embedded AWS of its own where there are no credentials."""
    from llm_serving.operations import context
    from llm_serving.workloads import inputs

    document = inputs.read_fleet(fleet)
    with (
        context.lock_fleet(document.value),
        context.use_aws_or_emulator(document, rehearse=None if rehearse else False),
    ):
        yield document


def _plan_stacks(
    document: Document[fleets.Fleet], out: Path, stacks: list[str] | None
) -> tuple[FleetContext, list[StackPlan]]:
    from llm_serving.operations import context, plans

    fleet_context = context.prepare(document, out=out, requested=stacks or ())
    return fleet_context, plans.create(fleet_context, stacks or None)
