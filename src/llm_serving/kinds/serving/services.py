"""The services of a serving deployment: what a target runs of each role, with every number that it needs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from llm_serving.catalog import images
from llm_serving.catalog.instances import DEVICES
from llm_serving.fleet import machine_images
from llm_serving.kinds.serving import engine_process, options, router_process
from llm_serving.kinds.serving.blueprint import Disruption
from llm_serving.kinds.serving.context import METRICS_PORT, PORTS, ROUTER_ADMIN_PORT, Context, list_event_ports
from llm_serving.kinds.serving.deployment import Role
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.services import deployments
from llm_serving.services.addresses import find_port
from llm_serving.services.models import ServedModel
from llm_serving.services.service import (
    ECS_STOP_DELAY_S,
    PRE_STOP_S,
    START_WAIT_S,
    START_WAIT_VARIABLE,
    STOP_DELAY_VARIABLE,
    Call,
    Mount,
    Peak,
    Placement,
    Prefetch,
    Probe,
    ReplicaNode,
    Replicas,
    Scale,
    Service,
    Stop,
)
from llm_serving.services.team_keys import list_read

STOP_MARGIN_S = 30
"""Seconds beyond the drain until a replica is killed."""

FARGATE_STOP_S = 120
"""Longest that Fargate waits for a container to stop. Source: ECS API reference, ContainerDefinition, stopTimeout,
2026-11."""

READY_PATH, ALIVE_PATH = "/readiness", "/liveness"
"""Paths of the router's front: whether an engine is ready, and whether the router itself is."""

ROUTER_START_S = 300.0
"""Longest start of a router that waits for no engine."""


SCRATCH_BYTES = 40 * 2**30
"""Of the disk, for an engine's caches and adapters, besides weights that are copied there."""

FETCH_LIMIT_S, MIN_COPY_BYTES_S = 300, 100e6
"""Longest that copying a little from S3 may take, and the least bytes a second that more is taken to be copied with."""


def build_engine_services(context: Context, placed: PlacedRole, resolved: Role) -> list[Service]:
    """Build the services of a role that runs the engine.

    One for each process on a target that makes no copies, one for each node of a replica where the nodes are separate
    services, else one for the role.
    """
    services: list[Service] = []
    for replica, rank in engine_process.list_instance_keys(context, placed):
        built = _build_engine_service(context, placed, resolved, replica, rank)
        if rank and context.conventions.is_kubernetes:
            services[-1] = services[-1].model_copy(update={"worker_command": built.command})
        else:
            services.append(built)
    return services


def build_router_service(
    context: Context, router: Role, engine_roles: Sequence[Role], engine_services: Sequence[Service]
) -> Service:
    """Build the service of the router, which clients call."""
    single_models = [role.served_model for role in engine_roles if role.served_model and not role.sleepers]
    served_model = next(iter((*single_models, *(model for role in engine_roles for model in role.served_models))))
    built = router_process.build_router_service(context, engine_services, served_model)
    env, update = dict(built.env), dict[str, object]()
    if context.conventions.is_local:
        if not single_models and built.probe:
            # It is asked again later, and a request would wake a model. The page fails until a replica is found.
            update["probe"] = Probe(path="/v1/models", body={}, deadline_s=built.probe.deadline_s)
    else:
        metrics_port = ROUTER_ADMIN_PORT if context.router.beside else METRICS_PORT
        usage = {deployments.USAGE: deployments.USAGE_PORT} if context.door else {}
        update["ports"] = {"metrics": metrics_port, **usage}
        if context.blueprint.auth:
            update["secrets"] = list_read(context.blueprint.auth.keys.stored)
        if context.router.discovery or context.router.beside:
            env[START_WAIT_VARIABLE] = str(START_WAIT_S)
    if context.conventions.runs_tasks:
        env[STOP_DELAY_VARIABLE] = str(ECS_STOP_DELAY_S)
    if context.conventions.is_kubernetes:
        # With no engine there is no answer, and the request that wakes one must find the router.
        path = ALIVE_PATH if any(role.replicas.min == 0 for role in engine_roles) else READY_PATH
        update["probe"] = Probe(path=path, body={}, health=ALIVE_PATH, deadline_s=ROUTER_START_S)
    return _complete(context, built, router, context.router.metrics_path, env=env, **update)


