"""The target ecs: one Terraform stack for each deployment, on the fleet's ECS cluster."""

# ruff: noqa: ARG002 - a target takes what others need

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from llm_serving.catalog.ecs import MAX_TASKS
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import tunnel
from llm_serving.services.environment import Conventions
from llm_serving.services.load_program import LoadProgram
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import load_tasks, readiness, stack, tasks
from llm_serving.targets.on_aws.aws_target import AwsTarget
from llm_serving.validation.remote.play import Containers


class EcsTarget(AwsTarget):
    """ECS services of the stack serving-NAME."""

    name = "ecs"
    conventions = Conventions(
        title="ECS",
        orchestrator="ecs",
        max_replicas=MAX_TASKS,
        # ECS lets 500 tasks of a cluster wait for an instance, and starts no other beyond that. What first choices
        # leave is shared by the others (infra.functions.ecs_fallback). Source: ECS developer guide, "Amazon ECS service
        # quotas".
        max_waiting=400,
        runs_tasks=True,
        url="http://{deployment}-router.{namespace}:{port}",
    )
    rehearsal_limit = "the embedded ECS starts no instances, so no task can run"

    format_namespace = staticmethod(names.format_namespace)

    diff = staticmethod(stack.diff)
    apply = staticmethod(stack.deploy)
    remove = staticmethod(stack.destroy)
    wait_until_ready = staticmethod(readiness.wait_until_managed_run)
    list_replicas = staticmethod(tasks.list_replicas)
    list_starts = staticmethod(tasks.list_starts)
    list_containers = staticmethod(tasks.list_containers)
    list_metrics_pages = staticmethod(tasks.list_metrics_pages)
    show_role_logs = staticmethod(tasks.show_logs)
    open_tunnel = staticmethod(tasks.open_tunnel)

    def list_tools(self, fleet: Fleet) -> Mapping[str, str]:
        """List those of the tunnel, through which a load goes without the image of load drivers."""
        return tunnel.TOOLS

    def launch_drivers(
        self, plan: DeploymentPlan, urls: Sequence[str], limit_s: int, program: LoadProgram | None = None
    ) -> AbstractContextManager[Containers]:
        return load_tasks.run(plan, urls, program)


TARGET = EcsTarget()
