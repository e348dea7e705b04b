"""A deployment on ECS: its task definitions and services, who reaches them, what they may do, and who watches them.

On EKS, where routers are pods of charts/inference and ask for keys, the stack has the role that reads these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bindings import aws
from infra.constructs import (
    dashboard,
    iam,
    registry,
    sidecars,
    task,
    task_checks,
    task_load_balancer,
    task_network,
    task_place,
    task_roles,
    task_scaling,
    task_service,
    task_watch,
)
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.key import add_key, add_log_group, build_log_group_grant, find_key
from infra.constructs.security_group import SecurityGroups
from infra.constructs.sidecars import MetricStream
from infra.constructs.task_place import AddedService, TaskPlace
from infra.stacks import base
from llm_serving.fleet import ecs_services, names
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.stack import RouterContainer, ServingStack
from llm_serving.services.deployments import USAGE
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Probe, Resources, Service
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError

KIND = "serving"

ALARM_METRICS = {False: {"queue"}, True: {"requests", "errors"}}
"""Metrics that alarms use, by whether a service is the entry."""

_ROUTER_HEALTH, _ROUTER_START_S = "/liveness", 60
"""How ECS and the load balancer check the router: the process only, for they replace tasks that fail this. Its /health
will not do: before prefill and decode, vllm-router answers it with 503 until it knows both."""

_ROUTER_READY = "/readiness"
"""Answers once the router has an engine."""

Serving = Rendered[ServingStack]


def read(file: Path, fleet: Document[Fleet]) -> Serving:
    """Read a rendered deployment; an InputError has every mistake: of form, or what ECS or the fleet lacks."""
    document = task_checks.read(file, fleet, Serving)
    if document.value.stack.orchestrator == "eks":
        return document.value
    mistakes = [
        mistake
        for index, service in enumerate(document.value.services)
        for mistake in task_checks.require_metrics(document, index, ALARM_METRICS[service.is_entry])
    ]
    if mistakes:
        raise InputError(mistakes)
    return document.value


@dataclass(frozen=True)
class _Parts:
    """What all services of the deployment share."""

    stack: FleetStack
    serving: Serving
    place: TaskPlace
    services: task_service.ServiceContext
    stream: MetricStream
    image_prefixes: dict[str, str]
    security_groups: SecurityGroups
    roles: dict[bool, task.TaskRoles]
    """By whether a service is the entry."""

    dependencies: list[Any]

    @property
    def logs(self) -> task.LogDestination:
        return task.LogDestination(
            ecs_services.format_log_group(self.stack.fleet, KIND, self.serving.name), self.stack.fleet.region
        )


def _add_resources(stack: FleetStack, serving: Serving) -> None:
    """Add all; outputs on ECS: those of `task_place.add_outputs`; load_balancer, where there is one."""
    if serving.stack.orchestrator == "eks":
        _add_pod_role(stack, serving)
        return
    parts = _add_parts(stack, serving)
    services = {service.name: _add_service(parts, service) for service in serving.services}
    if stack.fleet.add_ons.observability:
        dashboard.add_dashboard(stack, task_watch.list_graphs(stack.fleet, serving, parts.stream))
    task_place.add_outputs(
        stack,
        _ask_without_key(serving),
        parts.place,
        services,
        roles=parts.roles[True],
        security_group=parts.security_groups["router"],
    )


def _add_pod_role(stack: FleetStack, serving: Serving) -> None:
    """Add the role of the routers' service account, which charts/inference names: it reads the keys of teams."""
    router = serving.entry
    arns = iam.find_secret_arns(stack, router.secrets)
    router_role = iam.add_role(
        stack,
        names.format_deployment_purpose(serving.name, "route"),
        description=f"Router of {serving.name}",
        trust=iam.build_pod_trust_policy(stack),
        statements=tuple(iam.build_secret_statements(router.secrets, arns, stack.fleet.region)),
    )
    iam.add_service_association(stack, serving.name, router.name, router_role)


def _ask_without_key(serving: Serving) -> Serving:
    """Return the deployment with a test request that needs no key, where the router asks for one."""

    def adapt(service: Service) -> Service:
        if USAGE not in service.ports:
            return service
        probe = Probe(path=_ROUTER_READY, body={}, deadline_s=_ROUTER_START_S)
        return service.model_copy(update={"probe": probe})

    return serving.model_copy(update={"services": tuple(map(adapt, serving.services))})


