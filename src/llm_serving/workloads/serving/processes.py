"""Command lines and environments: rows of the engines' catalog with the deployment's numbers filled in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_serving.catalog import engines
from llm_serving.catalog.engines import CommandPart, Values
from llm_serving.engines import memory
from llm_serving.workloads.environment import Conventions, Discovery, Environment, Probe, Process
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import DECODE, PREFILL, Role, ServedModel
from llm_serving.workloads.serving.placement import Placement
from llm_serving.workloads.serving.roles import EngineRole, RouterPolicy, compute_fixed_replicas
from llm_serving.workloads.serving.traffic import Traffic

ENGINE_PORT, ROUTER_PORT, METRICS_PORT, DISCOVERY_PORT = 8000, 8080, 9090, 9091
"""Ports of a container that has its own address."""

PORTS = {"side": 5600, "events": 5557, "replay": 5558, "master": 29500, "data": 13345, "ray": 6379}
"""Further ports of an engine's container: KV transfers, KV cache events, ranks of a replica."""

MIN_LOAD_BYTES_S = 200e6
"""Lowest rate of streaming weights, bytes per second, for the limit of a start: a tenth of a good S3's."""

OPEN_LOOP_REQUESTS = 32
"""Requests under way at once that an open loop is estimated at."""

MIN_KV_BYTES = 64 * 2**20

WEIGHTS_FOLDER = "weights"
"""Folder that weights are copied to before the engine starts, where they are not streamed."""

KV_ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}


@dataclass(frozen=True)
class Context:
    """What the command lines of all roles are built from."""

    blueprint: Blueprint
    name: str
    """The deployment's."""

    environment: Environment
    policy: RouterPolicy
    transfer: str
    """Which of the engine's transfers hands caches on; empty where none do."""

    @property
    def conventions(self) -> Conventions:
        """What the target does in its own way."""
        return self.environment.conventions

    @property
    def prefetch_folder(self) -> str:
        """Folder of a container that files of S3 are copied to before its process starts."""
        return f"{self.environment.data_folder}/fetched"

    @property
    def engine(self) -> engines.Engine:
        """The engine's row."""
        return engines.load_engines()[self.blueprint.engine]

    @property
    def router(self) -> engines.Router:
        """The row of the framework's router."""
        return get_router(self.blueprint)

    def select_platform(self, role_placement: Placement) -> engines.Platform:
        """The engine on the processors that it runs on: the pool's accelerators, or this machine's CPU instead."""
        return role_placement.platform if self.conventions.real_accelerators else self.engine.platforms["cpu"]

    def streams(self, role_placement: Placement) -> bool:
        """Whether the engine streams its weights from S3."""
        return self.engine.streams_on(self.select_platform(role_placement))


def get_router(blueprint: Blueprint) -> engines.Router:
    """The row of the blueprint's router: the one of its framework."""
    return engines.load_routers()[engines.load_frameworks()[blueprint.framework].router]


def list_port_names(blueprint: Blueprint, replicas: Mapping[str, int]) -> list[str]:
    """Names of the ports that a target must choose where processes share one machine.

    Args:
        replicas: by role.
    """
    is_disaggregated = blueprint.is_disaggregated
    has_kv_events = blueprint.roles.router.policy == "kv-aware"
    processes = [f"{role}-{index}" for role, count in replicas.items() for index in range(count)]
    extra_names = [
        name
        for name, is_used in (("side", is_disaggregated), ("events", has_kv_events), ("replay", has_kv_events))
        if is_used
    ]
    return [
        "router",
        "router-metrics",
        *processes,
        *(f"{process}-{name}" for process in processes for name in extra_names),
    ]


