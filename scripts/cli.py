"""The `blueprint` command line: names the commands, and turns every refusal into its text and exit code."""

from __future__ import annotations

import os
import sys

import typer

from infra.errors import BlueprintError
from scripts import console
from scripts.commands import model

app = typer.Typer(
    name="blueprint",
    help="Serve LLMs on AWS: rent a fleet, copy a pattern, deploy it, prove it against its SLO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
fleet = typer.Typer(help="The fleet: show it, synthesize its stacks.", no_args_is_help=True)
catalog = typer.Typer(help="The catalogues' data.", no_args_is_help=True)
app.add_typer(model.app, name="model")
app.add_typer(fleet, name="fleet")
app.add_typer(catalog, name="catalog")


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", envvar="BLUEPRINT_DEBUG", help="Show tracebacks."),
) -> None:
    """Options of every command."""
    if debug:
        os.environ["BLUEPRINT_DEBUG"] = "1"


def main() -> None:
    """Runs the command line; exit codes are those of infra.errors."""
    try:
        app()
    except KeyboardInterrupt:
        console.err.print("interrupted")
        sys.exit(130)
    except BlueprintError as error:
        if os.environ.get("BLUEPRINT_DEBUG"):
            raise
        sys.exit(console.fail(error))