def _add_parts(stack: FleetStack, serving: Serving) -> _Parts:
    place = task_place.find_place(stack)
    task_service.add_force_variable(stack)
    logs, stream = _add_logs(stack, serving)
    security_groups = task_network.add_security_groups(
        stack, serving.name, serving.services, vpc_id=place.vpc_id, vpc=place.vpc
    )
    errors_alarm = task_watch.add_errors_alarm(stack, serving, stream)
    return _Parts(
        stack=stack,
        serving=serving,
        place=place,
        services=task_service.ServiceContext(
            stack=stack,
            deployment=serving.name,
            cluster_arn=place.cluster_arn,
            subnets=place.subnets,
            alarm_name=errors_alarm.alarm_name,
            load_balancer=task_load_balancer.add_load_balancer(
                stack,
                serving.name,
                serving.entry,
                serving.stack.load_balancer,
                place,
                entry_group=security_groups["router"],
                health_path=_ROUTER_HEALTH,
            ),
            connect_timeout_s=serving.stack.request_timeout_s,
        ),
        stream=stream,
        image_prefixes=registry.build_prefixes(stack.fleet, stack.account),
        security_groups=security_groups,
        roles=_add_roles(stack, serving, place, logs),
        dependencies=[errors_alarm, *logs],
    )


def _add_service(parts: _Parts, service: Service) -> AddedService:
    stack, serving, roles = parts.stack, parts.serving, parts.roles[service.is_entry]
    adapted = _adapt_router(parts, service) if service.is_entry else _adapt_engine(parts, service)
    definition = task.add_definition(
        stack,
        adapted,
        family=f"{stack.fleet.name}-{serving.name}-{service.name}",
        roles=roles,
        logs=parts.logs,
        image_prefixes=parts.image_prefixes,
        sidecars=_build_sidecars(parts, service),
        disk_bytes=serving.stack.router_container.disk_bytes
        if serving.stack.router_container and service.is_entry
        else 0,
    )
    ecs_services = task_service.add_services(
        parts.services,
        adapted,
        definition=definition,
        security_group=parts.security_groups["router" if service.is_entry else "engine"],
        registry=task_network.add_discovery_service(
            stack, serving.name, service, namespace_id=parts.place.namespace_id
        ),
        dependencies=[*parts.dependencies, *roles.policies],
    )
    _add_monitoring(parts, service, ecs_services)
    return AddedService(definition.arn, [entry.name for entry in ecs_services])


def _adapt_engine(parts: _Parts, service: Service) -> Service:
    """Return the engine as root, for its caches lie in the container's own layer; its check of EFA finds others."""
    check = service.node_check
    if "--efa" in check:
        others = [peer for peer in parts.serving.services if peer.node_check and not (peer.node and peer.node.rank)]
        check = (*check, "--peers", *(_format_address(parts.stack.fleet, parts.serving, peer) for peer in others))
    return service.model_copy(update={"is_root": True, "node_check": check})


def _format_address(fleet: Fleet, serving: Serving, service: Service) -> str:
    """Return the name of a service's tasks in the fleet's private DNS namespace."""
    return f"{serving.name}-{service.name}.{names.format_namespace(fleet)}"


def _adapt_router(parts: _Parts, service: Service) -> Service:
    """Return the router with what images/router's discovery needs, and checked by its own life alone.

    Discovery reads Cloud Map's region, and what an engine must answer before it counts.
    """
    assert service.probe
    asked = _select_engine_probe(parts.serving.services, service.probe)
    engine_probe = {"path": asked.path, "body": asked.body}
    env = {"CLOUD_MAP_REGION": parts.stack.fleet.region, "ENGINE_PROBE": json.dumps(engine_probe)}
    probe = service.probe.model_copy(update={"health": _ROUTER_HEALTH, "deadline_s": _ROUTER_START_S})
    return service.model_copy(update={"env": {**service.env, **env}, "probe": probe})


def _select_engine_probe(services: Sequence[Service], router_probe: Probe) -> Probe:
    """Return the engines' own probe, with their system prompt; the router's where models have different ones."""
    probes = [service.probe for service in services if service.probe and not service.is_entry]
    bodies = [{**probe.body, "model": None} for probe in probes]  # discovery asks each engine for its own
    return probes[0] if probes and bodies.count(bodies[0]) == len(bodies) else router_probe


def _build_sidecars(parts: _Parts, service: Service) -> list[task.ContainerDefinition]:
    """Return the containers beside a service: what ends a broken engine's task, and what reads the metrics."""
    containers = []
    router_container = parts.serving.stack.router_container
    if router_container and service.is_entry:
        containers.append(task.build_companion(_build_router_program(router_container, service), parts.logs))
    if not service.is_entry:
        replica = _find_replica(parts.stack.fleet, parts.serving, service)
        containers.append(sidecars.build_watch(service, replica, parts.logs))
    if not (service.node and service.node.rank):
        logs = parts.logs.build_configuration("metrics")
        containers.append(sidecars.build_collector(service, parts.stream, logs))
    return containers


