"""A deployment on ECS: its task definitions and services, who reaches them, what they may do, and who watches them.

On EKS, where routers are pods of charts/inference and ask for keys, the stack has the role that reads these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from infra.constructs.sidecars import MetricStream
from infra.constructs.task_place import AddedService
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


def _add_resources(stack: FleetStack, serving: Serving) -> None:
    """Add all; outputs on ECS: those of `task_place.add_outputs`; load_balancer, where there is one."""
    if serving.stack.orchestrator == "eks":
        _add_pod_role(stack, serving)
    else:
        _Deployment(stack, serving).add_services()


def _add_pod_role(stack: FleetStack, serving: Serving) -> None:
    """Add the role of the routers' service account, which charts/inference names: it reads the keys of teams."""
    router = serving.entry
    arns = iam.find_secret_arns(stack, router.secrets)
    router_role = iam.add_role(
        stack,
        names.format_deployment_purpose(serving.name, "route"),
        description=f"Router of {serving.name}",
        trust=iam.build_pod_trust_policy(stack),
        statements=iam.build_secret_statements(stack, router.secrets, arns),
    )
    iam.add_service_association(stack, serving.name, router.name, router_role)


class _Deployment:
    """A deployment on ECS: what all its services share, and then the services."""

    def __init__(self, stack: FleetStack, serving: Serving) -> None:
        self.stack, self.serving, self.fleet, self.name = stack, serving, stack.fleet, serving.name
        self.place = task_place.find_place(stack)
        task_service.add_force_variable(stack)
        task_log_group = ecs_services.format_log_group(self.fleet, KIND, self.name)
        self.logs = task.LogDestination(task_log_group, self.fleet.region)
        groups = {"tasks": task_log_group, "metrics": f"{task_log_group}/metrics"}
        log_groups = self._add_log_groups(groups)
        sleepers = tuple(service.role for service in serving.scale_to_zero_services)
        self.stream = MetricStream(self.fleet.name, self.name, self.fleet.region, groups["metrics"], sleepers)
        self.security_groups = task_network.add_security_groups(
            stack, self.name, serving.services, vpc_id=self.place.network.vpc_id, vpc=self.place.vpc
        )
        errors_alarm = task_watch.add_errors_alarm(stack, serving, self.stream)
        self.dependencies = [errors_alarm, *log_groups]
        self.services = task_service.ServiceContext(
            stack=stack,
            deployment=self.name,
            place=self.place,
            alarm_name=errors_alarm.alarm_name,
            load_balancer=task_load_balancer.add_load_balancer(
                stack,
                self.name,
                serving.entry,
                serving.stack.load_balancer,
                self.place,
                entry_group=self.security_groups["router"],
                health_path=_ROUTER_HEALTH,
            ),
            connect_timeout_s=serving.stack.request_timeout_s,
        )
        self.image_prefixes = registry.build_prefixes(self.fleet, stack.account)
        self.engine_roles, self.router_roles = self._add_roles(*log_groups)

    def add_services(self) -> None:
        services = {service.name: self._add_service(service) for service in self.serving.services}
        if self.fleet.add_ons.observability:
            dashboard.add_dashboard(self.stack, task_watch.list_graphs(self.fleet, self.serving, self.stream))
        task_place.add_outputs(
            self.stack,
            _ask_without_key(self.serving),
            self.place,
            services,
            roles=self.router_roles,
            security_group=self.security_groups["router"],
        )

    def _add_service(self, service: Service) -> AddedService:
        router_container = self.serving.stack.router_container
        if service.is_entry:
            roles, group, adapted = self.router_roles, "router", self._adapt_router(service)
            disk_bytes = router_container.disk_bytes if router_container else 0
        else:
            roles, group, adapted, disk_bytes = self.engine_roles, "engine", self._adapt_engine(service), 0
        definition = task.add_definition(
            self.stack,
            adapted,
            family=f"{self.fleet.name}-{self.name}-{service.name}",
            roles=roles,
            logs=self.logs,
            image_prefixes=self.image_prefixes,
            sidecars=self._build_sidecars(service),
            disk_bytes=disk_bytes,
        )
        parts = task_service.ServiceParts(
            definition=definition,
            security_group=self.security_groups[group],
            registry=task_network.add_discovery_service(
                self.stack, self.name, service, namespace_id=self.place.namespace_id
            ),
            dependencies=[*self.dependencies, *roles.policies],
        )
        added = task_service.add_services(self.services, adapted, parts)
        self._add_monitoring(service, added.names[0])
        return added

    def _adapt_engine(self, service: Service) -> Service:
        """Return the engine as root, for its caches lie in the container's own layer; its check of EFA finds others."""
        check = service.node_check
        if "--efa" in check:
            others = [peer for peer in self.serving.services if peer.node_check and not (peer.node and peer.node.rank)]
            check = (*check, "--peers", *map(self._format_address, others))
        return service.model_copy(update={"is_root": True, "node_check": check})

    def _format_address(self, service: Service) -> str:
        """Return the name of a service's tasks in the fleet's private DNS namespace."""
        return f"{self.name}-{service.name}.{names.format_namespace(self.fleet)}"

    def _adapt_router(self, service: Service) -> Service:
        """Return the router with what images/router's discovery needs, and checked by its own life alone.

        Discovery reads Cloud Map's region, and what an engine must answer before it counts.
        """
        assert service.probe
        engine_check = _select_engine_probe(self.serving.services, service.probe)
        engine_probe = {"path": engine_check.path, "body": engine_check.body}
        env = {"CLOUD_MAP_REGION": self.fleet.region, "ENGINE_PROBE": json.dumps(engine_probe)}
        probe = service.probe.model_copy(update={"health": _ROUTER_HEALTH, "deadline_s": _ROUTER_START_S})
        return service.model_copy(update={"env": {**service.env, **env}, "probe": probe})

    def _build_sidecars(self, service: Service) -> list[task.ContainerDefinition]:
        """Return the containers beside a service: what ends a broken engine's task, and what reads the metrics."""
        containers = []
        router_container = self.serving.stack.router_container
        if router_container and service.is_entry:
            containers.append(task.build_companion(_build_router_program(router_container, service), self.logs))
        if not service.is_entry:
            leader, followers = self._find_replica(service)
            containers.append(sidecars.build_watch(service, self.logs, leader=leader, followers=followers))
        if not (service.node and service.node.rank):
            logs = self.logs.build_configuration("metrics")
            containers.append(sidecars.build_collector(service, self.stream, logs))
        return containers

    def _find_replica(self, service: Service) -> tuple[str, int]:
        """Return the address of the leader of the service's replica, or "" and how many nodes it leads."""
        node = service.node
        if node is None:
            return "", 0
        peers = [
            peer
            for peer in self.serving.services
            if peer.role == service.role and peer.node and peer.node.replica == node.replica and peer != service
        ]
        if node.rank == 0:
            return "", len(peers)
        [leader] = [peer for peer in peers if peer.node and peer.node.rank == 0]
        return self._format_address(leader), 0

    def _add_log_groups(self, groups: Mapping[str, str]) -> list[aws.cloudwatch_log_group.CloudwatchLogGroup]:
        """Add the log groups of tasks and of metrics, with the key that encrypts both."""
        kms_key = add_key(
            self.stack,
            "logs-key",
            alias=f"{self.fleet.name}-serving-{self.name}",
            description=f"Logs of {self.name}",
            grants=tuple(build_log_group_grant(self.stack, group, name.capitalize()) for name, group in groups.items()),
        )
        return [add_log_group(self.stack, f"{name}-logs", group, kms_key) for name, group in groups.items()]

    def _add_roles(
        self,
        task_log_group: aws.cloudwatch_log_group.CloudwatchLogGroup,
        metrics_log_group: aws.cloudwatch_log_group.CloudwatchLogGroup,
    ) -> tuple[task.TaskRoles, task.TaskRoles]:
        """Add the roles of engines and of the router."""
        stack, serving = self.stack, self.serving
        execution_role = task_roles.add_execution_role(
            stack,
            self.name,
            log_group=task_log_group,
            secrets=ecs_services.format_load_secrets(self.fleet, self.name),
        )
        storage_key = find_key(stack, "storage")
        monitoring = task_roles.build_monitoring_statements(stack, metrics_log_group, self.place.cluster_key)
        engine = task_roles.build_engine_statements(stack, serving.stack.reads, serving.stack.caches, storage_key)
        engine_role = task_roles.add_task_role(
            stack, self.name, "read", f"Engines of {self.name}: read weights", [*engine, *monitoring]
        )
        arns = iam.find_service_secrets(stack, serving.services)
        reads = iam.build_secret_statements(stack, serving.entry.secrets, arns)
        discovery = iam.read_statements(stack, "discovery", namespace=names.format_namespace(self.fleet))
        router = [*discovery, *reads, *monitoring]
        router_role = task_roles.add_task_role(stack, self.name, "route", f"Router of {self.name}", router)
        return task.TaskRoles(execution_role, engine_role), task.TaskRoles(execution_role, router_role)

    def _add_monitoring(self, service: Service, first_name: str) -> None:
        stack, serving, stream = self.stack, self.serving, self.stream
        ecs_names = task_service.list_names(self.fleet, self.name, service)
        if service.replicas.min and not service.placement.gives_way:
            task_watch.add_running_alarm(stack, self.name, service, ecs_names)
        if service.is_entry:
            description = f"Errors of {self.name} ring no alarm: its {service.role}'s metrics do not come"
            task_scaling.add_unmeasured_alarm(stack, service, stream, sidecars.UP, description)
        is_first = service.node is None or (service.node.replica, service.node.rank) == (0, 0)
        if not service.is_entry and is_first:
            task_watch.add_queue_alarm(stack, stream, service)
            if sidecars.TRANSFERS in sidecars.select_metrics(service, stream):
                task_watch.add_transfer_alarm(stack, stream, service)
        if service.replicas.scale:
            task_watch.add_maximum_alarm(stack, self.name, service, ecs_names)
            task_scaling.add_scaling(stack, serving.entry, service, stream, first_name)


def _ask_without_key(serving: Serving) -> Serving:
    """Return the deployment with a test request that needs no key, where the router asks for one."""

    def adapt(service: Service) -> Service:
        if USAGE not in service.ports:
            return service
        probe = Probe(path=_ROUTER_READY, body={}, deadline_s=_ROUTER_START_S)
        return service.model_copy(update={"probe": probe})

    return serving.model_copy(update={"services": tuple(map(adapt, serving.services))})


def _select_engine_probe(services: Sequence[Service], router_probe: Probe) -> Probe:
    """Return the engines' own probe, with their system prompt; the router's where models have different ones."""
    probes = [service.probe for service in services if service.probe and not service.is_entry]
    bodies = [{**probe.body, "model": None} for probe in probes]  # discovery asks each engine for its own
    return probes[0] if probes and bodies.count(bodies[0]) == len(bodies) else router_probe


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


list_stacks = functools.partial(base.list_deployments, KIND, read, _add_resources)
