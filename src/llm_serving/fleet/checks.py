"""Whether a fleet can be rented at all, by what the catalogue knows: every refusal before a cent is spent.

What `fleet.yaml` contradicts by itself is refused where it is read (`fleet.model`); here it is held against EC2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Catalogue, Instance
from llm_serving.fleet import capacity, cost
from llm_serving.fleet.model import Fleet, Reservation
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Mistake

Found = Iterator[Mistake]


def check(document: Document[Fleet], catalogue: Catalogue) -> list[Mistake]:
    """All that cannot work, in the order of the file; empty where nothing stands against the fleet.

    Where the catalogue has no answer for the fleet's region, nothing is claimed about what that region offers.
    """
    found = list(_spend(document, catalogue))
    for name, pool in document.value.pools.items():
        rows = [catalogue[kind] for kind in pool.types if kind in catalogue]
        found += _unknown(document, catalogue, name)
        found += _not_offered(document, catalogue, name, rows)
        found += _without_efa(document, catalogue, name, rows)
        found += _not_sold(document, catalogue, name, rows)
        found += _mixed(document, name, rows)
        found += _without_nvme(document, name, rows)
        found += _slow_volume(document, name, rows)
    found += capacity.mistakes(document, catalogue)
    return sorted(found, key=lambda mistake: (mistake.line, mistake.column))


def require(document: Document[Fleet]) -> None:
    """Lets a fleet pass that can be rented by the product's own catalogue.

    Raises:
        InputError: with all that cannot work.
    """
    found = check(document, instances.load())
    if found:
        raise InputError(found)


def _unknown(document: Document[Fleet], catalogue: Catalogue, name: str) -> Found:
    for index, kind in enumerate(document.value.pools[name].types):
        if kind not in catalogue:
            where = ("pools", name, "types", index)
            why = "the catalogue has no such instance type"
            yield document.mistake(where, kind, why, instances.nearest(kind, catalogue))


def _not_offered(document: Document[Fleet], catalogue: Catalogue, name: str, rows: Sequence[Instance]) -> Found:
    """Types that none of the pool's zones offers; else zones that offer none of the pool's types."""
    fleet, pool = document.value, document.value.pools[name]
    if not any(fleet.region in row.zones for row in catalogue.values()):
        return
    zones = fleet.zones_of(pool)
    lacking = [row for row in rows if not set(zones) & set(row.zones.get(fleet.region, ()))]
    for row in lacking:
        offered = row.zones.get(fleet.region, ())
        why = (
            f"{fleet.region} offers it in {listed(offered)} only, and the pool takes {listed(zones)}"
            if offered
            else f"{fleet.region} does not offer it; {listed(row.zones)} would"
        )
        write = f"zones: [{', '.join(offered)}]" if offered else f"another type than {row.name}"
        where = ("pools", name, "types", pool.types.index(row.name))
        yield document.mistake(where, row.name, why, f"{write}, or {_ask_again(fleet)}")
    if len(rows) == len(pool.types) and not lacking:
        yield from _empty_zones(document, name, rows)


def _empty_zones(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Found:
    fleet, pool = document.value, document.value.pools[name]
    offered = {zone for row in rows for zone in row.zones[fleet.region]}
    zones = fleet.zones_of(pool)
    empty = [zone for zone in zones if zone not in offered]
    if not empty:
        return
    why = f"{listed(empty)} {'offers' if len(empty) == 1 else 'offer'} none of the pool's types"
    write = f"zones: [{', '.join(zone for zone in zones if zone in offered)}] in the pool, or {_ask_again(fleet)}"
    if pool.zones:
        yield document.mistake(("pools", name, "zones", pool.zones.index(empty[0])), empty[0], why, write)
    else:
        why = f"the pool takes all of the fleet's zones, and {why}"
        yield document.mistake(("pools", name, "types"), list(pool.types), why, write)


def _ask_again(fleet: Fleet) -> str:
    # Zone names stand for other places in another account, so the catalogue's answer need not be this account's.
    return f"`blueprint catalog refresh --region {fleet.region}` to hear it from your own account"


def _without_efa(document: Document[Fleet], catalogue: Catalogue, name: str, rows: Sequence[Instance]) -> Found:
    lacking = [row for row in rows if not row.efa_interfaces]
    if not lacking or not document.value.pools[name].efa:
        return
    families = {row.family for row in lacking}
    able = [row.name for row in catalogue.values() if row.efa_interfaces and row.family in families]
    why = f"{listed([row.name for row in lacking])} {'has' if len(lacking) == 1 else 'have'} no EFA"
    write = f"types with it ({', '.join(able)}), or efa: false" if able else "efa: false"
    yield document.mistake(("pools", name, "efa"), True, why, write)


def _not_sold(document: Document[Fleet], catalogue: Catalogue, name: str, rows: Sequence[Instance]) -> Found:
    for index, way in enumerate(document.value.pools[name].buy):
        asked, words = _class(way)
        lacking = [row.name for row in rows if asked not in row.purchase]
        if not lacking:
            continue
        sold = [one for one in ("on-demand", "spot") if all(one in row.purchase for row in rows)]
        able = [row.name for row in catalogue.values() if asked in row.purchase]
        why = f"EC2 does not sell {listed(lacking)} {words}"
        write = f"buy: [{', '.join(sold)}]" if sold else "a type that is"
        write += f", or a type that it does sell so, such as {', '.join(able[-3:])}" if able else ""
        value = way if isinstance(way, str) else way.model_dump(by_alias=True, exclude_none=True)
        yield document.mistake(("pools", name, "buy", index), value, why, write)


def _class(way: str | Reservation) -> tuple[str, str]:
    """EC2's class of a way to buy, and the words for it."""
    if isinstance(way, Reservation):
        return ("capacity-block", "by Capacity Block") if way.capacity_block else ("on-demand", "on demand")
    return way, "on demand" if way == "on-demand" else "as spot"