def _build_router_program(container: RouterContainer, router: Service) -> Service:
    """Build what routes beside the router's container, of the same task: it has no task of its own."""
    return Service(
        name=container.name,
        role=container.name,
        image=container.image,
        command=container.command,
        env=container.env,
        port=container.port,
        probe=Probe(path=container.health, body={}, deadline_s=container.start_s),
        resources=Resources(cpus=container.cpus, memory_bytes=container.memory_bytes),
        stop=router.stop,
    )


def _find_replica(fleet: Fleet, serving: Serving, service: Service) -> sidecars.Replica:
    """Return the other nodes of the service's replica; none where it runs on one."""
    node = service.node
    if node is None:
        return sidecars.Replica()
    peers = [
        peer
        for peer in serving.services
        if peer.role == service.role and peer.node and peer.node.replica == node.replica and peer != service
    ]
    if node.rank == 0:
        return sidecars.Replica(followers=len(peers))
    [leader] = [peer for peer in peers if peer.node and peer.node.rank == 0]
    return sidecars.Replica(leader=_format_address(fleet, serving, leader))


def _add_logs(stack: FleetStack, serving: Serving) -> tuple[list[Any], MetricStream]:
    task_log_group = ecs_services.format_log_group(stack.fleet, KIND, serving.name)
    group_names = {"tasks": task_log_group, "metrics": f"{task_log_group}/metrics"}
    kms_key = add_key(
        stack,
        "logs-key",
        alias=f"{stack.fleet.name}-serving-{serving.name}",
        description=f"Logs of {serving.name}",
        grants=tuple(
            build_log_group_grant(stack.account, group, name.capitalize()) for name, group in group_names.items()
        ),
    )
    log_groups = [add_log_group(stack, f"{name}-logs", group, kms_key) for name, group in group_names.items()]
    scale_to_zero_roles = tuple(service.role for service in serving.scale_to_zero_services)
    return log_groups, MetricStream(serving.name, stack.fleet.region, group_names["metrics"], scale_to_zero_roles)


def _add_roles(stack: FleetStack, serving: Serving, place: TaskPlace, logs: list[Any]) -> dict[bool, task.TaskRoles]:
    """Add the roles of engines and of the router, by whether they are the entry's."""
    task_log_group, metrics_log_group = logs
    execution_role = task_roles.add_execution_role(
        stack,
        serving.name,
        log_group=task_log_group,
        secrets=ecs_services.format_load_secrets(stack.fleet, serving.name),
    )
    shared = {"metrics": metrics_log_group, "cluster_key": place.cluster_key}
    storage_key = find_key(stack, "storage")
    engine_role = task_roles.add_engine_role(
        stack, serving.name, reads=serving.stack.reads, caches=serving.stack.caches, storage_key=storage_key, **shared
    )
    arns = iam.find_service_secrets(stack, serving.services)
    reads = iam.build_secret_statements(serving.entry.secrets, arns, stack.fleet.region)
    router_role = task_roles.add_router_role(stack, serving.name, statements=reads, **shared)
    policies = {
        part: iam.list_policies(stack, names.format_deployment_purpose(serving.name, part))
        for part in ("start", "read", "route")
    }
    return {
        False: task.TaskRoles(execution_role, engine_role, (*policies["start"], *policies["read"])),
        True: task.TaskRoles(execution_role, router_role, (*policies["start"], *policies["route"])),
    }


def _add_monitoring(parts: _Parts, service: Service, ecs_services: Sequence[aws.ecs_service.EcsService]) -> None:
    stack, serving = parts.stack, parts.serving
    ecs_names = task_service.list_names(stack.fleet, serving.name, service)
    if service.replicas.min and not service.placement.gives_way:
        task_watch.add_running_alarm(stack, serving.name, service, ecs_names)
    if service.is_entry:
        description = f"Errors of {serving.name} ring no alarm: its {service.role}'s metrics do not come"
        task_scaling.add_unmeasured_alarm(stack, service, parts.stream, sidecars.UP, description)
    is_first = service.node is None or (service.node.replica, service.node.rank) == (0, 0)
    if not service.is_entry and is_first:
        task_watch.add_queue_alarm(stack, serving, parts.stream, service)
        if sidecars.TRANSFERS in sidecars.select_metrics(service, parts.stream):
            task_watch.add_transfer_alarm(stack, serving.name, parts.stream, service)
    if service.replicas.scale:
        task_watch.add_maximum_alarm(stack, serving.name, service, ecs_names)
        task_scaling.add_scaling(stack, serving.entry, service, parts.stream, ecs_services[0])


list_stacks = functools.partial(base.list_deployments, KIND, read, _add_resources)
