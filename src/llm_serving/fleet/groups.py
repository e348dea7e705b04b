"""Pools resolved into machine groups, every number decided: what node groups, capacity providers and NodePools are.

A pool is a list of choices in order of preference: each type (on ECS and by Karpenter: each family) in each way to buy,
the preferred type in all its ways before the next. Within a choice:

- Every zone that offers one of its types has a group of its own, and the zones share the pool's least and most evenly,
  the first ones one more. Where a zone's share of the most would be less than one machine, one group spans the zones.
  A group of Karpenter's spans them too, unless a placement group holds it in one.
- The first choice keeps the pool's least. Each choice may carry the pool's most alone, or it would be no fallback; what
  asks for machines (a service's tasks, pods that wait) keeps the sum at the pool's most.
- A reservation that the fleet makes holds as many machines as it says, and its group no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Catalogue, Instance
from llm_serving.fleet import interfaces
from llm_serving.fleet.interfaces import Interface
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.fleet.pool import Orchestrator, Purchase, Snapshot

Kind = Literal["node-group", "karpenter", "capacity-provider"]
Bought = Literal["on-demand", "spot", "reservation", "capacity-block"]
Images = Literal["soci", "cached", "snapshot", "plain"]

PAID: tuple[Bought, ...] = ("reservation", "capacity-block")
"""Ways to buy that hold capacity, and cost whether it is used or not."""

MOST_PROVIDERS = 6
"""Capacity providers of one strategy. Source: ECS API reference, CreateService, capacityProviderStrategy, 2026-11."""

SOCI_LEAST = (4, 7 * 1024)
"""vCPUs and MiB of memory below which FastImagePull is ignored. Source: awslabs/amazon-eks-ami, nodeadm, 2026-11."""

NVME_LEAST_GB = 200
"""Instance store that holds a few images beside logs and scratch; below it the default is a volume."""

_SHORT: Mapping[Bought, str] = {"on-demand": "od", "spot": "spot", "reservation": "cr", "capacity-block": "cb"}
_TAINTS = {"gpu": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
_VARIANTS: Mapping[str, Literal["nvidia", "neuron"]] = {"gpu": "nvidia", "neuron": "neuron"}


@dataclass(frozen=True)
class Taint:
    """A Kubernetes taint, in Kubernetes' words."""

    key: str
    value: str
    effect: str

    @property
    def eks_effect(self) -> str:
        """The effect as EKS's API spells it: NO_SCHEDULE for NoSchedule."""
        return {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}[
            self.effect
        ]


@dataclass(frozen=True)
class Volume:
    """The encrypted gp3 root volume."""

    size_gib: int
    throughput_mib_s: int
    iops: int


# Below 600 MiB/s SOCI's parallel pull is slower than the plain one; its authors measured with 1,000 and 16,000.
# Source: soci-snapshotter, "Parallel mode", 2026-11.
FAST = Volume(500, 1000, 16_000)
# gp3's own base line, included in its price.
PLAIN = Volume(500, 125, 3000)
# Root of a machine whose images lie on its NVMe disks.
SMALL = Volume(100, 125, 3000)


@dataclass(frozen=True)
class Group:
    """Machines that one Auto Scaling group, or one NodePool of Karpenter's, starts."""

    name: str
    """Unique in the fleet, at most 63 characters of a-z, 0-9 and -."""

    pool: str
    orchestrator: Orchestrator
    kind: Kind

    types: tuple[str, ...]
    """Instance types in order of preference, all of one family; just one with EFA, warm machines and node groups."""

    zones: tuple[str, ...]
    bought: Bought

    reservation: str | None
    """The id of the reservation or Capacity Block that is there; None for one to make."""

    reserve: int
    """Machines of the reservation that the fleet makes for this group; 0 where it makes none."""

    choice: int
    """Place in the pool's order of preference, from 0; the zones of one choice are peers."""

    least: int
    most: int

    warm: int
    """Machines kept ready and stopped beside the running ones."""

    accelerators: int
    """Accelerators of one machine: the fewest that its types have; 0 where they have none."""

    interfaces: tuple[Interface, ...]

    efa: int
    """EFA interfaces of one machine, also its `vpc.amazonaws.com/efa` count; 0 without EFA."""

    placement_group: str | None
    """Name of the cluster placement group, without the fleet's; groups of one pool and zone share it."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Empty on ECS."""

    images: Images

    snapshot: str | None
    """EBS snapshot with the images, where `images` is snapshot."""

    volume: Volume

    nvme: bool
    """Whether images and scratch lie on the NVMe disks, as a RAID 0."""

    os: Literal["al2023", "bottlerocket"]
    variant: Literal["nvidia", "neuron", "standard"]
    """Which of AWS's AMIs: by the accelerators that it has drivers for."""

    arch: Literal["x86_64", "arm64"]
    ami: str | None
    """The user's own AMI; None takes the pinned release."""

    @property
    def family(self) -> str:
        """The types' family, such as g6e."""
        return self.types[0].split(".")[0]

    @property
    def allocation(self) -> str:
        """Allocation strategy of EC2 Auto Scaling for the way it is bought."""
        return "price-capacity-optimized" if self.bought == "spot" else "prioritized"


