"""Who reaches the tasks of a deployment, and by which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.constructs.security_group import security_group
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import Service, Serving

_TTL_S = 10
"""A replica that went is forgotten by whoever looks its name up after that."""


@dataclass(frozen=True)
class Doors:
    """The security groups of both kinds of tasks."""

    engine: Any
    router: Any

    def of(self, service: Service) -> Any:
        """A service's own."""
        return self.router if service.kind == "router" else self.engine


def doors(stack: Any, fleet: Fleet, serving: Serving, *, vpc_id: str, vpc_cidr: str) -> Doors:
    """Adds the security groups: the VPC reaches the router, it the engines, they each other where they must."""
    made = Doors(
        *(
            security_group(
                stack,
                f"{kind}-group",
                name=f"{fleet.name}-{serving.name}-{kind}",
                description=f"Tasks of {serving.name}: {kind}",
                vpc_id=vpc_id,
            )
            for kind in ("engine", "router")
        )
    )
    port = serving.router.port
    _rule(stack, "router-from-vpc", made.router, "in", "Clients in the VPC", port, cidr=vpc_cidr)
    _rule(stack, "router-to-router", made.router, "out", "The question that proves an answer", port, peer=made.router)
    for port in sorted({service.port for service in serving.engines}):
        _rule(stack, f"engine-{port}-from-router", made.engine, "in", "Requests", port, peer=made.router)
        _rule(stack, f"router-to-engine-{port}", made.router, "out", "Requests", port, peer=made.engine)
    for port in sorted({port for service in serving.engines for port in service.events_ports}):
        _rule(stack, f"engine-{port}-from-router", made.engine, "in", "Events of the cache", port, peer=made.router)
        _rule(stack, f"router-to-engine-{port}", made.router, "out", "Events of the cache", port, peer=made.engine)
    if any(needs_peers(service) for service in serving.engines):
        # EFA's own protocol has no number that a rule could name, and NIXL and NCCL take any port.
        _rule(stack, "engine-from-engine", made.engine, "in", "Caches and ranks of one model", peer=made.engine)
        _rule(stack, "engine-to-engine", made.engine, "out", "Caches and ranks of one model", peer=made.engine)
    for kind, group in (("engine", made.engine), ("router", made.router)):
        # Endpoints of AWS in the VPC, S3 by its gateway, and registries, whose addresses nobody can list.
        _rule(stack, f"{kind}-https", group, "out", "HTTPS to AWS and to registries", 443, cidr="0.0.0.0/0")
    return made


def needs_peers(service: Service) -> bool:
    """Whether tasks talk to tasks of their own kind: machines of a replica, or prefill and decode."""
    efa = any(device.startswith("/dev/infiniband/") for device in service.devices)
    return bool(service.member or service.own_address or efa)


def _rule(
    stack: Any,
    name: str,
    group: Any,
    direction: str,
    description: str,
    port: int | None = None,
    *,
    peer: Any = None,
    cidr: str | None = None,
) -> None:
    rule = (
        aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule
        if direction == "in"
        else aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule
    )
    rule(
        stack,
        name,
        security_group_id=group.id,
        referenced_security_group_id=peer.id if peer else None,
        cidr_ipv4=cidr,
        ip_protocol="tcp" if port else "-1",
        from_port=port,
        to_port=port,
        description=description,
        tags={"Name": name},
    )


def registered(serving: Serving) -> tuple[Service, ...]:
    """Services that have a DNS name: all that is asked for something, which is not a replica's further machines."""
    return tuple(service for service in serving.services if not (service.member and service.member.rank))


def registry(stack: Any, serving: Serving, service: Service, *, namespace_id: str) -> Any:
    """Adds the service's name in the fleet's private DNS namespace: an address for each task.

    Without a health check of Cloud Map's: the machines of a replica must find each other before the first answer, and
    the router asks each address by itself.
    """
    d = aws.service_discovery_service
    return d.ServiceDiscoveryService(
        stack,
        f"{service.name}-name",
        name=f"{serving.name}-{service.name}",
        description=f"Tasks of {serving.name}: {service.name}",
        dns_config=d.ServiceDiscoveryServiceDnsConfig(
            namespace_id=namespace_id,
            routing_policy="MULTIVALUE",
            dns_records=[d.ServiceDiscoveryServiceDnsConfigDnsRecords(type="A", ttl=_TTL_S)],
        ),
    )
