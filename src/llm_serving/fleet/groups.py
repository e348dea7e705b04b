"""Pools resolved into instance groups, every number decided: what node groups, capacity providers and NodePools are.

A pool is a list of choices in order of preference: each type (on ECS and by Karpenter: each family) in each way to buy,
the preferred type in all its ways before the next. Within a choice:

- Every zone that offers one of its types has its own group, and the zones share the pool's least and most evenly,
  the first ones one more. Where a zone's share of the most would be less than one instance, one group spans the zones.
  A group of Karpenter's spans them too, unless a placement group holds it in one.
- The first choice keeps the pool's least. Each choice may carry the pool's most alone, or it would be no fallback; what
  asks for instances (a service's tasks, pods that wait) keeps the sum at the pool's most.
- A reservation that the fleet makes holds as many instances as it says, and its group no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypedDict

from llm_serving.catalog import eks, instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import interfaces
from llm_serving.fleet.interfaces import Interface
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.fleet.pool import Orchestrator, Purchase, Snapshot

GroupKind = Literal["node-group", "karpenter", "capacity-provider"]
PurchaseOption = Literal["on-demand", "spot", "reservation", "capacity-block"]
ImageMode = Literal["soci", "cached", "snapshot", "plain"]

RESERVED_OPTIONS: tuple[PurchaseOption, ...] = ("reservation", "capacity-block")
"""Ways to buy that hold capacity, and cost whether it is used or not."""

MAX_PROVIDERS = 6
"""Capacity providers of one strategy. Source: ECS API reference, CreateService, capacityProviderStrategy, 2026-11."""

MIN_SOCI_SIZE = (4, 7 * 1024)
"""vCPUs and MiB of memory below which FastImagePull is ignored. Source: awslabs/amazon-eks-ami, nodeadm, 2026-11."""

MIN_NVME_GB = 200
"""Instance store that holds a few images beside logs and scratch; below it the default is a volume."""

AUTOSCALER_GPU_LABEL = "k8s.amazonaws.com/accelerator"
"""By which cluster-autoscaler knows that a node's GPUs are still to come, and starts no second node for them. A node
with the label and without a GPU counts as unready, so one with Neuron devices goes without.

Source: kubernetes/autoscaler, cluster-autoscaler-1.35.2, processors/customresources/gpu_processor.go.
"""

_OPTION_CODES: Mapping[PurchaseOption, str] = {
    "on-demand": "od",
    "spot": "spot",
    "reservation": "cr",
    "capacity-block": "cb",
}
_AMI_VARIANTS: Mapping[str, Literal["nvidia", "neuron"]] = {"gpu": "nvidia", "neuron": "neuron"}


@dataclass(frozen=True)
class Taint:
    """A Kubernetes taint, in Kubernetes' words."""

    key: str
    value: str
    effect: str

    @property
    def toleration(self) -> dict[str, str]:
        """What a pod has that tolerates it."""
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}

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
FAST_VOLUME = Volume(500, 1000, 16_000)
# gp3's own base line, included in its price.
BASELINE_VOLUME = Volume(500, 125, 3000)
# Root of an instance whose images lie on its NVMe disks, or that has no accelerator and so no image of an engine: those
# have tens of GB, the router's and the controllers' one or two.
SMALL_VOLUME = Volume(100, 125, 3000)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Instances that one Auto Scaling group, or one NodePool of Karpenter's, starts."""

    name: str
    """Unique in the fleet, at most 63 characters of a-z, 0-9 and -."""

    pool: str
    orchestrator: Orchestrator
    kind: GroupKind

    types: tuple[str, ...]
    """Instance types in order of preference, all of one family; just one with EFA, warm instances and node groups."""

    zones: tuple[str, ...]
    purchase_option: PurchaseOption

    reservation: str | None = None
    """Id of an existing reservation or Capacity Block; None for one to create."""

    reserve: int = 0
    """Instances of the reservation that the fleet makes for this group; 0 where it makes none."""

    choice: int = 0
    """Place in the pool's order of preference, from 0; the zones of one choice are peers."""

    min_size: int
    max_size: int

    warm: int = 0
    """Stopped instances beside the running ones."""

    spare: int = 0
    """Instances that run without work on ECS; on EKS pods of their own hold them."""

    accelerators: int = 0
    """Accelerators of one instance: the fewest that its types have; 0 where they have none."""

    interfaces: tuple[Interface, ...]

    efa: int = 0
    """EFA interfaces of one instance, also its `vpc.amazonaws.com/efa` count; 0 without EFA."""

    placement_group: str | None = None
    """Name of the cluster placement group, without the fleet's; groups of one pool and zone share it."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    """Empty on ECS."""

    images: ImageMode

    snapshot: str | None = None
    """EBS snapshot with the images, where `images` is snapshot."""

    volume: Volume

    nvme: bool = False
    """Whether images and scratch are on the NVMe disks, as a RAID 0."""

    os: eks.Os
    variant: eks.Variant
    """Which of AWS's AMIs: by the accelerators that it has drivers for."""

    arch: eks.Arch
    ami: str | None = None
    """The user's own AMI; None takes the pinned release."""

    @property
    def family(self) -> str:
        """The types' family, such as g6e."""
        return self.types[0].split(".")[0]

    @property
    def is_auto_scaled(self) -> bool:
        """Whether an Auto Scaling group with a launch template starts its instances, and not Karpenter."""
        return self.kind != "karpenter"

    @property
    def allocation_strategy(self) -> str:
        """Allocation strategy of EC2 Auto Scaling for the way it is bought."""
        return "price-capacity-optimized" if self.purchase_option == "spot" else "prioritized"


