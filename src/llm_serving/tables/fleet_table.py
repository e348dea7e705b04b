"""A fleet as a picture in the terminal: zones across, pools and their types down, accelerators and cost beside them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.catalog import eks, instances
from llm_serving.catalog.instances import Catalogue, Instance
from llm_serving.fleet import cost
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.settings.units import Bounds

_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "red")
_GAUGE = 30
_LAYOUTS = (("━━━", False), ("━", False), ("━", True))
"""A zone's bar, and whether headings are short; the first that fits the terminal is taken."""


def plain(fleet: Fleet, catalogue: Catalogue) -> dict[str, Any]:
    """What the picture shows, as plain data. Costs are US dollars an hour on demand, as far as prices are known."""
    costs = cost.of(fleet, catalogue)
    return {
        "name": fleet.name,
        "region": fleet.region,
        "zones": list(fleet.zones),
        "orchestrator": fleet.orchestrator,
        "spend_limit_usd_h": fleet.spend_limit,
        "pools": [_plain_pool(fleet, pool, catalogue) for pool in costs.pools],
        "least_usd_h": costs.least_usd_h,
        "most_usd_h": costs.most_usd_h,
        "price_unknown": list(costs.unknown),
        "end_of_standard_support": end_of_support(fleet),
        "price_sources": [source.model_dump() for source in costs.sources],
    }


def end_of_support(fleet: Fleet) -> str | None:
    """Day from which the cluster's Kubernetes version costs more; None without EKS."""
    return eks.END_OF_STANDARD_SUPPORT[fleet.eks.version].isoformat() if "eks" in fleet.orchestrators else None


def _plain_pool(fleet: Fleet, costs: cost.PoolCost, catalogue: Catalogue) -> dict[str, Any]:
    pool = fleet.pools[costs.pool]
    accelerators = accelerators_of(pool, catalogue)
    return {
        "name": costs.pool,
        "types": [_plain_type(fleet, pool, kind, catalogue.get(kind)) for kind in pool.types],
        "zones": list(fleet.zones_of(pool)),
        "buy": [_way(way) for way in pool.buy],
        "efa": pool.efa,
        "machines": pool.size._asdict(),
        "accelerators": accelerators._asdict(),
        "least_usd_h": costs.least_usd_h,
        "most_usd_h": costs.most_usd_h,
        "price_unknown": list(costs.unknown),
        "prepaid": costs.prepaid,
        "reserved_usd_h": costs.reserved_usd_h,
    }


def _plain_type(fleet: Fleet, pool: Pool, name: str, row: Instance | None) -> dict[str, Any]:
    if row is None:
        return {"name": name, "known": False}
    on_board = row.accelerators
    price = row.prices.get(fleet.region)
    return {
        "name": name,
        "known": True,
        "accelerators": {"count": on_board.count, "name": on_board.name} if on_board else None,
        "zones": {zone: zone in row.zones.get(fleet.region, ()) for zone in fleet.zones_of(pool)},
        "usd_h": price.usd_h if price else None,
        "price_source": price.source.model_dump() if price else None,
    }


def accelerators_of(pool: Pool, catalogue: Catalogue) -> Bounds:
    """Accelerators of a pool at its least and at its greatest size; types the catalogue lacks count for none."""
    rows = (catalogue[kind] for kind in pool.types if kind in catalogue)
    counts = [row.accelerators.count if row.accelerators else 0 for row in rows] or [0]
    return Bounds(pool.size.least * min(counts), pool.size.most * max(counts))


def draw(fleet: Fleet, catalogue: Catalogue, width: int) -> RenderableType:
    """The picture, for a terminal `width` columns wide; 80 are enough for a fleet of six zones."""
    costs = cost.of(fleet, catalogue)
    tables = [_table(fleet, costs, catalogue, bar, short=short) for bar, short in _LAYOUTS]
    room = Console(width=10 * width)
    fitting = [table for table in tables if room.measure(table).maximum <= width] or tables[-1:]
    parts: list[RenderableType] = [_title(fleet), fitting[0]]
    if fleet.spend_limit is not None:
        parts.append(_gauge(costs, fleet.spend_limit))
    return Group(*parts, *_legend(fleet, costs, catalogue))


