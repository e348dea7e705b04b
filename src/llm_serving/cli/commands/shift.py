"""`blueprint shift`: versions of a deployment side by side on EKS, and one command to go back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console


def shift(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="Name of the route that clients call.")],
    share: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=WEIGHT...", help="Deployments on EKS, and their weights.")
    ] = None,
    gateway: Annotated[
        str, typer.Option(metavar="NAMESPACE/NAME", help="The Gateway that carries the route.")
    ] = "gateway/edge",
    back: Annotated[bool, typer.Option("--back", help="Return to the shares before the last ones.")] = False,
) -> None:
    """Share requests between deployments on EKS by weight, such as `shift chat mine=90 mine-v2=10`."""
    from llm_serving.settings.errors import InputError
    from llm_serving.targets.eks import traffic_shift as traffic_shift
    from llm_serving.targets.local.deployment_dir import DeploymentDir

    directory = DeploymentDir(route, Path.cwd())
    directory.logs.mkdir(parents=True, exist_ok=True)
    log = directory.logs / "route.log"
    if back == bool(share):
        raise InputError("SHARE: write either deployments with their weights, such as mine=90 mine-v2=10, or --back.")
    with console.step(f"Go back on the route {route}" if back else f"Shift the route {route}"):
        if back:
            traffic_shift.roll_back(route, log)
        else:
            folder = directory.root / "rendered" / route / "eks"
            traffic_shift.shift(route, traffic_shift.parse_shares(share or []), gateway=gateway, folder=folder, log=log)