def list_options(context: Context, role: EngineRole, role_placement: Placement) -> Iterator[str]:
    """Names of the engine's options that the blueprint needs, in the order of the command line."""
    tuning, nodes = context.blueprint.tuning, role_placement.nodes
    is_compiled = context.select_platform(role_placement).limits is not None
    requested = {
        "one-rank": role.accelerators == 1,
        "single": role.tensor == 1,
        "tensor": role.tensor > 1,
        "pipeline": role.pipeline > 1,
        "data": role.data > 1,
        "expert": role.expert,
        "nodes": nodes > 1 and role.executor == "mp",
        "data-nodes": nodes > 1 and role.data > 1,
        "ray": nodes > 1 and role.executor == "ray",
        "fp8-weights": tuning.quantization == "fp8",
        "fp8-cache": tuning.kv_cache == "fp8",
        "no-prefix-cache": not tuning.prefix_cache,
        "no-chunked-prefill": not tuning.chunked_prefill,
        "batch-tokens": tuning.batch_tokens is not None or is_compiled,
        "sequences": tuning.sequences is not None or is_compiled,
        "kv-offload": tuning.kv_offload is not None,
        "speculative": tuning.speculative is not None,
        "adapters": bool(role.adapters),
        "kv-events": context.policy == "kv-aware",
        "drain": context.conventions.drains,
    }
    return (name for name, is_used in requested.items() if is_used)


def list_instance_keys(context: Context, role: EngineRole, role_placement: Placement) -> list[tuple[int, int]]:
    """Replica and rank of each process that the target is asked to run.

    A target that copies processes itself is asked for one replica: for one process of it where it numbers the nodes,
    and a second that describes all further ranks.
    """
    nodes = role_placement.nodes
    if context.conventions.shared_host:
        return [(replica, 0) for replica in range(compute_fixed_replicas(role).min)]
    if nodes > 1 and not context.conventions.starts_groups:
        return [(replica, rank) for replica in range(role.replicas.max) for rank in range(nodes)]
    return [(0, rank) for rank in range(min(2, nodes))]


def build_engine_process(
    context: Context,
    name: str,
    role: EngineRole,
    role_placement: Placement,
    served_model: ServedModel,
    replica: int,
    rank: int,
) -> Process:
    """One process of a role: the engine on one node of a replica."""
    environment, platform = context.environment, context.select_platform(role_placement)
    process_name = _build_process_name(context, name, role_placement.nodes, replica, rank)
    parts = _list_command_parts(context, role, role_placement, rank)
    values = {
        **_build_shared_values(context, name, role, role_placement, served_model),
        **_build_process_values(context, process_name, name, replica, rank),
    }
    command = engines.fill_arguments(
        (*context.engine.command, *(text for part in parts for text in part.arguments)), values
    )
    env = engines.fill_env((context.engine.environment, *(part.environment for part in parts)), values)
    address_variables = tuple(dict.fromkeys(variable for part in parts for variable in part.address_variables))
    own_address = context.conventions.own_address
    env |= dict.fromkeys(address_variables, own_address) if own_address else {}
    if role.executor == "ray" and role_placement.nodes > 1 and context.engine.ray:
        command = _build_ray_command(context.engine.ray, command, values, rank)
    return Process(
        name=process_name,
        command=(_resolve_executable(environment, command[0]), *command[1:]),
        env={**environment.env, **env},
        port=_select_port(context, process_name, ENGINE_PORT),
        probe=_build_probe(served_model, platform.start_s + served_model.weights.bytes / MIN_LOAD_BYTES_S)
        if rank == 0
        else None,
        replica=replica,
        rank=rank,
        address_variables=() if own_address else address_variables,
        memory_bytes=_compute_memory_bytes(context, role, served_model, role_placement),
    )


def _list_command_parts(context: Context, role: EngineRole, role_placement: Placement, rank: int) -> list[CommandPart]:
    """What is added to the engine's command, in the order of the command line."""
    engine, platform = context.engine, context.select_platform(role_placement)
    parts: list[CommandPart] = []
    if engine.streaming and context.streams(role_placement):
        parts += [engine.streaming, *((engine.other_s3,) if context.environment.s3_endpoint else ())]
    parts.append(platform)
    for option in list_options(context, role, role_placement):
        parts += [part for part in (engine.options.get(option), platform.options.get(option)) if part]
    if context.transfer:
        parts.append(engine.transfers[context.transfer])
    if rank and role.executor == "mp" and "follower" in engine.options:
        parts.append(engine.options["follower"])
    return parts


