"""Command line and environment of the router: rows of the catalog with the deployment's numbers filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_serving.catalog import command_parts, routers
from llm_serving.catalog.command_parts import CommandPart, Values
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.kinds.serving import auth
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import (
    DISCOVERY_PORT,
    ENGINE_PORT,
    METRICS_PORT,
    PORTS,
    ROUTER_ADMIN_PORT,
    ROUTER_PORT,
    Context,
    resolve_executable,
)
from llm_serving.kinds.serving.deployment import DECODE, PREFILL
from llm_serving.kinds.serving.engine_process import build_probe, count_concurrent_requests, write_settings
from llm_serving.kinds.serving.roles import RouterPolicy, compute_fixed_replicas
from llm_serving.kinds.serving.stack import RouterContainer
from llm_serving.services import deployments
from llm_serving.services.environment import Discovery, Environment
from llm_serving.services.models import ServedModel
from llm_serving.services.service import LOOPBACK, Resources, Service

MAX_TREE_SIZE, TREE_CHARACTER_BYTES = 2**25, 2
"""vllm-router's own number, and the memory of each: 1.5, of prompts that share nothing (0.1.17, 2026-11-29)."""

TREE_BYTES = 2**31
"""Half of a router's memory. The rest is for what comes between two cleanings, and for requests under way."""

SELECTOR_LABELS = {"app.kubernetes.io/instance": "{deployment}", "app.kubernetes.io/component": "{role}"}
LEADER_LABELS = {"inference/listens": "true"}
"""Labels that charts/inference puts on the pods of a role, and on those of several nodes that answer requests."""


def build_router_service(context: Context, engine_services: Sequence[Service], served_model: ServedModel) -> Service:
    """Return the router before the engines: what its command line decides."""
    router, environment = context.router, context.environment
    mode, values = _select_discovery_mode(context), _build_router_values(context, engine_services)
    rank_routing = router.rank_routing if count_routed_ranks(context) > 1 and router.rank_routing else CommandPart()
    command = command_parts.fill_arguments((*router.command, *mode.arguments, *rank_routing.arguments), values)
    if command:
        command = (resolve_executable(environment, command[0]), *command[1:])
    return Service(
        name="router",
        role="router",
        is_entry=True,
        command=(
            *_build_image_command(environment, command_parts.fill_arguments(router.front, values)),
            *_build_image_command(environment, command_parts.fill_arguments(mode.prefix_command, values)),
            *command,
        ),
        env={
            # Where it reads the keys of teams.
            **(environment.env if context.door and not context.conventions.is_local else {}),
            **command_parts.fill_env((router.environment, mode.environment), values),
        },
        # Where clients need a key, the probe asks the router itself.
        host=environment.hidden_host if context.door else LOOPBACK,
        port=context.select_port("router-admin" if context.door else "router", ROUTER_PORT),
        probe=build_probe(context, served_model, _compute_router_start_s(engine_services)),
        resources=Resources(memory_bytes=router.base_bytes),
    )


def build_router_container(context: Context, engine_services: Sequence[Service]) -> RouterContainer | None:
    """Build what routes in place of the router's own container; None where that does."""
    beside = context.router.beside
    if beside is None:
        return None
    # It starts beside the engines, whose machines may have to start before.
    start_s = INSTANCE_START_S + _compute_router_start_s(engine_services)
    values = {**_build_router_values(context, engine_services), "start_limit_s": math.ceil(start_s)}
    settings = command_parts.fill_settings((beside.settings,), values)
    command = command_parts.fill_arguments(beside.command, values)
    return RouterContainer(
        name=beside.name,
        image=engine_services[0].image,
        command=(*write_settings(values["settings_file"], settings), *command),
        env={**context.environment.env, **command_parts.fill_env((beside.environment,), values)},
        port=ROUTER_ADMIN_PORT,
        health=beside.health,
        start_s=start_s,
        cpus=beside.cpus,
        memory_bytes=beside.memory_bytes,
        disk_bytes=beside.disk_bytes,
    )


def _compute_router_start_s(engine_services: Sequence[Service]) -> float:
    return max(engine.probe.deadline_s for engine in engine_services if engine.probe)


def _select_discovery_mode(context: Context) -> routers.DiscoveryMode:
    if not context.router.discovery:
        return routers.DiscoveryMode()
    discovery = context.router.discovery[select_discovery(context)]
    if context.blueprint.is_disaggregated and discovery.disaggregated:
        return discovery.disaggregated
    asks_for_details = context.policy == "kv-aware" or count_routed_ranks(context) > 1
    return (discovery.engine_details if asks_for_details else None) or discovery.aggregated