def _build_engine_service(context: Context, placed: PlacedRole, resolved: Role, replica: int, rank: int) -> Service:
    served_model = resolved.served_model
    assert served_model, "a role of an engine has a model"
    built = engine_process.build_engine_service(context, placed, served_model, resolved.image, replica, rank)
    update: dict[str, object] = {"calls": _build_calls(context.blueprint.traces)}
    if not context.conventions.is_local:
        mounts = {
            **_build_compile_cache(context, placed, resolved.image, served_model),
            **_build_tier_mounts(context, placed),
        }
        update |= {
            "ports": _build_ports(context, placed),
            "prefetch": _build_prefetch(context, placed, served_model),
            "mounts": mounts,
            "placement": _build_placement(context, placed, resolved),
            "is_root": bool(
                resolved.resources.efa
                or resolved.resources.device == DEVICES["neuron"]
                or any(mount.node_path for mount in mounts.values())
            ),
            "node_check": _build_node_check(placed, resolved),
        }
    if context.is_node_service(resolved.nodes):
        update["node"] = ReplicaNode(replica=replica, rank=rank, is_alone=resolved.nodes == 1)
    return _complete(context, built, resolved, context.engine.metrics_path, **update)


def _complete(context: Context, built: Service, role: Role, metrics_path: str, **update: object) -> Service:
    """Complete what a command line decides of a service with what its role does; engines and routers alike."""
    conventions, disruption = context.conventions, context.blueprint.disruption
    values: dict[str, object] = {
        "image": role.image,
        "metrics": dict(role.metrics),
        "metrics_path": metrics_path,
        "replicas": _build_replicas(context, role, disruption),
        "nodes": role.nodes if conventions.is_kubernetes else 1,
        "stop": _build_stop(context, role, disruption),
    }
    if not conventions.is_local:
        values["resources"] = role.resources
    return built.model_copy(update={**values, **update})


def _build_replicas(context: Context, role: Role, disruption: Disruption) -> Replicas:
    """Build the number of replicas; of a service that is one process or one node of a replica, it is one."""
    is_single = role.kind == "engine" and context.is_node_service(role.nodes)
    unavailable, surge = disruption.unavailable, int(disruption.starts_first)
    if context.conventions.is_local or is_single:
        return Replicas(min=1, max=1, unavailable=unavailable, surge=surge)
    least, most, scale = role.replicas.min, role.replicas.max, None
    if role.scale and role.scale.planner:
        most = least  # from where the planner goes on
    elif role.scale:
        peaks = [(peak, *peak.minutes) for peak in role.scale.peaks]
        scale = Scale(
            signal="queue" if role.scale.queue else "kv-usage",
            target=role.scale.queue or role.scale.kv_usage or 0,
            cool_down_s=int(role.scale.cool_down),
            slo=role.scale.slo,
            peaks=tuple(
                Peak(start=start, end=end, replicas=peak.replicas, time_zone=role.scale.time_zone)
                for peak, start, end in peaks
            ),
        )
    return Replicas(min=least, max=most, unavailable=unavailable, surge=surge, scale=scale)


def _build_placement(context: Context, placed: PlacedRole, resolved: Role) -> Placement:
    """Build where a role's replicas may run; the taint of the device itself is tolerated with the device."""
    role = placed.role
    device = resolved.resources.device
    return Placement(
        pool=role.pool,
        instance_types=resolved.instance_types,
        zones=placed.zones,
        labels={"fleet/pool": role.pool},
        tolerations=tuple(taint for taint in placed.tolerations if taint.key != device),
        is_dense=resolved.resources.efa > 0,
        gives_way=role.gives_way,
        queue=role.pool if role.gang and context.conventions.is_kubernetes else "",
    )


def _build_node_check(placed: PlacedRole, role: Role) -> tuple[str, ...]:
    """Return what a node must prove to have where the engine would not say so: several GPUs, EFA, or Neuron devices.

    Of memory and rate, the least of the types that may run the role.
    """
    resources, accelerators = role.resources, placed.instance.accelerators
    if accelerators is None or not (resources.efa or resources.accelerators > 1 or accelerators.kind == "neuron"):
        return ()
    if accelerators.kind == "neuron":
        arguments = ["--neuron-devices", str(resources.accelerators)]
    else:
        memory_mib = min(row.accelerators.memory_mib for row in placed.instances if row.accelerators)
        arguments = ["--gpus", str(resources.gpus), "--gpu-memory", str(memory_mib)]
    if resources.efa:
        gbps = min(row.network_gbps / row.efa_interfaces for row in placed.instances if row.efa_interfaces)
        arguments += ["--efa", str(resources.efa), *(["--gpudirect"] if placed.rdma else [])]
        arguments += ["--efa-gbps", f"{gbps:g}"]
    return tuple(arguments)


