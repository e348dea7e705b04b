"""The chart that a deployment of each kind is a release of, and what installing it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.deployment import Deployment

INFERENCE, BATCH = paths.CHARTS / "inference", paths.CHARTS / "batch"


@dataclass(frozen=True)
class Installation:
    """A chart, and what a release of it is made of."""

    chart: Path
    images: tuple[str, ...]
    service: str
    """Service that clients call."""

    port: int
    start_s: int
    """Longest start of a pod, in seconds, after its node's."""

    drain_s: int
    """Longest end of a pod, in seconds."""

    has_groups: bool = False
    """Whether some replica spans several nodes."""


def describe(deployment: Deployment) -> Installation:
    """Return the installation of a deployment."""
    return _BY_KIND[deployment.kind](deployment)


def _describe_serving(deployment: ServingDeployment) -> Installation:
    starts = [
        process.probe.deadline_s + (role.prefetch.timeout_s if role.prefetch else 0)
        for role in deployment.engine_roles
        for process in deployment.list_services(role)
        if process.probe
    ]
    return Installation(
        chart=INFERENCE,
        images=tuple(role.image for role in deployment.roles),
        service=deployment.name,
        port=deployment.entries[-1].port,
        start_s=int(max(starts)),
        drain_s=int(deployment.disruption.drain),
        has_groups=any(role.nodes > 1 for role in deployment.roles),
    )


def _describe_batch(deployment: BatchDeployment) -> Installation:
    assert deployment.cloud
    assert deployment.api.probe
    return Installation(
        chart=BATCH,
        images=(deployment.cloud.image,),
        service=f"{deployment.name}-{deployment.api.name}",
        port=deployment.api.port,
        start_s=int(deployment.api.probe.deadline_s),
        drain_s=deployment.cloud.stop_s,
    )


_BY_KIND: Mapping[str, Callable[[Any], Installation]] = {"serving": _describe_serving, "batch": _describe_batch}
