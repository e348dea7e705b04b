"""`blueprint platform`: install and remove the pinned charts of a cluster, check what it has, and the tunnel to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from llm_serving import console
from llm_serving.aws.preflight.check import build_group_payloads, count_by_status
from llm_serving.fleet import model, names
from llm_serving.operations import add_ons, checkpoints, cluster, cluster_check, context, kube_api
from llm_serving.operations import tunnel as forwarding
from llm_serving.operations.add_ons import Command
from llm_serving.options import confirm
from llm_serving.options.arguments import FLEET, AsJson, Fleet, Yes
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed, InputError
from llm_serving.tables import preflight_table

app = typer.Typer(help="Install, check and remove the platform charts of an EKS cluster.", no_args_is_help=True)

Port = Annotated[int, typer.Option("--port", min=1024, max=65535, help="Port of this machine to forward.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show the commands without running them.")]


@app.command()
def install(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False) -> None:
    """Install or upgrade the platform charts with Helm, in order, in the kubeconfig's current cluster.

    A chart's CRDs are applied before it, for Helm never changes those that exist; --plan leaves that out.

    Every chart, and every manifest from a page, is pulled first and checked against its digest. One whose digest
    charts/platform.yaml does not have is installed as it is, and its digest kept in images.lock.yaml beside the fleet
    file for the next time.
    """
    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_install_commands(fleet_settings, folder, fleet)
    _print_commands(commands, plan, as_json)
    if not plan:
        cluster.require_own(fleet_settings)
        add_ons.install(commands, folder, fleet)


@app.command()
def remove(fleet: Fleet = FLEET, plan: PlanOnly = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the platform charts, in reverse order, from the kubeconfig's current cluster."""
    fleet_settings, folder = _load_fleet(fleet)
    commands = add_ons.build_remove_commands(fleet_settings, folder, fleet)
    _print_commands(commands, plan, as_json)
    if not plan:
        add_ons.require_tools()
        cluster.require_own(fleet_settings)
        cluster.require_no_load_balancers(kube_api.open_api(None))
        confirm.ask(f"Remove {', '.join(command.selected.add_on.name for command in commands)}?", yes)
        (context.build_data_path(fleet_settings) / checkpoints.CHARTS_FILE).unlink(missing_ok=True)
        add_ons.remove(commands, folder)


@app.command()
def check(fleet: Fleet = FLEET, as_json: AsJson = False) -> None:
    """Compare the kubeconfig's current cluster with the fleet file: nodes, devices, taints and controllers.

    Changes nothing. Exits 1 if a check fails.
    """
    fleet_settings = _load_eks_fleet(fleet)
    cluster.require_own(fleet_settings)
    groups = cluster_check.check(fleet_settings, kube_api.open_api(None))
    counts = count_by_status(groups)
    name = names.find_eks_cluster(fleet_settings)
    payload = {"fleet": fleet_settings.name, "cluster": name, "counts": counts, "groups": build_group_payloads(groups)}
    title = Text.assemble((name, "bold"), f"  as {fleet} describes it")
    table = preflight_table.render_groups(title, groups, console.out.width)
    console.print_rows(payload, table, as_json=as_json, soft_wrap=False)
    if counts["fail"]:
        raise typer.Exit(CheckFailed.exit_code)


@app.command()
def tunnel(fleet: Fleet = FLEET, port: Port = forwarding.DEFAULT_PORT, plan: PlanOnly = False) -> None:
    """Reach a private cluster from outside its VPC, through Session Manager and a system node, until Ctrl+C.

    `fleet destroy`, `fleet upgrade` and `install` find it while it is open; others take the KUBECONFIG that it prints.
    """
    fleet_settings, _ = _load_fleet(fleet)
    aws, data_folder = context.open_session(fleet_settings.region), context.build_data_path(fleet_settings)
    route = forwarding.plan(aws, fleet_settings, port)
    if plan:
        console.out.print(console.quote_command(forwarding.build_command(route, aws.region)), markup=False)
        return
    add_ons.require_tools(forwarding.TOOLS)
    with forwarding.forward(route, aws, data_folder) as process:
        cluster.connect(aws, fleet_settings, data_folder)
        console.out.print(forwarding.describe_use(route, data_folder / "kubeconfig"), markup=False, soft_wrap=True)
        process.wait()


def _load_eks_fleet(file: Path) -> model.Fleet:
    fleet_settings = load(file, model.Fleet).value
    if "eks" not in fleet_settings.orchestrators:
        raise InputError(
            f"{file}: orchestrator: {fleet_settings.orchestrator}: platform charts need an EKS cluster. "
            "Fix: set orchestrator: eks or both."
        )
    return fleet_settings


def _load_fleet(file: Path) -> tuple[model.Fleet, Path]:
    """Return the fleet, and the folder for its charts' values and manifests."""
    fleet_settings = _load_eks_fleet(file)
    if not fleet_settings.creates_eks:
        raise InputError(
            f"{file}: eks: cluster: {fleet_settings.eks.cluster}: the cluster exists, and its charts are not the "
            "fleet's to change. Fix: install there what docs/own-cluster.md lists."
        )
    return fleet_settings, Path("rendered") / fleet_settings.name / "platform"


def _print_commands(commands: Sequence[Command], plan: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": command.selected.add_on.name,
                "why": command.selected.add_on.why,
                "command": list(command.arguments),
                "post_renderer": str(command.renderer) if command.renderer else None,
                "pull": list(command.archive.pull) if command.archive else [],
                "digest": command.archive.digest if command.archive else None,
            }
            for command in commands
        ]
        console.print_json(rows)
    elif plan:
        for command in commands:
            console.out.print(f"[bold]{command.selected.add_on.name}[/bold]: {command.selected.add_on.why}")
            if command.archive:
                console.out.print(f"  {command.archive.describe_pin()}", markup=False)
                console.out.print(f"  {console.quote_command(command.archive.pull)}", markup=False)
            console.out.print(f"  {command.format()}", markup=False)
