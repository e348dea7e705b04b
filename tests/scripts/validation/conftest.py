from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from blueprints.blueprint import Slo, Traffic
from blueprints.deployment import Deployment, Place, Process, Role, Weights
from infra.units import Bounds

Deploy = Callable[..., Deployment]


@pytest.fixture(scope="session")
def deploy() -> Deploy:
    """Makes the deployment whose one worker, router and address are the server at a URL."""
    return _deploy


def _deploy(url: str, traffic: dict[str, Any], slo: dict[str, Any] | None = None, *, random: bool = True) -> Deployment:
    port = urlsplit(url).port or 0
    return Deployment(
        name="known",
        pattern="aggregated",
        target="local",
        fleet="demo",
        model="tiny",
        served_model="tiny",
        engine="vllm",
        weights=Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=random),
        context=4096,
        workers=_role("worker", "worker-0", port),
        router=_role("router", "router-0", port),
        url=url,
        traffic=Traffic.model_validate(traffic),
        slo=Slo.model_validate(slo or {}),
        place=Place(target="local", region="us-west-2", bucket="models"),
        emulated=("A server with known delays stands in for vLLM.",),
    )


def _role(name: str, process: str, port: int) -> Role:
    return Role(
        name=name,
        pool="general",
        instance_type="g6e.2xlarge",
        accelerators=1,
        count=Bounds(1, 1),
        processes=(Process(name=process, command=("true",), environment={}, port=port),),
    )
