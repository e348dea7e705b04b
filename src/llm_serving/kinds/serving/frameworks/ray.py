"""Ray Serve LLM: an application of `ray.serve.llm:build_openai_app` in place of engines' and router's processes.

Ray starts a replica of the application's deployment where its nodes have room, and passes the engine's options to the
engine's own classes. Each role has nodes of its own, told apart by a resource of Ray's that is called as the role. On
EKS KubeRay starts the nodes; on this machine ray_node.py does, a node for each replica.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from llm_serving.catalog import engine_options
from llm_serving.kinds.serving.context import Context, resolve_executable
from llm_serving.kinds.serving.frameworks.base import (
    SERVER_OPTIONS,
    Adapted,
    check_engine,
    split_command,
)
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import EngineRole, compute_fixed_replicas, get_max_requests, resolve_scale
from llm_serving.services.service import LOOPBACK, Probe, Resources, Service
from llm_serving.settings.document import Conflict

OWN_OPTIONS = SERVER_OPTIONS | {"max_num_queued_reqs", "middleware"}
"""Options in whose place Ray listens, names the model, refuses requests and ends."""

REFUSED = {"status_code": 429, "retry_after_s": 1}
"""How Ray answers what it has no room for; by default 503, without Retry-After. Source: BackpressureConfig of Ray
2.60.0, serve/config.py, and called."""

PORTS = {"gcs-server": 6379, "dashboard": 8265}
"""Of Ray's head, as KubeRay's operator looks them up. Source: kuberay v1.7.0, controllers/ray/utils/constant.go."""

TIMEOUT_VARIABLE = "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT"
"""Longest request in Ray's endpoint, seconds; by default 600. Source: Ray 2.60.0, llm/_internal/serve/constants.py."""

REPORT_VARIABLE = "RAY_metrics_report_interval_ms"
"""How often a process reports to its node's page of metrics; by default every 10 s. Source: Ray 2.60.0, called."""

STARTUP_FOLDER = Path(__file__).with_name("ray_start")
"""What Python of Ray's processes on this machine finds first; apart from modules here that are called as Ray's."""

LEAN_REPLICA: dict[str, JsonValue] = {
    "callback_config": {"callback_class": "ray_replica.LeanStart"},
    "runtime_env": {"env_vars": {"BLUEPRINT_RAY_REPLICA": "1"}},
}
"""Class in that folder that Ray calls when a replica's engine starts, and what its process finds when it starts."""

NODE_CPUS = 2
"""Of each node on this machine, in Ray's own count: an actor of Serve takes one, and the bundle of an engine one."""

HEAD_ARGUMENTS = ("--include-dashboard=false", "--no-monitor")
"""Servers that a head on this machine goes without."""

NODE_BYTES = 1_000_000_000
"""Memory of a node on this machine beside what the engine takes alone: 0.3 GB of Ray's own processes, and 0.7 GB of
Serve's replica, whose engine has its processes beside it. Measured with 2.60.0 and `tiny`, 2026-11-26."""

OBJECT_STORE_BYTES = 80_000_000
"""Of each node on this machine, where no large messages go through it. Ray takes no less than 78,643,200."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield options of the engine that the version under Ray does not have, and what its nodes here do not take."""
    yield from check_engine(context)
    for placed in context.placed_roles:
        yield from _check_limit(context, placed)
    if not context.conventions.is_local:
        return
    for placed in context.placed_roles:
        if placed.role.tensor > 1:
            reason = "a replica of several ranks under Ray was not compared on this machine"
            fix = "set accelerators: 1, or use framework: plain"
            yield placed.refuse("accelerators", reason, fix)


