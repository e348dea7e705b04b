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
    from llm_serving.operations.context import Site
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
    from llm_serving.workloads import inputs

    document = inputs.read_fleet(fleet)
    with console.step(f"Synthesize the stacks of {console.near(fleet)}"):
        from infra import main  # starts Node: only for a file that could be read

        folders = main.synthesize(document, out, main.rendered(document.value, Path()))
    if as_json:
        print(json.dumps({name: str(folder) for name, folder in folders.items()}, indent=2))
        return
    for name, folder in folders.items():
        console.out.print(f"[bold]{name}[/bold]: {console.near(folder / 'cdk.tf.json')}")
    console.out.print(f"next: blueprint fleet plan --fleet {console.near(fleet)}", markup=False)


def plan(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, as_json: AsJson = False) -> None:
    """Have Terraform plan the stacks, and show what it would do and what an hour costs; changes nothing.

    Without AWS credentials the plan is one for an embedded AWS with nothing in it.
    """
    from llm_serving.catalog import instances
    from llm_serving.operations import apply
    from llm_serving.tables import fleet_plan_table

    with _at_work(fleet) as document:
        made_at, made = _planned(document, out, stacks)
        apply.forget_plans(made_at)
        if as_json:
            print(json.dumps(fleet_plan_table.plain(made_at, made, instances.load()), indent=2))
        else:
            console.out.print(fleet_plan_table.draw(made_at, made, instances.load()), soft_wrap=False)


def apply(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False) -> None:
    """Have Terraform make the stacks, in order; shows the plan and its cost, and asks once."""
    from llm_serving import processes
    from llm_serving.catalog import instances
    from llm_serving.operations import apply
    from llm_serving.tables import fleet_plan_table

    confirm.require_answer(yes)
    with processes.interruptible(), _at_work(fleet, rehearse=False) as document:
        made_at, made = _planned(document, out, stacks)
        console.out.print(fleet_plan_table.draw(made_at, made, instances.load()), soft_wrap=False)
        if all(one.empty for one in made):
            return
        confirm.ask("Apply this?", yes)
        apply.state_bucket(made_at)
        apply.apply(made_at, made)


def destroy(fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False, with_data: WithData = False) -> None:
    """Take the fleet away: machines first, then the rest in reverse; shows what goes, and asks once."""
    from llm_serving import processes
    from llm_serving.operations import context, destroy
    from llm_serving.tables import fleet_plan_table

    confirm.require_answer(yes)
    with processes.interruptible(), _at_work(fleet, rehearse=False) as document:
        going = destroy.look(context.prepare(document, out=out), with_data=with_data)
        console.out.print(fleet_plan_table.going(going), soft_wrap=False)
        destroy.require_alone(going)
        if not going.stacks:
            return
        confirm.ask("Destroy this?", yes)
        destroy.destroy(going)
        console.out.print(fleet_plan_table.gone(going), soft_wrap=False)


@contextmanager
def _at_work(fleet: Path, *, rehearse: bool = True) -> Iterator[Document[fleets.Fleet]]:
    """The fleet, held by this command alone, with an embedded AWS of its own where there are no credentials."""
    from llm_serving.operations import context
    from llm_serving.workloads import inputs

    document = inputs.read_fleet(fleet)
    with context.alone(document.value), context.somewhere(document, rehearse=None if rehearse else False):
        yield document


def _planned(document: Document[fleets.Fleet], out: Path, stacks: list[str] | None) -> tuple[Site, list[StackPlan]]:
    from llm_serving.operations import context, plans

    made_at = context.prepare(document, out=out, named=stacks or ())
    return made_at, plans.make(made_at, stacks or None)
