"""Command lines and environments: rows of the engines' catalogue with the deployment's numbers filled in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_serving.catalog import engines
from llm_serving.catalog.engines import CommandPart, Values
from llm_serving.engines import memory
from llm_serving.workloads.environment import Environment, Probe, Process
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import DECODE, PREFILL, Role, ServedModel
from llm_serving.workloads.serving.placement import Placement
from llm_serving.workloads.serving.roles import EngineRole, RouterPolicy, compute_fixed_replicas
from llm_serving.workloads.serving.traffic import Traffic

LOOPBACK = "127.0.0.1"
"""Where processes of the local target listen: no other machine reaches them."""

ROUTER = "vllm-router"

ENGINE_PORT, ROUTER_PORT, METRICS_PORT, DISCOVERY_PORT = 8000, 8080, 9090, 9091
"""Where a container listens that has an address of its own."""

PORTS = {"side": 5600, "events": 5557, "replay": 5558, "master": 29500, "data": 13345, "ray": 6379}
"""Further ports of an engine's container: transfers of KV caches, its cache's events, ranks of a replica."""

MIN_LOAD_BYTES_S = 200e6
"""Least bytes a second that weights are taken to stream with, for the limit of a start: a tenth of a good S3's."""

OPEN_LOOP_REQUESTS = 32
"""Requests that an open loop is taken to have under way at once."""

MIN_KV_BYTES = 64 * 2**20

WEIGHTS_FOLDER = "weights"
"""Folder of weights that are not streamed, where they are copied to before the engine starts."""

DISCOVERY_BY_TARGET: Mapping[str, Literal["addresses", "labels", "names"]] = {
    "local": "addresses",
    "eks": "labels",
    "ecs": "names",
}
"""How the router finds the engines, by target."""

KV_ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}


@dataclass(frozen=True)
class Context:
    """What the command lines of all roles follow from."""

    blueprint: Blueprint
    name: str
    """The deployment's."""

    environment: Environment
    policy: RouterPolicy
    transfer: str
    """Which of the engine's transfers hands caches on; empty where none do."""

    @property
    def is_local(self) -> bool:
        """Whether all processes share this machine."""
        return self.environment.target == "local"

    @property
    def host(self) -> str:
        """The address to listen on."""
        return LOOPBACK if self.is_local else "0.0.0.0"

    @property
    def prefetch_folder(self) -> str:
        """Folder of a container that LoRA adapters, and weights that are not streamed, are copied to beforehand."""
        return f"{self.environment.data_folder}/fetched"

    @property
    def engine(self) -> engines.Engine:
        """The engine."""
        return engines.load_engines()[self.blueprint.engine]

    def select_platform(self, role_placement: Placement) -> engines.Platform:
        """The engine on the processors that it runs on here."""
        return self.engine.platforms["cpu"] if self.is_local else role_placement.platform


def list_port_names(blueprint: Blueprint, replicas: Mapping[str, int]) -> list[str]:
    """The ports that a place where processes share one address must choose, by name.

    Args:
        replicas: by role.
    """
    is_disaggregated = blueprint.pattern == "disaggregated"
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
    """Names of the engine's options that the blueprint's settings ask for, in the order of the command line."""
    tuning, nodes = context.blueprint.tuning, role_placement.nodes
    is_compiled = context.select_platform(role_placement).limits is not None
    requested = {
        "one-rank": role.accelerators == 1,
        "single": role.tensor == 1,
        "tensor": role.tensor > 1,
        "pipeline": role.pipeline > 1,
        "data": role.data > 1,
        "expert": role.expert,
        "machines": nodes > 1 and role.executor == "mp",
        "data-machines": nodes > 1 and role.data > 1,
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
        "drain": not context.is_local,
    }
    return (name for name, is_used in requested.items() if is_used)


