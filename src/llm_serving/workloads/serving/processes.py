"""Command lines and environments: rows of the engines' catalogue with the deployment's numbers filled in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_serving.catalog import engines
from llm_serving.catalog.engines import Part, Values
from llm_serving.engines import memory
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import DECODE, PREFILL, Place, Probe, Process, Role, Served
from llm_serving.workloads.serving.placement import Placement
from llm_serving.workloads.serving.roles import Engine, Policy, always
from llm_serving.workloads.serving.traffic import Traffic

LOOPBACK = "127.0.0.1"
"""Where processes of the local target listen: no other machine reaches them."""

ROUTER = "vllm-router"

ENGINE_PORT, ROUTER_PORT, METRICS_PORT, DISCOVERY_PORT = 8000, 8080, 9090, 9091
"""Where a container listens that has an address of its own."""

PORTS = {"side": 5600, "events": 5557, "replay": 5558, "master": 29500, "data": 13345, "ray": 6379}
"""Further ports of an engine's container: transfers of KV caches, its cache's events, ranks of a replica."""

LOAD_BYTES_S = 200e6
"""Least bytes a second that weights are taken to stream with, for the limit of a start: a tenth of a good S3's."""

OPEN_LOOP_REQUESTS = 32
"""Requests that an open loop is taken to have under way at once."""

LEAST_KV_BYTES = 64 * 2**20

WEIGHTS = "weights"
"""Folder of weights that are not streamed, where they are copied to before the engine starts."""

FINDS: Mapping[str, Literal["addresses", "labels", "names"]] = {"local": "addresses", "eks": "labels", "ecs": "names"}
"""How the router finds the engines, by target."""

KV_ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}


@dataclass(frozen=True)
class Context:
    """What the command lines of all roles follow from."""

    blueprint: Blueprint
    name: str
    """The deployment's."""

    place: Place
    policy: Policy
    transfer: str
    """Which of the engine's transfers hands caches on; empty where none do."""

    @property
    def local(self) -> bool:
        """Whether all processes share this machine."""
        return self.place.target == "local"

    @property
    def host(self) -> str:
        """The address to listen on."""
        return LOOPBACK if self.local else "0.0.0.0"

    @property
    def fetched(self) -> str:
        """Folder of a container that LoRA adapters, and weights that are not streamed, are copied to beforehand."""
        return f"{self.place.data}/fetched"

    @property
    def row(self) -> engines.Engine:
        """The engine."""
        return engines.engines()[self.blueprint.engine]

    def platform(self, placed: Placement) -> engines.Platform:
        """The engine on the processors that it runs on here."""
        return self.row.platforms["cpu"] if self.local else placed.platform


def port_names(blueprint: Blueprint, replicas: Mapping[str, int]) -> list[str]:
    """The ports that a place where processes share one address must choose, by name.

    Args:
        replicas: by role.
    """
    apart = blueprint.pattern == "disaggregated"
    events = blueprint.roles.router.policy == "kv-aware"
    processes = [f"{role}-{number}" for role, count in replicas.items() for number in range(count)]
    further = [name for name, wanted in (("side", apart), ("events", events), ("replay", events)) if wanted]
    return ["router", "router-metrics", *processes, *(f"{one}-{name}" for one in processes for name in further)]


def options(context: Context, role: Engine, placed: Placement) -> Iterator[str]:
    """Names of the engine's options that the blueprint's settings ask for, in the order of the command line."""
    tuning, machines = context.blueprint.tuning, placed.machines
    compiled = context.platform(placed).limits is not None
    asked = {
        "one-rank": role.accelerators == 1,
        "single": role.tensor == 1,
        "tensor": role.tensor > 1,
        "pipeline": role.pipeline > 1,
        "data": role.data > 1,
        "expert": role.expert,
        "machines": machines > 1 and role.executor == "mp",
        "data-machines": machines > 1 and role.data > 1,
        "ray": machines > 1 and role.executor == "ray",
        "fp8-weights": tuning.quantization == "fp8",
        "fp8-cache": tuning.kv_cache == "fp8",
        "no-prefix-cache": not tuning.prefix_cache,
        "no-chunked-prefill": not tuning.chunked_prefill,
        "batch-tokens": tuning.batch_tokens is not None or compiled,
        "sequences": tuning.sequences is not None or compiled,
        "kv-offload": tuning.kv_offload is not None,
        "speculative": tuning.speculative is not None,
        "adapters": bool(role.adapters),
        "kv-events": context.policy == "kv-aware",
        "drain": not context.local,
    }
    return (name for name, wanted in asked.items() if wanted)


