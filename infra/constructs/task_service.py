"""ECS services that keep a role's tasks running, one for each choice of its pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs.fleet_stack import FleetStack, format_expression
from infra.constructs.task_load_balancer import TaskLoadBalancer
from infra.constructs.task_place import AddedService, TaskPlace
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_service_name, list_choices
from llm_serving.fleet.model import Fleet
from llm_serving.services.service import Service

FORCE_VARIABLE = "force_new_deployment"
"""Terraform variable: whether a change of a service replaces its tasks, one after the other.

Without it the AWS provider replaces a service whose strategy changes, which is an outage: deleted, then made again.
With it every change replaces all tasks, a change of their number too. `blueprint deploy` sets it for a changed strategy
only.
Source: terraform-provider-aws 5.100, internal/service/ecs/service.go (capacityProviderStrategyCustomizeDiff,
resourceServiceUpdate) and its documentation of capacity_provider_strategy; hashicorp/terraform-provider-aws#37848.
"""


def add_force_variable(stack: FleetStack) -> None:
    """Add the variable, on unless somebody sets it."""
    description = "Move tasks where a service's capacity providers change, instead of replacing the service"
    stack.add_override(f"variable.{FORCE_VARIABLE}", {"type": "bool", "default": True, "description": description})


@dataclass(frozen=True)
class ServiceContext:
    """What all services of a deployment share."""

    stack: FleetStack
    deployment: str
    place: TaskPlace
    alarm_name: str = ""
    """Name of the alarm that takes a deployment back; empty without one."""

    load_balancer: TaskLoadBalancer | None = None
    """What calls the entry; None without one."""

    connect_timeout_s: int = 0
    """Longest silence of clients on the same cluster, which reach the entry by the name that DNS has for all others; 0
    where they look the name up."""

    may_use_spot: bool = False
    """Whether services on Fargate name its capacity providers, so that `spot` can change without replacing them."""


@dataclass(frozen=True)
class ServiceParts:
    """What the ECS services of one role are made of."""

    definition: aws.ecs_task_definition.EcsTaskDefinition
    security_group: aws.security_group.SecurityGroup
    registry: aws.service_discovery_service.ServiceDiscoveryService | None
    dependencies: Sequence[ITerraformDependable]


def add_services(context: ServiceContext, service: Service, parts: ServiceParts) -> AddedService:
    """Add an ECS service for each choice; the first one has the tasks, the others take those that find no instance."""
    choices = list_service_choices(context.stack.fleet, service)
    ecs_names = []
    for choice, providers in enumerate(choices):
        ecs_service = _add_service(context, service, parts, choice, providers)
        if providers or context.may_use_spot:
            ecs_service.add_override("force_new_deployment", format_expression(f"var.{FORCE_VARIABLE}"))
        gives_way = service.placement.gives_way and not choice
        # Autoscaling and the fallback move these; an apply must not move them back.
        moved = ["desired_count"] if service.replicas.scale or choice or gives_way else []
        tags: dict[str, str] = {}  # as `infra.functions.ecs_fallback` reads them
        if len(choices) > 1:
            tags |= {"fallback": f"{context.deployment}-{service.name}", "choice": str(choice)}
        if gives_way:
            tags["gives-way"] = str(service.replicas.max)
        # Where the tasks are not `replicas.min`, the percent of these would stop too many at once, or none.
        is_moving = len(choices) > 1 or service.replicas.scale
        if providers and is_moving and not service.replicas.surge:
            tags["unavailable"] = str(service.replicas.unavailable)
            moved.append("deployment_minimum_healthy_percent")
        if tags:
            ecs_service.add_override("tags", tags)
        if moved:
            ecs_service.add_override("lifecycle.ignore_changes", moved)
        ecs_names.append(ecs_service.name)
    return AddedService(parts.definition.arn, ecs_names)


def list_service_choices(fleet: Fleet, service: Service) -> list[list[str]]:
    """List the capacity providers of each of a service's choices, in order of preference."""
    return list_choices(fleet, service.placement.pool, service.node.group if service.node else None)


def list_names(fleet: Fleet, deployment: str, service: Service) -> list[str]:
    """List the names of a service's ECS services, in order of preference."""
    choices = list_service_choices(fleet, service)
    return [format_service_name(deployment, service.name, choice) for choice in range(len(choices))]


