"""`blueprint platform install`: the pinned charts of a fleet's cluster, in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from scripts import console

app = typer.Typer(help="What a cluster runs beside EKS's own add-ons.", no_args_is_help=True)


@app.callback()
def platform() -> None:
    """What a cluster runs beside EKS's own add-ons."""


@app.command()
def install(
    fleet: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file.")] = Path("fleet.yaml"),
    plan: Annotated[bool, typer.Option("--plan", help="Show the commands; call no cluster.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows and commands as JSON.")] = False,
) -> None:
    """Install the platform's charts with Helm, in order, into the cluster that kubectl talks to."""
    from infra import settings
    from infra.catalog import instances
    from infra.errors import InputError
    from infra.fleet import Fleet
    from scripts.addons import install as platforms

    document = settings.load(fleet, Fleet)
    if "eks" not in document.value.orchestrators:
        raise InputError(f"{fleet}: the fleet's orchestrator is {document.value.orchestrator}, and charts are for EKS")
    folder = Path("rendered") / document.value.name / "platform"
    made = platforms.commands(document.value, instances.load(), folder)
    if as_json:
        rows = [{"name": one.step.row.name, "why": one.step.row.why, "command": list(one.words)} for one in made]
        print(json.dumps(rows, indent=2))
    if plan:
        for one in [] if as_json else made:
            console.out.print(f"[bold]{one.step.row.name}[/bold]: {one.step.row.why}")
            console.out.print(f"  {console.quoted(one.words)}", markup=False)
        return
    platforms.run(made, folder)
