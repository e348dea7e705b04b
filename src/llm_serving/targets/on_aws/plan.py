"""A blueprint decided in full for a target on AWS, and laid out; nothing has been started or asked to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.targets.local.deployment_dir import DeploymentDir
from llm_serving.targets.on_aws import environment
from llm_serving.workloads import inputs, render
from llm_serving.workloads.serving import measured_prompts, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment


@dataclass(frozen=True)
class DeploymentPlan:
    """What is to run."""

    folder: Path
    """The blueprint's folder, whose template is rendered."""

    blueprint: Document[Blueprint]
    fleet: Document[Fleet]
    directory: DeploymentDir
    deployment: Deployment
    text: str
    """What the template makes of it: the chart's values on EKS, task definitions and services on ECS."""

    @property
    def rendered(self) -> Path:
        """Folder of what is rendered for people to read."""
        return self.directory.root / "rendered" / self.deployment.name / self.deployment.target


def plan(
    folder: Path, fleet_file: Path, *, target: str, root: Path | None = None, account: str | None = None
) -> DeploymentPlan:
    """Reads both files and decides everything.

    Args:
        root: the folder that `rendered/` lies in; where the user stands, if left out.
        account: AWS's number of it; asked of AWS where left out.

    Raises:
        InputError: a file is wrong, or the blueprint cannot work, or has no template for `target`.
    """
    blueprint, fleet = inputs.read(folder, fleet_file)
    template = render.find_template(folder, target)
    name = resolve.resolve_name(blueprint)
    directory = DeploymentDir(name, (root or Path.cwd()).resolve())
    target_environment = environment.resolve_environment(target, fleet.value, account=account)
    target_environment = target_environment.model_copy(
        update={"measured": measured_prompts.find_measured(blueprint, directory.root)}
    )
    deployment = resolve.resolve(blueprint, fleet, target_environment)
    return DeploymentPlan(folder, blueprint, fleet, directory, deployment, render.render_text(deployment, template))


def write_rendered(plan: DeploymentPlan, *, force: bool = False) -> Path:
    """Renders it for a person to read, under rendered/NAME/TARGET/, and returns the file.

    Raises:
        InputError: the rendered file was edited by hand, and `force` is not set.
    """
    return render.render(plan.deployment, plan.folder, plan.rendered, force=force)
