"""`blueprint install`: the main job of install.sh."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scripts.commands.arguments import FLEET, Fleet


def install(
    folder: Annotated[Path, typer.Option("--blueprint", metavar="DIR", help="The blueprint to prove.")] = Path(
        "blueprints/aggregated"
    ),
    fleet: Fleet = FLEET,
    set_up_seconds: Annotated[float, typer.Option(hidden=True)] = 0.0,
) -> None:
    """Apply the stacks to an embedded AWS, serve a blueprint from it, load-test it, and stop it again."""
    from scripts import install as road
    from scripts.validation import run as validation

    done = road.install(folder, fleet)
    road.summary(done, folder, set_up_seconds)
    validation.gate(done.report)
