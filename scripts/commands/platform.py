"""`blueprint platform install` and `remove`: the pinned charts of a fleet's cluster, in order and against it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.commands import question
from scripts.commands.arguments import FLEET, AsJson, Fleet, Yes

if TYPE_CHECKING:
    from infra.fleet import Fleet as Rented
    from scripts.addons.install import Command

app = typer.Typer(help="What a cluster runs beside EKS's own add-ons.", no_args_is_help=True)

Plan = Annotated[bool, typer.Option("--plan", help="Show the commands; call no cluster.")]


@app.callback()
def platform() -> None:
    """What a cluster runs beside EKS's own add-ons."""


@app.command()
def install(fleet: Fleet = FLEET, plan: Plan = False, as_json: AsJson = False) -> None:
    """Install the platform's charts with Helm, in order, into the cluster that kubectl talks to."""
    from infra.catalog import instances
    from scripts.addons import install as platforms

    rented, folder = _rented(fleet)
    made = platforms.commands(rented, instances.load(), folder)
    _show(made, plan, as_json)
    if not plan:
        platforms.run(made, folder)


@app.command()
def remove(fleet: Fleet = FLEET, plan: Plan = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the platform's charts, the last installed first, from the cluster that kubectl talks to."""
    from infra.catalog import instances
    from scripts.addons import install as platforms

    rented, folder = _rented(fleet)
    made = platforms.removals(rented, instances.load(), folder)
    _show(made, plan, as_json)
    if not plan:
        platforms.require_tools()
        question.ask(f"Remove {', '.join(one.step.row.name for one in made)}?", yes)
        platforms.run(made, folder, doing="Remove")


def _rented(file: Path) -> tuple[Rented, Path]:
    """The fleet, and the folder for its values and manifests."""
    from infra import fleet, settings
    from infra.errors import InputError

    rented = settings.load(file, fleet.Fleet).value
    if "eks" not in rented.orchestrators:
        raise InputError(f"{file}: the fleet's orchestrator is {rented.orchestrator}, and charts are for EKS")
    return rented, Path("rendered") / rented.name / "platform"


def _show(made: Sequence[Command], plan: bool, as_json: bool) -> None:
    if as_json:
        rows = [{"name": one.step.row.name, "why": one.step.row.why, "command": list(one.words)} for one in made]
        print(json.dumps(rows, indent=2))
    elif plan:
        for one in made:
            console.out.print(f"[bold]{one.step.row.name}[/bold]: {one.step.row.why}")
            console.out.print(f"  {console.quoted(one.words)}", markup=False)
