"""The ECS cluster: watched by Container Insights, every command run inside a task logged, names for its services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs.account import Account
from infra.constructs.function import log_grants
from infra.constructs.key import for_log_group, key
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

_COMMANDS_KEPT_DAYS = 365
"""Who looks into what happened often does so months later."""

_INSIGHTS_KEPT_DAYS = 90


@dataclass(frozen=True)
class Cluster:
    """The cluster and its key, as resources."""

    resource: Any
    key: Any


def cluster(stack: Any, fleet: Fleet, *, account: Account, functions: Sequence[str] = ()) -> Cluster:
    """Adds the cluster with its key, log groups and Service Connect namespace.

    Args:
        functions: names of the Lambda functions whose logs the key encrypts as well.
    """
    name = names.cluster(fleet)
    commands = exec_log_group(fleet)
    # Container Insights makes its own log group where there is none: without a key, and kept for ever.
    insights = f"/aws/ecs/containerinsights/{name}/performance"
    encryption = key(
        stack,
        "cluster-key",
        alias=f"{fleet.name}-ecs",
        description=f"Commands run inside tasks, and logs, of the cluster {name}",
        account=account,
        grants=(
            for_log_group(account, commands, "Commands"),
            for_log_group(account, insights, "Insights"),
            *log_grants(fleet, account, functions),
        ),
    )
    commands_log = _log_group(stack, "exec-logs", commands, encryption, _COMMANDS_KEPT_DAYS)
    insights_log = _log_group(stack, "insights-logs", insights, encryption, _INSIGHTS_KEPT_DAYS)
    namespace = aws.service_discovery_http_namespace.ServiceDiscoveryHttpNamespace(
        stack, "service-connect", name=name, description=f"Service Connect of the cluster {name}"
    )
    e = aws.ecs_cluster
    made = e.EcsCluster(
        stack,
        "cluster",
        name=name,
        setting=[e.EcsClusterSetting(name="containerInsights", value="enhanced")],
        configuration=_exec_configuration(encryption, commands_log),
        service_connect_defaults=e.EcsClusterServiceConnectDefaults(namespace=namespace.arn),
        depends_on=[insights_log],
    )
    return Cluster(made, encryption)


def exec_log_group(fleet: Fleet) -> str:
    """Log group of the commands that were run inside tasks."""
    return f"/aws/ecs/{names.cluster(fleet)}/exec"


def peers(stack: Any, fleet: Fleet, *, vpc_id: str) -> Any:
    """Adds the private DNS namespace of Cloud Map, for peers that must know each task's own address.

    Prefill and decode workers, or the ranks of one model: Service Connect's proxies would hide who is who.
    """
    return aws.service_discovery_private_dns_namespace.ServiceDiscoveryPrivateDnsNamespace(
        stack, "peers", name=names.namespace(fleet), description=f"Tasks of the fleet {fleet.name}", vpc=vpc_id
    )


def _log_group(stack: Any, name: str, group: str, encryption: Any, kept_days: int) -> Any:
    return aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack, name, name=group, retention_in_days=kept_days, kms_key_id=encryption.arn
    )


def _exec_configuration(encryption: Any, log_group: Any) -> Any:
    e = aws.ecs_cluster
    return e.EcsClusterConfiguration(
        execute_command_configuration=e.EcsClusterConfigurationExecuteCommandConfiguration(
            kms_key_id=encryption.arn,
            logging="OVERRIDE",
            log_configuration=e.EcsClusterConfigurationExecuteCommandConfigurationLogConfiguration(
                cloud_watch_encryption_enabled=True, cloud_watch_log_group_name=log_group.name
            ),
        )
    )
