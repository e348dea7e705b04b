"""What a fleet costs an hour: at its least and at its greatest size, on demand, from the catalog's dated prices.

Both hold the root volumes of instances, and what stands while no instance runs: control plane, system nodes, NAT
gateways, endpoints, keys. Neither holds traffic, logs and metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_serving.catalog import instances, services
from llm_serving.catalog.instances import Price, Source
from llm_serving.fleet import groups, standing_cost
from llm_serving.fleet.groups import BASELINE_VOLUME, Volume
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.fleet.system_group import build_system_group


@dataclass(frozen=True)
class PoolCost:
    """One pool's cost in US dollars an hour; where a price is unknown, the sum of what is known."""

    pool: str

    min_usd_h: float
    """The least size, all of the cheapest type; where the fleet reserves more or keeps more to spare, that: unused it
    costs as if used."""

    max_usd_h: float
    """Cost at full size with the dearest type, since any type of the list may be the one available."""

    unknown: tuple[str, ...]
    """Types whose price is not known."""

    prepaid: bool
    """Bought as a Capacity Block: paid up front, so the hour costs nothing more."""

    reserved_usd_h: float = 0.0
    """The part of both that reservations made by the fleet cost from the apply on, instances in them or none."""

    spare_usd_h: float = 0.0
    """The part of both that instances without work cost."""


@dataclass(frozen=True)
class VolumeCost:
    """Cost of the root volumes in US dollars an hour, those of system nodes too."""

    min_usd_h: float
    max_usd_h: float

    is_regional_price: bool
    """Whether the prices are the region's own, and not those of us-east-1."""


@dataclass(frozen=True)
class Cost:
    """A fleet's cost in US dollars an hour, pool by pool."""

    pools: tuple[PoolCost, ...]

    standing: tuple[standing_cost.StandingItem, ...]
    """What costs the same whether instances run or not."""

    volumes: VolumeCost

    sources: tuple[Source, ...]
    """Where the prices of instances come from, without repetition."""

    unpriced: tuple[str, ...] = ()
    """Services of deployments whose price is not known."""

    @property
    def standing_usd_h(self) -> float:
        """What stands while no instance of a pool runs."""
        return sum(item.usd_h for item in self.standing)

    @property
    def min_usd_h(self) -> float:
        """What stands, and all pools at their least size, as far as prices are known."""
        return self.standing_usd_h + self.volumes.min_usd_h + sum(pool.min_usd_h for pool in self.pools)

    @property
    def max_usd_h(self) -> float:
        """What stands, and all pools at their greatest size, as far as prices are known."""
        return self.standing_usd_h + self.volumes.max_usd_h + sum(pool.max_usd_h for pool in self.pools)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Types and services whose price is not known, without repetition."""
        return tuple(dict.fromkeys((*(name for pool in self.pools for name in pool.unknown), *self.unpriced)))


def estimate(fleet: Fleet, deployed: Sequence[standing_cost.Units] = ()) -> Cost:
    """Return the fleet's cost in its region. A type that the catalog does not have counts as one of unknown price.

    Args:
        deployed: what its deployments rent beside instances.
    """
    prices = [price for pool in fleet.pools.values() if not is_prepaid(pool) for price in _list_prices(fleet, pool)]
    return Cost(
        tuple(_estimate_pool(fleet, name, pool) for name, pool in fleet.pools.items()),
        (*standing_cost.list_items(fleet), *standing_cost.price_units(fleet, deployed)),
        _estimate_volumes(fleet),
        tuple(dict.fromkeys(price.source for price in prices)),
        standing_cost.list_unpriced(deployed),
    )


def _estimate_volumes(fleet: Fleet) -> VolumeCost:
    """Return what root volumes cost; those of pools with a type that the catalog does not have are left out."""
    system = build_system_group(fleet) if fleet.creates_eks else None
    least = most = system.min_size * _price_volume(system.volume) if system else 0.0
    for name, pool in fleet.pools.items():
        if fleet.starts_instances(pool) and all(type_name in instances.load() for type_name in pool.types):
            prices = [_price_volume(group.volume) for group in groups.resolve_pool(fleet, name)]
            least += (max(pool.size.min, pool.spare) + pool.warm) * min(prices, default=0.0)
            most += (pool.size.max + pool.warm) * max(prices, default=0.0)
    return VolumeCost(least, most, services.load()["ebs-gp3-gib"].is_known_in(fleet.region))


def _price_volume(volume: Volume) -> float:
    prices = services.load()
    return (
        volume.size_gib * prices["ebs-gp3-gib"].usd_h
        + (volume.iops - BASELINE_VOLUME.iops) * prices["ebs-gp3-iops"].usd_h
        + (volume.throughput_mib_s - BASELINE_VOLUME.throughput_mib_s) * prices["ebs-gp3-mib-s"].usd_h
    )


def is_prepaid(pool: Pool) -> bool:
    """Return whether a Capacity Block, paid when it was bought, is the only way to buy."""
    return all(isinstance(purchase, Reservation) and purchase.capacity_block for purchase in pool.buy)


def _estimate_pool(fleet: Fleet, name: str, pool: Pool) -> PoolCost:
    if is_prepaid(pool) or not pool.size.max:
        return PoolCost(name, 0.0, 0.0, (), is_prepaid(pool))
    known_prices = [price.usd_h for price in _list_prices(fleet, pool)]
    unknown = tuple(
        type_name
        for type_name in pool.types
        if type_name not in instances.load() or fleet.region not in instances.load()[type_name].prices
    )
    cheapest, dearest = min(known_prices, default=0.0), max(known_prices, default=0.0)
    return PoolCost(
        pool=name,
        min_usd_h=max(pool.size.min, pool.reserve_count, pool.spare) * cheapest,
        max_usd_h=pool.size.max * dearest,
        unknown=unknown,
        prepaid=False,
        reserved_usd_h=pool.reserve_count * cheapest,
        spare_usd_h=pool.spare * cheapest,
    )


def _list_prices(fleet: Fleet, pool: Pool) -> Iterable[Price]:
    """Return the known prices of the pool's types in the fleet's region."""
    known_types = instances.select_known(pool.types)
    return [row.prices[fleet.region] for row in known_types if fleet.region in row.prices]
