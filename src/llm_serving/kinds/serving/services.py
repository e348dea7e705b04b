"""The services of a serving deployment: what a target runs of each role, with every number that it needs."""

from __future__ import annotations

import math

from llm_serving.catalog.instances import DEVICES
from llm_serving.kinds.serving.blueprint import Disruption
from llm_serving.kinds.serving.deployment import CompileCache, Role
from llm_serving.kinds.serving.processes import Context
from llm_serving.services.environment import Probe, Process
from llm_serving.services.service import Mount, Placement, ReplicaNode, Replicas, Resources, Scale, Service, Stop

SIGNALS = ("queue", "running", "kv-usage", "preemptions", "failed-transfers", "requests", "errors")
"""Metrics that scaling and alerts of a target read."""

STOP_MARGIN_S = 30
"""Seconds beyond the drain until a replica is killed."""

FARGATE_STOP_S = 120
"""Longest that Fargate waits for a container to stop. Source: ECS API reference, ContainerDefinition, stopTimeout,
2026-11."""

PRE_STOP_S = 10
"""Seconds in which Kubernetes takes a pod from its Services before the pod is asked to stop."""

ROUTER_METRICS_PATH = "/metrics"

READY_PATH, ALIVE_PATH = "/readiness", "/liveness"
"""Paths of the router's front: whether an engine is ready, and whether the router itself is."""

ROUTER_START_S = 300.0
"""Longest start of a router that waits for no engine."""


def build_engine_services(context: Context, role: Role) -> tuple[Service, ...]:
    """Build the services of a role that runs the engine.

    One for each process on a target that makes no copies, one for each node of a replica where the nodes are separate
    services, else one for the role.
    """
    if context.conventions.starts_groups:
        leader, *followers = role.instances
        service_ = _build_engine_service(context, role, leader)
        return (service_.model_copy(update={"worker_command": followers[0].command if followers else ()}),)
    return tuple(_build_engine_service(context, role, process) for process in role.instances)


def build_router_service(context: Context, router: Role, engine_roles: list[Role]) -> Service:
    """Build the service of the router, which clients call."""
    (process,) = router.instances
    probe = process.probe
    if context.conventions.starts_groups:
        # With no engine there is no answer, and the request that wakes one must find the router.
        scales_to_zero = any(role.replicas.min == 0 for role in engine_roles)
        path = ALIVE_PATH if scales_to_zero else READY_PATH
        probe = Probe(path=path, body={}, health=ALIVE_PATH, deadline_s=ROUTER_START_S)
    return _build_service(context, router, process, ROUTER_METRICS_PATH).model_copy(
        update={"is_entry": True, "probe": probe}
    )


def _build_engine_service(context: Context, role: Role, process: Process) -> Service:
    conventions = context.conventions
    update: dict[str, object] = {"prefetch": role.prefetch, "mounts": _build_mounts(role.compile_cache)}
    if conventions.containers:
        update["placement"] = _build_placement(role)
        update["is_root"] = _needs_root(role)
    if role.nodes > 1 and not conventions.starts_groups:
        update["node"] = ReplicaNode(replica=process.replica, rank=process.rank)
    return _build_service(context, role, process, context.engine.metrics_path).model_copy(update=update)


def _build_service(context: Context, role: Role, process: Process, metrics_path: str) -> Service:
    """Build what engines and routers have in common."""
    conventions, disruption = context.conventions, context.blueprint.disruption
    return Service(
        name=process.name,
        role=role.name,
        image=role.image,
        command=process.command,
        env=process.env,
        address_variables=process.address_variables,
        port=process.port,
        ports=role.ports,
        metrics={signal: role.metrics[signal] for signal in SIGNALS if signal in role.metrics},
        metrics_path=metrics_path,
        probe=process.probe,
        replicas=_build_replicas(context, role, disruption),
        nodes=role.nodes if conventions.starts_groups else 1,
        resources=_build_resources(role) if conventions.containers else Resources(memory_bytes=process.memory_bytes),
        stop=_build_stop(context, role, disruption),
        start_s=process.start_s,
    )


def _build_replicas(context: Context, role: Role, disruption: Disruption) -> Replicas:
    """Build the number of replicas; of a service that is one process or one node of a replica, it is one."""
    is_single = context.conventions.shared_host or (role.nodes > 1 and not context.conventions.starts_groups)
    if is_single:
        return Replicas(min=1, max=1, unavailable=disruption.unavailable)
    return Replicas(
        min=role.replicas.min,
        max=role.replicas.max,
        unavailable=disruption.unavailable,
        scale=role.scale
        and Scale(
            signal="queue" if role.scale.queue else "kv-usage",
            target=role.scale.queue or role.scale.kv_usage or 0,
            cool_down_s=int(role.scale.cool_down),
        ),
    )


def _build_resources(role: Role) -> Resources:
    resources = role.resources
    return Resources(
        device=resources.device,
        accelerators=resources.accelerators,
        efa=resources.efa,
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        shared_memory_bytes=resources.shared_memory_bytes,
        huge_page_bytes=resources.huge_page_bytes,
        device_files=resources.device_files,
    )


def _build_placement(role: Role) -> Placement:
    """Build where a role's replicas may run; the taint of the device itself is tolerated with the device."""
    return Placement(
        pool=role.pool,
        instance_types=role.instance_types,
        zones=role.zones,
        labels=role.labels,
        tolerations=tuple(taint for taint in role.tolerations if taint.key != role.resources.device),
        is_dense=role.resources.efa > 0,
    )


def _needs_root(role: Role) -> bool:
    """Return whether the engine pins memory for devices, or writes to the node's disk."""
    is_neuron = role.resources.device == DEVICES["neuron"]
    writes_to_node = role.compile_cache is not None and bool(role.compile_cache.node_path)
    return role.resources.efa > 0 or is_neuron or writes_to_node


def _build_mounts(cache: CompileCache | None) -> dict[str, Mount]:
    if cache is None:
        return {}
    key = cache.key if cache.claim else ""
    return {"compile-cache": Mount(path=cache.path, node_path=cache.node_path, claim=cache.claim, key=key)}


def _build_stop(context: Context, role: Role, disruption: Disruption) -> Stop:
    """Build how long a replica may take to finish its requests; the router of a target with Fargate runs there."""
    conventions = context.conventions
    if not conventions.drains:
        return Stop()
    if role.kind == "router" and conventions.fargate:
        return Stop(stop_s=FARGATE_STOP_S)
    pre_stop_s = PRE_STOP_S if conventions.starts_groups else 0
    return Stop(stop_s=math.floor(disruption.drain) + STOP_MARGIN_S, pre_stop_s=pre_stop_s)
