"""`load_balancer` of a blueprint: a load balancer with TLS in front of the routers, on EKS and ECS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings.document import Conflict, Settings
from llm_serving.settings.units import Switch, TextFormat

CertificateArn = Annotated[
    str,
    TextFormat(
        "arn:aws(?:-[a-z]+)*:acm:[a-z0-9-]{1,32}:[0-9]{12}:certificate/[A-Za-z0-9-]{1,64}",
        "an ACM certificate's ARN",
        "arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012",
    ),
]
WebAclArn = Annotated[
    str,
    TextFormat(
        "arn:aws(?:-[a-z]+)*:wafv2:[a-z0-9-]{1,32}:[0-9]{12}:regional/webacl/[A-Za-z0-9_-]{1,128}/[a-z0-9-]{1,64}",
        "a regional web ACL's ARN",
        "arn:aws:wafv2:us-west-2:123456789012:regional/webacl/api/12345678-1234-1234-1234-123456789012",
    ),
]
GatewayService = Annotated[
    str,
    TextFormat("[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?:[0-9]{1,5}", "a Service and its port: NAME:PORT", "gateway:4000"),
]

IDLE_TIMEOUT_S = 4000
"""Longest silence on a connection: the most that an Application Load Balancer takes. Streams are not silent so long.

Source: ELB documentation, "Application Load Balancers", load balancer attributes, 2026-11.
"""

MAX_DRAIN_S = 3600
"""Longest deregistration delay. Source: ELB documentation, target group attributes, 2026-11."""

MIN_ROUTERS = 2
"""Routers behind a load balancer: one in each of two zones, at least."""

MIN_ZONES = 2
"""Zones of an Application Load Balancer. Source: ELB documentation, "Subnets for your load balancer", 2026-11."""

PRIVATE_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
"""Where an existing VPC's load balancers are: its own ranges are unknown before it is asked."""


class LoadBalancer(Settings):
    """An Application Load Balancer with TLS in front of the routers; internal to the VPC by default."""

    certificate: CertificateArn
    """ARN of the ACM certificate; clients call the load balancer by a name of the certificate."""

    public: Annotated[bool, Switch()] = False
    """Whether it is reachable from the internet; needs a gateway that authenticates, and a web ACL."""

    web_acl: WebAclArn | None = None
    """ARN of the AWS WAF web ACL that filters its requests."""

    gateway: GatewayService | None = None
    """Kubernetes Service in the namespace of the deployments that authenticates requests and passes them to the router:
    the load balancer calls it instead of the router. On EKS."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_public(),)

    def _check_public(self) -> Iterator[Conflict]:
        if self.public and not self.gateway:
            reason = "the router answers everybody who reaches it, and nothing before it authenticates requests"
            yield Conflict(
                ("public",), reason, "set public: off, or gateway: NAME:PORT of a Service that authenticates"
            )
        elif self.public and not self.web_acl:
            reason = "the internet reaches the load balancer, and nothing filters or limits its requests"
            yield Conflict(("public",), reason, "set web_acl: ARN of an AWS WAF web ACL, or public: off")


def list_ranges(fleet: Fleet) -> tuple[str, ...]:
    """Return the address ranges from which load balancers of the fleet's network call the routers."""
    return (fleet.network.cidr,) if isinstance(fleet.network, NewNetwork) else PRIVATE_RANGES
