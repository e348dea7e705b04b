"""A fleet at full size: quotas, addresses, fixed limits, API rates, and the loss of a zone.

Arithmetic over the fleet's groups; nothing is asked of AWS. `blueprint preflight` holds the needs against an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from llm_serving.catalog import instances, quotas
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.quotas import Quota
from llm_serving.fleet import addresses, endpoints, interfaces
from llm_serving.fleet.groups import Group, has_known_types, resolve_all
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.fleet.system_group import build_system_group
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake

RESERVED_BY_AWS = 5
"""Addresses of every subnet that AWS keeps. Source: VPC user guide, "Subnet CIDR blocks", 2026-11."""

PREFIX_ADDRESSES = 16
"""Addresses of the /28 that the VPC CNI takes at a time. Source: EKS best practices, "Prefix Mode", 2026-11."""

NODE_PREFIXES = {True: 2, False: 8}
"""Prefixes of a node by whether it has accelerators: those that its pods fill, and one kept ready.

A node with accelerators runs a replica for each at the most and about ten pods of the platform; a node without is
counted with the 110 pods that AWS recommends as the most.
"""

CONTROL_PLANE_ADDRESSES = 16
"""Free addresses that EKS wants in a cluster's subnet. Source: EKS user guide, "Networking requirements", 2026-11."""

LOAD_BALANCER_ADDRESSES = 8
"""Free addresses that a load balancer wants in a subnet. Source: Application Load Balancers user guide, 2026-11."""

SYSTEM_NODE_ADDRESSES = 1 + 4 * PREFIX_ADDRESSES
"""Addresses of the system's own node in each zone of an EKS cluster."""

RUN_INSTANCES_RATE = (1000, 2)
"""Instances that may start at once, and how many more each second.

Source: EC2 developer guide, "Request throttling for the Amazon EC2 API", resource tokens of RunInstances, 2026-11.
"""


@dataclass(frozen=True)
class Need:
    """The fleet's use of a quota."""

    quota: Quota
    amount: int
    breakdown: str
    """The parts of the sum, in words."""


@dataclass(frozen=True)
class Limit:
    """A limit that AWS does not raise, or does not list as a quota."""

    name: str
    amount: int
    most: int
    source: str


@dataclass(frozen=True)
class Subnet:
    """Addresses of one zone's private subnet in a new VPC."""

    zone: str
    cidr: str
    needed: int
    available: int
    """Without those that AWS keeps."""


@dataclass(frozen=True)
class Capacity:
    """Quotas, limits, addresses and cost of the fleet at full size."""

    needs: tuple[Need, ...]
    limits: tuple[Limit, ...]

    subnets: tuple[Subnet, ...]
    """By zone; empty for an existing VPC, whose sizes only preflight knows."""

    max_machines: int
    """Instances if every fallback were filled at once: no Auto Scaling group knows of the others."""

    max_usd_h: float
    """US dollars an hour of the ceiling on demand, as far as prices are known; a Capacity Block is paid already."""

    launch_s: float
    """Seconds until EC2's API has taken all instances from none, capacity aside."""

    zone_shares: tuple[tuple[str, float], ...]
    """Share of the fleet's accelerators by zone, from 0 to 1, with each pool's first choice."""

    single_zone_pools: tuple[str, ...]
    """Pools in a single zone, which are lost with it."""


def compute(fleet: Fleet) -> Capacity:
    """Return all that the fleet meets.

    Raises:
        InputError: a type that the catalog does not have; `checks.find_mistakes` says so with its line.
    """
    machine_groups = resolve_all(fleet)
    system_groups = [build_system_group(fleet)] if fleet.creates_eks else []
    machines = sum(pool.size.max for pool in fleet.pools.values() if fleet.starts_instances(pool))
    burst, per_second = RUN_INSTANCES_RATE
    return Capacity(
        needs=tuple(
            _sum_needs(
                [
                    *_list_vcpu_needs(fleet, machine_groups),
                    *_list_network_needs(fleet),
                    *_list_machine_needs(fleet, machine_groups),
                    *(need for group in system_groups for need in _list_system_needs(group)),
                ]
            )
        ),
        limits=tuple(_list_limits(fleet, machine_groups)),
        subnets=tuple(_list_subnets(fleet)),
        max_machines=sum(group.max_size for group in machine_groups),
        max_usd_h=sum(group.max_size * _get_max_price(fleet, group) for group in machine_groups),
        launch_s=max(0, machines - burst) / per_second,
        zone_shares=tuple(_compute_zone_shares(fleet, machine_groups)),
        single_zone_pools=tuple(
            name for name in fleet.pools if len(_collect_zones(machine_groups, name)) == 1 and len(fleet.zones) > 1
        ),
    )


