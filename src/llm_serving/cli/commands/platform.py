"""`blueprint platform`: install and remove the pinned charts of a fleet's cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.catalog import instances
from llm_serving.cli import confirm
from llm_serving.cli.arguments import FLEET, AsJson, Fleet, Yes
from llm_serving.fleet import model
from llm_serving.operations import add_ons
from llm_serving.operations.add_ons import Command
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

app = typer.Typer(help="Install and remove the platform charts of an EKS cluster.", no_args_is_help=True)

PlanOnly = Annotated[bool, typer.Option("--plan", help="Show the commands without running them.")]


@app.command()
def install(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False) -> None:
    """Install the platform charts with Helm, in order, in kubectl's current cluster."""
    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_install_commands(fleet_settings, instances.load(), folder)
    _print_commands(commands, plan, as_json)
    if not plan:
        add_ons.run_commands(commands, folder)


@app.command()
def remove(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the platform charts, in reverse order, from kubectl's current cluster."""
    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_remove_commands(fleet_settings, instances.load(), folder)
    _print_commands(commands, plan, as_json)
    if not plan:
        add_ons.require_tools()
        confirm.ask(f"Remove {', '.join(command.selected.add_on.name for command in commands)}?", yes)
        add_ons.run_commands(commands, folder, verb="Remove")


def _load_fleet(file: Path) -> tuple[model.Fleet, Path]:
    """Return the fleet, and the folder for its charts' values and manifests."""
    fleet_settings = load(file, model.Fleet).value
    if "eks" not in fleet_settings.orchestrators:
        raise InputError(
            f"{file}: orchestrator: now {fleet_settings.orchestrator}: platform charts need an EKS cluster. "
            "Fix: orchestrator: eks or both."
        )
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