def _build_calls(traces: str | None) -> dict[str, Call]:
    if traces is None:
        return {}
    # Spans that nothing encrypts stay in the fleet's network.
    in_network = not traces.startswith("https:")
    return {"traces": Call(purpose="Spans of requests", port=find_port(traces), in_network=in_network)}


def _build_prefetch(context: Context, placed: PlacedRole, served_model: ServedModel) -> Prefetch | None:
    uris = engine_process.list_prefetch_uris(context, placed, served_model)
    if not uris:
        return None
    weight_bytes = served_model.weights.bytes if engine_process.name_weights_folder(context, placed) in uris else 0
    return Prefetch(
        image=context.pin_image(images.COPIER),
        uris=uris,
        timeout_s=math.ceil(FETCH_LIMIT_S + weight_bytes / MIN_COPY_BYTES_S),
        disk_bytes=weight_bytes + SCRATCH_BYTES,
    )


def _build_compile_cache(
    context: Context, placed: PlacedRole, image: str, served_model: ServedModel
) -> dict[str, Mount]:
    """Build the folder in which what an engine compiles outlives it; none where each start compiles again."""
    setting, accelerators = context.blueprint.tuning.compile_cache, placed.instance.accelerators
    if setting is None:
        return {}
    parts = (image, served_model.weights.uri, accelerators.name if accelerators else "")
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    if claim := setting.partition(":")[2]:
        mount = Mount(path=engine_process.COMPILE_CACHE_FOLDER, claim=claim, key=key)
    else:
        node_path = f"{_find_node_disk(context, placed)}/compile-cache/{context.name}/{key}"
        mount = Mount(path=engine_process.COMPILE_CACHE_FOLDER, node_path=node_path)
    return {"compile-cache": mount}


def _build_ports(context: Context, placed: PlacedRole) -> dict[str, int]:
    port_uses = {
        "side": bool(context.transfer) and placed.name in context.engine.transfers[context.transfer].listeners,
        **dict.fromkeys(list_event_ports(context.engine, context.policy), True),
        "master": placed.nodes > 1,
        "data": placed.nodes > 1 and placed.role.data > 1,
    }
    return {name: PORTS[name] for name, is_used in port_uses.items() if is_used}


def _find_node_disk(context: Context, placed: PlacedRole) -> str:
    orchestrator = context.fleet.get_orchestrator(placed.pool)
    return machine_images.find_release(context.fleet, orchestrator, placed.pool.os).disk


def _build_tier_mounts(context: Context, placed: PlacedRole) -> dict[str, Mount]:
    """Build the folders of the deployment's cached prompts, of containers: whole, for what earlier engines left too."""
    tuning = context.blueprint.tuning
    mounts = {}
    if "disk" in tuning.folder_bytes:
        node_path = f"{_find_node_disk(context, placed)}/kv-cache/{context.name}"
        mounts["kv-disk"] = Mount(path=options.TIER_FOLDERS["disk"], node_path=node_path)
    if tuning.kv_tiers and tuning.kv_tiers.shared:
        claim = tuning.kv_tiers.shared.claim
        mounts["kv-shared"] = Mount(path=options.TIER_FOLDERS["shared"], claim=claim, key=f"kv-cache/{context.name}")
    return mounts


def _build_stop(context: Context, role: Role, disruption: Disruption) -> Stop:
    """Build how long a replica may take to finish its requests; the router of a target with Fargate runs there."""
    conventions = context.conventions
    if conventions.is_local:
        return Stop()
    if role.kind == "router" and conventions.runs_tasks:
        return Stop(stop_s=FARGATE_STOP_S)
    pre_stop_s = PRE_STOP_S if conventions.is_kubernetes else 0
    return Stop(stop_s=math.floor(disruption.drain) + STOP_MARGIN_S, pre_stop_s=pre_stop_s)