def _add_service(
    context: ServiceContext, service: Service, parts: ServiceParts, choice: int, providers: Sequence[str]
) -> aws.ecs_service.EcsService:
    ecs_service, registry = aws.ecs_service, parts.registry
    min_percent, max_percent = _compute_healthy_percent(service)
    strategy = _build_strategy(context, service, providers)
    targets = _build_targets(context, service)
    return ecs_service.EcsService(
        context.stack,
        f"{service.name}-{choice}",
        name=format_service_name(context.deployment, service.name, choice),
        cluster=context.place.cluster_arn,
        task_definition=parts.definition.arn,
        desired_count=0 if choice else max(1, service.replicas.min),
        launch_type=None if strategy else "FARGATE",
        capacity_provider_strategy=strategy or None,
        deployment_circuit_breaker={"enable": True, "rollback": True},
        deployment_minimum_healthy_percent=min_percent,
        deployment_maximum_percent=max_percent,
        alarms={"enable": True, "rollback": True, "alarm_names": [context.alarm_name]} if context.alarm_name else None,
        enable_execute_command=True,
        enable_ecs_managed_tags=True,
        propagate_tags="SERVICE",
        network_configuration=_build_network(context, service, parts.security_group),
        placement_constraints=_build_placement_constraints(service) or None,
        # Fill instances one after the other, so that unneeded ones can be terminated.
        ordered_placement_strategy=[ecs_service.EcsServiceOrderedPlacementStrategy(type="binpack", field="memory")]
        if providers
        else None,
        service_registries={"registry_arn": registry.arn} if registry else None,
        load_balancer=targets or None,
        # Else ECS stops a task that starts after three failed checks, a gateway while it prepares its database. Source:
        # ECS API reference, CreateService, healthCheckGracePeriodSeconds, whose default is 0, 2026-11.
        health_check_grace_period_seconds=math.ceil(service.probe.deadline_s) if targets and service.probe else None,
        service_connect_configuration=_build_service_connect(context, service)
        if service.is_entry and context.connect_timeout_s
        else None,
        # ECS takes a target group only once a listener forwards to it.
        depends_on=[*parts.dependencies, *([context.load_balancer.listener] if context.load_balancer else [])],
    )


def _build_strategy(
    context: ServiceContext, service: Service, providers: Sequence[str]
) -> list[aws.ecs_service.EcsServiceCapacityProviderStrategy]:
    """Return the strategy; with spot one task runs on Fargate and the others on Fargate Spot, so that work goes on.

    Source: ECS developer guide, "Amazon ECS clusters for Fargate", capacity provider strategies, 2026-11.
    """
    strategy = aws.ecs_service.EcsServiceCapacityProviderStrategy
    if providers:
        return [strategy(capacity_provider=provider, weight=1) for provider in providers]
    if service.placement.spot:
        return [
            strategy(capacity_provider="FARGATE", base=1, weight=0),
            strategy(capacity_provider="FARGATE_SPOT", weight=1),
        ]
    return [strategy(capacity_provider="FARGATE", weight=1)] if context.may_use_spot else []


def _build_targets(context: ServiceContext, service: Service) -> list[aws.ecs_service.EcsServiceLoadBalancer]:
    """Return where the load balancer finds the entry's tasks; nothing for others, and without a load balancer."""
    if not (context.load_balancer and service.is_entry):
        return []
    return [
        aws.ecs_service.EcsServiceLoadBalancer(
            target_group_arn=context.load_balancer.target_group.arn,
            container_name=service.role,
            container_port=service.port,
        )
    ]


def _build_network(
    context: ServiceContext, service: Service, security_group: aws.security_group.SecurityGroup
) -> dict[str, Any]:
    subnets = context.place.network.private_subnets
    zones = service.placement.zones or subnets
    return {
        "subnets": [subnet for zone, subnet in subnets.items() if zone in zones],
        "security_groups": [security_group.id],
        "assign_public_ip": False,
    }


def _build_placement_constraints(service: Service) -> list[aws.ecs_service.EcsServicePlacementConstraints]:
    placement = service.placement
    attributes = (("instance-type", placement.instance_types), ("availability-zone", placement.zones))
    return [
        aws.ecs_service.EcsServicePlacementConstraints(
            type="memberOf", expression=f"attribute:ecs.{attribute} in [{', '.join(values)}]"
        )
        for attribute, values in attributes
        if values and placement.pool
    ]


def _compute_healthy_percent(service: Service) -> tuple[int, int]:
    """Return the least and most percent of tasks in a rollout. By itself it stops old tasks first: no GPU is spare."""
    replicas = service.replicas
    if not service.placement.pool:
        return 100, 200
    if replicas.surge:
        return 100, 100 + math.ceil(100 * replicas.surge / max(1, replicas.min))
    return 100 * max(0, replicas.min - replicas.unavailable) // max(1, replicas.min), 100


def _build_service_connect(context: ServiceContext, service: Service) -> dict[str, Any]:
    name = f"{context.deployment}-{service.name}"
    connected = aws.ecs_service.EcsServiceServiceConnectConfigurationService(
        port_name="http",
        discovery_name=name,
        client_alias={"dns_name": f"{name}.{names.format_namespace(context.stack.fleet)}", "port": service.port},
        # Answers are streamed for as long as the entry lets them.
        timeout={"idle_timeout_seconds": context.connect_timeout_s, "per_request_timeout_seconds": 0},
    )
    return {"enabled": True, "service": [connected]}
