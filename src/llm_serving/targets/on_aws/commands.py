"""What the commands do on the targets `eks` and `ecs`: the same steps for both, by the target's own module."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from llm_serving import console

if TYPE_CHECKING:
    from llm_serving.targets.on_aws.plan import DeploymentPlan

TARGETS = ("eks", "ecs")


def load_target(target: str) -> ModuleType:
    """The module of a target: difference, deploy, members, logs, destroy."""
    return importlib.import_module(f"llm_serving.targets.{target}.target")


def plan(folder: Path, fleet: Path, target: str) -> DeploymentPlan:
    """The blueprint decided for a target, and what should be known of it said.

    Raises:
        InputError: a file is wrong, or the blueprint cannot work there, or has no template for it.
    """
    from llm_serving.targets.on_aws import plan as plans

    deployment_plan = plans.plan(folder, fleet, target=target)
    for note in (*deployment_plan.deployment.notes, *deployment_plan.deployment.emulated):
        console.err.print(f"[dim]{note}[/dim]")
    return deployment_plan


def open_tunnel(deployment_plan: DeploymentPlan, url: str | None) -> AbstractContextManager[str]:
    """The URL to load: the one that the user names, such as a gateway's, else the near end of a tunnel."""
    if url:
        return contextlib.nullcontext(url)
    tunnel: AbstractContextManager[str] = load_target(deployment_plan.deployment.target).open_tunnel(deployment_plan)
    return tunnel


def deploy(deployment_plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool) -> None:
    """Brings it up and waits for a real answer.

    Raises:
        InputError: an adapter in S3 is none of its role's model; nothing was asked of the target.
    """
    from llm_serving.targets.on_aws import adapters

    adapters.check_adapters(deployment_plan)
    changed = load_target(deployment_plan.deployment.target).deploy(deployment_plan, confirm, force=force)
    state = "is up" if changed else "no change; it is up"
    console.out.print(f"{deployment_plan.deployment.name}: {state} at {deployment_plan.deployment.url}", markup=False)


def show_status(deployment_plan: DeploymentPlan, *, as_json: bool) -> None:
    """Shows what runs.

    Raises:
        AnswerIsNo: nothing runs, or not all of it is ready.
    """
    from rich.table import Table

    from llm_serving.settings.errors import CheckFailed
    from llm_serving.targets.replica_status import READY

    replicas = load_target(deployment_plan.deployment.target).list_replicas(deployment_plan)
    if as_json:
        payload = {
            "name": deployment_plan.deployment.name,
            "url": deployment_plan.deployment.url,
            "members": [asdict(replica) for replica in replicas],
        }
        print(json.dumps(payload, indent=2))
    elif replicas:
        table = Table("role", "name", "state", "restarts", "machine")
        for replica in replicas:
            table.add_row(replica.role, replica.name, replica.state, str(replica.restarts), replica.machine)
        console.out.print(table)
        console.out.print(f"{deployment_plan.deployment.name}: {deployment_plan.deployment.url}", markup=False)
    if not replicas:
        raise CheckFailed(f"{deployment_plan.deployment.name}: nothing runs on {deployment_plan.deployment.target}")
    unready_roles = sorted({replica.role for replica in replicas if replica.state != READY})
    if unready_roles:
        raise CheckFailed(f"{deployment_plan.deployment.name}: not all of {', '.join(unready_roles)} is ready")