def build_engine_processes(
    context: Context, name: str, role: EngineRole, role_placement: Placement, served_model: ServedModel
) -> list[Process]:
    """The processes of a role: each replica on this machine; elsewhere what all replicas are like, by machine."""
    if context.is_local:
        count = compute_fixed_replicas(role).min
        return [
            _build_engine_process(context, name, role, role_placement, served_model, index, 0) for index in range(count)
        ]
    if context.environment.target == "ecs" and role_placement.nodes > 1:
        # A service is made of like tasks, so each machine of each replica is one of its own.
        return [
            _build_engine_process(context, name, role, role_placement, served_model, replica, rank)
            for replica in range(role.replicas.max)
            for rank in range(role_placement.nodes)
        ]
    # A group's machines are the first and its followers, whose number the group itself tells them.
    return [
        _build_engine_process(context, name, role, role_placement, served_model, 0, rank)
        for rank in range(min(2, role_placement.nodes))
    ]


def _build_engine_process(
    context: Context,
    name: str,
    role: EngineRole,
    role_placement: Placement,
    served_model: ServedModel,
    replica: int,
    rank: int,
) -> Process:
    engine, platform, environment = context.engine, context.select_platform(role_placement), context.environment
    process_name = _build_process_name(context, name, role_placement.nodes, replica, rank)
    option_names = list(list_options(context, role, role_placement))
    streaming_parts = (
        [engine.streaming, *((engine.other_s3,) if environment.s3_endpoint else ())] if platform.streams else []
    )
    parts: list[CommandPart] = [*streaming_parts, platform]
    parts += [
        part for option in option_names for part in (engine.options.get(option), platform.options.get(option)) if part
    ]
    parts += [engine.transfers[context.transfer]] if context.transfer else []
    parts += [engine.options["follower"]] if rank and role.executor == "mp" else []
    values = {
        **_build_shared_values(context, name, role, role_placement, served_model),
        **_build_process_values(context, process_name, name, replica, rank),
    }
    command = engines.fill_arguments((*engine.command, *(text for part in parts for text in part.arguments)), values)
    env = engines.fill_env((engine.environment, *(part.environment for part in parts)), values)
    address_variables = tuple(dict.fromkeys(variable for part in parts for variable in part.own_address))
    if context.is_local:
        env |= dict.fromkeys(address_variables, LOOPBACK)
    if role.executor == "ray" and role_placement.nodes > 1:
        command = _build_ray_command(engine.ray.lead if rank == 0 else engine.ray.follow, command, values, rank)
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
        own_address=() if context.is_local else address_variables,
        memory_bytes=_compute_memory_bytes(context, role, served_model, role_placement) if context.is_local else 0,
    )


def _build_process_name(context: Context, role: str, nodes: int, replica: int, rank: int) -> str:
    if context.is_local:
        return f"{role}-{replica}"
    if context.environment.target == "ecs" and nodes > 1:
        return f"{role}-{replica}-{rank}"
    return f"{role}-follower" if rank else role


def _build_ray_command(templates: Sequence[str], command: Sequence[str], values: Values, rank: int) -> tuple[str, ...]:
    ray_command = engines.fill_arguments(templates, values)
    return ray_command if rank else (*ray_command, *command)