def groups(fleet: Fleet, catalogue: Catalogue) -> tuple[Group, ...]:
    """All groups of the fleet: by pool, in order of preference, by zone.

    Raises:
        InputError: a type that the catalogue does not have; `feasibility.check` says so with its line.
    """
    return tuple(group for name in fleet.pools for group in of_pool(fleet, name, catalogue))


def of_pool(fleet: Fleet, name: str, catalogue: Catalogue) -> tuple[Group, ...]:
    """The groups of one pool; the choices that no zone offers are left out."""
    pool = fleet.pools[name]
    made: list[Group] = []
    choice = 0
    for types, way in _choices(fleet, pool):
        here = list(_of_choice(fleet, name, types, way, choice, catalogue))
        made += here
        choice += bool(here)
    return tuple(made)


def kind(fleet: Fleet, pool: Pool) -> Kind:
    """What starts the pool's machines.

    Karpenter picks among types and zones as pods wait, which suits pools that come and go; a fleet that must stand
    together or is paid for anyway (EFA, reservations, a least above 0) is kept by node groups.
    """
    if fleet.orchestrator_of(pool) == "ecs":
        return "capacity-provider"
    if pool.by:
        return "karpenter" if pool.by == "karpenter" else "node-group"
    return "node-group" if pool.efa or pool.reserved or pool.size.least else "karpenter"


def strategies(pool_groups: Sequence[Group]) -> list[list[Group]]:
    """One pool's capacity providers by service, in the order to fall back in: a service for each choice.

    The groups of a choice, one a zone, share a service's tasks evenly. A fleet has six zones at the most, and a
    strategy takes six providers: none is ever too long. `infra.functions.ecs_fallback` moves tasks between services.
    """
    ordered = sorted(pool_groups, key=lambda group: (group.choice, group.zones))
    return [list(peers) for _, peers in groupby(ordered, key=lambda group: group.choice)]


def provider_name(fleet: Fleet, group: Group) -> str:
    """The group's name as a capacity provider: one account has one list of them, and none may begin with aws or ecs."""
    return f"cp-{fleet.name}-{group.name}"


def _choices(fleet: Fleet, pool: Pool) -> Iterator[tuple[tuple[str, ...], Purchase]]:
    """Types that may share a group, with one way to buy them, in the pool's order of preference."""
    alone = pool.efa or pool.warm or kind(fleet, pool) == "node-group"
    families = dict.fromkeys(name if alone else name.split(".")[0] for name in pool.types)
    for family in families:
        types = tuple(name for name in pool.types if family in (name, name.split(".")[0]))
        for way in pool.buy:
            yield types, way


def _of_choice(
    fleet: Fleet, name: str, types: tuple[str, ...], way: Purchase, choice: int, catalogue: Catalogue
) -> Iterator[Group]:
    pool = fleet.pools[name]
    rows = [instances.find(one, catalogue) for one in types]
    zones = tuple(zone for zone in fleet.zones_of(pool) if _offered(rows, fleet.region, zone, catalogue))
    if not zones or not pool.size.most:
        return
    spans = pool.size.most < len(zones) or (kind(fleet, pool) == "karpenter" and pool.placement_group == "none")
    places = [zones] if spans else [(zone,) for zone in zones]
    least = _shared(0 if choice else pool.size.least, len(places))
    reserve = way.reserve if isinstance(way, Reservation) else None
    most = _shared(reserve or pool.size.most, len(places))
    warm = _shared(pool.warm if _is_first_on_demand(pool, types, way) else 0, len(places))
    for index, place in enumerate(places):
        offered = [row for row in rows if any(_offered([row], fleet.region, zone, catalogue) for zone in place)]
        yield _group(fleet, name, offered, place, way, choice, (least[index], most[index], warm[index]))


def _offered(rows: Sequence[Instance], region: str, zone: str, catalogue: Catalogue) -> bool:
    """Whether the zone has one of the types; true where the catalogue has no answer for the region."""
    if not any(region in row.zones for row in catalogue.values()):
        return True
    return any(zone in row.zones.get(region, ()) for row in rows)


