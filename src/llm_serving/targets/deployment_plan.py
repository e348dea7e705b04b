"""A blueprint resolved and rendered for one target, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.deployment import Deployment
from llm_serving.settings.document import Document
from llm_serving.targets.deployment_dir import DeploymentDir


@dataclass(frozen=True)
class DeploymentPlan:
    """What to run: every number decided, and the rendered text."""

    folder: Path
    """The blueprint's folder, whose template is rendered."""

    blueprint: Document[BaseBlueprint]
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
