"""`blueprint deploy` and `blueprint destroy`."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving.cli.commands.render import Force
from llm_serving.options.arguments import FLEET, TARGET, Fleet, Folder, Target, Yes
from llm_serving.workflows import serving


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
    serving.deploy(folder, fleet, target, port=port, yes=yes, force=force)


def destroy(folder: Folder, fleet: Fleet = FLEET, target: Target = TARGET, yes: Yes = False) -> None:
    """Remove a deployment.

    Stops all of its processes and deletes all that they wrote; on AWS, removes it from the cluster.
    """
    serving.destroy(folder, fleet, target, yes=yes)
