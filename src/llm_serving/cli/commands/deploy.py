"""`blueprint deploy` and `blueprint destroy`."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving import console
from llm_serving.cli import confirm
from llm_serving.cli.arguments import FLEET, LOCAL, Fleet, Folder, Target, Yes, find_deployment_dir
from llm_serving.cli.commands.render import Force
from llm_serving.targets.on_aws import commands


def deploy(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = LOCAL,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The endpoint's port; a free one is chosen otherwise.")
    ] = None,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Bring a blueprint up, and keep it up; shows what will change before it changes it."""
    from llm_serving import processes
    from llm_serving.tables import deployment_table
    from llm_serving.targets.local import deploy, engine_env

    if target in commands.TARGETS:
        aws_plan = commands.plan(folder, fleet, target)
        commands.deploy(aws_plan, lambda changes: _confirm_changes(changes, yes), force=force)
        return
    with processes.handle_interrupts():
        plan = deploy.plan(folder, fleet, target=target, port=port)
        for note in plan.deployment.notes:
            console.err.print(f"[dim]{note}[/dim]")
        if not engine_env.is_ready():
            with console.step("Set up the engine's environment") as step:
                engine_env.ensure(on_progress=lambda text: setattr(step, "note", text))
        deployed = deploy.deploy(plan, lambda changes: _confirm_changes(changes, yes), force=force)
    if deployed is None:
        console.out.print(f"{plan.deployment.name}: no change; it is up at {plan.deployment.url}", markup=False)
    console.out.print(deployment_table.render_usage((deployed or plan).deployment, console.shorten_path(folder)))


def destroy(folder: Folder, fleet: Fleet = FLEET, target: Target = LOCAL, yes: Yes = False) -> None:
    """End all processes of a deployment and remove all that it wrote."""
    from llm_serving.targets.local import deploy

    if target in commands.TARGETS:
        plan = commands.plan(folder, fleet, target)
        confirm.ask(f"Remove {plan.deployment.name} from {target}?", yes)
        if not commands.load_target(target).destroy(plan):
            console.out.print(f"{plan.deployment.name}: nothing is deployed on {target}", markup=False)
        return
    directory = find_deployment_dir(folder, target)
    if not directory.data.exists():
        console.out.print(f"{directory.name}: nothing is deployed from here", markup=False)
        return
    confirm.ask(f"End {directory.name} and remove {console.shorten_path(directory.data)}?", yes)
    with directory.lock(), console.step(f"Destroy {directory.name}"):
        deploy.destroy(directory)


def _confirm_changes(changes: str, yes: bool) -> None:
    """Shows what will change, and asks.

    Raises:
        AnswerIsNo: the user does not want it.
        InputError: there is nobody to ask.
    """
    console.err.print(changes or "nothing changes in what is rendered; what does not run is started", markup=False)
    confirm.ask("Deploy this?", yes)
