"""ECS services: a role's tasks kept running, a service for each choice of its pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import Choice, Service, Serving, choices, name_of


@dataclass(frozen=True)
class Setting:
    """What all services of a deployment share."""

    fleet: Fleet
    serving: Serving
    cluster_arn: str
    subnets: dict[str, str]
    """Private subnet by zone."""

    alarm: str
    """Name of the alarm that takes a deployment back."""


def services(
    stack: Any, setting: Setting, service: Service, *, definition: Any, group: Any, registry: Any, after: Sequence[Any]
) -> list[Any]:
    """Adds an ECS service for each choice; the first one has the tasks, the others take those that find no machine."""
    found = choices(setting.fleet, service)
    made = []
    for choice in found:
        one = _service(stack, setting, service, choice, definition, group, registry, after)
        if service.scale or choice.number:
            # Autoscaling and the fallback move it; an apply must not move it back.
            one.add_override("lifecycle.ignore_changes", ["desired_count"])
        if len(found) > 1:
            one.add_override("tags", names.fallback_tags(f"{setting.serving.name}-{service.name}", choice.number))
        made.append(one)
    return made


def _service(
    stack: Any,
    setting: Setting,
    service: Service,
    choice: Choice,
    definition: Any,
    group: Any,
    registry: Any,
    after: Sequence[Any],
) -> Any:
    e = aws.ecs_service
    least, most = _healthy(service)
    return e.EcsService(
        stack,
        f"{service.name}-{choice.number}",
        name=name_of(setting.serving, service, choice),
        cluster=setting.cluster_arn,
        task_definition=definition.arn,
        desired_count=0 if choice.number else service.first,
        launch_type=None if choice.providers else "FARGATE",
        capacity_provider_strategy=[
            e.EcsServiceCapacityProviderStrategy(capacity_provider=provider, weight=1) for provider in choice.providers
        ]
        or None,
        deployment_circuit_breaker=e.EcsServiceDeploymentCircuitBreaker(enable=True, rollback=True),
        deployment_minimum_healthy_percent=least,
        deployment_maximum_percent=most,
        alarms=e.EcsServiceAlarms(enable=True, rollback=True, alarm_names=[setting.alarm]),
        enable_execute_command=True,
        enable_ecs_managed_tags=True,
        propagate_tags="SERVICE",
        network_configuration=e.EcsServiceNetworkConfiguration(
            subnets=_subnets(setting, service), security_groups=[group.id], assign_public_ip=False
        ),
        placement_constraints=[
            e.EcsServicePlacementConstraints(type="memberOf", expression=expression)
            for expression in _constraints(service)
        ]
        or None,
        # Machines fill up one after the other, so that those that are not needed can go.
        ordered_placement_strategy=[e.EcsServiceOrderedPlacementStrategy(type="binpack", field="memory")]
        if choice.providers
        else None,
        service_registries=e.EcsServiceServiceRegistries(registry_arn=registry.arn) if registry else None,
        service_connect_configuration=_connect(setting, service) if service.kind == "router" else None,
        depends_on=list(after),
    )


def _healthy(service: Service) -> tuple[int, int]:
    """Least and most percent of the tasks during a deployment. GPUs are not lent twice: what goes makes room."""
    if service.pool is None or service.unavailable == 0:
        return 100, 200
    return 100 * max(0, service.count - service.unavailable) // service.first, 100


def _subnets(setting: Setting, service: Service) -> list[str]:
    return [subnet for zone, subnet in setting.subnets.items() if not service.zones or zone in service.zones]


def _constraints(service: Service) -> Iterator[str]:
    for attribute, values in (("instance-type", service.types), ("availability-zone", service.zones)):
        if values:
            yield f"attribute:ecs.{attribute} in [{', '.join(values)}]"


def _connect(setting: Setting, service: Service) -> Any:
    """Clients on the same cluster reach the router by the name that DNS has for all others."""
    e = aws.ecs_service
    name = f"{setting.serving.name}-{service.name}"
    return e.EcsServiceServiceConnectConfiguration(
        enabled=True,
        service=[
            e.EcsServiceServiceConnectConfigurationService(
                port_name="http",
                discovery_name=name,
                client_alias=e.EcsServiceServiceConnectConfigurationServiceClientAlias(
                    dns_name=f"{name}.{names.namespace(setting.fleet)}", port=service.port
                ),
                # Answers are streamed for as long as they take.
                timeout=e.EcsServiceServiceConnectConfigurationServiceTimeout(
                    idle_timeout_seconds=3600, per_request_timeout_seconds=0
                ),
            )
        ],
    )
