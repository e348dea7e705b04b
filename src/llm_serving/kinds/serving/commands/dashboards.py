"""`blueprint dashboards`: a deployment's dashboards as files that Grafana imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.kinds.serving import dashboards
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.options.arguments import FLEET, Fleet, Folder
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.targets import planning
from llm_serving.targets.eks.target import EksTarget


def write_dashboards(
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder to write the files to.")],
    fleet: Fleet = FLEET,
) -> None:
    """Write a deployment's dashboards on EKS as Grafana JSON.

    One file each: fleet, deployment, cost and batch. Panels whose metrics the engine does not have are left out.
    """
    inputs.require_capability(folder, Capability.DASHBOARDS)
    _, _, deployment = planning.resolve_offline(folder, fleet, EksTarget.name)
    assert isinstance(deployment, ServingDeployment)
    built = dashboards.build(deployment)
    to.mkdir(parents=True, exist_ok=True)
    for panel in built.left_out:
        console.err.print(
            f"{panel}: left out: {deployment.engine} or the fleet has no metric or price for it", markup=False
        )
    for name, dashboard in built.files.items():
        file = to / f"{name}.json"
        file.write_text(json.dumps(dashboard, indent=2) + "\n", encoding="utf-8")
        console.out.print(console.shorten_path(file), markup=False)
