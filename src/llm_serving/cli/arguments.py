"""Arguments that several commands take, and the run that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving.cli import completions

if TYPE_CHECKING:
    from llm_serving.targets.local.deployment_dir import DeploymentDir

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The blueprint's folder.")]
Fleet = Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file.")]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Where it runs: local, eks or ecs.",
        autocompletion=completions.complete_targets,
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the stacks go.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain data.")]

FLEET = Path("fleet.yaml")
OUT = Path("cdktf.out")
LOCAL = "local"


def find_deployment_dir(folder: Path, target: str) -> DeploymentDir:
    """The local run of the blueprint in `folder`, for commands that must work while the file is being edited.

    Raises:
        InputError: the folder holds no blueprint and nothing of it is deployed, or it has no template for `target`.
    """
    from llm_serving.settings.errors import InputError
    from llm_serving.targets.local.deployment_dir import DeploymentDir
    from llm_serving.workloads import render
    from llm_serving.workloads.serving import blueprint, resolve

    fallback = DeploymentDir(folder.resolve().name, Path.cwd())
    try:
        document = blueprint.read(folder)
    except InputError:
        if fallback.data.is_dir() and target == LOCAL:
            return fallback
        raise
    render.find_template(folder, target)
    return DeploymentDir(resolve.resolve_name(document), Path.cwd())
