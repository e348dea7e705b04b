"""A blueprint resolved and rendered for one target; nothing has been started or created."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_serving import console
from llm_serving.aws.preflight import identity
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import context
from llm_serving.settings.document import Document
from llm_serving.targets import registry
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.workloads import base as workloads
from llm_serving.workloads import inputs, render
from llm_serving.workloads.environment import Environment
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment


@dataclass(frozen=True)
class DeploymentPlan:
    """What to run: every number decided, and the rendered text."""

    folder: Path
    """The blueprint's folder, whose template is rendered."""

    blueprint: Document[Blueprint]
    fleet: Document[Fleet]
    directory: DeploymentDir
    deployment: Deployment
    text: str
    """The rendered template: supervisord's configuration, the chart's values, or task definitions and services."""

    aws: AwsSession
    """The account, and the kubeconfig of the cluster, that a target on AWS deploys to."""

    @property
    def rendered(self) -> Path:
        """Directory of the rendered files that people read."""
        return self.directory.get_rendered_path(self.deployment.target)

    def replace_bucket(self, bucket: str) -> DeploymentPlan:
        """Return the plan with the model bucket that the storage stack created."""
        if bucket == self.deployment.environment.bucket:
            return self
        environment = self.deployment.environment.model_copy(update={"bucket": bucket})
        return build_plan(self.folder, self.blueprint, self.fleet, self.directory, environment, self.aws)


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
    selected_target = registry.load_target(target)
    blueprint, fleet = inputs.read(folder, fleet_file)
    workload = workloads.of(blueprint)
    selected_target.check_kind(workload.KIND)
    render.find_template(folder, target)
    directory = DeploymentDir(workload.resolve_name(blueprint), (root or Path.cwd()).resolve())
    aws = aws or context.open_session(fleet.value.region)
    if selected_target.needs_aws and account is None:
        account = identity.find_account(aws)
    environment = selected_target.resolve_environment(
        directory, blueprint.value, fleet.value, account=account, port=port
    )
    environment = workload.read_measurements(blueprint, environment, directory.root)
    deployment_plan = build_plan(folder, blueprint, fleet, directory, environment, aws)
    if environment.ports:
        directory.save_ports(environment.ports)
    return deployment_plan


def build_plan(
    folder: Path,
    blueprint: Document[Blueprint],
    fleet: Document[Fleet],
    directory: DeploymentDir,
    environment: Environment,
    aws: AwsSession | None = None,
) -> DeploymentPlan:
    """Resolve a blueprint in `environment` and render its template.

    Args:
        aws: the session to deploy with; the user's own environment if left out.

    Raises:
        InputError: the blueprint cannot work there, or its template is missing or wrong.
    """
    template = render.find_template(folder, environment.target)
    deployment = workloads.of(blueprint).resolve(blueprint, fleet, environment)
    text = render.render_text(deployment, template)
    session = aws or AwsSession.from_environment(fleet.value.region)
    return DeploymentPlan(folder, blueprint, fleet, directory, deployment, text, session)


def write_rendered(plan: DeploymentPlan, *, force: bool = False) -> Path:
    """Write the rendered files to rendered/NAME/TARGET/ and return the main one.

    Args:
        force: overwrite a file that was edited by hand.

    Raises:
        InputError: the rendered file was edited by hand, and `force` is not set.
    """
    return render.render(plan.deployment, plan.folder, plan.rendered, force=force)


def print_notes(plan: DeploymentPlan) -> None:
    """Print what the user should know of the plan's decisions, to standard error."""
    for note in (*plan.deployment.notes, *plan.deployment.emulated):
        console.err.print(f"[dim]{note}[/dim]")
