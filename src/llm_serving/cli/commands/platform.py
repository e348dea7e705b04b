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
    from llm_serving.fleet.model import Fleet as FleetSettings
    from llm_serving.operations.add_ons import Command

app = typer.Typer(help="What a cluster runs beside EKS's own add-ons.", no_args_is_help=True)

PlanOnly = Annotated[bool, typer.Option("--plan", help="Show the commands; call no cluster.")]


@app.callback()
def platform() -> None:
    """What a cluster runs beside EKS's own add-ons."""


@app.command()
def install(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False) -> None:
    """Install the platform's charts with Helm, in order, into the cluster that kubectl talks to."""
    from llm_serving.catalog import instances
    from llm_serving.operations import add_ons as add_ons

    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_install_commands(fleet_settings, instances.load(), folder)
    _print_commands(commands, plan, as_json)
    if not plan:
        add_ons.run_commands(commands, folder)


@app.command()
def remove(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the platform's charts, the last installed first, from the cluster that kubectl talks to."""
    from llm_serving.catalog import instances
    from llm_serving.operations import add_ons as add_ons

    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_remove_commands(fleet_settings, instances.load(), folder)
    _print_commands(commands, plan, as_json)
    if not plan:
        add_ons.require_tools()
        confirm.ask(f"Remove {', '.join(command.selected.add_on.name for command in commands)}?", yes)
        add_ons.run_commands(commands, folder, verb="Remove")


def _load_fleet(file: Path) -> tuple[FleetSettings, Path]:
    """The fleet, and the folder for its values and manifests."""
    from llm_serving.fleet import model as fleets
    from llm_serving.settings.document import load
    from llm_serving.settings.errors import InputError

    fleet_settings = load(file, fleets.Fleet).value
    if "eks" not in fleet_settings.orchestrators:
        raise InputError(f"{file}: the fleet's orchestrator is {fleet_settings.orchestrator}, and charts are for EKS")
    return fleet_settings, Path("rendered") / fleet_settings.name / "platform"


def _print_commands(commands: Sequence[Command], plan: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": command.selected.add_on.name,
                "why": command.selected.add_on.why,
                "command": list(command.arguments),
            }
            for command in commands
        ]
        print(json.dumps(rows, indent=2))
    elif plan:
        for command in commands:
            console.out.print(f"[bold]{command.selected.add_on.name}[/bold]: {command.selected.add_on.why}")
            console.out.print(f"  {console.quote_command(command.arguments)}", markup=False)
