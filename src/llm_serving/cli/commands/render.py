"""`blueprint render` and `blueprint diff`: what a deployment would run, before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving import console
from llm_serving.options.arguments import FLEET, TARGET, Fleet, Folder, Target
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning, registry

Force = Annotated[bool, typer.Option("--force", help="Overwrite a rendered file that was edited by hand.")]


def render(folder: Folder, fleet: Fleet = FLEET, target: Target = TARGET, force: Force = False) -> None:
    """Render a blueprint for a target to rendered/NAME/TARGET/."""
    plan = planning.plan(folder, fleet, target=target)
    planning.print_notes(plan)
    console.out.print(console.shorten_path(planning.write_rendered(plan, force=force)), markup=False)


def diff(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if there are changes.")] = False,
) -> None:
    """Show what a deploy would change, as a unified diff.

    Exits 0 with and without changes, unless --exit-code is set.
    """
    plan = planning.plan(folder, fleet, target=target)
    planning.print_notes(plan)
    changes = registry.load_target(target).diff(plan)
    console.out.print(changes or "No changes", markup=False)
    if changes and exit_code:
        raise CheckFailed(f"{folder}: the deployment differs from the files")