def has_known_types(fleet: Fleet) -> bool:
    """Return whether the catalog has all types of the fleet's pools."""
    return all(name in instances.load() for pool in fleet.pools.values() for name in pool.types)


def resolve_all(fleet: Fleet) -> tuple[Group, ...]:
    """Return all groups that the fleet starts: by pool, in order of preference, by zone.

    Raises:
        InputError: a type that the catalog does not have; `checks.find_mistakes` says so with its line.
    """
    started = (name for name, pool in fleet.pools.items() if fleet.starts_instances(pool))
    return tuple(group for name in started for group in resolve_pool(fleet, name))


def resolve_pool(fleet: Fleet, name: str) -> tuple[Group, ...]:
    """Return the groups of one pool; the choices that no zone offers are left out."""
    pool = fleet.pools[name]
    pool_groups: list[Group] = []
    choice = 0
    for types, purchase in _list_choices(fleet, pool):
        choice_groups = list(_resolve_choice(fleet, name, types, purchase, choice))
        pool_groups += choice_groups
        choice += bool(choice_groups)
    return tuple(pool_groups)


def select_kind(fleet: Fleet, pool: Pool) -> GroupKind:
    """Return what starts the pool's instances.

    Karpenter picks among types and zones as pods wait, which suits pools that come and go; a fleet that must stand
    together or is paid for anyway (EFA, reservations, a least above 0) is kept by node groups.
    """
    if fleet.get_orchestrator(pool) == "ecs":
        return "capacity-provider"
    if pool.by:
        return "karpenter" if pool.by == "karpenter" else "node-group"
    return "node-group" if pool.efa or pool.reserved or pool.size.min else "karpenter"


def group_by_choice(pool_groups: Sequence[Group]) -> list[list[Group]]:
    """Return one pool's capacity providers by service, in the order to fall back in: a service for each choice.

    The groups of a choice, one a zone, share a service's tasks evenly. A fleet has six zones at the most, and a
    strategy takes six providers: none is ever too long. `infra.functions.ecs_fallback` moves tasks between services.
    """
    ordered = sorted(pool_groups, key=lambda group: (group.choice, group.zones))
    return [list(peers) for _, peers in groupby(ordered, key=lambda group: group.choice)]


def format_scaling_group_name(fleet: Fleet, group: Group) -> str:
    """Return the name of the Auto Scaling group of a capacity provider."""
    return f"{fleet.name}-{group.name}"


def format_provider_name(fleet: Fleet, group: Group) -> str:
    """Return the group's name as a capacity provider: unique in the account, and never beginning with aws or ecs."""
    return format_provider_name_of(fleet.name, group.name)


def format_provider_name_of(fleet: str, group: str) -> str:
    """Return `format_provider_name`, for a group that the fleet file may have no more."""
    return f"cp-{fleet}-{group}"


