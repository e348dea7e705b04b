"""`blueprint adapter`: LoRA adapters of a deployment on this machine, at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.kinds.serving import adapter_loading
from llm_serving.kinds.serving.deployment import ServingDeployment, narrow
from llm_serving.options.arguments import Folder
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.targets.local.target import LocalTarget

app = typer.Typer(help="Load and unload LoRA adapters at run time.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="The role whose replicas serve the adapter.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The adapter's name: `model` in requests.")]


@app.command()
def load(
    folder: Folder,
    role: RoleName,
    name: Name,
    adapter: Annotated[str, typer.Argument(metavar="FOLDER", help="The adapter's folder, as PEFT writes it.")],
) -> None:
    """Load an adapter on all replicas of a role, until they restart."""
    adapter_loading.load(_require_deployment(folder), role, name, adapter_loading.parse_folder(adapter))
    console.out.print(f"{name}: loaded on {role}; the router finds it within seconds", markup=False)


@app.command()
def unload(folder: Folder, role: RoleName, name: Name) -> None:
    """Unload an adapter from all replicas of a role."""
    adapter_loading.unload(_require_deployment(folder), role, name)
    console.out.print(f"{name}: unloaded from {role}", markup=False)


def _require_deployment(folder: Path) -> ServingDeployment:
    inputs.require_capability(folder, Capability.ADAPTER)
    return narrow(LocalTarget().require_deployment(folder))
