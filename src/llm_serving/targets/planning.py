"""A blueprint resolved and rendered for one target; nothing has been started or created."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.aws.preflight import identity
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.fleet.model import Fleet
from llm_serving.operations import context, image_pins
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import BaseBlueprint, resolve_name
from llm_serving.services.environment import Environment
from llm_serving.services.service import Service
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.targets import registry, render
from llm_serving.targets.base import Target
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan

_OPERATOR_START_S = 600
"""Longest start of what an operator runs, where the deployment has no services of its own."""


def plan(
    folder: Path,
    fleet_file: Path,
    *,
    target: str,
    root: Path | None = None,
    aws: AwsSession | None = None,
    account: str | None = None,
    port: int | None = None,
) -> DeploymentPlan:
    """Read both files, and resolve the blueprint for a target; writes down the ports that it chose, and nothing else.

    Args:
        root: the folder that `.blueprint/` and `rendered/` are in; the working directory if left out.
        aws: the session to deploy with; the user's own environment if left out.
        account: the AWS account's number; asked of AWS if left out.
        port: the router's port on this machine; a free one is chosen if left out.

    Raises:
        InputError: a file is wrong, the blueprint cannot work, or it has no template for `target`.
        Unavailable: `port` is taken.
    """
    selected_target, blueprint, fleet = _read_inputs(folder, fleet_file, target)
    directory = DeploymentDir(resolve_name(blueprint), (root or Path.cwd()).resolve())
    aws = aws or context.open_session(fleet.value.region)
    if selected_target.needs_aws and account is None:
        account = identity.resolve_account(fleet, aws)
    environment = selected_target.resolve_environment(
        directory, blueprint.value, fleet.value, account=account, port=port
    )
    environment = environment.model_copy(update={"image_digests": image_pins.read(fleet_file)})
    environment = kinds.get_for(blueprint).read_measurements(blueprint, environment, directory.root)
    resolved_plan = _build_plan(folder, blueprint, fleet, directory, environment, aws)
    if environment.ports:
        with contextlib.suppress(Unavailable), directory.lock():  # a deploy that is under way has its own
            directory.save_ports(environment.ports)
    return resolved_plan


def plan_offline(folder: Path, fleet_file: Path, target: str) -> DeploymentPlan:
    """Read both files, and resolve and render the deployment in an assumed environment; asks and keeps nothing.

    Raises:
        InputError: with everything that cannot work.
    """
    selected_target, blueprint, fleet = _read_inputs(folder, fleet_file, target)
    directory = DeploymentDir(resolve_name(blueprint), Path.cwd())
    environment = selected_target.assume_environment(blueprint.value, fleet.value, cores=len(os.sched_getaffinity(0)))
    environment = kinds.get_for(blueprint).read_measurements(blueprint, environment, directory.root)
    aws = AwsSession.from_environment(fleet.value.region)
    return _build_plan(folder, blueprint, fleet, directory, environment, aws)


def _build_plan(
    folder: Path,
    blueprint: Document[BaseBlueprint],
    fleet: Document[Fleet],
    directory: DeploymentDir,
    environment: Environment,
    aws: AwsSession,
) -> DeploymentPlan:
    template = render.find_template(folder, environment.target)
    deployment = kinds.get_for(blueprint).resolve(blueprint, fleet, environment)
    text = render.render_text(deployment, template)
    if own := render.find_own_templates(folder, environment.target):
        render.check(registry.load_target(environment.target), deployment, text, own)
    return DeploymentPlan(folder, blueprint, fleet, directory, deployment, text, aws)


def _read_inputs(folder: Path, fleet_file: Path, target: str) -> tuple[Target, Document[Any], Document[Fleet]]:
    """Read both files, and refuse what the target cannot run before anything is asked or chosen."""
    selected_target = registry.load_target(target)
    blueprint, fleet = inputs.read(folder, fleet_file)
    selected_target.check_kind(kinds.get_for(blueprint).NAME)
    render.find_template(folder, target)
    return selected_target, blueprint, fleet


def write_rendered(plan: DeploymentPlan, *, force: bool = False) -> Path:
    """Write the rendered files to rendered/NAME/TARGET/ and return the template's, as `render.render` does.

    Raises:
        InputError: the rendered file was edited by hand, and `force` is not set.
    """
    return render.render(plan.deployment, plan.folder, plan.rendered, force=force)


def ensure_rendered(plan: DeploymentPlan, name: str) -> Path:
    """Return the rendered file `name`; render it if it is missing."""
    file = plan.rendered / name
    return file if file.is_file() else write_rendered(plan)


def require_endpoint(plan: DeploymentPlan) -> None:
    """Accept a deployment that clients can call.

    Raises:
        InputError: it is one that takes no requests.
    """
    if not plan.deployment.services:
        reason, fix = "nothing of it answers HTTP requests", "send events from the fleet's network"
        raise InputError(f"{plan.deployment.name}: {reason}. Fix: {fix}, and read its topics there.")


def compute_start_s(services: Iterable[Service]) -> int:
    """Return the longest start of a replica in seconds, with its node's and what is copied before."""
    return INSTANCE_START_S + max(
        (service.answers_after_s for service in services if service.probe), default=_OPERATOR_START_S
    )


def print_callers(name: str, callers: Iterable[str]) -> None:
    """Print who calls a deployment that is about to be removed, to standard error."""
    for caller in callers:
        console.err.print(f"[dim]{caller} calls {name}: without it, its requests wait or fail.[/dim]")


def print_notes(plan: DeploymentPlan) -> None:
    """Print what the user should know of the plan's decisions, to standard error."""
    for note in (*plan.deployment.notes, *plan.deployment.emulated):
        console.err.print(note, style="dim", markup=False)