def _build_shared_values(
    context: Context, name: str, role: EngineRole, role_placement: Placement, served_model: ServedModel
) -> Values:
    """What all processes of a role have in common."""
    tuning, platform = context.blueprint.tuning, context.select_platform(role_placement)
    rank_count = sum(
        compute_fixed_replicas(engine_role).min * _count_ranks(engine_role)
        for engine_role in context.blueprint.roles.engine_roles.values()
    )
    return {
        "weights": served_model.weights.uri if platform.streams else f"{context.prefetch_folder}/{WEIGHTS_FOLDER}",
        "served_model": served_model.name,
        "host": context.host,
        "context": served_model.context,
        "kv_bytes": _compute_kv_bytes(context, role, role_placement, served_model),
        "kv_role": KV_ROLES.get(name, "kv_both"),
        "threads": max(1, context.environment.cores // rank_count),
        "tensor": role.tensor,
        "pipeline": role.pipeline,
        "data": role.data,
        "machines": role_placement.nodes,
        "batch_tokens": role_placement.batch.tokens,
        "sequences": role_placement.batch.sequences,
        "offload_gib": f"{(tuning.kv_offload or 0) / 2**30:g}",
        "speculative": _format_speculative(context),
        "adapters": tuple(f"{adapter}={path}" for adapter, path in _list_adapter_paths(context, served_model).items()),
        "adapters_most": len(served_model.adapters),
        "drain_s": math.ceil(context.blueprint.disruption.drain),
        "sockets": context.environment.socket_folder,
    }


def _build_process_values(context: Context, process_name: str, role: str, replica: int, rank: int) -> Values:
    """What a process has for itself."""
    environment = context.environment
    return {
        "port": _select_port(context, process_name, ENGINE_PORT),
        "side_port": _select_port(context, f"{process_name}-side", PORTS["side"]),
        "events_at": _build_kv_endpoint(context, process_name, "events"),
        "replay_at": _build_kv_endpoint(context, process_name, "replay"),
        "master_port": PORTS["master"],
        "data_port": PORTS["data"],
        "ray_port": PORTS["ray"],
        "cache": f"{environment.data_folder}/cache/{process_name}"
        if context.is_local
        else f"{environment.data_folder}/cache",
        "modules": environment.module_folder,
        "rank": rank if environment.target != "eks" or rank == 0 else "$(LWS_WORKER_INDEX)",
        "leader": "$(LWS_LEADER_ADDRESS)"
        if environment.target == "eks"
        else build_peer_name(context, f"{role}-{replica}-0"),
    }


def build_peer_name(context: Context, service: str) -> str:
    """The DNS name by which peers find a service: on ECS all deployments of a fleet share one namespace."""
    return f"{context.name}-{service}.{context.environment.namespace}"


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
    """Where the engine finds its adapters: on this machine where they lie, in a container where they are copied to."""
    if context.is_local:
        return served_model.adapters
    return {name: f"{context.prefetch_folder}/{_build_adapter_folder(name)}" for name in served_model.adapters}


def _build_adapter_folder(adapter: str) -> str:
    """The folder that an adapter is copied to."""
    return f"adapter-{adapter}"


def list_prefetch_uris(context: Context, role_placement: Placement, served_model: ServedModel) -> dict[str, str]:
    """What of S3 is copied to the machine before the engine starts, by its folder there."""
    if context.is_local:
        return {}
    weights = {} if role_placement.platform.streams else {WEIGHTS_FOLDER: served_model.weights.uri}
    return weights | {_build_adapter_folder(name): uri for name, uri in served_model.adapters.items()}


def _compute_kv_bytes(context: Context, role: EngineRole, role_placement: Placement, served_model: ServedModel) -> int:
    """Room for one request of the full context and all those under way at once, should one replica take them all.

    Of one rank, where the KV cache lies in the machine's own memory.
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
    """What one replica takes of this machine's memory."""
    platform = context.select_platform(role_placement)
    rank_bytes = platform.base_bytes + _compute_kv_bytes(context, role, role_placement, served_model)
    return int(_count_ranks(role) * rank_bytes + role.data * platform.weight_copies * served_model.weights.bytes)


def count_concurrent_requests(traffic: Traffic) -> int:
    """Requests under way at once, all replicas together."""
    return traffic.users or OPEN_LOOP_REQUESTS


def build_router_process(context: Context, engine_roles: Sequence[Role], served_model: ServedModel) -> Process:
    """The router before the engines of `roles`."""
    router, environment = engines.load_routers()[ROUTER], context.environment
    discovery = router.finds[select_discovery(context)]
    event_mode = discovery.heard if context.policy == "kv-aware" else None
    mode = discovery.apart if select_discovery_mode(engine_roles) == "apart" else event_mode or discovery.together
    values: Values = {
        "host": context.host,
        "port": _select_port(context, "router", ROUTER_PORT),
        "metrics_port": _select_port(context, "router-metrics", METRICS_PORT),
        "policy": router.policies[_select_policy(context, engine_roles)],
        "imbalance": _compute_imbalance(context.blueprint),
        "deadline_s": math.ceil(context.blueprint.traffic.deadline),
        "namespace": environment.namespace,
        "engine_port": ENGINE_PORT,
        "discovery_port": DISCOVERY_PORT,
        **{
            role.name: _list_endpoints(context, role)
            for role in engine_roles
            if role.name in ("worker", PREFILL, DECODE)
        },
        "workers": tuple(endpoint for role in engine_roles for endpoint in _list_endpoints(context, role)),
    }
    command = engines.fill_arguments((*router.command, *mode.arguments), values)
    discovery_command = engines.fill_arguments(mode.before, values)
    return Process(
        name="router",
        command=(
            *_build_discovery_command(environment, discovery_command),
            _resolve_executable(environment, command[0]),
            *command[1:],
        ),
        env=engines.fill_env((router.environment, mode.environment), values),
        port=_select_port(context, "router", ROUTER_PORT),
        probe=_build_probe(
            served_model,
            max(process.probe.deadline_s for role in engine_roles for process in role.processes if process.probe),
        ),
        memory_bytes=router.base_bytes,
    )


def _select_policy(context: Context, engine_roles: Sequence[Role]) -> RouterPolicy:
    """The policy; of one replica at a known address there is nothing to choose, and load-aware wants two."""
    is_single = select_discovery(context) == "addresses" and sum(len(role.processes) for role in engine_roles) == 1
    return "round-robin" if is_single and context.policy == "load-aware" else context.policy


def select_discovery_mode(engine_roles: Sequence[Role]) -> Literal["together", "apart"]:
    """Whether each engine does both halves of a request, or prefill and decode are roles of their own."""
    return "apart" if {PREFILL, DECODE} <= {role.name for role in engine_roles} else "together"


def select_discovery(context: Context) -> Literal["addresses", "labels", "names"]:
    """How the router finds the engines here."""
    # Which model an engine serves cannot be told to a router at its start: it takes that by its interface alone.
    is_multi_model = context.blueprint.pattern == "multi-model"
    # Told of engines at its start, it asks them where their caches' events are once, as soon as the first answers: one
    # that answers later is never heard. Besides, its own image is older than this policy.
    uses_kv_events = context.policy == "kv-aware"
    return "names" if is_multi_model or uses_kv_events else DISCOVERY_BY_TARGET[context.environment.target]


def _build_discovery_command(environment: Environment, words: Sequence[str]) -> tuple[str, ...]:
    """What finds the engines for the router, as it is called here."""
    return (*(environment.router_discovery or words[:1]), *words[1:]) if words else ()


def _list_endpoints(context: Context, role: Role) -> tuple[str, ...]:
    """How the router finds the engines of a role: each by its address, or all by their labels or their name."""
    environment, uses_names = context.environment, select_discovery(context) == "names"
    if context.is_local:
        return tuple(f"{'' if uses_names else 'http://'}{LOOPBACK}:{process.port}" for process in role.processes)
    if environment.target == "ecs":
        head_names = [process.name for process in role.processes if process.rank == 0]
        return tuple(f"{build_peer_name(context, name)}:{ENGINE_PORT}" for name in head_names)
    if uses_names:
        return (f"{build_peer_name(context, role.name)}:{ENGINE_PORT}",)
    labels = {"app.kubernetes.io/instance": context.name, "app.kubernetes.io/component": role.name}
    listen_labels = {"inference/listens": "true"} if role.nodes > 1 else {}
    return tuple(f"{key}={value}" for key, value in {**labels, **listen_labels}.items())


def _build_kv_endpoint(context: Context, process_name: str, port_name: str) -> str:
    """Where an engine tells of its cache, as ZeroMQ is told to listen."""
    # The loopback address in IPv6's notation, where nobody else hears it: by its colons the engine knows to listen.
    host = f"[::ffff:{LOOPBACK}]" if context.is_local else "*"
    return f"tcp://{host}:{_select_port(context, f'{process_name}-{port_name}', PORTS[port_name])}"


def _compute_imbalance(blueprint: Blueprint) -> int:
    """How many requests more than another a replica may have before a cached beginning counts less than the queue."""
    replicas = sum(compute_fixed_replicas(role).min for role in blueprint.roles.engine_roles.values())
    return max(1, count_concurrent_requests(blueprint.traffic) // (2 * replicas))


def _select_port(context: Context, name: str, default: int) -> int:
    """The port that the place chose, or the fixed one where each process has an address of its own."""
    return context.environment.ports.get(name, 0) if context.is_local else default


def _resolve_executable(environment: Environment, name: str) -> str:
    return f"{environment.engine_folder}/{name}" if environment.engine_folder else name


def _build_probe(served_model: ServedModel, deadline_s: float) -> Probe:
    body: dict[str, str | int] = {"model": served_model.name, "prompt": "ready?", "max_tokens": 1}
    return Probe(path="/v1/completions", body=body, deadline_s=deadline_s)
