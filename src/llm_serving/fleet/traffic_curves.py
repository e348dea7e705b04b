"""A week's load of a fleet's pools: the file that `blueprint shift-plan` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_serving.fleet import shifting
from llm_serving.fleet.model import Fleet, Pool
from llm_serving.settings.document import (
    AllowSingleItem,
    Conflict,
    Document,
    Settings,
    load,
    parse_default,
    raise_mistakes,
)
from llm_serving.settings.units import Duration, Share

HOURS = 24


class Batch(Settings):
    """Work that comes every day and is due some time later."""

    at: Annotated[Duration, Field(le=86_400)]
    """Time of the day at which it comes, such as `20h`."""

    within: Annotated[Duration, Field(ge=3600)]
    """Time until its deadline, such as `12h`."""

    instance_hours: Annotated[float, Field(gt=0)]
    """Work, in hours of one instance."""


class PoolCurve(Settings):
    """Load of one pool."""

    peak: Annotated[float, Field(gt=0)]
    """Instances that the peak keeps busy, without any reserve."""

    hours: Annotated[tuple[Share, ...], Field(min_length=HOURS, max_length=HOURS), AllowSingleItem()]
    """Shares of the peak at each full hour of a working day, from 0h on; between two hours it changes evenly."""

    weekend: Share = parse_default("100%")
    """Load of the sixth and seventh day, as a share of a working day's."""

    batches: Annotated[tuple[Batch, ...], AllowSingleItem()] = ()

    @property
    def batch_share(self) -> float:
        """Instances that the batches need around the clock if each has its own."""
        return sum(batch.instance_hours * 3600 / batch.within for batch in self.batches)

    def compute_scheduled(self, time_s: float) -> float:
        """Return the instances that the schedule keeps busy at a time of the week."""
        day, hour = divmod(time_s / 3600, HOURS)
        index = int(hour)
        low, high = self.hours[index], self.hours[(index + 1) % HOURS]
        share = float(low + (high - low) * (hour - index))
        return self.peak * share * (self.weekend if int(day) % 7 >= 5 else 1.0)


class TrafficCurves(Settings):
    """A week's load of a fleet."""

    source: str
    """Where the curves come from."""

    variation: Share = parse_default("2%")
    """How far a day strays from the schedule."""

    pools: Annotated[dict[str, PoolCurve], Field(min_length=1)]
    """Load by pool of the fleet; other pools are left out."""


def load_curves(path: Path, fleet: Fleet) -> Document[TrafficCurves]:
    """Load a file of curves for a fleet.

    Raises:
        InputError: with all mistakes: of the file, then of what the fleet's pools cannot do.
    """
    document = load(path, TrafficCurves)
    raise_mistakes(document.locate(_find_conflicts(document.value, fleet)))
    return document


def _find_conflicts(curves: TrafficCurves, fleet: Fleet) -> Iterator[Conflict]:
    for name, curve in curves.pools.items():
        if name not in fleet.pools:
            fix = f"write one of {', '.join(fleet.pools)}"
            yield Conflict(("pools", name), f"the fleet {fleet.name} has no such pool", fix, name)
        else:
            yield from _check_pool(name, curve, fleet, fleet.pools[name], curves.variation)


def _check_pool(name: str, curve: PoolCurve, fleet: Fleet, pool: Pool, variation: float) -> Iterator[Conflict]:
    if pool.reserved:
        reason = "its instances are reserved: they cost the same at night, and none can be given back"
        yield Conflict(("pools", name), reason, "remove the pool from this file", name)
    peak_instances = shifting.add_zone_reserve(curve.peak * (1 + variation), len(fleet.get_zones(pool)))
    if peak_instances > pool.size.max:
        reason = (
            f"so that a zone may be lost, it takes {peak_instances} instances, and the pool has at most {pool.size.max}"
        )
        yield Conflict(
            ("pools", name, "peak"), reason, f"set size: {pool.size.min}..{peak_instances} in the fleet", curve.peak
        )
