"""`blueprint fleet synth`, `plan`, `apply` and `destroy`: the fleet file in, stacks out, and stacks to AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.commands import question
from scripts.commands.arguments import FLEET, OUT, AsJson, Fleet, Out, Yes

if TYPE_CHECKING:
    from infra import fleet as fleets
    from infra.settings import Document
    from scripts.fleet.plans import StackPlan
    from scripts.fleet.site import Site

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
    from scripts import inputs

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
    from infra.catalog import instances
    from scripts.fleet import apply, picture

    with _at_work(fleet) as document:
        made_at, made = _planned(document, out, stacks)
        apply.forget_plans(made_at)
        if as_json:
            print(json.dumps(picture.plain(made_at, made, instances.load()), indent=2))
        else:
            console.out.print(picture.draw(made_at, made, instances.load()), soft_wrap=False)


def apply(stacks: Stacks = None, fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False) -> None:
    """Have Terraform make the stacks, in order; shows the plan and its cost, and asks once."""
    from infra.catalog import instances
    from scripts import processes
    from scripts.fleet import apply, picture

    question.require_answer(yes)
    with processes.interruptible(), _at_work(fleet, rehearse=False) as document:
        made_at, made = _planned(document, out, stacks)
        console.out.print(picture.draw(made_at, made, instances.load()), soft_wrap=False)
        if all(one.empty for one in made):
            return
        question.ask("Apply this?", yes)
        apply.state_bucket(made_at)
        apply.apply(made_at, made)


def destroy(fleet: Fleet = FLEET, out: Out = OUT, yes: Yes = False, with_data: WithData = False) -> None:
    """Take the fleet away: machines first, then the rest in reverse; shows what goes, and asks once."""
    from scripts import processes
    from scripts.fleet import destroy, picture, site

    question.require_answer(yes)
    with processes.interruptible(), _at_work(fleet, rehearse=False) as document:
        going = destroy.look(site.prepare(document, out=out), with_data=with_data)
        console.out.print(picture.going(going), soft_wrap=False)
        destroy.require_alone(going)
        if not going.stacks:
            return
        question.ask("Destroy this?", yes)
        destroy.destroy(going)
        console.out.print(picture.gone(going), soft_wrap=False)


@contextmanager
def _at_work(fleet: Path, *, rehearse: bool = True) -> Iterator[Document[fleets.Fleet]]:
    """The fleet, held by this command alone, with an embedded AWS of its own where there are no credentials."""
    from scripts import inputs
    from scripts.fleet import site

    document = inputs.read_fleet(fleet)
    with site.alone(document.value), site.somewhere(document, rehearse=None if rehearse else False):
        yield document


def _planned(document: Document[fleets.Fleet], out: Path, stacks: list[str] | None) -> tuple[Site, list[StackPlan]]:
    from scripts.fleet import plans, site

    made_at = site.prepare(document, out=out, named=stacks or ())
    return made_at, plans.make(made_at, stacks or None)