def _shared(count: int, parts: int) -> list[int]:
    """`count` over `parts`, evenly, the first ones one more."""
    each, more = divmod(count, parts)
    return [each + (index < more) for index in range(parts)]


def _is_first_on_demand(pool: Pool, types: tuple[str, ...], way: Purchase) -> bool:
    return way == "on-demand" and types[0] == pool.types[0]


def _group(
    fleet: Fleet,
    name: str,
    rows: Sequence[Instance],
    zones: tuple[str, ...],
    way: Purchase,
    choice: int,
    counts: tuple[int, int, int],
) -> Group:
    pool, first = fleet.pools[name], rows[0]
    orchestrator = fleet.orchestrator_of(pool)
    bought, reservation = _bought(way)
    images = _images(pool, orchestrator, rows)
    nvme = _nvme(pool, rows)
    requested = interfaces.of(first, efa=pool.efa, layout=pool.efa_layout)
    letters = "".join(zone[-1] for zone in zones)
    label = first.name.replace(".", "-") if _one_type(fleet, pool) else first.family
    return Group(
        name=f"{name}-{label}-{letters}-{_short(pool, way, bought)}",
        pool=name,
        orchestrator=orchestrator,
        kind=kind(fleet, pool),
        types=tuple(row.name for row in rows),
        zones=zones,
        bought=bought,
        reservation=reservation,
        reserve=way.reserve or 0 if isinstance(way, Reservation) else 0,
        choice=choice,
        least=counts[0],
        most=counts[1],
        warm=counts[2],
        accelerators=min(row.accelerators.count if row.accelerators else 0 for row in rows),
        interfaces=requested,
        efa=sum(one.kind != "interface" for one in requested),
        placement_group=f"{name}-{letters}" if pool.placement_group == "cluster" else None,
        labels={**_labels(name, first, bought), **pool.labels},
        taints=_taints(pool, first) if orchestrator == "eks" else (),
        images=images,
        snapshot=pool.images.snapshot if isinstance(pool.images, Snapshot) else None,
        volume=SMALL if nvme else PLAIN if images == "plain" else FAST,
        nvme=nvme,
        os=pool.os,
        variant=_VARIANTS[first.accelerators.kind] if first.accelerators else "standard",
        arch=first.arch,
        ami=pool.ami,
    )


def _one_type(fleet: Fleet, pool: Pool) -> bool:
    return bool(pool.efa or pool.warm or kind(fleet, pool) == "node-group")


def _bought(way: Purchase) -> tuple[Bought, str | None]:
    if isinstance(way, Reservation):
        return ("capacity-block", way.capacity_block) if way.capacity_block else ("reservation", way.reservation)
    return ("spot", None) if way == "spot" else ("on-demand", None)


def _short(pool: Pool, way: Purchase, bought: Bought) -> str:
    """A way to buy in a few letters; reservations of one pool are counted, to keep their groups apart."""
    alike = [one for one in pool.buy if _bought(one)[0] == bought]
    return _SHORT[bought] + (str(alike.index(way) + 1) if len(alike) > 1 else "")


def _images(pool: Pool, orchestrator: Orchestrator, rows: Sequence[Instance]) -> Images:
    if isinstance(pool.images, Snapshot):
        return "snapshot"
    asked: Images = pool.images or ("soci" if orchestrator == "eks" else "cached")
    too_small = any(row.vcpus < SOCI_LEAST[0] or row.memory_mib < SOCI_LEAST[1] for row in rows)
    return "plain" if asked == "soci" and too_small else asked


def _nvme(pool: Pool, rows: Sequence[Instance]) -> bool:
    if pool.disk:
        return pool.disk == "nvme"
    needs_volume = isinstance(pool.images, Snapshot) or pool.warm
    return not needs_volume and all(row.nvme_gb >= NVME_LEAST_GB for row in rows)


def _labels(name: str, row: Instance, bought: Bought) -> dict[str, str]:
    """Labels of every node and attributes of every container instance; the type's own label comes from EKS and ECS."""
    on_board = {"fleet/accelerator": row.accelerators.name.lower().replace(" ", "-")} if row.accelerators else {}
    return {"fleet/pool": name, "fleet/purchase": bought, **on_board}


def _taints(pool: Pool, row: Instance) -> tuple[Taint, ...]:
    kept_free = (Taint(_TAINTS[row.accelerators.kind], "present", "NoSchedule"),) if row.accelerators else ()
    return (*kept_free, *map(_taint, pool.taints))


def _taint(text: str) -> Taint:
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    return Taint(key, value, effect)