def _check_limit(context: Context, placed: PlacedRole) -> Iterator[Conflict]:
    """Yield a limit at which replicas refuse requests before Ray starts another."""
    scale, limit = resolve_scale(placed.name, placed.role), get_max_requests(placed.role)
    if context.conventions.is_local or scale is None or scale.queue is None or limit is None:
        return
    target = _count_running(context, placed) + scale.queue
    if limit < target:
        reason = f"Ray starts another replica at {target:g} requests for each, which it would refuse"
        yield placed.refuse("max_requests", reason, f"set max_requests: {math.ceil(target)} or more")


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    """Return Ray's nodes, the head last, and the application that runs on them."""
    *workers, entry = services
    timeout_s = math.ceil(context.blueprint.roles.router.request_timeout)
    first_workers = {worker.role: worker for worker in reversed(workers)}
    llm_configs: list[JsonValue] = [
        _build_llm_config(context, placed, first_workers[placed.name]) for placed in context.placed_roles
    ]
    application: dict[str, JsonValue] = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": llm_configs, "ingress_deployment_config": _build_ingress(context, entry)},
    }
    http_options: dict[str, JsonValue] = {
        "host": context.conventions.bind_host,
        "port": entry.port,
        "request_timeout_s": timeout_s,
    }
    serve: dict[str, JsonValue] = {"http_options": http_options, "applications": [application]}
    env = {TIMEOUT_VARIABLE: str(timeout_s), REPORT_VARIABLE: "1000"}
    version = context.blueprint.framework_row.version
    config: dict[str, JsonValue] = {"version": version, "serve": serve}
    if context.conventions.is_local:
        return Adapted(_build_local_nodes(context, workers, entry, serve, env), config)
    head = entry.model_copy(update={"ports": {**entry.ports, **PORTS}, "env": {**entry.env, **env}})
    metrics = {"metrics": entry.ports["metrics"]}
    nodes = [
        worker.model_copy(
            update={
                "command": (),
                "port": entry.port,
                "ports": metrics,
                # The folder of modules for the engine's server is not in Ray's image.
                "env": {name: text for name, text in worker.env.items() if text != context.engine.module_folder} | env,
            },
        )
        for worker in workers
    ]
    return Adapted([*nodes, head], config)


def _build_ingress(context: Context, entry: Service) -> dict[str, JsonValue]:
    """Return how many replicas of the endpoint run, on this machine those of its head."""
    replicas = context.blueprint.roles.router.replicas if not context.conventions.is_local else 1
    scaling: dict[str, JsonValue] = {"autoscaling_config": {"min_replicas": replicas, "max_replicas": replicas}}
    return scaling | ({"ray_actor_options": {"resources": {entry.role: 1}}} if context.conventions.is_local else {})


def _build_local_nodes(
    context: Context,
    workers: Sequence[Service],
    entry: Service,
    serve: Mapping[str, JsonValue],
    variables: Mapping[str, str],
) -> list[Service]:
    """Return a process for each node; its port is its page of metrics.

    All of Ray's servers listen on 127.0.0.1, the one address that Ray takes for loopback, and ask for a secret.
    """
    environment = context.environment
    address = f"{LOOPBACK}:{environment.ports['router-admin']}"
    program = (resolve_executable(environment, "python3"), str(STARTUP_FOLDER / "ray_node.py"))
    env = {
        **variables,
        "PYTHONPATH": str(STARTUP_FOLDER),
        "RAY_AUTH_TOKEN_PATH": f"{environment.data_folder}/ray-token",
        **(context.pair.local.environment if context.pair and context.pair.local else {}),
    }
    nodes = []
    for worker in workers:
        prefix, _ = split_command(worker)
        arguments = _list_node_arguments(context, worker, worker.port)
        update: dict[str, object] = {
            "host": LOOPBACK,
            "resources": Resources(memory_bytes=worker.resources.memory_bytes + NODE_BYTES),
            "command": (*prefix, *program, "worker", address, *arguments),
            "env": {**worker.env, **env, **_place_sockets(context, worker)},
        }
        if worker.probe:
            update["probe"] = Probe(path=context.engine.metrics_path, body={}, deadline_s=worker.probe.deadline_s)
        nodes.append(worker.model_copy(update=update))
    arguments = _list_node_arguments(context, entry, environment.ports["router-metrics"])
    config = json.dumps({"proxy_location": "HeadOnly", **serve})
    command = (*program, "head", address, str(len(workers)), config, *HEAD_ARGUMENTS, *arguments)
    env = {**workers[0].env, **entry.env, **env, **_place_sockets(context, entry)}
    return [*nodes, entry.model_copy(update={"command": command, "env": env})]


