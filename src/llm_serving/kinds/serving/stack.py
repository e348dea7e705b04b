"""The data of the stack serving-NAME, beside its services: on ECS, and on EKS where routers ask for keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_serving.fleet.pool import Orchestrator
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.rendered import S3Location
from llm_serving.settings.document import AllowSingleItem, Settings


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

    load_balancer: StackLoadBalancer | None = None
    """What has TLS before the routers; None where clients call them."""
