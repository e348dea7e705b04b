"""What a fleet meets at its greatest size: quotas, addresses, limits nobody can raise, API rates, and a zone's loss.

Arithmetic over the fleet's groups; nothing is asked of AWS. `blueprint preflight` holds the needs against an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from llm_serving.catalog import quotas
from llm_serving.catalog.instances import Catalogue, Instance
from llm_serving.catalog.quotas import Quota
from llm_serving.fleet import addresses, endpoints, interfaces
from llm_serving.fleet.groups import Group, groups
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake

RESERVED_BY_AWS = 5
"""Addresses of every subnet that AWS keeps. Source: VPC user guide, "Subnet CIDR blocks", 2026-11."""

PREFIX = 16
"""Addresses of the /28 that the VPC CNI takes at a time. Source: EKS best practices, "Prefix Mode", 2026-11."""

PREFIXES = {True: 2, False: 8}
"""Prefixes of a node by whether it has accelerators: those that its pods fill, and one kept ready.

A node with accelerators runs a replica for each at the most and about ten pods of the platform; a node without is
counted with the 110 pods that AWS recommends as the most.
"""

CONTROL_PLANE = 16
"""Free addresses that EKS wants in a cluster's subnet. Source: EKS user guide, "Networking requirements", 2026-11."""

LOAD_BALANCER = 8
"""Free addresses that a load balancer wants in a subnet. Source: Application Load Balancers user guide, 2026-11."""

SYSTEM_NODE = 1 + 4 * PREFIX
"""Addresses of the system's own node in each zone of an EKS cluster."""

RUN_INSTANCES = (1000, 2)
"""Machines that may start at once, and how many more each second.

Source: EC2 developer guide, "Request throttling for the Amazon EC2 API", resource tokens of RunInstances, 2026-11.
"""


@dataclass(frozen=True)
class Need:
    """What the fleet takes of a quota."""

    quota: Quota
    amount: int
    why: str
    """The parts of the sum, in words."""


@dataclass(frozen=True)
class Limit:
    """A limit that AWS does not list among the quotas to ask for, or does not raise."""

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
    there: int
    """Without those that AWS keeps."""


@dataclass(frozen=True)
class Scale:
    """What the fleet meets at its greatest size."""

    needs: tuple[Need, ...]
    limits: tuple[Limit, ...]

    subnets: tuple[Subnet, ...]
    """By zone; empty in a VPC that is there, whose sizes only preflight knows."""

    ceiling: int
    """Machines if every fallback were filled at once: no Auto Scaling group knows of the others."""

    ceiling_usd_h: float
    """US dollars an hour of the ceiling on demand, as far as prices are known; a Capacity Block is paid already."""

    launch_s: float
    """Seconds until EC2's API has taken all machines from none, capacity aside."""

    lost_with: tuple[tuple[str, float], ...]
    """By zone, the share of the fleet's accelerators that stands in it, from 0 to 1, by each pool's first choice."""

    in_one_zone: tuple[str, ...]
    """Pools that stand in one zone and are lost with it."""


def of(fleet: Fleet, catalogue: Catalogue) -> Scale:
    """All that the fleet meets.

    Raises:
        InputError: a type that the catalogue does not have; `feasibility.check` says so with its line.
    """
    made = groups(fleet, catalogue)
    machines = sum(pool.size.most for pool in fleet.pools.values())
    at_once, each_second = RUN_INSTANCES
    return Scale(
        needs=tuple(_summed([*_vcpus(fleet, made, catalogue), *_network(fleet), *_machines(fleet, made, catalogue)])),
        limits=tuple(_limits(fleet, made, catalogue)),
        subnets=tuple(_subnets(fleet, made, catalogue)),
        ceiling=sum(group.most for group in made),
        ceiling_usd_h=sum(group.most * _price(fleet, group, catalogue) for group in made),
        launch_s=max(0, machines - at_once) / each_second,
        lost_with=tuple(_lost(fleet, made)),
        in_one_zone=tuple(name for name in fleet.pools if len(_zones_of(made, name)) == 1 and len(fleet.zones) > 1),
    )


def mistakes(document: Document[Fleet], catalogue: Catalogue) -> list[Mistake]:
    """What cannot work at the greatest size; nothing where a type is unknown, for then nothing can be counted."""
    fleet = document.value
    if any(name not in catalogue for pool in fleet.pools.values() for name in pool.types):
        return []
    met = of(fleet, catalogue)
    return [*_too_narrow(document, met.subnets), *_over_limits(document, met.limits)]


def _summed(parts: Iterable[Need]) -> Iterator[Need]:
    """One need for each quota."""
    by_quota: dict[Quota, list[Need]] = {}
    for part in parts:
        by_quota.setdefault(part.quota, []).append(part)
    for quota, held in by_quota.items():
        yield Need(quota, sum(part.amount for part in held), ", ".join(part.why for part in held if part.why))