def _build_router_values(context: Context, engine_services: Sequence[Service]) -> Values:
    roles = dict.fromkeys(engine.role for engine in engine_services)
    endpoints = {
        role: _list_endpoints(context, [engine for engine in engine_services if engine.role == role]) for role in roles
    }
    split_roles = {name: endpoints[name] for name in (PREFILL, DECODE) if name in endpoints}
    policy = context.router.policies[_balance(context, context.policy, engine_services)].split()
    # Decode computes no prompt: a cached prefix saves it nothing.
    decode_policy = "load-aware" if context.policy == "cache-aware" else context.policy
    decoders = [engine for engine in engine_services if engine.role == DECODE]
    settings, keys, door = context.blueprint.roles.router, context.blueprint.auth, context.door
    usage_port = context.environment.ports.get(auth.USAGE_PORT, deployments.USAGE_PORT)
    return {
        "host": context.conventions.bind_host,
        "port": context.select_port("router", ROUTER_PORT),
        "hidden_host": context.environment.hidden_host,
        "router_port": context.select_port("router-admin", ROUTER_ADMIN_PORT),
        "metrics_host": context.environment.member_host,
        "metrics_port": context.select_port("router-metrics", METRICS_PORT),
        "policy": policy[0] if len(policy) == 1 else tuple(policy),
        "decode_policy": context.router.policies[_balance(context, decode_policy, decoders)],
        "ranks": count_routed_ranks(context),
        "imbalance": _compute_imbalance(context.blueprint),
        "tree_size": _compute_tree_size(context),
        "log_format": () if context.blueprint.logs == "text" else (context.blueprint.logs,),
        "max_requests": (str(settings.max_requests),) if settings.max_requests else (),
        "team_keys": (door.keys,) if door else (),
        "team_usage": (f"{context.environment.member_host}:{usage_port}",) if door else (),
        "team_limits": tuple(f"{team}={limit}" for team, limit in keys.requests_per_minute.items()) if keys else (),
        "request_timeout_s": math.ceil(settings.request_timeout),
        "settings_file": context.settings_file,
        "namespace": context.namespace,
        "engine_port": ENGINE_PORT,
        "discovery_port": DISCOVERY_PORT,
        "nixl_side_channel_port": PORTS["side"],
        "workers": tuple(endpoint for role_endpoints in endpoints.values() for endpoint in role_endpoints),
        **split_roles,
        **{f"{role}_count": len(addresses) for role, addresses in split_roles.items()},
    }


def _balance(context: Context, policy: RouterPolicy, engine_services: Sequence[Service]) -> RouterPolicy:
    """Return the policy: with one replica at a known address there is no choice, and load-aware needs two."""
    is_single = select_discovery(context) == "addresses" and len(engine_services) < 2
    return "round-robin" if is_single and policy == "load-aware" else policy


def count_routed_ranks(context: Context) -> int:
    """Return data-parallel ranks of each replica between which the router chooses: those whose caches a policy follows.

    The engine chooses by its ranks' queues otherwise. The router takes one number of ranks for all engines: prefill and
    decode need as many. It takes none for several models or accelerators.
    """
    roles = context.blueprint.roles
    if context.policy not in ("cache-aware", "consistent-hash") or roles.workers or roles.models:
        return 1
    rank_counts = {role.data for role in roles.engine_roles.values()}
    return rank_counts.pop() if len(rank_counts) == 1 else 1


def select_discovery(context: Context) -> Discovery:
    """Return how the router finds the engines: as the target's conventions say, unless only DNS discovery works."""
    roles, conventions = context.blueprint.roles, context.conventions
    # A router takes no option for the model of an engine, and none for its weight: only its API does. With addresses at
    # its start, it asks the engines once where their caches' events are, when the first answers, and misses those that
    # answer later. Besides, its own image is older than this policy.
    if roles.models or roles.workers or context.policy == "kv-aware":
        return "names"
    discovery: Discovery = "addresses" if conventions.is_local else "labels" if conventions.is_kubernetes else "names"
    return discovery if discovery in context.router.discovery else "names"


def _build_image_command(environment: Environment, words: Sequence[str]) -> tuple[str, ...]:
    """Return a program of the router's image and its arguments, as it is called here."""
    return (*environment.image_programs.get(words[0], words[:1]), *words[1:]) if words else ()


def _list_endpoints(context: Context, engines_of_role: Sequence[Service]) -> tuple[str, ...]:
    conventions, discovery = context.conventions, select_discovery(context)
    if discovery == "labels":
        engine = engines_of_role[0]
        templates = {**SELECTOR_LABELS, **(LEADER_LABELS if engine.nodes > 1 else {})}
        names = {"deployment": context.release, "role": engine.role}
        return tuple(f"{key}={value.format(**names)}" for key, value in templates.items())
    leaders = [engine for engine in engines_of_role if engine.node is None or engine.node.rank == 0]
    weight = context.blueprint.roles.get_weight(engines_of_role[0].role)
    suffix = f"={weight}" if weight > 1 else ""
    if conventions.is_local:
        scheme = "http://" if discovery == "addresses" else ""
        return tuple(f"{scheme}{process.host}:{process.port}{suffix}" for process in leaders)
    return tuple(f"{context.build_peer_name(process.name)}:{ENGINE_PORT}{suffix}" for process in leaders)


def _compute_tree_size(context: Context) -> int:
    """Return characters of prompts that the router remembers of one replica: it has room for those of all."""
    replicas = sum(role.replicas.max for role in context.blueprint.roles.replica_roles.values())
    return min(MAX_TREE_SIZE, TREE_BYTES // (TREE_CHARACTER_BYTES * replicas * count_routed_ranks(context)))


def _compute_imbalance(blueprint: Blueprint) -> int:
    """Return requests that a replica may have more than another before its queue counts more than a cached prefix."""
    replicas = sum(compute_fixed_replicas(role).min for role in blueprint.roles.replica_roles.values())
    return max(1, count_concurrent_requests(blueprint.traffic) // (2 * replicas))