def _place_sockets(context: Context, node: Service) -> dict[str, str]:
    """Return where a node on this machine has its Unix sockets, whose paths in Ray's own folder are too long.

    They have a folder of their own, which Ray opens to all users: the one around it stays private.
    """
    return {"BLUEPRINT_RAY_SOCKETS": f"{context.environment.socket_folder}/ray/{node.name}"}


def _list_node_arguments(context: Context, node: Service, metrics_port: int) -> tuple[str, ...]:
    environment = context.environment
    return (
        f"--temp-dir={environment.data_folder}/ray",
        f"--metrics-export-port={metrics_port}",
        f"--num-cpus={NODE_CPUS}",
        f"--resources={json.dumps({node.role: 1})}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        # Nodes share an address: each process takes a port that is free.
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--include-log-monitor=false",
    )


def _build_llm_config(context: Context, placed: PlacedRole, worker: Service) -> dict[str, JsonValue]:
    """Return one model as `LLMConfig` of Ray takes it: from the engine's command line."""
    _, command = split_command(worker)
    if context.conventions.is_kubernetes:  # which takes $$ for $ in commands, and not in Ray's application
        command = tuple(word.replace("$$", "$") for word in command)
    options = engine_options.parse_command(context.blueprint.engine, command)
    device = placed.instance.accelerators if not context.conventions.is_local else None
    # Of a node here the one replica takes all.
    share = 1 if context.conventions.is_local else 0.001
    bundle: dict[str, JsonValue] = {"GPU" if device else "CPU": 1, placed.name: share}
    return {
        "model_loading_config": {
            "model_id": options["served_model_name"][0],  # type: ignore[index]
            "model_source": command[2],
        },
        "engine_kwargs": {name: value for name, value in options.items() if name not in OWN_OPTIONS},
        **(LEAN_REPLICA if context.conventions.is_local else {}),
        # A replica does not leave its node.
        "placement_group_config": {"bundle_per_worker": bundle, "strategy": "STRICT_PACK"},
        "deployment_config": {
            **_build_replicas(context, placed.name, placed.role, _count_running(context, placed)),
            **_build_limit(placed.role),
            "graceful_shutdown_timeout_s": math.ceil(context.blueprint.disruption.drain),
            "request_router_config": {"request_router_class": context.router.policies[context.policy]},
        },
    }


def _build_limit(role: EngineRole) -> dict[str, JsonValue]:
    """Return the most requests at a replica, and what those get that find all replicas full.

    As many wait in each endpoint: with 1, Serve refuses the second of two that come at once even where no replica has
    any (serve/_private/router.py of 2.60.0, wrap_request_assignment).
    """
    limit = get_max_requests(role)
    if limit is None:
        return {}
    return {"max_ongoing_requests": limit, "max_queued_requests": limit, "backpressure_config": dict(REFUSED)}


def _count_running(context: Context, placed: PlacedRole) -> int:
    """Return requests that a replica runs at once: those of a step, or fewer where the KV cache holds fewer."""
    fit, sequences = placed.fit, placed.batch.sequences
    if fit is None or not fit.computed:
        return sequences
    return max(1, min(sequences, fit.cache_tokens // context.blueprint.max_sequence_tokens))


def _build_replicas(context: Context, name: str, role: EngineRole, running: int) -> dict[str, JsonValue]:
    """Return how many replicas run.

    Ray counts requests under way. As many wait as the blueprint says when these and those that run are under way.
    """
    if context.conventions.is_local:
        return {"num_replicas": compute_fixed_replicas(role).min}
    scale = resolve_scale(name, role)
    if scale is None or scale.queue is None:
        return {"num_replicas": role.replicas.max}
    return {
        "autoscaling_config": {
            "min_replicas": role.replicas.min,
            "max_replicas": role.replicas.max,
            "target_ongoing_requests": running + scale.queue,
            "downscale_delay_s": int(scale.cool_down),
        }
    }