def _vcpus(fleet: Fleet, made: Sequence[Group], catalogue: Catalogue) -> Iterator[Need]:
    """vCPUs by family and way to buy: each of a pool's choices may come to carry all of it.

    A Capacity Block counts against no vCPU quota; a reservation counts as on demand, used or not.
    """
    for name, pool in fleet.pools.items():
        largest: dict[Quota, Instance] = {}
        for group in made:
            if group.pool == name and group.bought != "capacity-block":
                row = max((catalogue[one] for one in group.types), key=lambda one: one.vcpus)
                family = quotas.family(row.name)
                quota = family.spot if group.bought == "spot" else family.on_demand
                largest[quota] = max(largest.get(quota, row), row, key=lambda one: one.vcpus)
        for quota, row in largest.items():
            yield Need(quota, pool.size.most * row.vcpus, f"{name} {pool.size.most:,} × {row.name}")


def _network(fleet: Fleet) -> Iterator[Need]:
    network, zones = fleet.network, len(fleet.zones)
    if not isinstance(network, NewNetwork):
        return
    services = len(endpoints.needed(fleet.orchestrator))
    yield Need(quotas.VPCS, 1, "")
    yield Need(quotas.GATEWAY_ENDPOINTS, 1, "S3")
    yield Need(quotas.INTERFACE_ENDPOINTS, services, "")
    yield Need(quotas.INTERFACES, services * zones, f"{services} endpoints × {zones} zones")
    if network.nat:
        yield Need(quotas.INTERNET_GATEWAYS, 1, "")
        yield Need(quotas.NAT_GATEWAYS, 1, "in each zone")
        yield Need(quotas.ADDRESSES, zones, "one for each NAT gateway")
        yield Need(quotas.INTERFACES, zones, f"{zones} NAT gateways")


