"""ECS services that keep a role's tasks running, one for each choice of its pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformStack
from infra.constructs.expression import format_expression
from infra.constructs.task_load_balancer import TaskLoadBalancer
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import EcsDeployment, PlacementChoice, Service, format_service_name, list_choices

FORCE_VARIABLE = "force_new_deployment"
"""Terraform variable: whether a change of a service replaces its tasks, one after the other.

Without it the AWS provider replaces a service whose strategy changes, which is an outage: deleted, then made again.
With it every change replaces all tasks, a change of their number too. `blueprint deploy` sets it for a changed strategy
alone.
Source: terraform-provider-aws 5.100, internal/service/ecs/service.go (capacityProviderStrategyCustomizeDiff,
resourceServiceUpdate) and its documentation of capacity_provider_strategy; hashicorp/terraform-provider-aws#37848.
"""


def add_force_variable(stack: TerraformStack) -> None:
    """Add the variable, on unless somebody sets it."""
    description = "Move tasks where a service's capacity providers change, instead of replacing the service"
    stack.add_override(f"variable.{FORCE_VARIABLE}", {"type": "bool", "default": True, "description": description})


@dataclass(frozen=True)
class ServiceContext:
    """What all services of a deployment share."""

    fleet: Fleet
    serving: EcsDeployment
    cluster_arn: str
    subnets: dict[str, str]
    """Private subnet by zone."""

    alarm_name: str
    """Name of the alarm that takes a deployment back."""

    image_prefixes: dict[str, str]
    """Of the fleet's image cache, by the host that each replaces."""

    load_balancer: TaskLoadBalancer | None = None
    """What calls the routers; None without one."""


def add_services(
    stack: TerraformStack,
    context: ServiceContext,
    service: Service,
    *,
    definition: aws.ecs_task_definition.EcsTaskDefinition,
    security_group: aws.security_group.SecurityGroup,
    registry: aws.service_discovery_service.ServiceDiscoveryService | None,
    dependencies: Sequence[ITerraformDependable],
) -> list[aws.ecs_service.EcsService]:
    """Add an ECS service for each choice; the first one has the tasks, the others take those that find no machine."""
    pool_choices = list_choices(context.fleet, service)
    ecs_services = []
    for choice in pool_choices:
        ecs_service = _add_service(stack, context, service, choice, definition, security_group, registry, dependencies)
        if choice.providers:
            ecs_service.add_override("force_new_deployment", format_expression(f"var.{FORCE_VARIABLE}"))
        if service.scale or choice.number:
            # Autoscaling and the fallback move it; an apply must not move it back.
            ecs_service.add_override("lifecycle.ignore_changes", ["desired_count"])
        if len(pool_choices) > 1:
            ecs_service.add_override(
                "tags", names.build_fallback_tags(f"{context.serving.name}-{service.name}", choice.number)
            )
        ecs_services.append(ecs_service)
    return ecs_services


