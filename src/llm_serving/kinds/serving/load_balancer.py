"""`load_balancer` of a blueprint of models: before the routers, and on EKS before a gateway of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from llm_serving.kinds.serving.formats import FORMATS
from llm_serving.services import load_balancer
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import Switch

GatewayService = Annotated[str, FORMATS["gateway-service"]]

MIN_ROUTERS = 2
"""Routers behind a load balancer: one in each of two zones, at least."""


class LoadBalancer(load_balancer.LoadBalancer):
    """An Application Load Balancer with TLS in front of the routers; internal to the VPC by default."""

    public: Annotated[bool, Switch()] = False
    """Whether it is reachable from the internet, by all or by `clients`; needs a gateway that authenticates, and a web
    ACL."""

    gateway: GatewayService | None = None
    """Kubernetes Service in the namespace of the deployments that authenticates requests and passes them to the router:
    the load balancer calls it instead of the router. On EKS."""

    def _check_public(self) -> Iterator[Conflict]:
        if self.public and not self.gateway:
            reason = "the internet would reach the routers, and no gateway before them authenticates requests"
            yield Conflict(
                ("public",), reason, "set public: off, or gateway: NAME:PORT of a Service that authenticates"
            )
        elif self.public and not self.web_acl:
            reason = "the internet reaches the load balancer, and nothing filters or limits its requests"
            yield Conflict(("public",), reason, "set web_acl: ARN of an AWS WAF web ACL, or public: off")
