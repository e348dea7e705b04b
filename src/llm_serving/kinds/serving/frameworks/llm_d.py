"""llm-d: an endpoint picker beside each router, which chooses an engine of an InferencePool for each request.

Services run as they are; charts/inference/templates/llm-d adds the pool, and Envoy and the picker to the router's pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from llm_serving.kinds.serving.frameworks.base import Adapted
from llm_serving.kinds.serving.placement import PlacedRole
from llm_serving.kinds.serving.processes import ENGINE_PORT, METRICS_PORT, ROUTER_ADMIN_PORT, Context
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict

IMAGE = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.9.0"
PROXY_IMAGE = "envoyproxy/envoy:distroless-v1.33.2"

ENGINE = "vllm"
"""Whose metrics were compared with those that the picker reads (extractor/metrics/factories.go of v0.9.0)."""


def check(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:  # noqa: ARG001
    """Yield an engine whose metrics the picker may not read, and several models, of which a pool has one."""
    blueprint = context.blueprint
    if blueprint.engine != ENGINE:
        reason = (
            f"its endpoint picker was compared with the metrics of {ENGINE}, and not with those of {blueprint.engine}"
        )
        yield Conflict(("framework",), reason, f"set engine: {ENGINE}, or another framework", blueprint.framework)
    if blueprint.roles.models:
        reason = "an InferencePool of llm-d has replicas of one model"
        yield Conflict(
            ("framework",), reason, "use another framework, or a blueprint for each model", blueprint.framework
        )


def adapt(context: Context, placed_roles: Sequence[PlacedRole], services: Sequence[Service]) -> Adapted:  # noqa: ARG001
    """Return the services as they are, and the picker's configuration."""
    scorers = [scorer.split("=") for scorer in context.router.policies[context.policy].split()]
    plugins: list[JsonValue] = [
        *({"type": name} for name, _ in scorers),  # type: ignore[list-item]
        {"type": "metrics-data-source", "parameters": {"scheme": "http", "path": context.engine.metrics_path}},
        {"type": "core-metrics-extractor"},
    ]
    profile: JsonValue = {
        "name": "default",
        "plugins": [{"pluginRef": name, "weight": int(weight)} for name, weight in scorers],
    }
    picker: dict[str, JsonValue] = {
        "image": context.pin_image(IMAGE),
        "proxyImage": context.pin_image(PROXY_IMAGE),
        "enginePort": ENGINE_PORT,
        "proxyPort": ROUTER_ADMIN_PORT,
        "metricsPort": METRICS_PORT,
        "config": {
            "apiVersion": "llm-d.ai/v1alpha1",
            "kind": "EndpointPickerConfig",
            "plugins": plugins,
            "schedulingProfiles": [profile],
        },
    }
    return Adapted(services, {"endpointPicker": picker})
