"""What a fleet costs an hour: at its least and at its greatest size, on demand, from the catalogue's dated prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llm_serving.catalog.instances import Catalogue, Price, Source
from llm_serving.fleet.model import Fleet, Pool, Reservation


@dataclass(frozen=True)
class PoolCost:
    """One pool's cost in US dollars an hour; where a price is unknown, the sum of what is known."""

    pool: str

    least_usd_h: float
    """The least size, all of the cheapest type; where the fleet reserves more, that: unused it costs as if used."""

    most_usd_h: float
    """The greatest size, all of the dearest type: any type of the list may be what there is."""

    unknown: tuple[str, ...]
    """Types whose price is not known."""

    prepaid: bool
    """Bought as a Capacity Block: paid up front, so the hour costs nothing more."""

    reserved_usd_h: float = 0.0
    """The part of both that reservations made by the fleet cost from the apply on, machines in them or none."""


@dataclass(frozen=True)
class Cost:
    """A fleet's cost in US dollars an hour, pool by pool."""

    pools: tuple[PoolCost, ...]

    sources: tuple[Source, ...]
    """Where the prices come from, without repetition."""

    @property
    def least_usd_h(self) -> float:
        """All pools at their least size, as far as prices are known."""
        return sum(pool.least_usd_h for pool in self.pools)

    @property
    def most_usd_h(self) -> float:
        """All pools at their greatest size, as far as prices are known."""
        return sum(pool.most_usd_h for pool in self.pools)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Types whose price is not known, without repetition."""
        return tuple(dict.fromkeys(name for pool in self.pools for name in pool.unknown))


def of(fleet: Fleet, catalogue: Catalogue) -> Cost:
    """The fleet's cost in its region. A type that the catalogue does not have counts as one of unknown price."""
    priced = [price for pool in fleet.pools.values() if not prepaid(pool) for price in _prices(fleet, pool, catalogue)]
    return Cost(
        tuple(_pool(fleet, name, pool, catalogue) for name, pool in fleet.pools.items()),
        tuple(dict.fromkeys(price.source for price in priced)),
    )


def prepaid(pool: Pool) -> bool:
    """Whether a Capacity Block, paid when it was bought, is the only way to buy."""
    return all(isinstance(way, Reservation) and way.capacity_block for way in pool.buy)


def _pool(fleet: Fleet, name: str, pool: Pool, catalogue: Catalogue) -> PoolCost:
    if prepaid(pool) or not pool.size.most:
        return PoolCost(name, 0.0, 0.0, (), prepaid(pool))
    known = [price.usd_h for price in _prices(fleet, pool, catalogue)]
    unknown = tuple(kind for kind in pool.types if kind not in catalogue or fleet.region not in catalogue[kind].prices)
    cheapest, dearest = min(known, default=0.0), max(known, default=0.0)
    return PoolCost(
        pool=name,
        least_usd_h=max(pool.size.least, pool.to_reserve) * cheapest,
        most_usd_h=pool.size.most * dearest,
        unknown=unknown,
        prepaid=False,
        reserved_usd_h=pool.to_reserve * cheapest,
    )


def _prices(fleet: Fleet, pool: Pool, catalogue: Catalogue) -> Iterable[Price]:
    """Known prices of the pool's types in the fleet's region."""
    rows = (catalogue[kind] for kind in pool.types if kind in catalogue)
    return [row.prices[fleet.region] for row in rows if fleet.region in row.prices]