def _mixed(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Found:
    """The machines of a pool stand in for one another, so one image must run on all; the first type sets the kind."""
    pool = document.value.pools[name]
    for row in rows[1:]:
        for mine, first in ((_carries(row), _carries(rows[0])), (f"is {row.arch}", f"is {rows[0].arch}")):
            if mine != first:
                why = f"it {mine}, and {rows[0].name} {first}: what runs on one does not run on the other"
                where = ("pools", name, "types", pool.types.index(row.name))
                yield document.mistake(where, row.name, why, f"a second pool for {row.name}")


def _without_nvme(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Found:
    lacking = [row.name for row in rows if not row.nvme_gb]
    if lacking and document.value.pools[name].disk == "nvme":
        why = f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no NVMe disks"
        yield document.mistake(("pools", name, "disk"), "nvme", why, "disk: gp3")


LEAST_SOCI_MIB_S = 600
"""Root volume throughput below which SOCI's parallel pull is slower than none. Source: aws-samples on SOCI, 2026-11."""


def _slow_volume(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Found:
    """SOCI asked for by name, on a volume that the machine cannot read fast enough."""
    pool = document.value.pools[name]
    slow = [row for row in rows if row.ebs_mb_s * 1e6 / 2**20 < LEAST_SOCI_MIB_S]
    if pool.images != "soci" or pool.disk != "gp3" or not slow:
        return
    most = slow[0].ebs_mb_s * 1e6 / 2**20
    why = f"{slow[0].name} reads {most:.0f} MiB/s from a volume, and below {LEAST_SOCI_MIB_S} SOCI makes starts slower"
    write = "disk: nvme" if all(row.nvme_gb for row in rows) else "images: plain"
    yield document.mistake(("pools", name, "images"), "soci", why, write)


def _carries(row: Instance) -> str:
    kinds = {"gpu": "carries GPUs", "neuron": "carries Neuron devices"}
    return kinds[row.accelerators.kind] if row.accelerators else "carries no accelerator"


def _spend(document: Document[Fleet], catalogue: Catalogue) -> Found:
    """A limit holds only where every price is known: what cannot be added up is refused too."""
    fleet, limit = document.value, document.value.spend_limit
    costs = cost.of(fleet, catalogue)
    if limit is None or (costs.most_usd_h <= limit and not costs.unknown):
        return
    sums = [f"{pool.pool} {pool.most_usd_h:,.2f}" for pool in costs.pools if pool.most_usd_h]
    unknown = [
        f"{kind} in pool {pool.pool}{_reason(catalogue[kind], fleet.region)}"
        for pool in costs.pools
        for kind in pool.unknown
        if kind in catalogue
    ]
    unpriced = f"no price is known in {fleet.region} of {listed(unknown)}" if unknown else ""
    where, value = ("spend_limit",), f"{limit:.10g} USD/h"
    if costs.most_usd_h > limit:
        why = f"at their greatest size the pools cost {costs.most_usd_h:,.2f} USD/h on demand ({', '.join(sums)})"
        why += f", and {unpriced}" if unpriced else ""
        write = f"a limit of {costs.most_usd_h:.2f} USD/h or more, or smaller pools"
        yield document.mistake(where, value, why, write)
    elif unpriced:
        why = f"the limit cannot be kept: {unpriced}"
        write = (
            f"no spend_limit, or run `blueprint catalog refresh --region {fleet.region}` first: it reads AWS's prices"
        )
        yield document.mistake(where, value, why, write)


def _reason(row: Instance, region: str) -> str:
    return f" ({row.unpriced[region]})" if region in row.unpriced else ""


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
