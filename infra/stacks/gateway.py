"""A gateway: its database, its cache, its secret, and the roles or services of its programs.

On ECS the programs are services of this stack. On EKS they are pods of charts/batch, and the stack has their roles.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from infra.bindings import aws, cdktf
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import (
    gateway,
    gateway_watch,
    network,
    pod_identity,
    secrets,
    task_checks,
    task_load_balancer,
    task_network,
    task_place,
    task_programs,
    task_service,
    task_watch,
)
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.gateway import GatewayContext, ServerGroups, Servers
from infra.constructs.key import add_key, build_log_group_grant
from infra.constructs.policy import Statement
from infra.constructs.role import add_role, list_policies
from infra.constructs.security_group import add_rule
from infra.constructs.task_place import TaskPlace
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.gateway.stack import CACHE_CALL, CACHE_PORT, DATABASE_CALL, DATABASE_PORT, GatewayStack
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service
from llm_serving.settings.document import Document

KIND = "gateway"

Gateway = Rendered[GatewayStack]


def list_stacks(document: Document[Fleet], files: Sequence[Path]) -> list[DeploymentStack]:
    """Return the stack of each gateway that is rendered for ECS or EKS.

    Raises:
        InputError: a rendered file is wrong, or a gateway is rendered for both.
    """
    return base.list_deployments(
        KIND, document, files, lambda file: DeploymentStack(task_checks.read(file, document, Gateway).value)
    )


class DeploymentStack(base.TaskOrPodStack[GatewayStack]):
    """The stack of one gateway."""

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        """Add the stack to the app.

        Outputs: database_host, cache_host; on ECS those of `task_place.add_outputs`, and load_balancer if there is one.
        """
        _add_resources(base.create_stack(app, self.NAME, document), self._deployment)


def _add_resources(stack: FleetStack, deployment: Gateway) -> None:
    log_group = format_log_group(stack.fleet, KIND, deployment.name)
    on_tasks = deployment.stack.orchestrator == "ecs"
    place = task_place.find_place(stack) if on_tasks else None
    key = add_key(
        stack,
        "gateway-key",
        alias=f"{stack.fleet.name}-gateway-{deployment.name}",
        description=f"Database, counts, secrets and logs of {deployment.name}",
        grants=(build_log_group_grant(stack.account, log_group),) if on_tasks else (),
    )
    vpc_id, subnets = _find_network(stack, place)
    arns = secrets.find_service_arns(stack, deployment.services)
    context = GatewayContext(stack.fleet, deployment.name, deployment.stack, stack.account, vpc_id, subnets, key, arns)
    groups = gateway.add_groups(stack, context)
    servers = gateway.add_servers(stack, context, groups)
    gateway_watch.add_alarms(stack, context)
    if place:
        _add_tasks(stack, context, deployment, place, servers, groups)
    else:
        _add_pods(stack, context, deployment, servers, groups)
    base.add_output(stack, "database_host", servers.database.address, "Host of the database")
    base.add_output(stack, "cache_host", servers.cache.primary_endpoint_address, "Host of the cache")


def _find_network(stack: FleetStack, place: TaskPlace | None) -> tuple[str, list[str]]:
    """Find the VPC's id and the private subnets."""
    if place:
        return place.vpc_id, [*place.subnets.values()]
    vpc = network.find_network(stack)
    return vpc.vpc_id, [*vpc.private_subnets.values()]


def _add_program_role(
    stack: FleetStack,
    context: GatewayContext,
    servers: Servers,
    service: Service,
    *,
    trust: str,
    statements: Iterable[Statement] = (),
) -> tuple[aws.iam_role.IamRole, list[ITerraformDependable]]:
    """Add the role of the gateway or of the meter; returns its policies too."""
    purpose = names.format_deployment_purpose(context.name, "gate" if service.is_entry else "meter")
    role = add_role(
        stack,
        purpose,
        description=f"{service.name} of {context.name}",
        trust=trust,
        statements=(
            *gateway.build_statements(context, servers, prepares=service.is_entry),
            *secrets.build_statements(service.secrets, context.secret_arns, context.fleet.region),
            *statements,
        ),
    )
    return role, list_policies(stack, purpose)


