"""Who reaches the tasks of a deployment, and by which names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.security_group import (
    ANYWHERE,
    HTTPS,
    SecurityGroups,
    VpcRanges,
    add_client_rules,
    add_rule,
    add_security_group,
)
from llm_serving.fleet.interfaces import EFA_DEVICE
from llm_serving.services.deployments import USAGE
from llm_serving.services.service import Service

EVENT_PORTS = ("events", "replay")
"""Names of an engine's ports where routers hear of its KV cache, and ask for what they missed."""


def add_groups(stack: FleetStack, deployment: str, parts: Iterable[str], vpc_id: str) -> SecurityGroups:
    """Add a security group for each part of a deployment, which lets out HTTPS only."""
    groups: dict[str, aws.security_group.SecurityGroup] = {}
    for part in parts:
        groups[part] = add_security_group(
            stack,
            f"{part}-group",
            name=f"{stack.fleet.name}-{deployment}-{part}",
            description=f"Tasks of {deployment}: {part}",
            vpc_id=vpc_id,
        )
        # AWS endpoints in the VPC, S3 through its gateway, and registries, which have no fixed address ranges.
        add_rule(stack, f"{part}-https", groups[part], "out", "HTTPS to AWS and to registries", HTTPS, peer=ANYWHERE)
    return groups


def add_entry_rules(
    stack: FleetStack, name: str, group: aws.security_group.SecurityGroup, entry: Service, vpc: VpcRanges
) -> None:
    """Let clients call the entry, by default all in the VPC, and the test request, which runs in the entry's group."""
    port = entry.port
    if entry.clients:
        add_rule(stack, f"{name}-from-{name}", group, "in", "The question that proves an answer", port, peer=group)
        add_client_rules(stack, f"{name}-from", group, "Clients", port, entry.clients)
    else:
        add_rule(stack, f"{name}-from-vpc", group, "in", "Clients in the VPC", port, peer=vpc)
    add_rule(stack, f"{name}-to-{name}", group, "out", "The question that proves an answer", port, peer=group)


def add_call_rules(
    stack: FleetStack, service: Service, group: aws.security_group.SecurityGroup, vpc: VpcRanges
) -> None:
    """Let a service call what it names, in the fleet's network or anywhere; HTTPS is open to anywhere."""
    for name, call in service.calls.items():
        if call.port != HTTPS or call.in_network:
            peer = vpc if call.in_network else ANYWHERE
            add_rule(stack, f"{service.name}-to-{name}", group, "out", call.purpose, call.port, peer=peer)


def add_security_groups(
    stack: FleetStack, deployment: str, services: Sequence[Service], *, vpc_id: str, vpc: VpcRanges
) -> SecurityGroups:
    """Add the groups of engines, router and load drivers.

    The VPC reaches the router, the router the engines, engines each other if needed, and load drivers the router and
    everybody's metrics.
    """
    security_groups = add_groups(stack, deployment, ("engine", "router", "driver"), vpc_id)
    engines = [service for service in services if not service.is_entry]
    [router] = [service for service in services if service.is_entry]
    add_entry_rules(stack, "router", security_groups["router"], router, vpc)
    if usage := router.ports.get(USAGE):
        add_rule(stack, "router-usage-from-vpc", security_groups["router"], "in", "Meters of gateways", usage, peer=vpc)
    for port in sorted({service.port for service in engines}):
        _add_engine_port_rules(stack, security_groups, port, "Requests")
    for port in sorted({service.ports[name] for service in engines for name in EVENT_PORTS if name in service.ports}):
        _add_engine_port_rules(stack, security_groups, port, "Events of the cache")
    # Engines of one deployment call the same, and share a security group.
    add_call_rules(stack, engines[0].model_copy(update={"name": "engine"}), security_groups["engine"], vpc)
    if any(needs_peers(service) for service in engines):
        # All ports: no rule can name EFA's protocol, and NIXL and NCCL take any.
        engine, description = security_groups["engine"], "Caches and ranks of one model"
        add_rule(stack, "engine-from-engine", engine, "in", description, peer=engine)
        add_rule(stack, "engine-to-engine", engine, "out", description, peer=engine)
    _add_driver_rules(stack, security_groups, router, services)
    return security_groups


def _add_engine_port_rules(stack: FleetStack, security_groups: SecurityGroups, port: int, description: str) -> None:
    engine, router = security_groups["engine"], security_groups["router"]
    add_rule(stack, f"engine-{port}-from-router", engine, "in", description, port, peer=router)
    add_rule(stack, f"router-to-engine-{port}", router, "out", description, port, peer=engine)


def _add_driver_rules(
    stack: FleetStack, security_groups: SecurityGroups, router: Service, services: Sequence[Service]
) -> None:
    """Let load drivers send requests to the router, and read the metrics of all tasks; nobody reaches them."""
    driver, load = security_groups["driver"], ("router", router.port)
    pages = {
        ("router" if service.is_entry else "engine", service.ports.get("metrics", service.port)) for service in services
    }
    for part, port in sorted({load, *pages}):
        group = security_groups[part]
        add_rule(stack, f"driver-to-{part}-{port}", driver, "out", "The load, and metrics", port, peer=group)
        if (part, port) != load:  # which the whole VPC may call
            add_rule(stack, f"{part}-{port}-from-driver", group, "in", "Metrics for load drivers", port, peer=driver)


def needs_peers(service: Service) -> bool:
    """Return whether tasks talk to tasks of their own kind: nodes of a replica, or prefill and decode."""
    efa = any(device.startswith(EFA_DEVICE) for device in service.resources.device_files)
    return bool(service.node or service.address_variables or efa)


def add_discovery_service(
    stack: FleetStack, deployment: str, service: Service, *, namespace_id: str
) -> aws.service_discovery_service.ServiceDiscoveryService | None:
    """Add the service's name in the fleet's private DNS namespace: an address for each task.

    None for a replica's further nodes, which receive no requests. Without a health check of Cloud Map's: the nodes of a
    replica must find each other before the first answer, and the router asks each address by itself.
    """
    if service.node and service.node.rank:
        return None
    record = aws.service_discovery_service.ServiceDiscoveryServiceDnsConfigDnsRecords
    return aws.service_discovery_service.ServiceDiscoveryService(
        stack,
        f"{service.name}-name",
        name=f"{deployment}-{service.name}",
        # Tasks that were lost abruptly, as on spot capacity, may stay registered.
        force_destroy=True,
        description=f"Tasks of {deployment}: {service.name}",
        dns_config={
            "namespace_id": namespace_id,
            "routing_policy": "MULTIVALUE",
            # A replica that went is forgotten by whoever looks its name up after 10 s.
            "dns_records": [record(type="A", ttl=10)],
        },
    )