def _machines(fleet: Fleet, made: Sequence[Group], catalogue: Catalogue) -> Iterator[Need]:
    for name, pool in fleet.pools.items():
        mine = [group for group in made if group.pool == name]
        each = max((len(group.interfaces) + _task_addresses(group, catalogue) for group in mine), default=0)
        if each:
            yield Need(quotas.INTERFACES, pool.size.most * each, f"{name} {pool.size.most:,} × {each}")
    gib = {name: max((one.volume.size_gib for one in made if one.pool == name), default=0) for name in fleet.pools}
    tib = -(-sum(fleet.pools[name].size.most * size for name, size in gib.items()) // 1024)
    if tib:
        yield Need(quotas.VOLUMES, tib, ", ".join(f"{name} {gib[name]} GiB each" for name in gib if gib[name]))
    kept = [group for group in made if group.kind != "karpenter"]
    if kept:
        yield Need(quotas.GROUPS, len(kept), "")
        yield Need(quotas.TEMPLATES, len(kept), "")
    if "eks" in fleet.orchestrators:
        node_groups = [group for group in kept if group.kind == "node-group"]
        yield Need(quotas.CLUSTERS, 1, "")
        yield Need(quotas.NODE_GROUPS, 1 + len(node_groups), "the system's own among them")
        yield Need(quotas.NODES, max((group.most for group in node_groups), default=0), "the largest group")


def _limits(fleet: Fleet, made: Sequence[Group], catalogue: Catalogue) -> Iterator[Limit]:
    providers = sum(group.kind == "capacity-provider" for group in made)
    if providers:
        source = "ECS developer guide, Amazon ECS service quotas, 2026-11: not adjustable"
        yield Limit("capacity providers of the ECS cluster", providers, 20, source)
        on_ecs = sum(pool.size.most for pool in fleet.pools.values() if fleet.orchestrator_of(pool) == "ecs")
        yield Limit("container instances of the ECS cluster", on_ecs, 5000, source)
    if isinstance(fleet.network, NewNetwork):
        usage = sum(
            pool.size.most * max((_usage(group, catalogue) for group in made if group.pool == name), default=0)
            for name, pool in fleet.pools.items()
        )
        fixed = 6 * len(fleet.zones) * (len(endpoints.needed(fleet.orchestrator)) + fleet.network.nat)
        source = "VPC user guide, Network Address Usage, 2026-11: 64,000 until AWS raises it, up to 256,000"
        yield Limit("network address units of the VPC", usage + fixed, 256_000, source)


def _price(fleet: Fleet, group: Group, catalogue: Catalogue) -> float:
    """US dollars an hour of the group's dearest type; 0 where no price is known, or it is paid already."""
    prices = [catalogue[name].price_usd_h(fleet.region) or 0.0 for name in group.types]
    return 0.0 if group.bought == "capacity-block" else max(prices)


def _usage(group: Group, catalogue: Catalogue) -> int:
    """Network address units of one machine: an address and a prefix count one each."""
    pods = PREFIXES[bool(group.accelerators)] if group.orchestrator == "eks" else _task_addresses(group, catalogue)
    return interfaces.addresses(group.interfaces) + pods


def _each(group: Group, catalogue: Catalogue) -> int:
    """Addresses that one machine of the group and what runs on it take from its subnet."""
    own = interfaces.addresses(group.interfaces)
    if group.orchestrator == "eks":
        return own + PREFIX * PREFIXES[bool(group.accelerators)]
    return own + _task_addresses(group, catalogue)


def _task_addresses(group: Group, catalogue: Catalogue) -> int:
    """Interfaces of ECS tasks: each task has its own; at most one an accelerator, and no more than the cards hold."""
    if group.orchestrator != "ecs":
        return 0
    rows = [catalogue[name] for name in group.types]
    return max(_tasks(row) for row in rows)


def _tasks(row: Instance) -> int:
    free = sum(card.interfaces for card in row.cards) - 1
    return min(free, row.accelerators.count) if row.accelerators else free


def _subnets(fleet: Fleet, made: Sequence[Group], catalogue: Catalogue) -> Iterator[Subnet]:
    network = fleet.network
    if not isinstance(network, NewNetwork):
        return
    for zone in fleet.zones:
        if zone[-1] in addresses.LETTERS:
            cidr = addresses.private(network.cidr, zone)
            there = IPv4Network(cidr).num_addresses - RESERVED_BY_AWS
            yield Subnet(zone, cidr, _needed(fleet, made, zone, catalogue), there)


def needed_in(zone: str, fleet: Fleet, catalogue: Catalogue) -> int:
    """Addresses that the fleet takes in a zone's private subnet, whoever made it."""
    return _needed(fleet, groups(fleet, catalogue), zone, catalogue)


def _needed(fleet: Fleet, made: Sequence[Group], zone: str, catalogue: Catalogue) -> int:
    # The endpoints of a VPC that is there are its owner's, and there already.
    services = len(endpoints.needed(fleet.orchestrator)) if isinstance(fleet.network, NewNetwork) else 0
    fixed = services + LOAD_BALANCER + ("eks" in fleet.orchestrators) * (CONTROL_PLANE + SYSTEM_NODE)
    return fixed + sum(_in_zone(made, name, zone, catalogue) for name in fleet.pools)


def _in_zone(made: Sequence[Group], pool: str, zone: str, catalogue: Catalogue) -> int:
    """Addresses of one pool in one zone: those of the choice that takes most there."""
    here = [group for group in made if group.pool == pool and zone in group.zones]
    # Warm machines hold their addresses while they are stopped.
    counts = ((group, -(-(group.most + group.warm) // len(group.zones))) for group in here)
    return max((count * _each(group, catalogue) for group, count in counts), default=0)


def _lost(fleet: Fleet, made: Sequence[Group]) -> Iterator[tuple[str, float]]:
    first = [group for group in made if group.choice == 0]
    total = sum(group.most * group.accelerators for group in first)
    for zone in fleet.zones:
        lost = sum(group.most * group.accelerators / len(group.zones) for group in first if zone in group.zones)
        yield zone, lost / total if total else 0.0


def _zones_of(made: Sequence[Group], pool: str) -> set[str]:
    return {zone for group in made if group.pool == pool for zone in group.zones}


def _too_narrow(document: Document[Fleet], subnets: Sequence[Subnet]) -> Iterator[Mistake]:
    network = document.value.network
    worst = max(subnets, key=lambda one: one.needed, default=None)
    if worst is None or worst.needed <= worst.there or not isinstance(network, NewNetwork):
        return
    why = (
        f"at its greatest size the fleet takes {worst.needed:,} addresses in {worst.zone}, "
        f"and its subnet, an eighth of the range, has {worst.there:,}"
    )
    yield document.mistake(("network", "cidr"), network.cidr, why, _wide_enough(network.cidr, worst.needed))


def _wide_enough(cidr: str, needed: int) -> str:
    start = cidr.partition("/")[0]
    for length in range(int(cidr.partition("/")[2]) - 1, 15, -1):
        wider = IPv4Network(f"{start}/{length}", strict=False)
        if wider.num_addresses // 8 - RESERVED_BY_AWS >= needed:
            return f"cidr: {wider}"
    return "smaller pools, pools over more zones, or a network of your own: {vpc: vpc-..., private_subnets: [...]}"


def _over_limits(document: Document[Fleet], limits: Sequence[Limit]) -> Iterator[Mistake]:
    for limit in limits:
        if limit.amount > limit.most:
            why = f"they make {limit.amount:,} {limit.name}, which takes {limit.most:,} ({limit.source})"
            write = "fewer zones, types or ways to buy in a pool, smaller pools, or a second fleet for some of them"
            yield document.mistake(("pools",), list(document.value.pools), why, write)
