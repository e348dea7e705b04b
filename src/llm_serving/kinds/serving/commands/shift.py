"""`blueprint shift`: traffic shares of deployments on EKS, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console, paths
from llm_serving.kinds.serving.deployment import CHART
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.settings.errors import InputError
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.eks import traffic_shift
from llm_serving.targets.eks.target import EksTarget


def shift(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="Name of the route that clients call.")],
    share: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=WEIGHT...", help="Deployments on EKS, and their weights.")
    ] = None,
    gateway: Annotated[str, typer.Option(metavar="NAMESPACE/NAME", help="The Gateway of the route.")] = "gateway/edge",
    back: Annotated[bool, typer.Option("--back", help="Return to the previous shares.")] = False,
) -> None:
    """Split a route's requests between deployments on EKS.

    Example: `blueprint shift chat mine=90 mine-v2=10`.
    """
    if back == bool(share):
        raise InputError("SHARE: pass either --back, or deployments with their weights, such as mine=90 mine-v2=10.")
    directory = DeploymentDir(route, Path.cwd())
    directory.logs.mkdir(parents=True, exist_ok=True)
    log = directory.logs / "route.log"
    with console.step(f"Roll back route {route}" if back else f"Shift traffic of route {route}"):
        if back:
            traffic_shift.roll_back(route, log)
        else:
            shares = traffic_shift.parse_shares(share or [])
            for name in shares:  # a blueprint's folder has its deployment's name; what has no folder here is not known
                inputs.require_capability(Path(name), Capability.SHIFT)
            rendered = directory.get_rendered_path(EksTarget.name)
            traffic_shift.shift(route, shares, chart=paths.CHARTS / CHART, gateway=gateway, folder=rendered, log=log)
