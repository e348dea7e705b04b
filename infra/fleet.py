"""`fleet.yaml`: what to rent in one account and region. Plain typed data; nothing here knows AWS or CDKTF."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from infra.settings import Contradiction, Listed, OneOrMore, Settings, written
from infra.units import Days, Form, Machines, Spend, Switch, wrong

Name = Annotated[
    str, Form("[a-z][a-z0-9-]{0,30}[a-z0-9]", "a name of 2 to 32 characters: a-z, 0-9 and -, a letter first", "general")
]
Zone = Annotated[str, Form("[a-z]{2}(?:-[a-z]+)+-[0-9][a-z]", "an Availability Zone", "us-west-2a")]
Region = Annotated[str, Form("[a-z]{2}(?:-[a-z]+)+-[0-9]", "an AWS region", "us-west-2")]
InstanceType = Annotated[str, Form(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "an EC2 instance type", "g6e.2xlarge")]
ReservationId = Annotated[
    str, Form("cr-[0-9a-f]{17}", "a reservation's id: cr- and 17 of 0-9a-f", "cr-0123456789abcdef0")
]
VpcId = Annotated[
    str, Form("vpc-(?:[0-9a-f]{8}|[0-9a-f]{17})", "a VPC's id: vpc- and 8 or 17 of 0-9a-f", "vpc-0123456789abcdef0")
]
SubnetId = Annotated[
    str,
    Form(
        "subnet-(?:[0-9a-f]{8}|[0-9a-f]{17})",
        "a subnet's id: subnet- and 8 or 17 of 0-9a-f",
        "subnet-0123456789abcdef0",
    ),
]
State = Annotated[
    str,
    Form(
        "local|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9._/-]+)?",
        "a place for Terraform's state: local or s3://BUCKET/PREFIX",
        "s3://my-terraform-state/fleets",
    ),
]
TagKey = Annotated[
    str,
    Form(
        "(?!aws:)[A-Za-z0-9 _.:/=+@-]{1,128}",
        "a tag's key of up to 128 characters: letters, digits, space and _.:/=+@-",
        "team",
    ),
]
TagValue = Annotated[
    str,
    Form(
        "[A-Za-z0-9 _.:/=+@-]{0,256}",
        "a tag's value of up to 256 characters: letters, digits, space and _.:/=+@-",
        "serving",
    ),
]


def _network(value: str) -> str:
    try:
        network = ipaddress.IPv4Network(value)
    except ValueError as error:
        raise wrong(f"it is not an IPv4 network: {error}", "a range such as 10.0.0.0/16") from None
    if not 16 <= network.prefixlen <= 20:
        raise wrong("a VPC for a fleet takes /16 to /20", f"a range such as {network.network_address}/16")
    if not network.is_private:
        raise wrong("it is no private range", "a range such as 10.0.0.0/16")
    return value


Cidr = Annotated[
    str,
    Form(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2}", "an IPv4 network", "10.0.0.0/16"),
    AfterValidator(_network),
]


def _twice(field: str, items: Sequence[Any]) -> Iterator[Contradiction]:
    """A list in order of preference names each item once."""
    for index, item in enumerate(items):
        if item in items[:index]:
            yield Contradiction((field, index), "it stands in the list twice", "it once")


class Reservation(Settings):
    """Capacity that is already paid for; it holds machines of one type in one zone."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    capacity_block: ReservationId | None = Field(None, alias="capacity-block")
    """A Capacity Block's id: accelerators booked for a span of days."""

    reservation: ReservationId | None = None
    """An on-demand capacity reservation's id."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._exactly_one(),)

    def _exactly_one(self) -> Iterator[Contradiction]:
        if (self.capacity_block is None) == (self.reservation is None):
            why = "it must name exactly one of capacity-block and reservation"
            yield Contradiction((), why, "{capacity-block: cr-...} or {reservation: cr-...}")


Purchase = Annotated[
    Annotated[Literal["on-demand", "spot"], Tag("<word>")] | Annotated[Reservation, Tag("<reservation>")],
    Discriminator(lambda value: "<reservation>" if isinstance(value, dict | Reservation) else "<word>"),
]


class Pool(Settings):
    """One line of the fleet: like machines that are bought and scaled together."""

    types: OneOrMore[InstanceType]
    """EC2 instance types in order of preference; one, or a list."""

    zones: OneOrMore[Zone] = Field((), validate_default=False)
    """Availability Zones of this pool, one or a list; the fleet's where left out."""

    buy: OneOrMore[Purchase] = ("on-demand",)
    """How it is bought, in the order to fall back in: on-demand, spot, or a reservation."""

    size: Machines
    """Least and most machines, as in 0..40."""

    efa: Annotated[bool, Switch()] = False
    """Elastic Fabric Adapter between the pool's machines; they then stand in one zone."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (
            _twice("types", self.types),
            _twice("zones", self.zones),
            _twice("buy", self.buy),
            self._block_stands_alone(),
            self._reserves_one_type(),
        )

    def _block_stands_alone(self) -> Iterator[Contradiction]:
        if len(self.buy) > 1 and any(isinstance(way, Reservation) and way.capacity_block for way in self.buy):
            yield Contradiction(
                ("buy",),
                "a Capacity Block's machines cannot be mixed with other ways to buy in one pool",
                "buy: {capacity-block: cr-...} alone, and a second pool for the rest",
            )

    def _reserves_one_type(self) -> Iterator[Contradiction]:
        if len(self.types) > 1 and self.reserved:
            why = f"a reservation holds machines of one type, and the pool names {len(self.types)}"
            yield Contradiction(("types",), why, f"types: {self.types[0]}")

    @property
    def reserved(self) -> bool:
        """Whether the pool draws on capacity that is already paid for."""
        return any(isinstance(way, Reservation) for way in self.buy)


class NewNetwork(Settings):
    """A VPC made for the fleet, private by default."""

    cidr: Cidr = "10.0.0.0/16"
    """The VPC's address range: private, /16 to /20."""

    nat: Annotated[bool, Switch()] = True
    """NAT gateways, one a zone, so that private machines reach hubs and registries outside AWS."""

    flow_logs: Days = written("30d")
    """How long flow logs are kept."""