def _add_pods(
    stack: FleetStack, context: GatewayContext, deployment: Gateway, servers: Servers, groups: ServerGroups
) -> None:
    """Add the pods' roles, and let the cluster's nodes, whose security group pods have, reach the servers."""
    cluster = names.format_cluster_name(context.fleet)
    found = aws.data_aws_eks_cluster.DataAwsEksCluster(stack, "cluster", name=cluster)
    nodes = found.vpc_config.get(0).cluster_security_group_id
    gateway.let_in(stack, groups, "nodes", nodes)
    trust = pod_identity.build_trust_policy(cluster, context.account)
    for service in deployment.services:
        role, _ = _add_program_role(stack, context, servers, service, trust=trust)
        pod_identity.add_service_association(stack, deployment.name, service.name, role)


def _add_tasks(
    stack: FleetStack,
    context: GatewayContext,
    deployment: Gateway,
    place: TaskPlace,
    servers: Servers,
    groups: ServerGroups,
) -> None:
    """Add the programs as ECS services, with their outputs."""
    task_groups = _add_task_groups(stack, context, deployment, place, groups)
    services_context = task_service.ServiceContext(
        fleet=context.fleet,
        deployment=deployment.name,
        cluster_arn=place.cluster_arn,
        subnets=place.subnets,
        load_balancer=_add_load_balancer(stack, context, deployment, place, task_groups[deployment.entry.name]),
    )
    task_programs.add_programs(
        stack,
        services_context,
        deployment,
        place,
        log_key=context.key,
        groups=task_groups,
        add_role=functools.partial(_add_program_role, stack, context, servers),
        dependencies=[servers.place],
    )


def _add_task_groups(
    stack: FleetStack, context: GatewayContext, deployment: Gateway, place: TaskPlace, groups: ServerGroups
) -> dict[str, aws.security_group.SecurityGroup]:
    """Add the programs' security groups, by service: clients reach the gateway, which reaches all servers."""
    task_groups = task_network.add_groups(
        stack, context.name, [service.name for service in deployment.services], place.vpc_id
    )
    task_network.add_entry_rules(stack, "gateway", task_groups[deployment.entry.name], deployment.entry, place.vpc)
    servers = ((DATABASE_CALL, groups.database, DATABASE_PORT), (CACHE_CALL, groups.cache, CACHE_PORT))
    for service in deployment.services:
        group = task_groups[service.name]
        for call, server, port in servers:
            if call not in service.calls:
                continue
            purpose = service.calls[call].purpose
            add_rule(stack, f"{call}-from-{service.name}", server, "in", purpose, port, peer=group)
            add_rule(stack, f"{service.name}-to-{call}", group, "out", purpose, port, peer=server)
        others = {name: call for name, call in service.calls.items() if name not in (DATABASE_CALL, CACHE_CALL)}
        task_network.add_call_rules(stack, service.model_copy(update={"calls": others}), group, place.vpc)
    return task_groups


def _add_load_balancer(
    stack: FleetStack,
    context: GatewayContext,
    deployment: Gateway,
    place: TaskPlace,
    entry_group: aws.security_group.SecurityGroup,
) -> task_load_balancer.TaskLoadBalancer | None:
    """Add the load balancer, and the output with its name; None where the gateway has none."""
    settings, entry = deployment.stack.load_balancer, deployment.entry
    if settings is None:
        return None
    assert entry.probe
    load_balancer = task_load_balancer.add_load_balancer(
        stack,
        context.name,
        entry,
        settings,
        vpc_id=place.vpc_id,
        vpc=place.vpc,
        subnet_ids=list(place.subnets.values()),
        entry_group=entry_group,
        health_path=entry.probe.health,
    )
    task_watch.add_certificate_alarm(stack, context.name, settings.certificate)
    name = load_balancer.balancer.dns_name
    base.add_output(stack, "load_balancer", name, "Where a name of the certificate should lead: a CNAME or alias")
    return load_balancer
