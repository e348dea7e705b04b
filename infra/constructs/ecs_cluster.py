"""The ECS cluster: watched by Container Insights, every command run inside a task logged, names for its services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.function import build_log_grants
from infra.constructs.key import add_key, add_log_group, build_log_group_grant
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

_INSIGHTS_LEVELS = {"standard": "enabled", "enhanced": "enhanced"}
"""ECS's words. It cannot be off: the alarms on missing tasks read its counts."""


def add_cluster(
    stack: FleetStack, *, functions: Sequence[str] = (), log_groups: Mapping[str, str] = MappingProxyType({})
) -> tuple[aws.ecs_cluster.EcsCluster, aws.kms_key.KmsKey]:
    """Add the cluster with its key, log groups and Service Connect namespace.

    The key encrypts the logs of Lambda functions too, and further log groups, by the name of their grant.
    """
    name = stack.cluster_name
    commands_group = build_exec_log_group_name(stack.fleet)
    # Container Insights makes its own log group where there is none: without a key, and kept for ever.
    insights_group = f"/aws/ecs/containerinsights/{name}/performance"
    kms_key = add_key(
        stack,
        "cluster-key",
        alias=f"{stack.fleet.name}-ecs",
        description=f"Commands run inside tasks, and logs, of the cluster {name}",
        grants=(
            build_log_group_grant(stack, commands_group, "Commands"),
            build_log_group_grant(stack, insights_group, "Insights"),
            *build_log_grants(stack, functions),
            *(build_log_group_grant(stack, group, sid) for sid, group in log_groups.items()),
        ),
    )
    # Who looks into what happened often does so months later.
    commands_log = add_log_group(stack, "exec-logs", commands_group, kms_key, keep_days=365)
    insights_log = add_log_group(stack, "insights-logs", insights_group, kms_key, keep_days=90)
    namespace = aws.service_discovery_http_namespace.ServiceDiscoveryHttpNamespace(
        stack, "service-connect", name=name, description=f"Service Connect of the cluster {name}"
    )
    ecs_cluster = aws.ecs_cluster
    insights_level = _INSIGHTS_LEVELS[stack.fleet.ecs.container_insights]
    cluster = ecs_cluster.EcsCluster(
        stack,
        "cluster",
        name=name,
        setting=[ecs_cluster.EcsClusterSetting(name="containerInsights", value=insights_level)],
        configuration={
            "execute_command_configuration": {
                "kms_key_id": kms_key.arn,
                "logging": "OVERRIDE",
                "log_configuration": {
                    "cloud_watch_encryption_enabled": True,
                    "cloud_watch_log_group_name": commands_log.name,
                },
            }
        },
        service_connect_defaults={"namespace": namespace.arn},
        depends_on=[insights_log],
    )
    return cluster, kms_key


def build_exec_log_group_name(fleet: Fleet) -> str:
    """Return the log group of the commands that were run inside tasks."""
    return f"/aws/ecs/{names.format_cluster_name(fleet)}/exec"


def add_peers_namespace(
    stack: FleetStack, *, vpc_id: str
) -> aws.service_discovery_private_dns_namespace.ServiceDiscoveryPrivateDnsNamespace:
    """Add the private DNS namespace of Cloud Map, for peers that must know each task's own address.

    Prefill and decode workers, or the ranks of one model: Service Connect's proxies would hide who is who.
    """
    return aws.service_discovery_private_dns_namespace.ServiceDiscoveryPrivateDnsNamespace(
        stack,
        "peers",
        name=names.format_namespace(stack.fleet),
        description=f"Tasks of the fleet {stack.fleet.name}",
        vpc=vpc_id,
    )
