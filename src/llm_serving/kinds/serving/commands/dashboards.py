"""`blueprint dashboards`: a deployment's dashboards as files that Grafana imports, or as a page beside a Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console, processes
from llm_serving.kinds.serving import dashboards, dashboards_server
from llm_serving.kinds.serving.deployment import ServingDeployment, narrow
from llm_serving.options.arguments import FLEET, Fleet, Folder
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.settings.errors import CheckFailed, InputError
from llm_serving.targets import planning
from llm_serving.targets.eks.target import EksTarget
from llm_serving.targets.local.target import LocalTarget


def show_dashboards(
    folder: Folder,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Folder to write Grafana JSON to.")] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show those of the deployment on this machine, until Ctrl+C.")
    ] = False,
    fleet: Fleet = FLEET,
) -> None:
    """Write a deployment's dashboards as Grafana JSON, or show them.

    --to writes those on EKS, a file each: fleet, deployment, cost and batch; panels whose metrics the engine does not
    have are left out. --open starts Prometheus, which scrapes the local deployment, and prints a page's address.
    """
    inputs.require_capability(folder, Capability.DASHBOARDS)
    if open_page == (to is not None):
        raise InputError("--to, --open: one of the two is needed. Fix: write --to FOLDER, or --open.")
    if to is None:
        _show_page(folder)
    else:
        _write_files(folder, fleet, to)


def _show_page(folder: Path) -> None:
    directory = LocalTarget().find_directory(folder)
    deployment = directory.load_deployment()
    if not isinstance(deployment, ServingDeployment):
        fix = f"run blueprint deploy {console.shorten_path(folder)}"
        raise CheckFailed(f"{directory.name}: not deployed here. Fix: {fix}")
    with processes.handle_interrupts(), dashboards_server.serve(deployment, directory.data / "prometheus") as server:
        print(server.address, flush=True)
        console.err.print("Ctrl+C ends it.")
        server.wait()


def _write_files(folder: Path, fleet: Path, to: Path) -> None:
    deployment = narrow(planning.plan_offline(folder, fleet, EksTarget.name).deployment)
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
