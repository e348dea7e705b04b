"""The programs of a deployment as ECS services: their log, roles, task definitions, alarms and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import iam, task, task_network, task_place, task_roles, task_service, task_watch
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement, add_role
from infra.constructs.key import add_log_group
from infra.constructs.security_group import SecurityGroups
from infra.constructs.task_load_balancer import TaskLoadBalancer
from infra.constructs.task_place import AddedService, TaskPlace
from infra.constructs.task_service import ServiceContext, ServiceParts
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service


def add_programs(
    program_roles: ProgramRoles,
    place: TaskPlace,
    *,
    log_key: aws.kms_key.KmsKey,
    groups: SecurityGroups,
    dependencies: Sequence[ITerraformDependable],
    load_balancer: TaskLoadBalancer | None = None,
    may_use_spot: bool = False,
) -> None:
    """Add every service of a deployment, with its security group by its name.

    `dependencies` are what the programs need beside their log and their roles.
    """
    stack, deployment = program_roles.stack, program_roles.deployment
    context = ServiceContext(
        stack=stack,
        deployment=deployment.name,
        place=place,
        load_balancer=load_balancer,
        may_use_spot=may_use_spot,
    )
    task_service.add_force_variable(stack)
    log_group = add_log_group(
        stack, "tasks-logs", format_log_group(stack.fleet, deployment.kind, deployment.name), log_key
    )
    execution_role = task_roles.add_execution_role(stack, deployment.name, log_group=log_group)
    trust = task_roles.build_trust_policy(stack.account)
    exec_statements = task_roles.build_exec_statements(stack, place.cluster_key)
    roles: dict[str, task.TaskRoles] = {}
    added: dict[str, AddedService] = {}
    for service in deployment.services:
        role = program_roles.add(service, trust=trust, statements=exec_statements)
        roles[service.name] = task.TaskRoles(execution_role, role)
        needs = [log_group, *dependencies, *roles[service.name].policies]
        added[service.name] = _add_program(
            context, service, roles[service.name], log_group, groups[service.name], needs
        )
    entry = deployment.entry.name
    task_place.add_outputs(stack, deployment, place, added, roles=roles[entry], security_group=groups[entry])


def _add_program(
    context: ServiceContext,
    service: Service,
    roles: task.TaskRoles,
    log_group: aws.cloudwatch_log_group.CloudwatchLogGroup,
    security_group: aws.security_group.SecurityGroup,
    dependencies: Sequence[ITerraformDependable],
) -> AddedService:
    """Add the task definition of a program, its ECS services and the alarm on tasks that are missing."""
    stack, deployment, fleet = context.stack, context.deployment, context.stack.fleet
    definition = task.add_definition(
        stack,
        service,
        family=f"{fleet.name}-{deployment}-{service.name}",
        roles=roles,
        logs=task.LogDestination(log_group.name, fleet.region),
        image_prefixes={},
    )
    registry = (
        task_network.add_discovery_service(stack, deployment, service, namespace_id=context.place.namespace_id)
        if service.is_entry
        else None
    )
    parts = ServiceParts(definition, security_group, registry, dependencies)
    task_watch.add_running_alarm(stack, deployment, service, task_service.list_names(fleet, deployment, service))
    return task_service.add_services(context, service, parts)


@dataclass(frozen=True)
class ProgramRoles:
    """What a role may do, by its program; each has one of its own."""

    stack: FleetStack
    deployment: Rendered[Any]
    secret_arns: Mapping[str, str]
    """ARNs of the secrets that programs read, by their name in the programs."""

    list_calls: Callable[[Service], tuple[str, Iterable[Statement]]]
    """Returns a word for the role's name, and what the program's code calls."""

    def add(self, service: Service, *, trust: str, statements: Iterable[Statement] = ()) -> aws.iam_role.IamRole:
        """Add the role of a program, with further statements for the orchestrator."""
        word, calls = self.list_calls(service)
        reads = iam.build_secret_statements(self.stack, service.secrets, self.secret_arns)
        return add_role(
            self.stack,
            names.format_deployment_purpose(self.deployment.name, word),
            description=f"{service.name} of {self.deployment.name}",
            trust=trust,
            statements=(*calls, *reads, *statements),
        )

    def add_for_pods(self) -> None:
        """Add each role, tied to its program's own service account, which the deployment's chart names."""
        trust = iam.build_pod_trust_policy(self.stack)
        for service in self.deployment.services:
            role = self.add(service, trust=trust)
            iam.add_service_association(self.stack, self.deployment.name, service.name, role)
