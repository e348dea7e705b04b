"""Workers and the Batch API of a batch as ECS services on Fargate: roles, security groups, containers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformStack
from infra.constructs import batch_roles, task, task_network, task_roles
from infra.constructs.role import list_policies
from infra.constructs.security_group import add_security_group
from infra.constructs.workflow import WorkflowContext
from llm_serving.fleet import names
from llm_serving.targets.ecs.manifest import BatchService, EcsBatch

_HTTPS = 443

_READY_S = 120
"""Maximum start of a worker, in seconds, before ECS counts it as failed."""


@dataclass(frozen=True)
class TaskContext:
    """Resources that all tasks of a batch share."""

    workflow: WorkflowContext
    batch: EcsBatch
    cluster_arn: str
    cluster_key: str
    """ARN of the key that encrypts the cluster's ECS Exec."""

    subnets: Sequence[str]
    logs: task.LogDestination


def add_task_roles(
    stack: TerraformStack, context: TaskContext, log_group: aws.cloudwatch_log_group.CloudwatchLogGroup
) -> dict[str, task.TaskRoles]:
    """Add the roles of workers and of the Batch API, by service."""
    workflow, batch = context.workflow, context.batch
    fleet, account = workflow.fleet, workflow.account
    execution = task_roles.add_execution_role(stack, fleet, batch, account=account, log_group=log_group)
    start_policies = list_policies(stack, names.format_deployment_purpose(batch.name, "start"))
    roles = {}
    for service in batch.services:
        role, policies = batch_roles.add_program_role(
            stack,
            workflow,
            service,
            trust=task_roles.build_trust_policy(account),
            statements=task_roles.build_exec_statements(fleet, account, context.cluster_key),
        )
        roles[service.name] = task.TaskRoles(execution, role, (*start_policies, *policies))
    return roles


def add_security_groups(
    stack: TerraformStack, context: TaskContext, *, vpc_id: str, vpc_cidr: str
) -> dict[str, aws.security_group.SecurityGroup]:
    """Add the security groups, by service: the VPC can reach the Batch API; nothing can reach the workers."""
    batch = context.batch
    groups = {
        service.name: add_security_group(
            stack,
            f"{service.name}-group",
            name=f"{context.workflow.fleet.name}-{batch.name}-{service.name}",
            description=f"Tasks of {batch.name}: {service.name}",
            vpc_id=vpc_id,
        )
        for service in batch.services
    }
    api = groups[batch.entry.name]
    port, endpoint = batch.entry.port, batch.endpoint_port
    task_network.add_rule(stack, "api-from-vpc", api, "in", "Clients in the VPC", port, cidr=vpc_cidr)
    task_network.add_rule(stack, "api-to-api", api, "out", "The question that proves an answer", port, peer=api)
    for name, group in groups.items():
        # AWS endpoints in the VPC, S3 through its gateway, and the registry, which have no fixed address ranges.
        task_network.add_rule(
            stack, f"{name}-https", group, "out", "HTTPS to AWS and to registries", _HTTPS, cidr="0.0.0.0/0"
        )
        if batch.cache_port and name != batch.entry.name:
            task_network.add_rule(
                stack, f"{name}-to-cache", group, "out", "Answers for servers", batch.cache_port, cidr=vpc_cidr
            )
        if endpoint != _HTTPS or batch.endpoint_deployment:
            task_network.add_rule(
                stack,
                f"{name}-to-endpoint",
                group,
                "out",
                "Rows, and counts of their tokens",
                endpoint,
                cidr=vpc_cidr if batch.endpoint_deployment else "0.0.0.0/0",
            )
    return groups


