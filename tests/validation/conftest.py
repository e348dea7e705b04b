from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from llm_serving.settings.units import Bounds
from llm_serving.workloads.serving.blueprint import Disruption
from llm_serving.workloads.serving.deployment import Deployment, Place, Process, Role, Served, Weights
from llm_serving.workloads.serving.traffic import Slo, Traffic

Deploy = Callable[..., Deployment]


@pytest.fixture(scope="session")
def deploy() -> Deploy:
    """Makes the deployment whose one worker, router and address are the server at a URL."""
    return _deploy


def _deploy(url: str, traffic: dict[str, Any], slo: dict[str, Any] | None = None, *, random: bool = True) -> Deployment:
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
            _role("engine", "worker", port, Served(model="tiny", name="tiny", weights=weights, context=4096)),
            _role("router", "router", port),
        ),
        url=url,
        disruption=Disruption(),
        traffic=Traffic.model_validate(traffic),
        slo=Slo.model_validate(slo or {}),
        place=Place(target="local", region="us-west-2", bucket="models"),
        emulated=("A server with known delays stands in for vLLM.",),
    )


def _role(kind: Literal["engine", "router"], name: str, port: int, serves: Served | None = None) -> Role:
    process = Process(name=f"{name}-0", command=("true",), environment={}, port=port)
    return Role(name=name, kind=kind, serves=serves, pool="general", count=Bounds(1, 1), processes=(process,))