def _list_choices(fleet: Fleet, pool: Pool) -> Iterator[tuple[tuple[str, ...], Purchase]]:
    """Yield the types that may share a group, with one way to buy them, in the pool's order of preference."""
    is_single = _needs_single_type(fleet, pool)
    families = dict.fromkeys(name if is_single else name.split(".")[0] for name in pool.types)
    for family in families:
        types = tuple(name for name in pool.types if family in (name, name.split(".")[0]))
        for purchase in pool.buy:
            yield types, purchase


def _resolve_choice(
    fleet: Fleet, name: str, types: tuple[str, ...], purchase: Purchase, choice: int
) -> Iterator[Group]:
    pool = fleet.pools[name]
    rows = [instances.find(type_name) for type_name in types]
    zones = tuple(zone for zone in fleet.get_zones(pool) if _is_offered(rows, fleet.region, zone))
    if not zones or not pool.size.max:
        return
    spans = pool.size.max < len(zones) or (select_kind(fleet, pool) == "karpenter" and pool.placement_group == "none")
    zone_sets = [zones] if spans else [(zone,) for zone in zones]
    min_sizes = _split_evenly(0 if choice else pool.size.min, len(zone_sets))
    reserve = purchase.reserve if isinstance(purchase, Reservation) else None
    max_sizes = _split_evenly(reserve or pool.size.max, len(zone_sets))
    is_warm = purchase == "on-demand" and types[0] == pool.types[0]
    warm_counts = _split_evenly(pool.warm if is_warm else 0, len(zone_sets))
    is_spare = not choice and select_kind(fleet, pool) == "capacity-provider"
    spare_counts = _split_evenly(pool.spare if is_spare else 0, len(zone_sets))
    for index, zone_set in enumerate(zone_sets):
        offered = [row for row in rows if any(_is_offered([row], fleet.region, zone) for zone in zone_set)]
        spare = min(spare_counts[index], max_sizes[index])
        sizes = _Sizes(
            min_size=max(min_sizes[index], spare), max_size=max_sizes[index], warm=warm_counts[index], spare=spare
        )
        yield _build_group(fleet, name, offered, zone_set, purchase, choice, sizes)


def _is_offered(rows: Sequence[Instance], region: str, zone: str) -> bool:
    """Return whether the zone has one of the types; true where the catalog has no answer for the region."""
    if not any(region in row.zones for row in instances.load().values()):
        return True
    return any(zone in row.zones.get(region, ()) for row in rows)


def _split_evenly(count: int, parts: int) -> list[int]:
    """Return `count` over `parts`, evenly, the first ones one more."""
    quotient, remainder = divmod(count, parts)
    return [quotient + (index < remainder) for index in range(parts)]


class _Sizes(TypedDict):
    min_size: int
    max_size: int
    warm: int
    spare: int


def _build_group(
    fleet: Fleet,
    name: str,
    rows: Sequence[Instance],
    zones: tuple[str, ...],
    purchase: Purchase,
    choice: int,
    sizes: _Sizes,
) -> Group:
    pool, first = fleet.pools[name], rows[0]
    orchestrator = fleet.get_orchestrator(pool)
    purchase_option, reservation = _classify_purchase(purchase)
    requested = interfaces.list_requested(
        first, efa=pool.efa, layout=pool.efa_layout, task_interfaces=orchestrator == "ecs"
    )
    images, nvme = _select_image_mode(pool, orchestrator, rows), _has_nvme_storage(pool, rows)
    letters = "".join(sorted(zone[-1] for zone in zones))  # zones in another order rename nothing
    kind = select_kind(fleet, pool)
    # Services on ECS know it by its name, and its Auto Scaling group changes zones in place: where the fleet gets one
    # more, and where the pool grows to a group a zone.
    in_name = zones[0][-1] if kind == "capacity-provider" else letters
    label = first.name.replace(".", "-") if _needs_single_type(fleet, pool) else first.family
    return Group(
        name=f"{name}-{label}-{in_name}-{_format_option_code(pool, purchase, purchase_option)}",
        pool=name,
        orchestrator=orchestrator,
        kind=kind,
        types=tuple(row.name for row in rows),
        zones=zones,
        purchase_option=purchase_option,
        reservation=reservation,
        reserve=purchase.reserve or 0 if isinstance(purchase, Reservation) else 0,
        choice=choice,
        **sizes,
        accelerators=min(row.accelerators.count if row.accelerators else 0 for row in rows),
        interfaces=requested,
        efa=sum(interface.kind != "interface" for interface in requested),
        placement_group=f"{name}-{letters}" if pool.placement_group == "cluster" else None,
        labels={**_build_labels(name, first, purchase_option, kind), **pool.labels},
        taints=_build_taints(pool, first) if orchestrator == "eks" else (),
        images=images,
        snapshot=pool.images.snapshot if isinstance(pool.images, Snapshot) else None,
        volume=_select_volume(rows, images, nvme=nvme),
        nvme=nvme,
        os=pool.os,
        variant=_AMI_VARIANTS[first.accelerators.kind] if first.accelerators else "standard",
        arch=first.arch,
        ami=pool.ami,
    )


