"""`blueprint deploy` and `blueprint destroy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli.commands.render import Force
from llm_serving.options import confirm
from llm_serving.options.arguments import FLEET, TARGET, Fleet, Folder, Target, Yes
from llm_serving.tables import deployment_table
from llm_serving.targets import planning, registry, render
from llm_serving.targets.deployment_plan import DeploymentPlan


def deploy(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the endpoint on this machine; a free one if left out.")
    ] = None,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Deploy a blueprint and wait until it is ready.

    Shows the changes and asks for confirmation first. A deployment that is up is changed in place.
    """
    deploy_blueprint(folder, fleet, target, port=port, yes=yes, force=force)


def deploy_blueprint(
    folder: Path,
    fleet: Path,
    target: str,
    *,
    aws: AwsSession | None = None,
    port: int | None = None,
    yes: bool = False,
    force: bool = False,
) -> None:
    """Deploy a blueprint with a session; with the user's own environment if None."""
    selected_target = registry.load_target(target)
    with processes.handle_interrupts():
        plan = planning.plan(folder, fleet, target=target, aws=aws, port=port)
        planning.print_notes(plan)
        _print_own_templates(plan)
        deployed = selected_target.deploy(plan, lambda changes: _confirm_changes(changes, yes), force=force)
    deployment = (deployed or plan).deployment
    place = f" at {deployment.url}" if deployment.url else ""
    if deployed is None:
        console.out.print(f"{deployment.name}: no change; it is up{place}", markup=False)
    elif selected_target.needs_aws:
        console.out.print(f"{deployment.name}: is up{place}", markup=False)
    if not selected_target.needs_aws:
        console.out.print(deployment_table.render_usage(deployment, console.shorten_path(folder)))


def destroy(folder: Folder, fleet: Fleet = FLEET, target: Target = TARGET, yes: Yes = False) -> None:
    """Remove a deployment.

    Stops all of its processes and deletes all that they wrote; on AWS, removes it from the cluster.
    """
    destroy_blueprint(folder, fleet, target, yes=yes)


def destroy_blueprint(
    folder: Path, fleet: Path, target: str, *, aws: AwsSession | None = None, yes: bool = False
) -> None:
    """Remove a deployment with a session; with the user's own environment if None."""
    registry.load_target(target).destroy(folder, fleet, lambda question: confirm.ask(question, yes), aws=aws)


def _print_own_templates(plan: DeploymentPlan) -> None:
    """Say which templates decide what runs, other than this repository's."""
    if own := render.find_own_templates(plan.folder, plan.deployment.target):
        names = ", ".join(console.shorten_path(path) for path in own)
        title = plan.deployment.environment.conventions.title
        console.err.print(
            f"{names}: not of this repository. Deploying runs the commands that it renders on {title}, with your "
            "permissions. Read them first if somebody else wrote them: `blueprint diff`.",
            markup=False,
        )


def _confirm_changes(changes: str, yes: bool) -> None:
    """Show the changes and ask for confirmation.

    Raises:
        CheckFailed: the user declined.
        InputError: there is no terminal to ask on.
    """
    console.err.print(changes or "Configuration unchanged; stopped processes will be started", markup=False)
    confirm.ask("Deploy this?", yes)