def add_service(
    stack: TerraformStack,
    context: TaskContext,
    service: BatchService,
    *,
    roles: task.TaskRoles,
    security_group: aws.security_group.SecurityGroup,
    registry: aws.service_discovery_service.ServiceDiscoveryService | None,
    dependencies: Sequence[ITerraformDependable],
) -> tuple[aws.ecs_task_definition.EcsTaskDefinition, aws.ecs_service.EcsService]:
    """Add a service with its task definition."""
    batch = context.batch
    definition = aws.ecs_task_definition.EcsTaskDefinition(
        stack,
        f"{service.name}-task",
        family=f"{context.workflow.fleet.name}-{batch.name}-{service.name}",
        network_mode="awsvpc",
        requires_compatibilities=["FARGATE"],
        cpu=str(service.cpus * 1024),
        memory=str(service.memory_mib),
        execution_role_arn=roles.execution.arn,
        task_role_arn=roles.task.arn,
        container_definitions=json.dumps([build_container(service, context)]),
        runtime_platform=aws.ecs_task_definition.EcsTaskDefinitionRuntimePlatform(
            operating_system_family="LINUX", cpu_architecture="X86_64"
        ),
    )
    e = aws.ecs_service
    ecs_service = e.EcsService(
        stack,
        f"{service.name}-0",
        name=f"{batch.name}-{service.name}",
        cluster=context.cluster_arn,
        task_definition=definition.arn,
        desired_count=service.count,
        capacity_provider_strategy=_build_strategy(service),
        deployment_circuit_breaker=e.EcsServiceDeploymentCircuitBreaker(enable=True, rollback=True),
        # New tasks start before old ones stop; executions have names, so two Batch APIs start each once.
        deployment_minimum_healthy_percent=100,
        deployment_maximum_percent=200,
        enable_execute_command=True,
        enable_ecs_managed_tags=True,
        propagate_tags="SERVICE",
        network_configuration=e.EcsServiceNetworkConfiguration(
            subnets=list(context.subnets), security_groups=[security_group.id], assign_public_ip=False
        ),
        service_registries=e.EcsServiceServiceRegistries(registry_arn=registry.arn) if registry else None,
        depends_on=[*dependencies, *roles.policies],
    )
    # Without it the AWS provider would replace a service whose strategy changes, as where `spot` does.
    ecs_service.add_override("force_new_deployment", True)
    return definition, ecs_service


def build_container(service: BatchService, context: TaskContext) -> dict[str, object]:
    """Build the container definition."""
    container: dict[str, object] = {
        "name": service.role,
        "image": service.image,
        "essential": True,
        "cpu": service.cpus * 1024,
        "memory": service.memory_mib,
        "entryPoint": [service.command[0]],
        "command": list(service.command[1:]),
        "environment": [{"name": name, "value": value} for name, value in sorted(service.environment.items())],
        # The init process ends processes of ECS Exec. Exec writes to the container's root, so that is not read-only.
        "linuxParameters": {"initProcessEnabled": True, "capabilities": {"drop": ["ALL"]}},
        "stopTimeout": service.stop_s,
        "logConfiguration": context.logs.build_configuration(service.role),
    }
    if service.port and service.probe:
        container["portMappings"] = [
            {"name": "http", "containerPort": service.port, "protocol": "tcp", "appProtocol": "http"}
        ]
        url = f"http://127.0.0.1:{service.port}{service.probe.health}"
        container["healthCheck"] = task.build_health_check([url, ""], service.probe.deadline_s)
    if service.ready_file:
        check = {"interval": 10, "timeout": 5, "retries": 3, "startPeriod": _READY_S}
        container["healthCheck"] = {"command": ["CMD", "test", "-e", service.ready_file], **check}
    return container


def _build_strategy(service: BatchService) -> list[aws.ecs_service.EcsServiceCapacityProviderStrategy]:
    """Build the strategy: one task on Fargate, the others on Fargate Spot, so that jobs continue without spot capacity.

    Source: ECS developer guide, "Amazon ECS clusters for Fargate", capacity provider strategies, 2026-11.
    """
    strategy = aws.ecs_service.EcsServiceCapacityProviderStrategy
    if not service.spot:
        return [strategy(capacity_provider="FARGATE", weight=1)]
    return [
        strategy(capacity_provider="FARGATE", base=1, weight=0),
        strategy(capacity_provider="FARGATE_SPOT", weight=1),
    ]
