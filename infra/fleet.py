"""`fleet.yaml`: what to rent in one account and region. Plain typed data; nothing here knows AWS or CDKTF."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from infra.settings import Settings
from infra.units import Duration, Range, Spend, wrong


def _listed(value: Any) -> Any:
    """One item stands for a list of one."""
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value,)


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}[a-z0-9]$")]
Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$")]


class Reservation(Settings):
    """Capacity that is already paid for."""

    capacity_block: str | None = Field(None, alias="capacity-block", pattern=r"^cr-[0-9a-f]{17}$")
    """A Capacity Block's id: GPUs booked for a span of days."""

    reservation: str | None = Field(None, pattern=r"^cr-[0-9a-f]{17}$")
    """An on-demand capacity reservation's id."""

    @model_validator(mode="after")
    def _one(self) -> Reservation:
        if (self.capacity_block is None) == (self.reservation is None):
            raise wrong("it must name exactly one of the two", "capacity-block: cr-... or reservation: cr-...")
        return self


Purchase = Literal["on-demand", "spot"] | Reservation


class Pool(Settings):
    """One line of the fleet: like machines that are bought and scaled together."""

    types: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
    """EC2 instance types in order of preference; one, or a list."""

    zones: Annotated[tuple[Zone, ...], BeforeValidator(_listed)] = ()
    """Availability Zones of this pool; the fleet's where left out."""

    buy: Annotated[tuple[Purchase, ...], BeforeValidator(_listed), Field(min_length=1)] = ("on-demand",)
    """How it is bought, in the order to fall back in: on-demand, spot, or a reservation."""

    size: Range
    """Least and most machines, as in 0..40."""

    efa: bool = False
    """Elastic Fabric Adapter between the pool's machines; they then stand in one zone."""

    @model_validator(mode="after")
    def _agrees(self) -> Pool:
        reserved = [way for way in self.buy if isinstance(way, Reservation)]
        if reserved and reserved[0].capacity_block and len(self.buy) > 1:
            raise wrong(
                "a Capacity Block's machines cannot be mixed with spot or on demand in one pool",
                "buy: {capacity-block: cr-...} alone, and a second pool for the rest",
            )
        if self.efa and len(self.zones) > 1:
            raise wrong(
                f"EFA traffic does not cross an Availability Zone, and the pool names {len(self.zones)}",
                f"zones: [{self.zones[0]}]",
            )
        return self


class NewNetwork(Settings):
    """A VPC made for the fleet, private by default."""

    cidr: str = "10.0.0.0/16"
    """The VPC's address range."""

    nat: bool = True
    """NAT gateways, one a zone, so that private machines reach hubs and registries outside AWS."""

    flow_logs: Duration = 30 * 86400.0
    """How long flow logs are kept."""

    @field_validator("cidr")
    @classmethod
    def _is_a_network(cls, value: str) -> str:
        try:
            network = ipaddress.IPv4Network(value)
        except ValueError as error:
            raise wrong(f"it is not an IPv4 network: {error}", "a range such as 10.0.0.0/16") from None
        if not 16 <= network.prefixlen <= 20:
            raise wrong("a VPC for a fleet takes /16 to /20", f"{network.network_address}/16")
        if not network.is_private:
            raise wrong("it is no private range", "a range such as 10.0.0.0/16")
        return value


class ExistingNetwork(Settings):
    """A VPC that is already there."""

    vpc: str = Field(pattern=r"^vpc-[0-9a-f]{8,17}$")
    """The VPC's id."""

    private_subnets: Annotated[tuple[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")], ...], Field(min_length=1)]
    """Ids of its private subnets, one a zone, in the order of `zones`."""

    @field_validator("private_subnets", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return _listed(value)


class Storage(Settings):
    """Buckets and registries of the fleet."""

    results_kept: Duration = 90 * 86400.0
    """How long validation and batch results are kept."""

    old_versions_kept: Duration = 30 * 86400.0
    """How long an overwritten or deleted object can still be brought back."""

    repositories: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = ("vllm",)
    """ECR repositories for the images of this project."""


class Fleet(Settings):
    """All that is rented in one account and region."""

    name: Name
    """Prefix of everything that is made."""

    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
    """AWS region."""

    zones: Annotated[tuple[Zone, ...], BeforeValidator(_listed), Field(min_length=1, max_length=6)]
    """Availability Zones of the fleet; one subnet each."""

    orchestrator: Literal["eks", "ecs", "both"] = "eks"
    """What places the containers."""

    spend_limit: Spend | None = None
    """The most that all pools at their greatest size may cost an hour, on demand."""

    state: str = Field("local", pattern=r"^(local|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]+)?)$")
    """Where Terraform keeps its state: `local`, or `s3://BUCKET/PREFIX` with a lock file beside it."""

    network: NewNetwork | ExistingNetwork = NewNetwork()
    """A VPC to make, or one that is there by its id."""

    storage: Storage = Storage()
    """Buckets and registries."""

    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """Machines by the name that blueprints use."""

    tags: dict[str, str] = {}
    """Tags on everything that is made."""

    @model_validator(mode="after")
    def _agrees(self) -> Fleet:
        for zone in self.zones:
            if zone[:-1] != self.region:
                raise wrong(f"the zone {zone} is not in the region {self.region}", f"zones of {self.region}")
        for name, pool in self.pools.items():
            for zone in pool.zones:
                if zone not in self.zones:
                    raise wrong(
                        f"the pool {name} names the zone {zone}, which the fleet does not have",
                        f"zones: [{self.zones[0]}] in the pool, or add {zone} to the fleet's zones",
                    )
        if isinstance(self.network, ExistingNetwork) and len(self.network.private_subnets) != len(self.zones):
            raise wrong(
                f"{len(self.network.private_subnets)} private subnets stand for {len(self.zones)} zones",
                "one private subnet a zone, in the order of `zones`",
            )
        return self

    def zones_of(self, pool: Pool) -> tuple[str, ...]:
        """The zones that a pool may use."""
        return pool.zones or self.zones
