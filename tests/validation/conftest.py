from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from llm_serving.settings.units import Bounds
from llm_serving.targets.local.conventions import CONVENTIONS
from llm_serving.workloads.environment import Environment, Process
from llm_serving.workloads.serving.blueprint import Disruption
from llm_serving.workloads.serving.deployment import Deployment, Role, ServedModel, Weights
from llm_serving.workloads.serving.traffic import Slo, Traffic

DeploymentFactory = Callable[..., Deployment]


@pytest.fixture(scope="session")
def make_deployment() -> DeploymentFactory:
    """Makes the deployment whose one worker, router and address are the server at a URL."""
    return _build_deployment


def _build_deployment(
    url: str, traffic: dict[str, Any], slo: dict[str, Any] | None = None, *, random: bool = True
) -> Deployment:
    port = urlsplit(url).port or 0
    weights = Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=random)
    return Deployment(
        name="known",
        pattern="aggregated",
        target="local",
        fleet="demo",
        engine="vllm",
        framework="plain",
        roles=(
            _build_role(
                "engine", "worker", port, ServedModel(model="tiny", name="tiny", weights=weights, context=4096)
            ),
            _build_role("router", "router", port),
        ),
        url=url,
        disruption=Disruption(),
        traffic=Traffic.model_validate(traffic),
        slo=Slo.model_validate(slo or {}),
        environment=Environment(target="local", conventions=CONVENTIONS, region="us-west-2", bucket="models"),
        emulated=("A server with known delays stands in for vLLM.",),
    )


def _build_role(kind: Literal["engine", "router"], name: str, port: int, serves: ServedModel | None = None) -> Role:
    process = Process(name=f"{name}-0", command=("true",), env={}, port=port)
    return Role(
        name=name,
        kind=kind,
        served_model=serves,
        pool="general",
        replicas=Bounds(1, 1),
        kv_block=128 if kind == "engine" else 0,
        processes=(process,),
        instances=(process,),
    )