def _add_service(
    stack: TerraformStack,
    context: ServiceContext,
    service: Service,
    choice: PlacementChoice,
    definition: aws.ecs_task_definition.EcsTaskDefinition,
    security_group: aws.security_group.SecurityGroup,
    registry: aws.service_discovery_service.ServiceDiscoveryService | None,
    dependencies: Sequence[ITerraformDependable],
) -> aws.ecs_service.EcsService:
    e = aws.ecs_service
    min_percent, max_percent = _compute_healthy_percent(service)
    return e.EcsService(
        stack,
        f"{service.name}-{choice.number}",
        name=format_service_name(context.serving, service, choice),
        cluster=context.cluster_arn,
        task_definition=definition.arn,
        desired_count=0 if choice.number else service.initial_count,
        launch_type=None if choice.providers else "FARGATE",
        capacity_provider_strategy=_build_strategy(choice) or None,
        deployment_circuit_breaker=e.EcsServiceDeploymentCircuitBreaker(enable=True, rollback=True),
        deployment_minimum_healthy_percent=min_percent,
        deployment_maximum_percent=max_percent,
        alarms=e.EcsServiceAlarms(enable=True, rollback=True, alarm_names=[context.alarm_name]),
        enable_execute_command=True,
        enable_ecs_managed_tags=True,
        propagate_tags="SERVICE",
        network_configuration=e.EcsServiceNetworkConfiguration(
            subnets=_select_subnets(context, service), security_groups=[security_group.id], assign_public_ip=False
        ),
        placement_constraints=_build_placement_constraints(service) or None,
        # Fill instances one after the other, so that unneeded ones can be terminated.
        ordered_placement_strategy=[e.EcsServiceOrderedPlacementStrategy(type="binpack", field="memory")]
        if choice.providers
        else None,
        service_registries=e.EcsServiceServiceRegistries(registry_arn=registry.arn) if registry else None,
        load_balancer=_build_target(context, service),
        service_connect_configuration=_build_service_connect(context, service) if service.kind == "router" else None,
        # ECS takes a target group only once a listener forwards to it.
        depends_on=[*dependencies, *([context.load_balancer.listener] if context.load_balancer else [])],
    )


def _build_target(context: ServiceContext, service: Service) -> list[aws.ecs_service.EcsServiceLoadBalancer] | None:
    """Where the load balancer finds a router's tasks; None for engines."""
    if not context.load_balancer or service.kind != "router":
        return None
    return [
        aws.ecs_service.EcsServiceLoadBalancer(
            target_group_arn=context.load_balancer.target_group.arn,
            container_name=service.role,
            container_port=service.port,
        )
    ]


def _build_strategy(choice: PlacementChoice) -> list[aws.ecs_service.EcsServiceCapacityProviderStrategy]:
    return [
        aws.ecs_service.EcsServiceCapacityProviderStrategy(capacity_provider=provider, weight=1)
        for provider in choice.providers
    ]


def _build_placement_constraints(service: Service) -> list[aws.ecs_service.EcsServicePlacementConstraints]:
    return [
        aws.ecs_service.EcsServicePlacementConstraints(type="memberOf", expression=expression)
        for expression in _build_constraints(service)
    ]


def _compute_healthy_percent(service: Service) -> tuple[int, int]:
    """Minimum and maximum percent of tasks during a deployment. No spare GPUs: old tasks stop before new ones start."""
    if service.pool is None or service.unavailable == 0:
        return 100, 200
    return 100 * max(0, service.count - service.unavailable) // service.initial_count, 100


def _select_subnets(context: ServiceContext, service: Service) -> list[str]:
    return [subnet for zone, subnet in context.subnets.items() if not service.zones or zone in service.zones]


def _build_constraints(service: Service) -> Iterator[str]:
    for attribute, values in (("instance-type", service.types), ("availability-zone", service.zones)):
        if values:
            yield f"attribute:ecs.{attribute} in [{', '.join(values)}]"


def _build_service_connect(
    context: ServiceContext, service: Service
) -> aws.ecs_service.EcsServiceServiceConnectConfiguration:
    """Clients on the same cluster reach the router by the name that DNS has for all others."""
    e = aws.ecs_service
    name = f"{context.serving.name}-{service.name}"
    return e.EcsServiceServiceConnectConfiguration(
        enabled=True,
        service=[
            e.EcsServiceServiceConnectConfigurationService(
                port_name="http",
                discovery_name=name,
                client_alias=e.EcsServiceServiceConnectConfigurationServiceClientAlias(
                    dns_name=f"{name}.{names.format_namespace(context.fleet)}", port=service.port
                ),
                # Answers are streamed for as long as the router lets them.
                timeout=e.EcsServiceServiceConnectConfigurationServiceTimeout(
                    idle_timeout_seconds=context.serving.request_timeout_s, per_request_timeout_seconds=0
                ),
            )
        ],
    )
