"""llm-d: an endpoint picker beside each router, which chooses an engine of an InferencePool for each request.

Services run as they are; charts/inference/templates/llm-d adds the pool, and Envoy and the picker to the router's pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from llm_serving.kinds.serving.context import ENGINE_PORT, METRICS_PORT, ROUTER_ADMIN_PORT, Context
from llm_serving.kinds.serving.frameworks.base import Adapted
from llm_serving.kinds.serving.roles import get_max_requests, resolve_scale
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict

IMAGE = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.9.0"

QUEUE_THRESHOLD = 5
"""Requests that wait at an engine, on average, when the picker begins to hold requests back; its own default."""

FAIRNESS = "round-robin-fairness-policy"
"""Among the callers of one class."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield limits that differ: a pool has one."""
    first, *others = context.placed_roles
    for placed in others:
        if get_max_requests(placed.role) != get_max_requests(first.role):
            reason = "llm-d's endpoint picker has one limit for all engines"
            yield placed.refuse("max_requests", reason, "set the same max_requests for each role")


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    """Return the services as they are, and the picker's configuration."""
    framework = context.blueprint.framework_row
    scorers = [scorer.split("=") for scorer in context.router.policies[context.policy].split()]
    plugins: list[JsonValue] = [
        *({"type": name} for name, _ in scorers),  # type: ignore[list-item]
        {"type": "metrics-data-source", "parameters": {"scheme": "http", "path": context.engine.metrics_path}},
        {"type": "core-metrics-extractor"},
    ]
    profile: dict[str, JsonValue] = {
        "name": "default",
        "plugins": [{"pluginRef": name, "weight": int(weight)} for name, weight in scorers],
    }
    admission = _build_admission(context)
    if admission:
        detector, flow_control = admission
        plugins += [detector, {"type": FAIRNESS}]
        # It keeps an engine that is full out of the choice.
        profile["plugins"] = [{"pluginRef": detector["type"]}, *profile["plugins"]]  # type: ignore[misc]
    picker: dict[str, JsonValue] = {
        "image": context.pin_image(IMAGE),
        "proxyImage": context.pin_image(framework.proxy_image),
        "enginePort": ENGINE_PORT,
        "proxyPort": ROUTER_ADMIN_PORT,
        "metricsPort": METRICS_PORT,
        "config": {
            "apiVersion": "llm-d.ai/v1alpha1",
            "kind": "EndpointPickerConfig",
            "plugins": plugins,
            "schedulingProfiles": [profile],
            **({"featureGates": ["flowControl"], "flowControl": flow_control} if admission else {}),
        },
        "objectives": {**framework.classes} if context.blueprint.tuning.priority else {},
    }
    return Adapted(services, {"endpointPicker": picker})


def _build_admission(context: Context) -> tuple[dict[str, JsonValue], dict[str, JsonValue]] | None:
    """Return what tells the picker that all engines are full, and how it holds requests then; None where it holds none.

    Requests wait in the picker, by class and in turn for each caller, in place of an engine's one queue. Each router's
    picker counts the requests that it has sent itself, so each has its share of the limit.
    """
    limit = get_max_requests(context.placed_roles[0].role)  # `check` has refused others
    if not (limit or context.blueprint.tuning.priority):
        return None
    band: JsonValue = {"fairnessPolicyRef": FAIRNESS}
    if limit:
        share = max(1, limit // context.blueprint.roles.router.replicas)
        detector: dict[str, JsonValue] = {"type": "concurrency-detector", "parameters": {"maxConcurrency": share}}
        # As many wait as run; more get 429.
        replicas = sum(placed.role.replicas.max for placed in context.placed_roles)
        waiting: dict[str, JsonValue] = {"maxRequests": share * replicas}
    else:
        scales = [resolve_scale(placed.name, placed.role) for placed in context.placed_roles]
        # More than what scaling waits for: held back in the picker, requests would start no replica.
        threshold = max(QUEUE_THRESHOLD, *(2 * (scale.queue or 0) for scale in scales if scale), 0)
        detector = {"type": "utilization-detector", "parameters": {"queueDepthThreshold": threshold}}
        waiting = {}
    return detector, {
        "saturationDetector": {"pluginRef": detector["type"]},
        "defaultPriorityBand": band,
        **waiting,
    }