def engine(context: Context, name: str, role: Engine, placed: Placement, serves: Served) -> list[Process]:
    """The processes of a role: each replica on this machine; elsewhere what all replicas are like, by machine."""
    if context.local:
        count = always(role).least
        return [_engine_process(context, name, role, placed, serves, number, 0) for number in range(count)]
    if context.place.target == "ecs" and placed.machines > 1:
        # A service is made of like tasks, so each machine of each replica is one of its own.
        return [
            _engine_process(context, name, role, placed, serves, replica, rank)
            for replica in range(role.replicas.most)
            for rank in range(placed.machines)
        ]
    # A group's machines are the first and its followers, whose number the group itself tells them.
    return [_engine_process(context, name, role, placed, serves, 0, rank) for rank in range(min(2, placed.machines))]


def _engine_process(
    context: Context, name: str, role: Engine, placed: Placement, serves: Served, number: int, rank: int
) -> Process:
    row, platform, place = context.row, context.platform(placed), context.place
    process = _name(context, name, placed.machines, number, rank)
    asked = list(options(context, role, placed))
    streamed = [row.streaming, *((row.other_s3,) if place.s3_endpoint else ())] if platform.streams else []
    parts: list[Part] = [*streamed, platform]
    parts += [part for option in asked for part in (row.options.get(option), platform.options.get(option)) if part]
    parts += [row.transfers[context.transfer]] if context.transfer else []
    parts += [row.options["follower"]] if rank and role.executor == "mp" else []
    values = {
        **_shared_values(context, name, role, placed, serves),
        **_own_values(context, process, name, number, rank),
    }
    command = engines.arguments((*row.command, *(text for part in parts for text in part.arguments)), values)
    environment = engines.environment((row.environment, *(part.environment for part in parts)), values)
    own = tuple(dict.fromkeys(variable for part in parts for variable in part.own_address))
    if context.local:
        environment |= dict.fromkeys(own, LOOPBACK)
    if role.executor == "ray" and placed.machines > 1:
        command = _joined_by_ray(row.ray.lead if rank == 0 else row.ray.follow, command, values, rank)
    return Process(
        name=process,
        command=(_executable(place, command[0]), *command[1:]),
        environment={**place.environment, **environment},
        port=_port(context, process, ENGINE_PORT),
        probe=_probe(serves, platform.start_s + serves.weights.bytes / LOAD_BYTES_S) if rank == 0 else None,
        rank=rank,
        own_address=() if context.local else own,
        memory_bytes=_memory(context, role, serves, placed) if context.local else 0,
    )


def _name(context: Context, role: str, machines: int, number: int, rank: int) -> str:
    if context.local:
        return f"{role}-{number}"
    if context.place.target == "ecs" and machines > 1:
        return f"{role}-{number}-{rank}"
    return f"{role}-follower" if rank else role


def _joined_by_ray(texts: Sequence[str], command: Sequence[str], values: Values, rank: int) -> tuple[str, ...]:
    joined = engines.arguments(texts, values)
    return joined if rank else (*joined, *command)


