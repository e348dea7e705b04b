"""The data of the stack serving-NAME, beside its services: on ECS, and on EKS where routers ask for keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_serving.fleet.pool import Orchestrator
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.rendered import S3Location
from llm_serving.settings.document import AllowSingleItem, Settings


class RouterContainer(Settings):
    """A container beside that of the router, which routes in its place; both end together."""

    name: str
    image: str
    command: Annotated[tuple[str, ...], AllowSingleItem()]
    env: dict[str, str] = Field(default_factory=dict)
    port: Annotated[int, Field(ge=1, le=65535)]
    health: str
    """Path that answers once it has all engines."""

    start_s: Annotated[float, Field(gt=0, strict=False)]
    """Longest until then, seconds."""

    cpus: Annotated[int, Field(ge=1)]
    """Of those of the router's task, as its memory is."""

    memory_bytes: Annotated[int, Field(ge=1)]
    disk_bytes: Annotated[int, Field(ge=1)]
    """Of the disk of the router's task, for images."""


class ServingStack(Settings):
    """What the stack makes beside the services."""

    orchestrator: Orchestrator = "ecs"
    """Where the services run: as tasks of the stack, or as pods, whose routers get its role."""

    reads: Annotated[tuple[S3Location, ...], AllowSingleItem()]
    """All that the engines may read from S3: weights, and adapters."""

    caches: Annotated[tuple[str, ...], AllowSingleItem()] = ()
    """Buckets that the engines keep cached prompts in."""

    errors: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Allowed share of failed requests."""

    request_timeout_s: Annotated[int, Field(ge=1, le=86400)] = 1800
    """Longest request, seconds: nothing on a client's side of the router may end one earlier."""

    router_container: RouterContainer | None = None
    """None where the router's own container routes."""

    load_balancer: StackLoadBalancer | None = None
    """What has TLS before the routers; None where clients call them."""
