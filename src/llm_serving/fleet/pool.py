"""A pool of `fleet.yaml`: like instances that are bought, placed, started and scaled together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from llm_serving.settings.document import AllowSingleItem, Conflict, OneOrMore, Settings
from llm_serving.settings.units import Machines, Switch, read_formats

Orchestrator = Literal["eks", "ecs"]

FORMATS = read_formats(Path(__file__).with_name("formats.yaml"))

Zone = Annotated[str, FORMATS["zone"]]
ReservationId = Annotated[str, FORMATS["reservation-id"]]
LabelKey = Annotated[str, FORMATS["label-key"]]
LabelValue = Annotated[str, FORMATS["label-value"]]
TaintText = Annotated[str, FORMATS["taint-text"]]


class Reservation(Settings):
    """Capacity that costs whether it is used or not: instances of one type in one zone."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    capacity_block: ReservationId | None = Field(None, alias="capacity-block")
    """A Capacity Block's id: accelerators booked for a span of days."""

    reservation: ReservationId | None = None
    """An on-demand capacity reservation's id."""

    reserve: Annotated[int, Field(ge=1)] | None = None
    """Instances to reserve on demand: the fleet creates the reservation, which costs from then on, used or not."""

    def _check_single_source(self) -> Iterator[Conflict]:
        if sum(source is not None for source in (self.capacity_block, self.reservation, self.reserve)) != 1:
            reason = "it must name exactly one of capacity-block, reservation and reserve"
            yield Conflict((), reason, "write {capacity-block: cr-...}, {reservation: cr-...} or {reserve: INSTANCES}")


Purchase = Annotated[
    Annotated[Literal["on-demand", "spot"], Tag("<word>")] | Annotated[Reservation, Tag("<reservation>")],
    Discriminator(lambda value: "<reservation>" if isinstance(value, dict | Reservation) else "<word>"),
]


class Snapshot(Settings):
    """An EBS snapshot that the images were pulled into beforehand."""

    snapshot: Annotated[str, FORMATS["snapshot-id"]]
    """The snapshot's id; every instance's image volume is made from it. On ECS its instances delete no image, so that
    each new version takes more of the disk."""


Images = Annotated[
    Annotated[Literal["soci", "cached", "plain"], Tag("<word>")] | Annotated[Snapshot, Tag("<snapshot>")],
    Discriminator(lambda value: "<snapshot>" if isinstance(value, dict | Snapshot) else "<word>"),
]


