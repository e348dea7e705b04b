"""The programs of a deployment as ECS services: their log, roles, task definitions, alarms and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import task, task_network, task_place, task_roles, task_service, task_watch
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement
from infra.constructs.role import list_policies
from infra.constructs.task_place import AddedService, TaskPlace
from infra.constructs.task_service import ServiceContext
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service


class AddRole(Protocol):
    """Adds the role of a program, and returns it with its policies."""

    def __call__(
        self, service: Service, *, trust: str, statements: Iterable[Statement]
    ) -> tuple[aws.iam_role.IamRole, list[ITerraformDependable]]:
        """Add it with a trust policy, and with the statements that ECS needs."""


def add_programs(
    stack: FleetStack,
    context: ServiceContext,
    deployment: Rendered[Any],
    place: TaskPlace,
    *,
    log_key: aws.kms_key.KmsKey,
    groups: Mapping[str, aws.security_group.SecurityGroup],
    add_role: AddRole,
    dependencies: Sequence[ITerraformDependable],
) -> None:
    """Add every service of a deployment.

    Args:
        groups: security groups, by service.
        dependencies: what the programs need beside their log and their roles.
    """
    fleet, name, entry = context.fleet, deployment.name, deployment.entry.name
    task_service.add_force_variable(stack)
    log_group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack,
        "tasks-logs",
        name=format_log_group(fleet, deployment.kind, name),
        retention_in_days=fleet.logs.keep_days,
        kms_key_id=log_key.arn,
    )
    execution = task_roles.add_execution_role(stack, name, log_group=log_group)
    start_policies = list_policies(stack, names.format_deployment_purpose(name, "start"))
    roles: dict[str, task.TaskRoles] = {}
    added: dict[str, AddedService] = {}
    for service in deployment.services:
        role, policies = add_role(
            service,
            trust=task_roles.build_trust_policy(stack.account),
            statements=task_roles.build_exec_statements(fleet, stack.account, place.cluster_key),
        )
        roles[service.name] = task.TaskRoles(execution, role, (*start_policies, *policies))
        definition = task.add_definition(
            stack,
            service,
            family=f"{fleet.name}-{name}-{service.name}",
            roles=roles[service.name],
            logs=task.LogDestination(log_group.name, fleet.region),
            image_prefixes={},
        )
        registry = (
            task_network.add_discovery_service(stack, name, service, namespace_id=place.namespace_id)
            if service.is_entry
            else None
        )
        ecs_services = task_service.add_services(
            stack,
            context,
            service,
            definition=definition,
            security_group=groups[service.name],
            registry=registry,
            dependencies=[log_group, *dependencies, *roles[service.name].policies],
        )
        added[service.name] = AddedService(definition.arn, [row.name for row in ecs_services])
        task_watch.add_running_alarm(stack, name, service, task_service.list_names(fleet, name, service))
    task_place.add_outputs(stack, deployment, place, added, roles=roles[entry], security_group=groups[entry])