def _title(fleet: Fleet) -> Text:
    runs = {"both": "EKS and ECS"}.get(fleet.orchestrator, fleet.orchestrator.upper())
    zones = f"{len(fleet.zones)} zone{'s' * (len(fleet.zones) != 1)}"
    return Text.assemble((fleet.name, "bold"), f"  {fleet.region}, {zones}, {runs}")


def _table(fleet: Fleet, costs: cost.Cost, catalogue: Catalogue, bar: str, *, short: bool) -> Table:
    machines = [pool.size for pool in fleet.pools.values()]
    on_board = [accelerators_of(pool, catalogue) for pool in fleet.pools.values()]
    at_least = "≥ " if costs.unknown else ""
    # Only the first column wraps: names may be 32 characters long, and figures must stay whole.
    padding = (0, 0 if short else 1, 0, 0)  # the box itself puts a space between columns
    table = Table(box=box.HORIZONTALS, show_footer=True, show_edge=False, pad_edge=False, padding=padding)
    table.add_column("zones of " + fleet.region, footer="all pools", overflow="fold")
    for zone in fleet.zones:
        table.add_column(zone[-1], justify="center", no_wrap=True, min_width=len(bar))
    for title, word, footer in (
        ("machines", "size", _span(_sum(machines))),
        ("accelerators", "accel.", _span(_sum(on_board))),
        ("least USD/h", "least $/h", at_least + _money(costs.least_usd_h)),
        ("most USD/h", "most $/h", at_least + _money(costs.most_usd_h)),
    ):
        table.add_column(word if short else title, footer=footer, justify="right", no_wrap=True)
    for index, one in enumerate(costs.pools):
        _add_pool(table, fleet, one, catalogue, Text(bar, _COLOURS[index % len(_COLOURS)]))
    return table


def _add_pool(table: Table, fleet: Fleet, costs: cost.PoolCost, catalogue: Catalogue, bar: Text) -> None:
    pool = fleet.pools[costs.pool]
    used = fleet.zones_of(pool)
    bars = [bar if zone in used else Text() for zone in fleet.zones]
    on_board = accelerators_of(pool, catalogue)
    table.add_row(
        Text(costs.pool, f"bold {bar.style}"),
        *bars,
        _span(pool.size),
        _span(on_board) if on_board.most else "",
        *_costs(costs, pool),
    )
    for kind in pool.types:
        row = catalogue.get(kind)
        marks = [_mark(row, fleet.region, zone) if zone in used else Text() for zone in fleet.zones]
        table.add_row(
            f"  {kind}", *marks, "", _on_board(row), "", _each(row, fleet.region), style="dim" if row is None else ""
        )
    table.add_row(Text(f"  {_bought(fleet, pool)}", "dim"), end_section=True)


def _mark(row: Instance | None, region: str, zone: str) -> Text:
    if row is None or not instances.answered(region):
        return Text("?", "yellow")
    return Text("●", "green") if zone in row.zones.get(region, ()) else Text("✗", "red")


def _costs(costs: cost.PoolCost, pool: Pool) -> tuple[str, str]:
    if costs.prepaid:
        return "prepaid", "prepaid"
    sign = "≥ " if costs.unknown else ""
    if costs.unknown and not costs.most_usd_h:
        return ("unknown" if pool.size.least else _money(0)), "unknown"
    return (sign if pool.size.least else "") + _money(costs.least_usd_h), sign + _money(costs.most_usd_h)


def _on_board(row: Instance | None) -> str:
    if row is None:
        return "not in the catalogue"
    on_board = row.accelerators
    return f"{on_board.count} × {on_board.name.removeprefix('RTX ')}" if on_board else f"{row.vcpus} vCPUs"


def _each(row: Instance | None, region: str) -> str:
    price = row.price_usd_h(region) if row else None
    return "unknown" if price is None else f"@ {_money(price)}"


