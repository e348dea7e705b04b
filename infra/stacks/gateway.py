"""A gateway: its database, its cache, its secret, and the roles or services of its programs.

On ECS the programs are services of this stack. On EKS they are pods of charts/batch, and the stack has their roles.
"""

from __future__ import annotations

import functools

from infra.bindings import aws
from infra.constructs import (
    gateway,
    iam,
    network,
    task_checks,
    task_load_balancer,
    task_network,
    task_place,
    task_programs,
)
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.gateway import GatewayContext
from infra.constructs.key import add_key, build_log_group_grant
from infra.constructs.security_group import SecurityGroups, add_rule
from infra.constructs.task_place import TaskPlace
from infra.constructs.task_programs import ProgramRoles
from infra.stacks import base
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_log_group
from llm_serving.kinds.gateway.stack import GatewayStack
from llm_serving.services.rendered import Rendered

KIND = "gateway"

Gateway = Rendered[GatewayStack]


def _add_resources(stack: FleetStack, deployment: Gateway) -> None:
    """Add all; outputs: database_host, cache_host; on ECS those of `task_place.add_outputs`, load_balancer if any."""
    log_group = format_log_group(stack.fleet, KIND, deployment.name)
    on_tasks = deployment.stack.orchestrator == "ecs"
    place = task_place.find_place(stack) if on_tasks else None
    key = add_key(
        stack,
        "gateway-key",
        alias=f"{stack.fleet.name}-gateway-{deployment.name}",
        description=f"Database, counts, secrets and logs of {deployment.name}",
        grants=(build_log_group_grant(stack, log_group),) if on_tasks else (),
    )
    arns = iam.find_service_secrets(stack, deployment.services)
    fleet_network = place.network if place else network.find_network(stack)
    context = GatewayContext(stack, deployment.name, deployment.stack, fleet_network, key)
    groups = gateway.add_groups(context)
    servers = gateway.add_servers(context, groups)
    gateway.add_alarms(context, servers)
    roles = ProgramRoles(stack, deployment, arns, functools.partial(gateway.list_calls, context, servers))
    if place:
        task_groups = _add_task_groups(context, deployment, place, groups)
        task_programs.add_programs(
            roles,
            place,
            log_key=key,
            groups=task_groups,
            dependencies=[servers.place],
            load_balancer=task_load_balancer.add_load_balancer(
                stack,
                deployment.name,
                deployment.entry,
                deployment.stack.load_balancer,
                place,
                entry_group=task_groups[deployment.entry.name],
                health_path=deployment.entry.probe.health if deployment.entry.probe else "",
            ),
        )
    else:
        _let_nodes_in(stack, groups)
        roles.add_for_pods()
    base.add_output(stack, "database_host", servers.database.address, "Host of the database")
    base.add_output(stack, "cache_host", servers.cache.primary_endpoint_address, "Host of the cache")


def _let_nodes_in(stack: FleetStack, groups: SecurityGroups) -> None:
    """Let the cluster's nodes, whose security groups pods have, reach the servers."""
    node_groups = stack.fleet.eks.node_security_groups
    for group in node_groups:
        gateway.let_in(stack, groups, group, group)
    if not node_groups:
        name = names.find_eks_cluster(stack.fleet)
        cluster = aws.data_aws_eks_cluster.DataAwsEksCluster(stack, "cluster", name=name)
        gateway.let_in(stack, groups, "nodes", cluster.vpc_config.get(0).cluster_security_group_id)


def _add_task_groups(
    context: GatewayContext,
    deployment: Gateway,
    place: TaskPlace,
    groups: SecurityGroups,
) -> SecurityGroups:
    """Add the programs' security groups, by service: clients reach the gateway, which reaches all servers."""
    task_groups = task_network.add_groups(
        context.stack, context.name, [service.name for service in deployment.services], place.network.vpc_id
    )
    task_network.add_entry_rules(
        context.stack, "gateway", task_groups[deployment.entry.name], deployment.entry, place.vpc
    )
    for service in deployment.services:
        group = task_groups[service.name]
        for call, port in gateway.PORTS.items():
            if call in service.calls:
                purpose = service.calls[call].purpose
                add_rule(context.stack, f"{call}-from-{service.name}", groups[call], "in", purpose, port, peer=group)
                add_rule(context.stack, f"{service.name}-to-{call}", group, "out", purpose, port, peer=groups[call])
        calls = {name: call for name, call in service.calls.items() if name not in gateway.PORTS}
        task_network.add_call_rules(context.stack, service.model_copy(update={"calls": calls}), group, place.vpc)
    return task_groups


list_stacks = functools.partial(
    base.list_deployments, KIND, lambda file, fleet: task_checks.read(file, fleet, Gateway).value, _add_resources
)