def _build_process_name(context: Context, role: str, nodes: int, replica: int, rank: int) -> str:
    if context.conventions.shared_host:
        return f"{role}-{replica}"
    if nodes > 1 and not context.conventions.starts_groups:
        return f"{role}-{replica}-{rank}"
    return f"{role}-follower" if rank else role


def _build_ray_command(ray: engines.RayCommands, command: Sequence[str], values: Values, rank: int) -> tuple[str, ...]:
    if rank:
        return engines.fill_arguments(ray.worker, values)
    return (*engines.fill_arguments(ray.leader, values), *command)


def _build_shared_values(
    context: Context, name: str, role: EngineRole, role_placement: Placement, served_model: ServedModel
) -> Values:
    """Values that all processes of a role share."""
    tuning = context.blueprint.tuning
    rank_count = sum(
        compute_fixed_replicas(engine_role).min * _count_ranks(engine_role)
        for engine_role in context.blueprint.roles.engine_roles.values()
    )
    return {
        "weights": served_model.weights.uri
        if context.streams(role_placement)
        else f"{context.prefetch_folder}/{WEIGHTS_FOLDER}",
        "served_model": served_model.name,
        "host": context.conventions.bind_host,
        "context": served_model.context,
        "kv_bytes": _compute_kv_bytes(context, role, role_placement, served_model),
        "kv_role": KV_ROLES.get(name, "kv_both"),
        "threads": max(1, context.environment.cores // rank_count),
        "tensor": role.tensor,
        "pipeline": role.pipeline,
        "data": role.data,
        "nodes": role_placement.nodes,
        "batch_tokens": role_placement.batch.tokens,
        "sequences": role_placement.batch.sequences,
        "offload_gib": f"{(tuning.kv_offload or 0) / 2**30:g}",
        "speculative": _format_speculative(context),
        "adapters": tuple(f"{adapter}={path}" for adapter, path in _list_adapter_paths(context, served_model).items()),
        "max_adapters": len(served_model.adapters),
        "drain_s": math.ceil(context.blueprint.disruption.drain),
        "socket_folder": context.environment.socket_folder,
    }


def _build_process_values(context: Context, process_name: str, role: str, replica: int, rank: int) -> Values:
    """Values of one process."""
    environment, conventions = context.environment, context.conventions
    cache_folder = f"{environment.data_folder}/cache"
    return {
        "port": _select_port(context, process_name, ENGINE_PORT),
        "nixl_side_channel_port": _select_port(context, f"{process_name}-side", PORTS["side"]),
        "kv_events_endpoint": _build_kv_endpoint(context, process_name, "events"),
        "kv_replay_endpoint": _build_kv_endpoint(context, process_name, "replay"),
        "master_port": PORTS["master"],
        "data_port": PORTS["data"],
        "ray_port": PORTS["ray"],
        "cache": cache_folder if conventions.containers else f"{cache_folder}/{process_name}",
        "module_folder": environment.module_folder or context.engine.module_folder,
        "rank": conventions.rank if conventions.rank and rank else rank,
        "leader_address": conventions.leader_address or build_peer_name(context, f"{role}-{replica}-0"),
    }


def build_peer_name(context: Context, service: str) -> str:
    """The DNS name by which the deployment's processes find a service of it."""
    return context.conventions.peer_name.format(
        deployment=context.name, service=service, namespace=context.environment.namespace
    )


def _count_ranks(role: EngineRole) -> int:
    """Processes that compute, of one replica."""
    return role.tensor * role.data


def _format_speculative(context: Context) -> str:
    speculative = context.blueprint.tuning.speculative
    if speculative is None:
        return ""
    config = {"method": speculative.method, "num_speculative_tokens": speculative.tokens}
    if speculative.method == "ngram":
        config |= {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return json.dumps(config | ({"model": speculative.model} if speculative.model else {}))


def _list_adapter_paths(context: Context, served_model: ServedModel) -> Mapping[str, str]:
    """Where the engine finds its adapters: in their own folders, or where they are copied to in a container."""
    if not context.conventions.containers:
        return served_model.adapters
    return {name: f"{context.prefetch_folder}/{_build_adapter_folder(name)}" for name in served_model.adapters}


def _build_adapter_folder(adapter: str) -> str:
    """The folder that an adapter is copied to."""
    return f"adapter-{adapter}"


def list_prefetch_uris(context: Context, role_placement: Placement, served_model: ServedModel) -> dict[str, str]:
    """What of S3 is copied to the node before the engine starts, by its folder there."""
    if not context.conventions.containers:
        return {}
    weights = {} if context.streams(role_placement) else {WEIGHTS_FOLDER: served_model.weights.uri}
    return weights | {_build_adapter_folder(name): uri for name, uri in served_model.adapters.items()}


def _compute_kv_bytes(context: Context, role: EngineRole, role_placement: Placement, served_model: ServedModel) -> int:
    """KV cache of one rank, in bytes: one request of the full context and all requests under way at once.

    Where the KV cache uses the machine's own memory.
    """
    traffic, block = context.blueprint.traffic, context.select_platform(role_placement).kv_block
    max_length = traffic.input_tokens.max + traffic.output_tokens.max
    lengths = [served_model.context, *[max_length] * count_concurrent_requests(traffic)]
    blocks = sum(-(-length // block) for length in lengths)
    # The engine keeps one block to itself.
    return max(
        MIN_KV_BYTES, (blocks + 1) * block * memory.compute_kv_bytes_per_token(role_placement.model, role.tensor)
    )


def _compute_memory_bytes(
    context: Context, role: EngineRole, served_model: ServedModel, role_placement: Placement
) -> int:
    """Memory of one replica where processes share one machine; 0 elsewhere."""
    if not context.conventions.shared_host:
        return 0
    platform = context.select_platform(role_placement)
    rank_bytes = platform.base_bytes + _compute_kv_bytes(context, role, role_placement, served_model)
    return int(_count_ranks(role) * rank_bytes + role.data * platform.weight_copies * served_model.weights.bytes)


def count_concurrent_requests(traffic: Traffic) -> int:
    """Requests under way at once, all replicas together."""
    return traffic.users or OPEN_LOOP_REQUESTS


def build_router_process(context: Context, engine_roles: Sequence[Role], served_model: ServedModel) -> Process:
    """The router before the engines of `engine_roles`."""
    router, environment = context.router, context.environment
    mode, values = _select_discovery_mode(context), _build_router_values(context, engine_roles)
    command = engines.fill_arguments((*router.command, *mode.arguments), values)
    prefix_command = engines.fill_arguments(mode.prefix_command, values)
    return Process(
        name="router",
        command=(
            *_build_discovery_command(environment, prefix_command),
            _resolve_executable(environment, command[0]),
            *command[1:],
        ),
        env=engines.fill_env((router.environment, mode.environment), values),
        port=_select_port(context, "router", ROUTER_PORT),
        probe=_build_probe(
            served_model,
            max(process.probe.deadline_s for role in engine_roles for process in role.instances if process.probe),
        ),
        memory_bytes=router.base_bytes,
    )


def _select_discovery_mode(context: Context) -> engines.DiscoveryMode:
    """The router's arguments for finding the engines of this blueprint."""
    discovery = context.router.discovery[select_discovery(context)]
    if context.blueprint.is_disaggregated and discovery.disaggregated:
        return discovery.disaggregated
    return (discovery.kv_events if context.policy == "kv-aware" else None) or discovery.aggregated


def _build_router_values(context: Context, engine_roles: Sequence[Role]) -> Values:
    endpoints = {role.name: _list_endpoints(context, role) for role in engine_roles}
    split_roles = {name: endpoints[name] for name in (PREFILL, DECODE) if name in endpoints}
    return {
        "host": context.conventions.bind_host,
        "port": _select_port(context, "router", ROUTER_PORT),
        "metrics_port": _select_port(context, "router-metrics", METRICS_PORT),
        "policy": context.router.policies[_select_policy(context, engine_roles)],
        "imbalance": _compute_imbalance(context.blueprint),
        "deadline_s": math.ceil(context.blueprint.traffic.deadline),
        "namespace": context.environment.namespace,
        "engine_port": ENGINE_PORT,
        "discovery_port": DISCOVERY_PORT,
        "workers": tuple(endpoint for role_endpoints in endpoints.values() for endpoint in role_endpoints),
        **split_roles,
    }


def _select_policy(context: Context, engine_roles: Sequence[Role]) -> RouterPolicy:
    """The policy. With one replica at a known address there is no choice, and load-aware needs two."""
    is_single = select_discovery(context) == "addresses" and sum(len(role.instances) for role in engine_roles) == 1
    return "round-robin" if is_single and context.policy == "load-aware" else context.policy


def select_discovery(context: Context) -> Discovery:
    """How the router finds the engines: as the target's conventions say, unless only DNS discovery works."""
    # A router takes no option for the model of an engine; only its API sets it.
    has_many_models = bool(context.blueprint.roles.models)
    # With addresses at its start, it asks the engines once where their caches' events are, when the first answers,
    # and misses those that answer later. Besides, its own image is older than this policy.
    uses_kv_events = context.policy == "kv-aware"
    return "names" if has_many_models or uses_kv_events else context.conventions.discovery


def _build_discovery_command(environment: Environment, words: Sequence[str]) -> tuple[str, ...]:
    """What finds the engines for the router, as it is called here."""
    return (*(environment.router_discovery or words[:1]), *words[1:]) if words else ()


def _list_endpoints(context: Context, role: Role) -> tuple[str, ...]:
    """How the router finds the engines of a role: the address or DNS name of each, or the labels of all."""
    conventions, discovery = context.conventions, select_discovery(context)
    if discovery == "labels":
        templates = {**conventions.selector_labels, **(conventions.leader_labels if role.nodes > 1 else {})}
        return tuple(
            f"{key}={value.format(deployment=context.name, role=role.name)}" for key, value in templates.items()
        )
    leaders = [process for process in role.instances if process.rank == 0]
    if conventions.shared_host:
        scheme = "http://" if discovery == "addresses" else ""
        return tuple(f"{scheme}{conventions.own_address}:{process.port}" for process in leaders)
    return tuple(f"{build_peer_name(context, process.name)}:{ENGINE_PORT}" for process in leaders)


def _build_kv_endpoint(context: Context, process_name: str, port_name: str) -> str:
    """Where an engine publishes its cache's events, as ZeroMQ writes addresses."""
    port = _select_port(context, f"{process_name}-{port_name}", PORTS[port_name])
    return f"tcp://{context.conventions.zmq_bind_host}:{port}"


def _compute_imbalance(blueprint: Blueprint) -> int:
    """Requests that a replica may have more than another before its queue counts more than a cached prefix."""
    replicas = sum(compute_fixed_replicas(role).min for role in blueprint.roles.engine_roles.values())
    return max(1, count_concurrent_requests(blueprint.traffic) // (2 * replicas))


def _select_port(context: Context, name: str, default: int) -> int:
    """The port that the target chose, or the fixed one where each process has its own address."""
    return context.environment.ports.get(name, 0) if context.conventions.shared_host else default


def _resolve_executable(environment: Environment, name: str) -> str:
    return f"{environment.engine_folder}/{name}" if environment.engine_folder else name


def _build_probe(served_model: ServedModel, deadline_s: float) -> Probe:
    body: dict[str, str | int] = {"model": served_model.name, "prompt": "ready?", "max_tokens": 1}
    return Probe(path="/v1/completions", body=body, deadline_s=deadline_s)
