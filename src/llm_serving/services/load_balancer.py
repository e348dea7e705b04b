"""`load_balancer` of a blueprint: a load balancer with TLS before what clients call, on EKS and ECS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from llm_serving.fleet.model import Fleet, NewNetwork, parse_arn_region, parse_network
from llm_serving.services.formats import FORMATS
from llm_serving.services.rendered import S3Location
from llm_serving.settings.document import AllowSingleItem, Conflict, Settings
from llm_serving.settings.units import build_error

CertificateArn = Annotated[str, FORMATS["certificate-arn"]]
WebAclArn = Annotated[str, FORMATS["web-acl-arn"]]

KEY = "load_balancer"

IDLE_TIMEOUT_S = 4000
"""Longest silence on a connection: the most that an Application Load Balancer takes. Streams are not silent so long.

Source: ELB documentation, "Application Load Balancers", load balancer attributes, 2026-11.
"""

MAX_DRAIN_S = 3600
"""Longest deregistration delay. Source: ELB documentation, target group attributes, 2026-11."""

MIN_ZONES = 2
"""Zones of an Application Load Balancer. Source: ELB documentation, "Subnets for your load balancer", 2026-11."""

PRIVATE_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
"""Where an existing VPC's load balancers are: its own ranges are unknown before it is asked."""


def _check_range(value: str) -> str:
    if parse_network(value, "10.8.0.0/16").prefixlen == 0:
        raise build_error("it is every address", "name the ranges of your clients")
    return value


ClientRange = Annotated[str, FORMATS["client-range"], AfterValidator(_check_range)]


class LoadBalancer(Settings):
    """An Application Load Balancer with TLS, internal to the VPC."""

    certificate: CertificateArn
    """ARN of the ACM certificate; clients call the load balancer by a name of the certificate."""

    clients: Annotated[tuple[ClientRange, ...], Field(max_length=50), AllowSingleItem()] = ()
    """Ranges of addresses that reach it, one or a list, in place of the fleet's network, the default. On EKS that is
    all private ranges where the network existed before."""

    web_acl: WebAclArn | None = None
    """ARN of the AWS WAF web ACL that filters its requests."""

    # What the bucket needs: ELB documentation, "Enable access logs for your Application Load Balancer", 2026-11.
    access_logs: S3Location | None = None
    """Where it writes a line for each request: time, client, status, durations, and no text. The bucket is in the
    fleet's region, encrypted by S3's own keys, and its policy lets logdelivery.elasticloadbalancing.amazonaws.com put
    objects."""


class StackLoadBalancer(Settings):
    """The internal load balancer with TLS, as a stack makes it."""

    certificate: str
    """ARN of the ACM certificate."""

    clients: Annotated[tuple[str, ...], AllowSingleItem()] = ()
    """Ranges of addresses that reach it; empty for those of the VPC, and with `public` for all."""

    web_acl: str = ""
    """ARN of the AWS WAF web ACL; empty without one."""

    access_logs: str = ""
    """Location in S3 of a line for each request; empty without them."""

    idle_timeout_s: Annotated[int, Field(ge=1, le=4000)]
    """Longest silence on a connection."""

    drain_s: Annotated[int, Field(ge=0, le=3600)]
    """How long requests of a stopped replica may finish."""


def check(row: LoadBalancer, fleet: Fleet, *, on_kubernetes: bool) -> Iterator[Conflict]:
    """Yield what the fleet's region and network do not allow."""
    for field, arn in (("certificate", row.certificate), ("web_acl", row.web_acl)):
        if arn and parse_arn_region(arn) != fleet.region:
            reason = f"a load balancer takes those of its own region, {fleet.region}"
            yield Conflict((KEY, field), reason, f"use one in {fleet.region}", arn)
    if len(fleet.zones) < MIN_ZONES:
        reason = (
            f"an Application Load Balancer takes subnets in {MIN_ZONES} zones, and the fleet has {len(fleet.zones)}"
        )
        yield Conflict((KEY,), reason, "use a fleet of two zones, or remove load_balancer", row.certificate)
    if row.web_acl and fleet.is_closed and on_kubernetes:
        # A controller in the cluster makes the load balancer, and would leave the web ACL out without a word.
        reason = "the load balancer controller does not reach AWS WAF from a network without NAT gateways"
        fix = "remove web_acl, or set network: {nat: on} in the fleet"
        yield Conflict((KEY, "web_acl"), reason, fix, row.web_acl)


def resolve(row: LoadBalancer, drain_s: int, default_clients: tuple[str, ...] = ()) -> StackLoadBalancer:
    return StackLoadBalancer(
        certificate=row.certificate,
        clients=row.clients or default_clients,
        web_acl=row.web_acl or "",
        access_logs=row.access_logs or "",
        idle_timeout_s=IDLE_TIMEOUT_S,
        drain_s=drain_s,
    )


def list_ranges(fleet: Fleet) -> tuple[str, ...]:
    """Return the address ranges of the fleet's network, from which its load balancers call."""
    return (fleet.network.cidr,) if isinstance(fleet.network, NewNetwork) else PRIVATE_RANGES