def _select_volume(rows: Sequence[Instance], images: ImageMode, *, nvme: bool) -> Volume:
    if nvme:
        return SMALL_VOLUME
    if images != "plain":
        return FAST_VOLUME
    return BASELINE_VOLUME if any(row.accelerators for row in rows) else SMALL_VOLUME


def _needs_single_type(fleet: Fleet, pool: Pool) -> bool:
    return bool(pool.efa or pool.warm or select_kind(fleet, pool) == "node-group")


def _classify_purchase(purchase: Purchase) -> tuple[PurchaseOption, str | None]:
    if isinstance(purchase, Reservation):
        block = purchase.capacity_block
        return ("capacity-block", block) if block else ("reservation", purchase.reservation)
    return ("spot", None) if purchase == "spot" else ("on-demand", None)


def _format_option_code(pool: Pool, purchase: Purchase, purchase_option: PurchaseOption) -> str:
    """Return a way to buy in a few letters; reservations of one pool are counted, to keep their groups apart."""
    same_option = [other for other in pool.buy if _classify_purchase(other)[0] == purchase_option]
    return _OPTION_CODES[purchase_option] + (str(same_option.index(purchase) + 1) if len(same_option) > 1 else "")


def _select_image_mode(pool: Pool, orchestrator: Orchestrator, rows: Sequence[Instance]) -> ImageMode:
    if isinstance(pool.images, Snapshot):
        return "snapshot"
    without_accelerators = not any(row.accelerators for row in rows)
    default: ImageMode = "plain" if without_accelerators else "soci" if orchestrator == "eks" else "cached"
    requested: ImageMode = pool.images or default
    too_small = any(row.vcpus < MIN_SOCI_SIZE[0] or row.memory_mib < MIN_SOCI_SIZE[1] for row in rows)
    return "plain" if requested == "soci" and too_small else requested


def _has_nvme_storage(pool: Pool, rows: Sequence[Instance]) -> bool:
    if pool.disk:
        return pool.disk == "nvme"
    needs_volume = isinstance(pool.images, Snapshot) or pool.warm
    return not needs_volume and all(row.nvme_gb >= MIN_NVME_GB for row in rows)


def _build_labels(name: str, row: Instance, purchase_option: PurchaseOption, kind: GroupKind) -> dict[str, str]:
    """Return labels of nodes and attributes of container instances; EKS and ECS add that of the type."""
    labels = {"fleet/pool": name, "fleet/purchase": purchase_option}
    if not row.accelerators:
        return labels
    accelerator = row.accelerators.name.lower().replace(" ", "-")
    labels["fleet/accelerator"] = accelerator
    if kind == "node-group" and row.accelerators.kind == "gpu":
        labels[AUTOSCALER_GPU_LABEL] = accelerator
    return labels


def _build_taints(pool: Pool, row: Instance) -> tuple[Taint, ...]:
    accelerator_taints = (Taint(row.accelerators.device, "present", "NoSchedule"),) if row.accelerators else ()
    return (*accelerator_taints, *map(_parse_taint, pool.taints))


def _parse_taint(text: str) -> Taint:
    key_and_value, _, effect = text.rpartition(":")
    key, _, value = key_and_value.partition("=")
    return Taint(key, value, effect)