def _bought(fleet: Fleet, pool: Pool) -> str:
    """How the pool is bought, and what else sets it apart."""
    words = [way if isinstance(way, str) else _reserved(way) for way in pool.buy]
    further = [
        "EFA" if pool.efa else "",
        f"{pool.warm} warm" if pool.warm else "",
        f"on {fleet.orchestrator_of(pool).upper()}" if fleet.orchestrator == "both" else "",
    ]
    return ", ".join(filter(None, [" → ".join(words), *further]))


def _reserved(way: Reservation) -> str:
    if way.reserve:
        return f"{way.reserve} reserved by the fleet"
    return "Capacity Block" if way.capacity_block else "reserved"


def _way(way: str | Reservation) -> Any:
    return way if isinstance(way, str) else way.model_dump(by_alias=True, exclude_none=True)


def _gauge(costs: cost.Cost, limit: float) -> Text:
    """How much of the spend limit the greatest size takes."""
    share = costs.most_usd_h / limit
    filled = min(_GAUGE, round(share * _GAUGE))
    colour = "red" if share > 1 or costs.unknown else "green"
    sign = "at least " if costs.unknown else ""
    return Text.assemble(
        "spend limit ",
        ("█" * filled, colour),
        ("░" * (_GAUGE - filled), "dim"),
        f" {sign}{_money(costs.most_usd_h)} of {_money(limit)} USD/h ({share:.0%})",
    )


def _legend(fleet: Fleet, costs: cost.Cost, catalogue: Catalogue) -> Iterator[Text]:
    """Where the picture's facts come from, and what it does not show."""
    asked = instances.regions().get(fleet.region)
    if asked:
        yield _note("● offered, ✗ not offered: ", f"{asked.name}, {asked.date}; zone names differ between accounts")
    else:
        yield _note("? offered or not: ", f"the catalogue has no answer for {fleet.region}")
    for source in costs.sources:
        yield _note("prices on demand: ", f"{source.name}, {source.date}")
    if reserved := sum(pool.reserved_usd_h for pool in costs.pools):
        yield _note("reserved by the fleet: ", f"{_money(reserved)} USD/h from the apply on, used or not; in both sums")
    if any("spot" in pool.buy for pool in fleet.pools.values()):
        yield _note("spot: ", "costs less than shown, and changes by the hour")
    reasons = {kind: catalogue[kind].unpriced.get(fleet.region, "") for kind in costs.unknown if kind in catalogue}
    for kinds, why in _alike(reasons):
        yield _note(f"no price of {kinds}: ", why)
    if "eks" in fleet.orchestrators:
        said, soon = eks.support(fleet.eks.version, datetime.date.today())
        yield Text(said, "yellow") if soon else _note("EKS: ", said)
    with_efa = [kind for pool in fleet.pools.values() if pool.efa for kind in pool.types if kind in catalogue]
    for kinds, text in _alike({kind: _efa(catalogue[kind]) for kind in with_efa}):
        yield _note(f"EFA on {kinds}: ", text)


def _efa(row: Instance) -> str:
    count = f"{row.efa_interfaces} interface{'s' * (row.efa_interfaces != 1)} a machine" if row.efa_interfaces else ""
    by_host = "no GPUDirect RDMA: what leaves a GPU goes by the host's memory" if row.gpudirect_rdma is False else ""
    return "; ".join(filter(None, [count, by_host, row.layout_note]))


def _alike(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is said of several types alike, once."""
    for text in dict.fromkeys(filter(None, said.values())):
        yield listed(kind for kind in said if said[kind] == text), text


def _note(what: str, text: str) -> Text:
    return Text.assemble((what, "dim bold"), (text, "dim"))


def _sum(spans: list[Bounds]) -> Bounds:
    return Bounds(sum(span.least for span in spans), sum(span.most for span in spans))


def _span(span: Bounds) -> str:
    return f"{span.least:,}" if span.least == span.most else f"{span.least:,}..{span.most:,}"


def _money(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:,.2f}"
