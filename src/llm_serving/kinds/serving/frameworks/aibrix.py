"""AIBrix: the plugins of its gateway choose an engine for each request.

Services run as they are; charts/inference/templates/aibrix adds what the gateway finds their pods by, and to the
router's pod Envoy, which says by a header how the gateway chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from llm_serving.kinds.serving.context import ENGINE_PORT, METRICS_PORT, ROUTER_ADMIN_PORT, Context
from llm_serving.kinds.serving.frameworks.base import SINGLE_MODEL_FIX, Adapted, check_never_empty
from llm_serving.kinds.serving.frameworks.llm_d import PROXY_IMAGE
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict

ENGINE = "vllm"
"""Whose answers and metrics AIBrix's code was compared with."""

GATEWAY = "envoy-aibrix-system-aibrix-eg-903790dc.envoy-gateway-system"
"""Service that Envoy Gateway makes of AIBrix's Gateway, in every cluster. Source: AIBrix v0.7.0,
docs/source/getting_started/quickstart.rst."""

PATHS = ("chat/completions", "completions")
"""Below /v1/, of requests that the gateway chooses an engine for. Source: AIBrix v0.7.0,
pkg/plugins/gateway/types.go."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield another engine, several models, and roles without replicas."""
    blueprint = context.blueprint
    if blueprint.engine != ENGINE:
        reason = f"its gateway was compared with {ENGINE}, and not with {blueprint.engine}"
        yield context.refuse_framework(reason, f"set engine: {ENGINE}, or another framework")
    if blueprint.roles.models:
        yield context.refuse_framework("one model is rendered for it, and not several", SINGLE_MODEL_FIX)
    reason = "AIBrix's gateway knows no model without pods, and answers that it does not exist"
    yield from check_never_empty(context, reason)


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    config: dict[str, JsonValue] = {
        "engine": context.blueprint.engine,
        "strategy": context.router.policies[context.policy],
        "gateway": GATEWAY,
        "paths": [*PATHS],
        "proxyImage": context.pin_image(PROXY_IMAGE),
        "proxyPort": ROUTER_ADMIN_PORT,
        "metricsPort": METRICS_PORT,
        "enginePort": ENGINE_PORT,
    }
    return Adapted(services, {"aibrixGateway": config})
