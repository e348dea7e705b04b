"""`blueprint adapter`: LoRA adapters of a deployment that is up on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli.arguments import LOCAL, Folder, find_deployment_dir

if TYPE_CHECKING:
    from llm_serving.workloads.serving.deployment import Deployment

app = typer.Typer(help="LoRA adapters at run time: load, unload.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="The role whose replicas load it.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What clients put in `model`.")]


@app.command()
def load(
    folder: Folder,
    role: RoleName,
    name: Name,
    adapter: Annotated[str, typer.Argument(metavar="FOLDER", help="What PEFT wrote.")],
) -> None:
    """Load an adapter on every replica of a role, until they start again."""
    from llm_serving.targets.local import adapters

    adapters.load(_require_deployment(folder), role, name, adapters.parse_folder(adapter))
    console.out.print(f"{name}: loaded by {role}; the router knows it within seconds", markup=False)


@app.command()
def unload(folder: Folder, role: RoleName, name: Name) -> None:
    """Take an adapter from every replica of a role."""
    from llm_serving.targets.local import adapters

    adapters.unload(_require_deployment(folder), role, name)
    console.out.print(f"{name}: no longer served by {role}", markup=False)


def _require_deployment(folder: Path) -> Deployment:
    from llm_serving.settings.errors import Unavailable

    directory = find_deployment_dir(folder, LOCAL)
    deployment = directory.load_deployment()
    if deployment is None:
        raise Unavailable(
            f"{directory.name} is not up on this machine; `blueprint deploy {console.shorten_path(folder)}` brings it up"
        )
    return deployment