def find_mistakes(document: Document[Fleet]) -> list[Mistake]:
    """Return what cannot work at the greatest size; nothing if a type is unknown, because nothing can be counted."""
    fleet = document.value
    if not has_known_types(fleet):
        return []
    capacity = compute(fleet)
    return [*_check_subnet_sizes(document, capacity.subnets), *_check_limits(document, capacity.limits)]


def _sum_needs(parts: Iterable[Need]) -> Iterator[Need]:
    """Yield one need for each quota."""
    by_quota: dict[Quota, list[Need]] = {}
    for part in parts:
        by_quota.setdefault(part.quota, []).append(part)
    for quota, needs in by_quota.items():
        yield Need(
            quota, sum(part.amount for part in needs), ", ".join(part.breakdown for part in needs if part.breakdown)
        )


def _list_vcpu_needs(fleet: Fleet, machine_groups: Sequence[Group]) -> Iterator[Need]:
    """Yield the vCPUs by family and way to buy: each of a pool's choices may come to carry all of it.

    A Capacity Block counts against no vCPU quota; a reservation counts as on demand, used or not.
    """
    for name, pool in fleet.pools.items():
        largest: dict[Quota, Instance] = {}
        for group in machine_groups:
            if group.pool == name and group.purchase_option != "capacity-block":
                row = max(
                    (instances.load()[instance_type] for instance_type in group.types),
                    key=lambda instance_type: instance_type.vcpus,
                )
                family = quotas.find_family(row.name)
                quota = family.spot if group.purchase_option == "spot" else family.on_demand
                largest[quota] = max(largest.get(quota, row), row, key=lambda item: item.vcpus)
        for quota, row in largest.items():
            yield Need(quota, pool.size.max * row.vcpus, f"{name} {pool.size.max:,} × {row.name}")


def _list_network_needs(fleet: Fleet) -> Iterator[Need]:
    network, zones = fleet.network, len(fleet.zones)
    if not isinstance(network, NewNetwork):
        return
    services = len(endpoints.list_own(fleet))
    yield Need(quotas.VPCS, 1, "")
    yield Need(quotas.GATEWAY_ENDPOINTS, 1, "S3")
    yield Need(quotas.INTERFACE_ENDPOINTS, services, "")
    yield Need(quotas.NETWORK_INTERFACES, services * zones, f"{services} endpoints × {zones} zones")
    if network.nat:
        yield Need(quotas.INTERNET_GATEWAYS, 1, "")
        yield Need(quotas.NAT_GATEWAYS, 1, "in each zone")
        yield Need(quotas.ELASTIC_IPS, zones, "one for each NAT gateway")
        yield Need(quotas.NETWORK_INTERFACES, zones, f"{zones} NAT gateways")


