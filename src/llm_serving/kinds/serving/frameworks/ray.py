"""Ray Serve LLM: an application of `ray.serve.llm:build_openai_app` in place of engines' and router's processes.

Ray starts a replica of the application's deployment where its nodes have room, and passes the engine's options to the
engine's own classes. Each role has nodes of its own, told apart by a resource of Ray's that is called as the role.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from llm_serving.catalog import engine_options, engines
from llm_serving.kinds.serving.frameworks.base import Adapted, check_engine
from llm_serving.kinds.serving.placement import PlacedRole, Placement
from llm_serving.kinds.serving.processes import Context
from llm_serving.kinds.serving.roles import EngineRole, resolve_scale
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict

SERVER_OPTIONS = frozenset(
    {"host", "port", "served_model_name", "disable_access_log_for_endpoints", "shutdown_timeout"}
)
"""Options of the engine's own server, in whose place Ray listens, names the model and ends replicas."""

PORTS = {"gcs-server": 6379, "dashboard": 8265}
"""Of Ray's head, as KubeRay's operator looks them up. Source: kuberay v1.7.0, controllers/ray/utils/constant.go."""

TIMEOUT_VARIABLE = "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT"
"""Longest request in Ray's endpoint, seconds; left alone 600. Source: Ray 2.60.0, llm/_internal/serve/constants.py."""


def check(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield options of the engine that the version under Ray does not have."""
    yield from check_engine(context, placed_roles)


def adapt(context: Context, placed_roles: Sequence[PlacedRole], services: Sequence[Service]) -> Adapted:
    """Return Ray's nodes, the head last, and the application that runs on them."""
    *workers, entry = services
    port, timeout_s = entry.port, math.ceil(context.blueprint.roles.router.request_timeout)
    metrics = {"metrics": entry.ports["metrics"]}
    env = {TIMEOUT_VARIABLE: str(timeout_s)}
    head = entry.model_copy(update={"ports": {**entry.ports, **PORTS}, "env": {**entry.env, **env}})
    nodes = [
        worker.model_copy(
            update={"command": (), "port": port, "ports": metrics, "env": {**worker.env, **env}},
        )
        for worker in workers
    ]
    llm_configs: list[JsonValue] = [
        _build_llm_config(context, placed_role, worker)
        for placed_role, worker in zip(placed_roles, workers, strict=True)
    ]
    replicas = context.blueprint.roles.router.replicas
    application: dict[str, JsonValue] = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {
            "llm_configs": llm_configs,
            "ingress_deployment_config": {"autoscaling_config": {"min_replicas": replicas, "max_replicas": replicas}},
        },
    }
    http_options: dict[str, JsonValue] = {"host": "0.0.0.0", "port": port, "request_timeout_s": timeout_s}
    version = engines.load_frameworks()[context.blueprint.framework].version
    return Adapted(
        [*nodes, head],
        {"version": version, "serve": {"http_options": http_options, "applications": [application]}},
    )


def _build_llm_config(context: Context, placed_role: PlacedRole, worker: Service) -> dict[str, JsonValue]:
    """Return one model as `LLMConfig` of Ray takes it: from the engine's command line."""
    key_path, role, role_placement = placed_role
    options = engine_options.parse_command(context.blueprint.engine, worker.command)
    device = role_placement.instance.accelerators
    bundle: dict[str, JsonValue] = {"GPU" if device else "CPU": 1, key_path[-1]: 0.001}
    return {
        "model_loading_config": {
            "model_id": options["served_model_name"][0],  # type: ignore[index]
            "model_source": worker.command[2],
        },
        "engine_kwargs": {name: value for name, value in options.items() if name not in SERVER_OPTIONS},
        # A replica does not leave its node.
        "placement_group_config": {"bundle_per_worker": bundle, "strategy": "STRICT_PACK"},
        "deployment_config": {
            **_build_replicas(key_path[-1], role, _count_running(context, role_placement)),
            "graceful_shutdown_timeout_s": math.ceil(context.blueprint.disruption.drain),
            "request_router_config": {"request_router_class": context.router.policies[context.policy]},
        },
    }


def _count_running(context: Context, role_placement: Placement) -> int:
    """Return requests that a replica runs at once: those of a step, or fewer where the KV cache holds fewer."""
    fit, sequences = role_placement.fit, role_placement.batch.sequences
    if fit is None or not fit.computed:
        return sequences
    return max(1, min(sequences, fit.cache_tokens // context.blueprint.max_sequence_tokens))


def _build_replicas(name: str, role: EngineRole, running: int) -> dict[str, JsonValue]:
    """Return how many replicas run.

    Ray counts requests under way. As many wait as the blueprint says when these and those that run are under way.
    """
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
