"""The target ecs: one Terraform stack for each deployment, on the fleet's ECS cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import tunnel
from llm_serving.services.environment import Environment
from llm_serving.services.load_program import LoadProgram
from llm_serving.targets.base import Confirm
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import load_tasks, stack
from llm_serving.targets.ecs.conventions import CONVENTIONS
from llm_serving.targets.on_aws import environment
from llm_serving.targets.on_aws.aws_target import AwsTarget
from llm_serving.targets.on_aws.replica_container import ReplicaContainer
from llm_serving.targets.on_aws.replica_status import ReplicaStatus
from llm_serving.targets.starts import Start
from llm_serving.validation.base import MetricsPage
from llm_serving.validation.remote.play import Containers


class EcsTarget(AwsTarget):
    """ECS services of the stack serving-NAME."""

    name = "ecs"
    conventions = CONVENTIONS
    rehearsal_limit = "the embedded ECS starts no instances, so no task can run"

    def build_environment(self, fleet: Fleet, account: str | None) -> Environment:
        """Return the environment of the fleet's private DNS namespace."""
        return environment.resolve_environment(
            self.name, fleet, conventions=self.conventions, namespace=names.format_namespace(fleet), account=account
        )

    def list_tools(self, fleet: Fleet) -> Mapping[str, str]:  # noqa: ARG002
        """List those of the tunnel, through which a load goes without the image of load drivers."""
        return tunnel.TOOLS

    def diff(self, plan: DeploymentPlan) -> str:
        """Return what a deploy would change, as Terraform plans it."""
        return stack.diff(plan)

    def apply(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool) -> bool:
        """Apply the stack and wait until all services are steady; returns whether anything changed."""
        return stack.deploy(plan, confirm, force=force)

    def list_replicas(self, plan: DeploymentPlan) -> list[ReplicaStatus]:
        """List the services' tasks."""
        return stack.list_replicas(plan)

    def list_starts(self, plan: DeploymentPlan) -> list[Start]:
        """List those of the tasks."""
        return stack.list_starts(plan)

    def list_containers(self, plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
        """List those of the role's tasks."""
        return stack.list_containers(plan, role)

    def show_role_logs(self, plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
        """Print the tasks' logs from CloudWatch."""
        stack.show_logs(plan, role, lines=lines, follow=follow)

    def open_tunnel(self, plan: DeploymentPlan, port: int = 0) -> AbstractContextManager[str]:
        """Forward a port of this machine to a router's task with Session Manager."""
        return stack.open_tunnel(plan, port)

    def launch_drivers(
        self,
        plan: DeploymentPlan,
        urls: Sequence[str],
        limit_s: int,  # noqa: ARG002 - renewed URLs end them
        program: LoadProgram | None = None,
    ) -> AbstractContextManager[Containers]:
        """Run Fargate tasks."""
        return load_tasks.run(plan, urls, program)

    def wait_until_ready(self, plan: DeploymentPlan) -> None:
        """Wait for what AWS runs in place of tasks."""
        stack.wait_until_managed_run(plan)

    def list_metrics_pages(self, plan: DeploymentPlan) -> list[MetricsPage]:
        """List those of the tasks."""
        return stack.list_metrics_pages(plan)

    def remove(self, plan: DeploymentPlan) -> bool:
        """Destroy the stack and wait until its tasks are gone."""
        return stack.destroy(plan)


TARGET = EcsTarget()