def _list_machine_needs(fleet: Fleet, machine_groups: Sequence[Group]) -> Iterator[Need]:
    # Warm instances keep their interfaces and volumes while they are stopped.
    counts = {name: pool.size.max + pool.warm for name, pool in fleet.pools.items()}
    for name, count in counts.items():
        pool_groups = [group for group in machine_groups if group.pool == name]
        per_machine = max((len(group.interfaces) + _count_task_interfaces(group) for group in pool_groups), default=0)
        if per_machine:
            yield Need(quotas.NETWORK_INTERFACES, count * per_machine, f"{name} {count:,} × {per_machine}")
    gib_by_pool = {
        name: max((member.volume.size_gib for member in machine_groups if member.pool == name), default=0)
        for name in fleet.pools
    }
    tib = -(-sum(counts[name] * size for name, size in gib_by_pool.items()) // 1024)
    if tib:
        yield Need(
            quotas.VOLUMES,
            tib,
            ", ".join(f"{name} {gib_by_pool[name]} GiB each" for name in gib_by_pool if gib_by_pool[name]),
        )
    scaling_groups = [group for group in machine_groups if group.is_auto_scaled]
    if scaling_groups:
        yield Need(quotas.AUTO_SCALING_GROUPS, len(scaling_groups), "")
        yield Need(quotas.LAUNCH_TEMPLATES, len(scaling_groups), "")
    if fleet.creates_eks:
        node_groups = [group for group in scaling_groups if group.kind == "node-group"]
        yield Need(quotas.CLUSTERS, 1, "")
        yield Need(quotas.NODE_GROUPS, 1 + len(node_groups), "the system's own among them")
        yield Need(
            quotas.NODES_PER_GROUP, max((group.max_size for group in node_groups), default=0), "the largest group"
        )


def _list_system_needs(group: Group) -> Iterator[Need]:
    """Yield what the cluster's own nodes use; an update starts as many again before it ends the old ones."""
    [instance_type] = group.types
    breakdown = f"system {group.max_size} × {instance_type}"
    if instance_type in instances.load():
        vcpus = instances.load()[instance_type].vcpus
        yield Need(quotas.find_family(instance_type).on_demand, group.max_size * vcpus, breakdown)
    yield Need(quotas.NETWORK_INTERFACES, group.max_size, breakdown)
    yield Need(quotas.VOLUMES, -(-group.max_size * group.volume.size_gib // 1024), breakdown)
    yield Need(quotas.AUTO_SCALING_GROUPS, 1, "system")
    yield Need(quotas.LAUNCH_TEMPLATES, 1, "system")


def _list_limits(fleet: Fleet, machine_groups: Sequence[Group]) -> Iterator[Limit]:
    providers = sum(group.kind == "capacity-provider" for group in machine_groups)
    if providers:
        source = "ECS developer guide, Amazon ECS service quotas, 2026-11: not adjustable"
        # Fargate's two count among the 20. Source: aws-cloudformation/cloudformation-coverage-roadmap#1086.
        yield Limit("capacity providers of the ECS cluster beside Fargate's two", providers, 18, source)
        ecs_machines = sum(pool.size.max for pool in fleet.pools.values() if fleet.get_orchestrator(pool) == "ecs")
        yield Limit("container instances of the ECS cluster", ecs_machines, 5000, source)
    if isinstance(fleet.network, NewNetwork):
        usage = sum(
            pool.size.max
            * max((_count_addresses(group, 1) for group in machine_groups if group.pool == name), default=0)
            for name, pool in fleet.pools.items()
        )
        fixed = 6 * len(fleet.zones) * (len(endpoints.list_own(fleet)) + fleet.network.nat)
        # An address and a prefix count one each.
        source = "VPC user guide, Network Address Usage, 2026-11: 64,000 until AWS raises it, up to 256,000"
        yield Limit("network address units of the VPC", usage + fixed, 256_000, source)


def _get_max_price(fleet: Fleet, group: Group) -> float:
    """Return US dollars an hour of the group's dearest type; 0 where no price is known, or it is paid already."""
    prices = [instances.load()[name].get_price_usd_h(fleet.region) or 0.0 for name in group.types]
    return 0.0 if group.purchase_option == "capacity-block" else max(prices)


def _count_addresses(group: Group, of_prefix: int) -> int:
    """Return the addresses that one instance of the group and what runs on it take, `of_prefix` for each prefix."""
    own = interfaces.count_addresses(group.interfaces)
    if group.orchestrator == "eks":
        return own + of_prefix * NODE_PREFIXES[bool(group.accelerators)]
    return own + _count_task_interfaces(group)


def _count_task_interfaces(group: Group) -> int:
    """Return the interfaces of ECS tasks: one a task, at most one an accelerator, no more than the first card has."""
    if group.orchestrator != "ecs":
        return 0
    rows = [instances.load()[name] for name in group.types]
    return max(_count_tasks(row) for row in rows)


def _count_tasks(row: Instance) -> int:
    free = row.cards[0].interfaces - 1
    return min(free, row.accelerators.count) if row.accelerators else free


def _list_subnets(fleet: Fleet) -> Iterator[Subnet]:
    network = fleet.network
    if not isinstance(network, NewNetwork):
        return
    for zone in fleet.zones:
        if zone[-1] in addresses.LETTERS:
            cidr = addresses.compute_private_cidr(network.cidr, zone)
            available = IPv4Network(cidr).num_addresses - RESERVED_BY_AWS
            yield Subnet(zone, cidr, count_zone_addresses(zone, fleet), available)


def count_zone_addresses(zone: str, fleet: Fleet) -> int:
    """Return the addresses that the fleet takes in a zone's private subnet, whoever made it."""
    machine_groups = resolve_all(fleet)
    fixed = (
        len(endpoints.list_own(fleet))
        + LOAD_BALANCER_ADDRESSES
        + fleet.creates_eks * (CONTROL_PLANE_ADDRESSES + SYSTEM_NODE_ADDRESSES)
    )
    return fixed + sum(_count_pool_addresses(machine_groups, name, zone) for name in fleet.pools)


def _count_pool_addresses(machine_groups: Sequence[Group], pool: str, zone: str) -> int:
    """Return the addresses of one pool in one zone: those of the choice that takes most there."""
    zone_groups = [group for group in machine_groups if group.pool == pool and zone in group.zones]
    # Warm instances hold their addresses while they are stopped.
    counts = ((group, -(-(group.max_size + group.warm) // len(group.zones))) for group in zone_groups)
    return max((count * _count_addresses(group, PREFIX_ADDRESSES) for group, count in counts), default=0)


def _compute_zone_shares(fleet: Fleet, machine_groups: Sequence[Group]) -> Iterator[tuple[str, float]]:
    first_choice = [
        # The next choice has the rest of the pool, in the reservation's zone.
        replace(group, max_size=fleet.pools[group.pool].size.max) if group.reserve else group
        for group in machine_groups
        if group.choice == 0
    ]
    total = sum(group.max_size * group.accelerators for group in first_choice)
    for zone in fleet.zones:
        in_zone = sum(
            group.max_size * group.accelerators / len(group.zones) for group in first_choice if zone in group.zones
        )
        yield zone, in_zone / total if total else 0.0


def _collect_zones(machine_groups: Sequence[Group], pool: str) -> set[str]:
    return {zone for group in machine_groups if group.pool == pool for zone in group.zones}


def _check_subnet_sizes(document: Document[Fleet], subnets: Sequence[Subnet]) -> Iterator[Mistake]:
    network = document.value.network
    largest = max(subnets, key=lambda subnet: subnet.needed, default=None)
    if largest is None or largest.needed <= largest.available or not isinstance(network, NewNetwork):
        return
    reason = (
        f"at full size the fleet takes {largest.needed:,} addresses in {largest.zone}, "
        f"and its subnet, an eighth of the range, has {largest.available:,}"
    )
    yield document.build_mistake(("network", "cidr"), network.cidr, reason, _suggest_cidr(network.cidr, largest.needed))


def _suggest_cidr(cidr: str, address_count: int) -> str:
    start = cidr.partition("/")[0]
    for length in range(int(cidr.partition("/")[2]) - 1, 15, -1):
        wider = IPv4Network(f"{start}/{length}", strict=False)
        if wider.num_addresses // 8 - RESERVED_BY_AWS >= address_count:
            return f"set cidr: {wider}"
    return "use smaller pools, pools over more zones, or a network of your own: {vpc: vpc-..., private_subnets: [...]}"


def _check_limits(document: Document[Fleet], limits: Sequence[Limit]) -> Iterator[Mistake]:
    for limit in limits:
        if limit.amount > limit.most:
            reason = f"they make {limit.amount:,} {limit.name}, which takes {limit.most:,} ({limit.source})"
            fix = "use fewer zones, types or ways to buy in a pool, smaller pools, or a second fleet for some of them"
            yield document.build_mistake(("pools",), list(document.value.pools), reason, fix)