class Pool(Settings):
    """One line of the fleet: like instances that are bought and scaled together."""

    types: OneOrMore[Annotated[str, FORMATS["instance-type"]]]
    """EC2 instance types in order of preference; one, or a list."""

    zones: OneOrMore[Zone] = Field((), validate_default=False)
    """Availability Zones of this pool, one or a list; the fleet's by default."""

    buy: OneOrMore[Purchase] = ("on-demand",)
    """Purchase options in order of preference: on-demand, spot, an existing reservation or a new one."""

    size: Machines
    """Minimum and maximum number of instances, as in 0..40."""

    orchestrator: Orchestrator | None = None
    """Orchestrator of this pool in a fleet with both; default is eks."""

    by: Literal["karpenter", "node-groups"] | None = None
    """What starts nodes on EKS; default is Karpenter, except with EFA, reservations or a minimum above 0."""

    efa: Annotated[bool, Switch()] = False
    """Elastic Fabric Adapter between the pool's instances; requires a single zone. On ECS not yet run on AWS."""

    efa_layout: Literal["save-addresses", "ip-bandwidth"] = "save-addresses"
    """Network interfaces besides EFA: one with an IP address, or, on ECS, several for more ordinary bandwidth (S3)."""

    placement_group: Literal["cluster", "none"] = "none"
    """Whether instances of a zone share a cluster placement group."""

    images: Images | None = None
    """How images start faster: soci (EKS), cached, a snapshot or plain; default is soci on EKS, cached on ECS, and
    plain without accelerators."""

    disk: Literal["gp3", "nvme"] | None = None
    """Storage of images: a fast volume, or the instance's NVMe disks, the default if all types have them."""

    os: Literal["al2023", "bottlerocket"] = "al2023"
    """Operating system of EKS nodes."""

    ami: Annotated[str, FORMATS["image-id"]] | None = None
    """Your own AMI instead of the pinned release of AWS."""

    warm: Annotated[int, Field(ge=0, le=1000)] = 0
    """Stopped instances ready to start, on ECS and on demand; each costs only its disk."""

    spare: Annotated[int, Field(ge=0, le=1000)] = 0
    """Instances that run without work, for whoever finds no other: a replica more, or what a broken instance ran. Each
    costs as one in use. On EKS each holds the first type's accelerators; on ECS a full pool has so many, one with less
    work fewer, and at least one."""

    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=20)] = Field(default_factory=dict)
    """Labels of the nodes on EKS, attributes of the container instances on ECS."""

    taints: Annotated[tuple[TaintText, ...], Field(max_length=10), AllowSingleItem()] = ()
    """Taints of EKS nodes, besides the one that keeps other pods off accelerators."""

    distinct = ("types", "zones", "buy", "taints")

    def _check_capacity_block(self) -> Iterator[Conflict]:
        if len(self.buy) > 1 and any(purchase.capacity_block for purchase in self._reservations):
            yield Conflict(
                ("buy",),
                "a Capacity Block's instances cannot share a pool with other purchase options",
                "set buy: {capacity-block: cr-...} only, and add a second pool for the rest",
            )

    def _check_reserved_type(self) -> Iterator[Conflict]:
        if len(self.types) > 1 and self.reserved:
            reason = f"a reservation holds instances of one type, and the pool lists {len(self.types)}"
            yield Conflict(("types",), reason, f"set types: {self.types[0]}")

    def _check_reservation_order(self) -> Iterator[Conflict]:
        for index, purchase in enumerate(self.buy):
            bought_before = index and not isinstance(self.buy[index - 1], Reservation)
            if bought_before and isinstance(purchase, Reservation) and not purchase.capacity_block:
                reason = "a reservation is paid for even if unused, so it comes first"
                yield Conflict(("buy", index), reason, "move the reservation to the front of the list")

    def _check_reserved_size(self) -> Iterator[Conflict]:
        """Yield conflicts of reserved sizes: at most what may run, the minimum if first, the maximum if alone."""
        reserve_indices = [
            index for index, purchase in enumerate(self.buy) if isinstance(purchase, Reservation) and purchase.reserve
        ]
        if not reserve_indices:
            return
        reserved, (min_size, max_size) = self.reserve_count, self.size
        first = self.buy[0].reserve if isinstance(self.buy[0], Reservation) else None
        if reserved > max_size:
            reason = f"{reserved} would be reserved and paid for, and the pool starts at most {max_size}"
            yield Conflict(
                ("buy", reserve_indices[0]), reason, f"set {{reserve: {max_size}}}, or size: {min_size}..{reserved}"
            )
        elif first and first < min_size:
            reason = f"the first purchase option covers the pool's minimum of {min_size} instances, and "
            reason += f"{first} would be reserved"
            yield Conflict(("buy", 0), reason, f"set {{reserve: {min_size}}}, or size: {first}..{max_size}")
        elif len(reserve_indices) == len(self.buy) and reserved < max_size:
            reason = f"there is no other purchase option, so of up to {max_size} instances {reserved} could start"
            fix = f"set size: {min(min_size, reserved)}..{reserved}, or add on-demand after it"
            yield Conflict(("buy", reserve_indices[0]), reason, fix)

    def _check_placement_group(self) -> Iterator[Conflict]:
        existing = [purchase for purchase in self._reservations if purchase.reserve is None]
        if self.placement_group == "cluster" and existing:
            reason = (
                "EC2 returns InsufficientInstanceCapacity for a placement group with a reservation "
                "that was created outside it, and the fleet creates its own groups"
            )
            on_demand = "" if existing[0].capacity_block else ", or buy: {reserve: INSTANCES}, made inside the group"
            yield Conflict(("placement_group",), reason, f"set placement_group: none{on_demand}")

    def _check_efa_layout(self) -> Iterator[Conflict]:
        if self.efa_layout != "save-addresses" and not self.efa:
            yield Conflict(
                ("efa_layout",), "it applies to EFA nodes only, and efa is off", "set efa: true, or remove efa_layout"
            )

    def _check_karpenter_size(self) -> Iterator[Conflict]:
        if self.by == "karpenter" and self.size.min:
            reason = (
                f"Karpenter starts nodes for pending pods and has no minimum size, and size starts at {self.size.min}"
            )
            yield Conflict(("by",), reason, f"set by: node-groups, or size: 0..{self.size.max}")

    def _check_disk(self) -> Iterator[Conflict]:
        if isinstance(self.images, Snapshot) and self.disk == "nvme":
            yield Conflict(("disk",), "a snapshot becomes a volume, not an NVMe disk", "set disk: gp3")
        if self.warm and self.disk == "nvme":
            reason = "NVMe disks are empty after a stop, and warm instances are stopped"
            yield Conflict(("disk",), reason, "set disk: gp3")

    def _check_warm_machines(self) -> Iterator[Conflict]:
        if not self.warm:
            return
        if self.warm > self.size.max:
            reason = f"{self.warm} would be kept warm, and the pool has at most {self.size.max}"
            yield Conflict(("warm",), reason, f"set warm: {self.size.max} or less")
        if "on-demand" not in self.buy:
            reason = "EC2 Auto Scaling supports warm instances on demand only, and the pool is not bought on demand"
            yield Conflict(("warm",), reason, "set warm: 0, or add on-demand to buy")

    def _check_spare_machines(self) -> Iterator[Conflict]:
        if self.spare and self.spare >= self.size.max:
            reason = f"of at most {self.size.max} instances none would be left for work"
            yield Conflict(("spare",), reason, f"set spare: {max(0, self.size.max - 1)} or less")

    @property
    def reserved(self) -> bool:
        """Whether the pool draws on capacity that is paid for whether it is used or not."""
        return bool(self._reservations)

    @property
    def reserve_count(self) -> int:
        """Instances of the reservations that the fleet makes for this pool."""
        return sum(purchase.reserve or 0 for purchase in self._reservations)

    @property
    def _reservations(self) -> list[Reservation]:
        return [purchase for purchase in self.buy if isinstance(purchase, Reservation)]
