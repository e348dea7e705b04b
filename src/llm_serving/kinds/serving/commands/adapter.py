"""`blueprint adapter`: LoRA adapters of a running deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.kinds.serving import adapter_loading
from llm_serving.kinds.serving.deployment import narrow
from llm_serving.options.arguments import FLEET, TARGET, Fleet, Folder, Target
from llm_serving.services import inputs
from llm_serving.services.blueprint import FILE_NAME
from llm_serving.services.kinds import Capability
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning, registry
from llm_serving.targets.local.target import LocalTarget
from llm_serving.targets.on_aws.aws_target import load_aws_target

app = typer.Typer(help="Load and unload LoRA adapters at run time.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="The role whose replicas serve the adapter.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The adapter's name: `model` in requests.")]


@app.command()
def load(
    folder: Folder,
    role: RoleName,
    name: Name,
    adapter: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="The adapter's folder, as PEFT writes it; on AWS s3://BUCKET/PREFIX."),
    ],
    fleet: Fleet = FLEET,
    target: Target = TARGET,
) -> None:
    """Load an adapter on all replicas of a role, until they restart.

    On ECS, CloudTrail records the command with URLs by which anyone reads the adapter for 15 minutes.
    """
    inputs.require_capability(folder, Capability.ADAPTER)
    if registry.load_target(target).needs_aws:
        _change_on_aws(folder, fleet, target, role, name, adapter)
        console.out.print(
            f"{name}: replicas that start from now on do not have it. To keep it, add `{name}: {adapter}` to "
            f"`adapters` of {role} in {folder / FILE_NAME} and deploy.",
            markup=False,
            soft_wrap=True,
        )
        return
    deployment = narrow(LocalTarget().require_deployment(folder))
    adapter_loading.load(deployment, role, name, adapter_loading.parse_folder(adapter))
    console.out.print(f"{name}: loaded on {role}; the router finds it within seconds", markup=False)


@app.command()
def unload(folder: Folder, role: RoleName, name: Name, fleet: Fleet = FLEET, target: Target = TARGET) -> None:
    """Unload an adapter from all replicas of a role."""
    inputs.require_capability(folder, Capability.ADAPTER)
    if registry.load_target(target).needs_aws:
        _change_on_aws(folder, fleet, target, role, name)
        return
    adapter_loading.unload(narrow(LocalTarget().require_deployment(folder)), role, name)
    console.out.print(f"{name}: unloaded from {role}", markup=False)


def _change_on_aws(folder: Path, fleet: Path, target: str, role: str, name: str, location: str = "") -> None:
    """Load the adapter, or unload it without a location, and print what was done on each replica."""
    plan = planning.plan(folder, fleet, target=target)
    outcomes = adapter_loading.change_remote(plan, load_aws_target(target), role, name, location)
    for outcome in outcomes:
        if outcome.done:
            console.out.print(f"{outcome.replica}: {outcome.done}", markup=False, soft_wrap=True)
    failure_lines = [f"  {outcome.replica}: {outcome.error}" for outcome in outcomes if outcome.error]
    if failure_lines:
        head = f"{len(failure_lines)} of {len(outcomes)} replicas of {role} failed:"
        fix = "Fix: run the command again; what is done already stays as it is."
        raise CheckFailed("\n".join([head, *failure_lines, fix]))
