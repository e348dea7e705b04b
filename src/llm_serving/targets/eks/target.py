"""The target eks: charts in the fleet's cluster, through the user's own helm and the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import cluster, tunnel
from llm_serving.services.deployment import Deployment
from llm_serving.services.environment import Conventions
from llm_serving.targets.base import Confirm
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import (
    load_job,
    namespace,
    pod_starts,
    pods,
    readiness,
    release,
    stacked_release,
    values_check,
)
from llm_serving.targets.on_aws.aws_target import AwsTarget


class EksTarget(AwsTarget):
    """Helm releases in the fleet's EKS cluster."""

    name = "eks"
    conventions = Conventions(
        title="EKS",
        orchestrator="eks",
        is_kubernetes=True,
        # Source: awslabs/amazon-eks-ami, templates/shared/runtime/bin/setup-local-disks, `raid0`.
        url="http://{deployment}.{namespace}.svc:{port}",
        engines_url="http://{deployment}-engines.{namespace}.svc:{port}",
    )
    service_account = names.ENGINE_SERVICE_ACCOUNT
    rehearsal_limit = "the embedded EKS has no Kubernetes API and starts no nodes, so no chart and no pod can run"

    find_mistakes = staticmethod(values_check.find_mistakes)
    reach_cluster = staticmethod(cluster.reach)
    open_session = staticmethod(cluster.open_session)
    list_replicas = staticmethod(readiness.list_replicas)
    list_notes = staticmethod(pods.list_notes)
    list_starts = staticmethod(pod_starts.read)
    list_containers = staticmethod(pods.list_containers)
    list_metrics_pages = staticmethod(pods.list_metrics_pages)
    show_role_logs = staticmethod(pods.show_logs)
    open_tunnel = staticmethod(release.open_tunnel)
    launch_drivers = staticmethod(load_job.run)

    def format_namespace(self, fleet: Fleet) -> str:  # noqa: ARG002
        return names.SERVING_NAMESPACE

    def render_companions(self, deployment: Deployment) -> Mapping[str, str]:
        """Return the manifests that the release presumes, for those who install the chart themselves, and its stack."""
        stacks = (
            {stacked_release.STACK_FILE: stacked_release.format_stack_file(deployment)}
            if stacked_release.has_stack_file(deployment)
            else {}
        )
        return {namespace.FILE: namespace.format_file(deployment), **stacks}

    def list_warnings(self, fleet: Fleet) -> list[str]:
        if not cluster.can_tunnel(fleet):
            return []
        return [
            "The cluster's endpoint is private. Where this machine does not reach it, the charts and the deployment go "
            "through a tunnel that Session Manager opens."
        ]

    def list_tools(self, fleet: Fleet) -> Mapping[str, str]:
        is_tunneled = cluster.can_tunnel(fleet) and not fleet.eks.private_from
        return {**cluster.TOOLS, **(tunnel.TOOLS if is_tunneled else {})}

    def installs_charts(self, fleet: Fleet) -> bool:
        return fleet.creates_eks

    def list_cluster_commands(self, fleet: Fleet, fleet_file: Path) -> list[Sequence[str]]:
        install = ("blueprint", "platform", "install", "--fleet", console.shorten_path(fleet_file))
        return [cluster.build_kubeconfig_command(fleet), *([install] if self.installs_charts(fleet) else [])]

    def diff(self, plan: DeploymentPlan) -> str:
        return stacked_release.diff(plan) if plan.deployment.stack else release.diff(plan)

    def apply(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool) -> bool:
        deploy = stacked_release.deploy if plan.deployment.stack else release.deploy
        return deploy(plan, confirm, force=force)

    def wait_until_ready(self, plan: DeploymentPlan) -> None:
        release.require_release(plan)
        readiness.wait_until_ready(plan)

    def remove(self, plan: DeploymentPlan) -> bool:
        return stacked_release.destroy(plan) if plan.deployment.stack else release.destroy(plan)


TARGET = EksTarget()