def _shared_values(context: Context, name: str, role: Engine, placed: Placement, serves: Served) -> Values:
    """What all processes of a role have in common."""
    tuning, platform = context.blueprint.tuning, context.platform(placed)
    copies = sum(always(other).least * _ranks(other) for other in context.blueprint.roles.engines.values())
    return {
        "weights": serves.weights.uri if platform.streams else f"{context.fetched}/{WEIGHTS}",
        "served_model": serves.name,
        "host": context.host,
        "context": serves.context,
        "kv_bytes": _kv_bytes(context, role, placed, serves),
        "kv_role": KV_ROLES.get(name, "kv_both"),
        "threads": max(1, context.place.cores // copies),
        "tensor": role.tensor,
        "pipeline": role.pipeline,
        "data": role.data,
        "machines": placed.machines,
        "batch_tokens": placed.batch.tokens,
        "sequences": placed.batch.sequences,
        "offload_gib": f"{(tuning.kv_offload or 0) / 2**30:g}",
        "speculative": _speculative(context),
        "adapters": tuple(f"{adapter}={where}" for adapter, where in _adapters(context, serves).items()),
        "adapters_most": len(serves.adapters),
        "drain_s": math.ceil(context.blueprint.disruption.drain),
        "sockets": context.place.sockets,
    }


def _own_values(context: Context, process: str, role: str, number: int, rank: int) -> Values:
    """What a process has for itself."""
    place = context.place
    return {
        "port": _port(context, process, ENGINE_PORT),
        "side_port": _port(context, f"{process}-side", PORTS["side"]),
        "events_at": _tells_at(context, process, "events"),
        "replay_at": _tells_at(context, process, "replay"),
        "master_port": PORTS["master"],
        "data_port": PORTS["data"],
        "ray_port": PORTS["ray"],
        "cache": f"{place.data}/cache/{process}" if context.local else f"{place.data}/cache",
        "modules": place.modules,
        "rank": rank if place.target != "eks" or rank == 0 else "$(LWS_WORKER_INDEX)",
        "leader": "$(LWS_LEADER_ADDRESS)" if place.target == "eks" else peer(context, f"{role}-{number}-0"),
    }


def peer(context: Context, service: str) -> str:
    """The DNS name by which peers find a service: on ECS all deployments of a fleet share one namespace."""
    return f"{context.name}-{service}.{context.place.namespace}"


def _ranks(role: Engine) -> int:
    """Processes that compute, of one replica."""
    return role.tensor * role.data


def _speculative(context: Context) -> str:
    wanted = context.blueprint.tuning.speculative
    if wanted is None:
        return ""
    said = {"method": wanted.method, "num_speculative_tokens": wanted.tokens}
    if wanted.method == "ngram":
        said |= {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return json.dumps(said | ({"model": wanted.model} if wanted.model else {}))


def _adapters(context: Context, serves: Served) -> Mapping[str, str]:
    """Where the engine finds its adapters: on this machine where they lie, in a container where they are copied to."""
    if context.local:
        return serves.adapters
    return {name: f"{context.fetched}/{_folder(name)}" for name in serves.adapters}


def _folder(adapter: str) -> str:
    """The folder that an adapter is copied to."""
    return f"adapter-{adapter}"


def fetches(context: Context, placed: Placement, serves: Served) -> dict[str, str]:
    """What of S3 is copied to the machine before the engine starts, by its folder there."""
    if context.local:
        return {}
    weights = {} if placed.platform.streams else {WEIGHTS: serves.weights.uri}
    return weights | {_folder(name): where for name, where in serves.adapters.items()}


def _kv_bytes(context: Context, role: Engine, placed: Placement, serves: Served) -> int:
    """Room for one request of the full context and all those under way at once, should one replica take them all.

    Of one rank, where the KV cache lies in the machine's own memory.
    """
    traffic, block = context.blueprint.traffic, context.platform(placed).kv_block
    longest = traffic.input_tokens.most + traffic.output_tokens.most
    lengths = [serves.context, *[longest] * under_way(traffic)]
    blocks = sum(-(-length // block) for length in lengths)
    # The engine keeps one block to itself.
    return max(LEAST_KV_BYTES, (blocks + 1) * block * memory.kv_bytes_per_token(placed.model, role.tensor))


def _memory(context: Context, role: Engine, serves: Served, placed: Placement) -> int:
    """What one replica takes of this machine's memory."""
    platform = context.platform(placed)
    own = platform.base_bytes + _kv_bytes(context, role, placed, serves)
    return int(_ranks(role) * own + role.data * platform.weight_copies * serves.weights.bytes)


def under_way(traffic: Traffic) -> int:
    """Requests under way at once, all replicas together."""
    return traffic.users or OPEN_LOOP_REQUESTS


def router(context: Context, roles: Sequence[Role], serves: Served) -> Process:
    """The router before the engines of `roles`."""
    row, place = engines.routers()[ROUTER], context.place
    found = row.finds[finds(context)]
    apart = {PREFILL, DECODE} <= {role.name for role in roles}
    by_events = found.heard if context.policy == "kv-aware" else None
    way = found.apart if apart else by_events or found.together
    values: Values = {
        "host": context.host,
        "port": _port(context, "router", ROUTER_PORT),
        "metrics_port": _port(context, "router-metrics", METRICS_PORT),
        "policy": row.policies[_choosing(context, roles)],
        "imbalance": _imbalance(context.blueprint),
        "deadline_s": math.ceil(context.blueprint.traffic.deadline),
        "namespace": place.namespace,
        "engine_port": ENGINE_PORT,
        "discovery_port": DISCOVERY_PORT,
        **{role.name: _whereabouts(context, role) for role in roles if role.name in ("worker", PREFILL, DECODE)},
        "workers": tuple(where for role in roles for where in _whereabouts(context, role)),
    }
    command = engines.arguments((*row.command, *way.arguments), values)
    before = engines.arguments(way.before, values)
    return Process(
        name="router",
        command=(*_before(place, before), _executable(place, command[0]), *command[1:]),
        environment=engines.environment((row.environment, way.environment), values),
        port=_port(context, "router", ROUTER_PORT),
        probe=_probe(serves, max(one.probe.deadline_s for role in roles for one in role.processes if one.probe)),
        memory_bytes=row.base_bytes,
    )


def _choosing(context: Context, roles: Sequence[Role]) -> Policy:
    """The policy; of one replica at a known address there is nothing to choose, and load-aware wants two."""
    alone = finds(context) == "addresses" and sum(len(role.processes) for role in roles) == 1
    return "round-robin" if alone and context.policy == "load-aware" else context.policy


def finds(context: Context) -> Literal["addresses", "labels", "names"]:
    """How the router finds the engines here."""
    # Which model an engine serves cannot be told to a router at its start: it takes that by its interface alone.
    many = context.blueprint.pattern == "multi-model"
    # Told of engines at its start, it asks them where their caches' events are once, as soon as the first answers: one
    # that answers later is never heard. Besides, its own image is older than this policy.
    by_events = context.policy == "kv-aware"
    return "names" if many or by_events else FINDS[context.place.target]


def _before(place: Place, words: Sequence[str]) -> tuple[str, ...]:
    """What finds the engines for the router, as it is called here."""
    return (*(place.follow or words[:1]), *words[1:]) if words else ()


def _whereabouts(context: Context, role: Role) -> tuple[str, ...]:
    """How the router finds the engines of a role: each by its address, or all by their labels or their name."""
    place, names = context.place, finds(context) == "names"
    if context.local:
        return tuple(f"{'' if names else 'http://'}{LOOPBACK}:{process.port}" for process in role.processes)
    if place.target == "ecs":
        heads = [process.name for process in role.processes if process.rank == 0]
        return tuple(f"{peer(context, name)}:{ENGINE_PORT}" for name in heads)
    if names:
        return (f"{peer(context, role.name)}:{ENGINE_PORT}",)
    labels = {"app.kubernetes.io/instance": context.name, "app.kubernetes.io/component": role.name}
    listens = {"inference/listens": "true"} if role.machines > 1 else {}
    return tuple(f"{key}={value}" for key, value in {**labels, **listens}.items())


def _tells_at(context: Context, process: str, what: str) -> str:
    """Where an engine tells of its cache, as ZeroMQ is told to listen."""
    # The loopback address in IPv6's notation, where nobody else hears it: by its colons the engine knows to listen.
    host = f"[::ffff:{LOOPBACK}]" if context.local else "*"
    return f"tcp://{host}:{_port(context, f'{process}-{what}', PORTS[what])}"


def _imbalance(wanted: Blueprint) -> int:
    """How many requests more than another a replica may have before a cached beginning counts less than the queue."""
    replicas = sum(always(role).least for role in wanted.roles.engines.values())
    return max(1, under_way(wanted.traffic) // (2 * replicas))


def _port(context: Context, name: str, fixed: int) -> int:
    """The port that the place chose, or the fixed one where each process has an address of its own."""
    return context.place.ports.get(name, 0) if context.local else fixed


def _executable(place: Place, name: str) -> str:
    return f"{place.engine}/{name}" if place.engine else name


def _probe(serves: Served, deadline_s: float) -> Probe:
    body: dict[str, str | int] = {"model": serves.name, "prompt": "ready?", "max_tokens": 1}
    return Probe(path="/v1/completions", body=body, deadline_s=deadline_s)