class ExistingNetwork(Settings):
    """A VPC that is already there."""

    vpc: VpcId
    """The VPC's id."""

    private_subnets: OneOrMore[SubnetId]
    """Ids of its private subnets, one a zone, in the order of `zones`."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (_twice("private_subnets", self.private_subnets),)


def _which_network(value: Any) -> str:
    if isinstance(value, dict):
        return "<new>" if value.keys().isdisjoint(ExistingNetwork.model_fields) else "<existing>"
    return "<existing>" if isinstance(value, ExistingNetwork) else "<new>"


Network = Annotated[
    Annotated[NewNetwork, Tag("<new>")] | Annotated[ExistingNetwork, Tag("<existing>")], Discriminator(_which_network)
]


class Storage(Settings):
    """Buckets and registries of the fleet."""

    results_kept: Days = written("90d")
    """How long validation and batch results are kept."""

    old_versions_kept: Days = written("30d")
    """How long an overwritten or deleted object can still be brought back."""

    repositories: OneOrMore[Name] = ("vllm",)
    """ECR repositories for the images of this project, one or a list."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (_twice("repositories", self.repositories),)


class Fleet(Settings):
    """All that is rented in one account and region."""

    name: Annotated[Name, Field(examples=["demo"])]
    """Prefix of everything that is made."""

    region: Region
    """AWS region."""

    zones: Annotated[tuple[Zone, ...], Field(min_length=1, max_length=6), Listed()]
    """Availability Zones of the fleet, one to six; one subnet each."""

    orchestrator: Literal["eks", "ecs", "both"] = "eks"
    """What places the containers."""

    spend_limit: Spend | None = None
    """The most that all pools at their greatest size may cost an hour, on demand."""

    state: State = "local"
    """Where Terraform keeps its state: `local`, or `s3://BUCKET/PREFIX` with a lock file beside it."""

    network: Network = NewNetwork()
    """A VPC to make, or one that is there by its id."""

    storage: Storage = Storage()
    """Buckets and registries."""

    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """Machines by the name that blueprints use."""

    tags: Annotated[dict[TagKey, TagValue], Field(max_length=40)] = Field(default_factory=dict)
    """Tags on everything that is made."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (
            _twice("zones", self.zones),
            self._zones_in_region(),
            self._pools_in_zones(),
            self._one_zone_where_needed(),
            self._subnet_for_each_zone(),
        )

    def zones_of(self, pool: Pool) -> tuple[str, ...]:
        """The zones that a pool may use."""
        return pool.zones or self.zones

    def _zones_in_region(self) -> Iterator[Contradiction]:
        for index, zone in enumerate(self.zones):
            if zone[:-1] != self.region:
                why = f"the zone is not in the fleet's region, {self.region}"
                yield Contradiction(("zones", index), why, f"a zone of {self.region}, such as {self.region}a")

    def _pools_in_zones(self) -> Iterator[Contradiction]:
        for name, pool in self.pools.items():
            for index, zone in enumerate(pool.zones):
                if zone not in self.zones:
                    why = f"the fleet does not have this zone; it has {', '.join(self.zones)}"
                    write = "one of those here, or this one in the fleet's zones too"
                    yield Contradiction(("pools", name, "zones", index), why, write)

    def _one_zone_where_needed(self) -> Iterator[Contradiction]:
        for name, pool in self.pools.items():
            count, first = len(self.zones_of(pool)), self.zones_of(pool)[0]
            where = ("pools", name, "zones") if pool.zones else ("pools", name, "efa" if pool.efa else "buy")
            names = "names" if pool.zones else "takes the fleet's"
            if count > 1 and pool.efa:
                why = f"EFA traffic does not cross an Availability Zone, and the pool {names} {count}"
                yield Contradiction(where, why, f"zones: {first} in the pool, or efa: false")
            elif count > 1 and pool.reserved:
                why = f"a reservation holds machines of one Availability Zone, and the pool {names} {count}"
                yield Contradiction(where, why, f"zones: {first} in the pool, or the reservation's own zone")

    def _subnet_for_each_zone(self) -> Iterator[Contradiction]:
        if isinstance(self.network, ExistingNetwork) and len(self.network.private_subnets) != len(self.zones):
            have, need = len(self.network.private_subnets), len(self.zones)
            yield Contradiction(
                ("network", "private_subnets"),
                f"it names {have} private subnet{'s' * (have != 1)}, and the fleet has {need} zone{'s' * (need != 1)}",
                "one private subnet a zone, in the order of `zones`",
            )
