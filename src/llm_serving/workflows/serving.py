"""What `deploy`, `validate` and `destroy` do, for the command line and for install.sh's workflow.

A session of AWS is the caller's; without one, the user's own environment counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.options import confirm
from llm_serving.settings.errors import InputError
from llm_serving.tables import deployment_table
from llm_serving.targets import planning, registry, render
from llm_serving.targets.base import LoadOrigin, Target
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation import base


def deploy(
    folder: Path,
    fleet: Path,
    target: str,
    *,
    aws: AwsSession | None = None,
    port: int | None = None,
    yes: bool = False,
    force: bool = False,
) -> None:
    """Deploy a blueprint and wait until it is ready."""
    selected_target = registry.load_target(target)
    with processes.handle_interrupts():
        plan = planning.plan(folder, fleet, target=target, aws=aws, port=port)
        planning.print_notes(plan)
        _print_own_templates(plan)
        deployed = selected_target.deploy(plan, lambda changes: _confirm_changes(changes, yes), force=force)
    deployment = (deployed or plan).deployment
    place = f" at {deployment.url}" if deployment.url else ""
    if deployed is None:
        console.out.print(f"{deployment.name}: no change; it is up{place}", markup=False)
    elif selected_target.needs_aws:
        console.out.print(f"{deployment.name}: is up{place}", markup=False)
    if not selected_target.needs_aws:
        console.out.print(deployment_table.render_usage(deployment, console.shorten_path(folder)))


def validate(
    folder: Path,
    fleet: Path,
    target: str,
    *,
    aws: AwsSession | None = None,
    url: str | None = None,
    requests: int | None = None,
    user: Path | None = None,
    driver: str | None = None,
    origin: LoadOrigin | None = None,
    as_json: bool = False,
) -> None:
    """Load-test a deployment, print the report, and hold it against the SLO."""
    selected_target = registry.load_target(target)
    inputs_context = selected_target.open_validation(folder, fleet, url, aws=aws, origin=origin)
    with processes.handle_interrupts(), inputs_context as inputs:
        print_changes(selected_target, folder, fleet)
        validator = base.load_validator(inputs.deployment.kind)
        report, report_dir = validator.validate(
            inputs.deployment, dataclasses.replace(inputs.options, requests=requests, user_file=user, driver=driver)
        )
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        console.print_result(validator.render(report, report_dir))
    validator.require_slo(report)


def print_changes(target: Target, folder: Path, fleet: Path) -> None:
    """Say that a measurement on this machine is without what was changed and not deployed."""
    if target.needs_aws:
        return  # to compare takes minutes there
    with contextlib.suppress(InputError):  # of the fleet file: what runs does not need it
        if target.diff(planning.plan(folder, fleet, target=target.name)):
            changes = "what runs is measured, without the changes to its files since the deploy"
            fix = f"run blueprint deploy {console.shorten_path(folder)}; blueprint diff shows them"
            console.err.print(f"{console.shorten_path(folder)}: {changes}. Fix: {fix}.", markup=False)


def destroy(folder: Path, fleet: Path, target: str, *, aws: AwsSession | None = None, yes: bool = False) -> None:
    """Remove a deployment."""
    registry.load_target(target).destroy(folder, fleet, lambda question: confirm.ask(question, yes), aws=aws)


def _print_own_templates(plan: DeploymentPlan) -> None:
    """Say which templates decide what runs, other than this repository's."""
    if own := render.find_own_templates(plan.folder, plan.deployment.target):
        names = ", ".join(console.shorten_path(path) for path in own)
        title = plan.deployment.environment.conventions.title
        console.err.print(
            f"{names}: not of this repository. Deploying runs the commands that it renders on {title}, with your "
            "permissions. Read them first if somebody else wrote them: `blueprint diff`.",
            markup=False,
        )


def _confirm_changes(changes: str, yes: bool) -> None:
    console.err.print(changes or "Configuration unchanged; stopped processes will be started", markup=False)
    confirm.ask("Deploy this?", yes)
