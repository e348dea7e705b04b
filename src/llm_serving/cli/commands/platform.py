"""`blueprint platform install` and `remove`: the pinned charts of a fleet's cluster, in order and against it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli import confirm
from llm_serving.cli.arguments import FLEET, AsJson, Fleet, Yes

if TYPE_CHECKING:
    from llm_serving.fleet.model import Fleet as Rented
    from llm_serving.operations.add_ons import Command

app = typer.Typer(help="What a cluster runs beside EKS's own add-ons.", no_args_is_help=True)

Plan = Annotated[bool, typer.Option("--plan", help="Show the commands; call no cluster.")]


@app.callback()
def platform() -> None:
    """What a cluster runs beside EKS's own add-ons."""


@app.command()
def install(fleet: Fleet = FLEET, plan: Plan = False, as_json: AsJson = False) -> None:
    """Install the platform's charts with Helm, in order, into the cluster that kubectl talks to."""
    from llm_serving.catalog import instances
    from llm_serving.operations import add_ons as platforms

    rented, folder = _rented(fleet)
    made = platforms.commands(rented, instances.load(), folder)
    _show(made, plan, as_json)
    if not plan:
        platforms.run(made, folder)


@app.command()
def remove(fleet: Fleet = FLEET, plan: Plan = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the platform's charts, the last installed first, from the cluster that kubectl talks to."""
    from llm_serving.catalog import instances
    from llm_serving.operations import add_ons as platforms

    rented, folder = _rented(fleet)
    made = platforms.removals(rented, instances.load(), folder)
    _show(made, plan, as_json)
    if not plan:
        platforms.require_tools()
        confirm.ask(f"Remove {', '.join(one.step.row.name for one in made)}?", yes)
        platforms.run(made, folder, doing="Remove")


def _rented(file: Path) -> tuple[Rented, Path]:
    """The fleet, and the folder for its values and manifests."""
    from llm_serving.fleet import model as fleets
    from llm_serving.settings.document import load
    from llm_serving.settings.errors import InputError

    rented = load(file, fleets.Fleet).value
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
