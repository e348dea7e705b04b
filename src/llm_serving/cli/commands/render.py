"""`blueprint render` and `blueprint diff`: what a deployment would run, before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving import console
from llm_serving.cli.arguments import FLEET, LOCAL, Fleet, Folder, Target
from llm_serving.targets.on_aws import commands

Force = Annotated[bool, typer.Option("--force", help="Overwrite a rendered file that was edited by hand.")]


def render(folder: Folder, fleet: Fleet = FLEET, target: Target = LOCAL, force: Force = False) -> None:
    """Resolve a blueprint and lay it out for a target, under rendered/NAME/TARGET/."""
    from llm_serving.targets.local import deploy
    from llm_serving.targets.on_aws import plan as aws_plans
    from llm_serving.workloads import render

    if target in commands.TARGETS:
        file = aws_plans.write_rendered(commands.plan(folder, fleet, target), force=force)
    else:
        plan = deploy.plan(folder, fleet, target=target)
        file = render.render(plan.deployment, folder, plan.directory.rendered, force=force)
    console.out.print(console.shorten_path(file), markup=False)


def diff(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = LOCAL,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 where something would change.")] = False,
) -> None:
    """Show what deploying would change, as a unified diff; exit 0 with and without differences."""
    from llm_serving.settings.errors import CheckFailed
    from llm_serving.targets.local import deploy

    if target in commands.TARGETS:
        changes = commands.load_target(target).diff(commands.plan(folder, fleet, target))
    else:
        changes = deploy.diff(deploy.plan(folder, fleet, target=target))
    console.out.print(changes or "no change", markup=False)
    if changes and exit_code:
        raise CheckFailed(f"{folder}: what is deployed is not what the files say")
