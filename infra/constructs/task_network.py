"""Who reaches the tasks of a deployment, and by which names."""

from __future__ import annotations

from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.security_group import add_security_group
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import EcsDeployment, EcsManifest, Service, TaskService

_TTL_S = 10
"""A replica that went is forgotten by whoever looks its name up after that."""


@dataclass(frozen=True)
class TaskSecurityGroups:
    """The security groups of both kinds of tasks, and of load drivers."""

    engine: aws.security_group.SecurityGroup
    router: aws.security_group.SecurityGroup
    driver: aws.security_group.SecurityGroup

    def select_group(self, service: Service) -> aws.security_group.SecurityGroup:
        """A service's own."""
        return self.router if service.kind == "router" else self.engine


def add_security_groups(
    stack: TerraformStack, fleet: Fleet, serving: EcsDeployment, *, vpc_id: str, vpc_cidr: str
) -> TaskSecurityGroups:
    """Add the security groups: the VPC reaches the router, the router the engines, engines each other if needed, and
    load drivers the router and everybody's metrics.
    """
    security_groups = TaskSecurityGroups(
        *(
            add_security_group(
                stack,
                f"{kind}-group",
                name=f"{fleet.name}-{serving.name}-{kind}",
                description=f"Tasks of {serving.name}: {kind}",
                vpc_id=vpc_id,
            )
            for kind in ("engine", "router", "driver")
        )
    )
    _add_router_rules(stack, security_groups.router, serving.router.port, vpc_cidr)
    for port in sorted({service.port for service in serving.engines}):
        _add_engine_port_rules(stack, security_groups, port, "Requests")
    for port in sorted({port for service in serving.engines for port in service.events_ports}):
        _add_engine_port_rules(stack, security_groups, port, "Events of the cache")
    if any(needs_peers(service) for service in serving.engines):
        _add_peer_rules(stack, security_groups.engine)
    _add_driver_rules(stack, security_groups, serving)
    for kind in ("engine", "router", "driver"):
        group = getattr(security_groups, kind)
        # AWS endpoints in the VPC, S3 through its gateway, and registries, which have no fixed address ranges.
        add_rule(stack, f"{kind}-https", group, "out", "HTTPS to AWS and to registries", 443, cidr="0.0.0.0/0")
    return security_groups


def _add_router_rules(
    stack: TerraformStack, router: aws.security_group.SecurityGroup, port: int, vpc_cidr: str
) -> None:
    add_rule(stack, "router-from-vpc", router, "in", "Clients in the VPC", port, cidr=vpc_cidr)
    add_rule(stack, "router-to-router", router, "out", "The question that proves an answer", port, peer=router)


def _add_engine_port_rules(
    stack: TerraformStack, security_groups: TaskSecurityGroups, port: int, description: str
) -> None:
    """Let routers connect to engines on a port."""
    engine, router = security_groups.engine, security_groups.router
    add_rule(stack, f"engine-{port}-from-router", engine, "in", description, port, peer=router)
    add_rule(stack, f"router-to-engine-{port}", router, "out", description, port, peer=engine)


def _add_driver_rules(stack: TerraformStack, security_groups: TaskSecurityGroups, serving: EcsDeployment) -> None:
    """Let load drivers send requests to the router, and read the metrics of all tasks; nobody reaches them."""
    driver, router, engine = security_groups.driver, security_groups.router, security_groups.engine
    load = ("router", serving.router.port)
    pages = {(service.kind, service.metrics_port) for service in serving.services}
    for kind, port in sorted({load, *pages}):
        group = router if kind == "router" else engine
        add_rule(stack, f"driver-to-{kind}-{port}", driver, "out", "The load, and metrics", port, peer=group)
        if (kind, port) != load:  # which the whole VPC may call
            add_rule(stack, f"{kind}-{port}-from-driver", group, "in", "Metrics for load drivers", port, peer=driver)


def _add_peer_rules(stack: TerraformStack, engine: aws.security_group.SecurityGroup) -> None:
    """Open all ports between engines: no rule can name EFA's protocol, and NIXL and NCCL take any port."""
    description = "Caches and ranks of one model"
    add_rule(stack, "engine-from-engine", engine, "in", description, peer=engine)
    add_rule(stack, "engine-to-engine", engine, "out", description, peer=engine)


def needs_peers(service: Service) -> bool:
    """Whether tasks talk to tasks of their own kind: instances of a replica, or prefill and decode."""
    efa = any(device.startswith("/dev/infiniband/") for device in service.devices)
    return bool(service.member or service.own_address or efa)


def add_rule(
    stack: TerraformStack,
    name: str,
    group: aws.security_group.SecurityGroup,
    direction: str,
    description: str,
    port: int | None = None,
    *,
    peer: aws.security_group.SecurityGroup | None = None,
    cidr: str | None = None,
) -> None:
    """Add a rule of `group`: `in` or `out`, of one TCP port or of all traffic, for a security group or a range."""
    rule_class = (
        aws.vpc_security_group_ingress_rule.VpcSecurityGroupIngressRule
        if direction == "in"
        else aws.vpc_security_group_egress_rule.VpcSecurityGroupEgressRule
    )
    rule_class(
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


def select_registered_services(serving: EcsDeployment) -> tuple[Service, ...]:
    """Services with a DNS name: all that receive requests, so not a replica's further nodes."""
    return tuple(service for service in serving.services if not (service.member and service.member.rank))


def add_discovery_service(
    stack: TerraformStack, serving: EcsManifest, service: TaskService, *, namespace_id: str
) -> aws.service_discovery_service.ServiceDiscoveryService:
    """Add the service's name in the fleet's private DNS namespace: an address for each task.

    Without a health check of Cloud Map's: the instances of a replica must find each other before the first answer, and
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
