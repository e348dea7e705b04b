"""A fleet as a table: zones across, pools and their instance types down, accelerators and cost at the right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.catalog import eks, instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import cost
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet, Pool, Reservation
from llm_serving.fleet.standing_cost import StandingItem, Units
from llm_serving.settings.units import Bounds, format_count

_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "red")
_GAUGE_WIDTH = 30
_LAYOUTS = (("━━━", False), ("━", False), ("━", True))
"""A zone's bar, and whether headings are short; the first layout that fits the terminal is used."""


def build_payload(fleet: Fleet, deployed: Sequence[Units] = ()) -> dict[str, Any]:
    """Return the table as data; costs in USD per hour on demand, as far as prices are known.

    `volumes_usd_h`, those of the instances at full size, is in the most.
    """
    costs = cost.estimate(fleet, deployed)
    return {
        "name": fleet.name,
        "region": fleet.region,
        "zones": list(fleet.zones),
        "orchestrator": fleet.orchestrator,
        "spend_limit_usd_h": fleet.spend_limit,
        "pools": [_build_pool_payload(fleet, pool) for pool in costs.pools],
        "standing": [_build_standing_payload(item) for item in costs.standing],
        "standing_usd_h": costs.standing_usd_h,
        "least_usd_h": costs.min_usd_h,
        "most_usd_h": costs.max_usd_h,
        "volumes_usd_h": costs.volumes.max_usd_h,
        "price_unknown": list(costs.unknown),
        "end_of_standard_support": find_support_end(fleet),
        "price_sources": [source.model_dump() for source in costs.sources],
    }


def _build_standing_payload(item: StandingItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "count": item.count,
        "usd_h": item.usd_h,
        "price_of_region": item.is_regional_price,
        "price_source": item.source.model_dump(),
    }


def find_support_end(fleet: Fleet) -> str | None:
    """Return the day when standard support of the Kubernetes version ends; None where it makes no cluster of EKS."""
    return eks.END_OF_STANDARD_SUPPORT[fleet.eks.version].isoformat() if fleet.creates_eks else None


def _build_pool_payload(fleet: Fleet, costs: cost.PoolCost) -> dict[str, Any]:
    pool = fleet.pools[costs.pool]
    accelerators = count_accelerators(pool)
    return {
        "name": costs.pool,
        "types": [_build_type_payload(fleet, pool, kind, instances.load().get(kind)) for kind in pool.types],
        "zones": list(fleet.get_zones(pool)),
        "buy": [
            option if isinstance(option, str) else option.model_dump(by_alias=True, exclude_none=True)
            for option in pool.buy
        ],
        "efa": pool.efa,
        "machines": {"least": pool.size.min, "most": pool.size.max},
        "accelerators": {"least": accelerators.min, "most": accelerators.max},
        "least_usd_h": costs.min_usd_h,
        "most_usd_h": costs.max_usd_h,
        "price_unknown": list(costs.unknown),
        "prepaid": costs.prepaid,
        "reserved_usd_h": costs.reserved_usd_h,
        "spare": pool.spare,
        "spare_usd_h": costs.spare_usd_h,
    }


def _build_type_payload(fleet: Fleet, pool: Pool, name: str, instance: Instance | None) -> dict[str, Any]:
    if instance is None:
        return {"name": name, "known": False}
    accelerators = instance.accelerators
    price = instance.prices.get(fleet.region)
    return {
        "name": name,
        "known": True,
        "accelerators": {"count": accelerators.count, "name": accelerators.name} if accelerators else None,
        "zones": {zone: zone in instance.zones.get(fleet.region, ()) for zone in fleet.get_zones(pool)},
        "usd_h": price.usd_h if price else None,
        "price_source": price.source.model_dump() if price else None,
    }


def count_accelerators(pool: Pool) -> Bounds:
    """Count a pool's accelerators at minimum and maximum size; unknown types count as none."""
    known_types = instances.select_known(pool.types)
    counts = [instance.accelerators.count if instance.accelerators else 0 for instance in known_types] or [0]
    return Bounds(pool.size.min * min(counts), pool.size.max * max(counts))


def render(fleet: Fleet, width: int, deployed: Sequence[Units] = ()) -> RenderableType:
    """Render the table for a terminal of `width` columns; 80 are enough for six zones."""
    costs = cost.estimate(fleet, deployed)
    tables = [_render_table(fleet, costs, bar, short=short) for bar, short in _LAYOUTS]
    measuring_console = Console(width=10 * width)
    fitting = [table for table in tables if measuring_console.measure(table).maximum <= width] or tables[-1:]
    parts: list[RenderableType] = [_render_title(fleet), fitting[0]]
    if fleet.spend_limit is not None:
        parts.append(_render_gauge(costs, fleet.spend_limit))
    return Group(*parts, *_render_legend(fleet, costs))


def _render_title(fleet: Fleet) -> Text:
    orchestrators = {"both": "EKS and ECS"}.get(fleet.orchestrator, fleet.orchestrator.upper())
    zones = format_count(len(fleet.zones), "zone")
    cluster_text = f"; EKS is the existing cluster {fleet.eks.cluster}" if fleet.eks.cluster else ""
    return Text.assemble((fleet.name, "bold"), f"  {fleet.region}, {zones}, {orchestrators}{cluster_text}")


def _render_table(fleet: Fleet, costs: cost.Cost, bar: str, *, short: bool) -> Table:
    machines = [pool.size for pool in fleet.pools.values()]
    accelerators = [count_accelerators(pool) for pool in fleet.pools.values()]
    # Only the first column wraps: names have up to 32 characters, and numbers must not break.
    padding = (0, 0 if short else 1, 0, 0)  # the box itself puts a space between columns
    table = Table(box=box.HORIZONTALS, show_footer=True, show_edge=False, pad_edge=False, padding=padding)
    table.add_column("zones of " + fleet.region, footer="in all", overflow="fold")
    for zone in fleet.zones:
        table.add_column(zone[-1], justify="center", no_wrap=True, min_width=len(bar))
    for title, word, footer in (
        ("instances", "size", _format_bounds(_sum_bounds(machines))),
        ("accelerators", "accel.", _format_bounds(_sum_bounds(accelerators))),
        ("min USD/h", "min $/h", _format_usd(costs.min_usd_h, costs.unknown)),
        ("max USD/h", "max $/h", _format_usd(costs.max_usd_h, costs.unknown)),
    ):
        table.add_column(word if short else title, footer=footer, justify="right", no_wrap=True)
    for index, pool_cost in enumerate(costs.pools):
        _add_pool(table, fleet, pool_cost, Text(bar, _COLOURS[index % len(_COLOURS)]))
    volumes = (_format_usd(costs.volumes.min_usd_h), _format_usd(costs.volumes.max_usd_h))
    table.add_row(Text("root volumes", "dim bold"), *([""] * len(fleet.zones)), "", "", *volumes)
    standing_usd = _format_usd(costs.standing_usd_h)
    table.add_row(Text("without instances", "dim bold"), *([""] * len(fleet.zones)), "", "", standing_usd, standing_usd)
    return table


def _add_pool(table: Table, fleet: Fleet, costs: cost.PoolCost, bar: Text) -> None:
    pool = fleet.pools[costs.pool]
    pool_zones = fleet.get_zones(pool)
    bars = [bar if zone in pool_zones else Text() for zone in fleet.zones]
    accelerators = count_accelerators(pool)
    table.add_row(
        Text(costs.pool, f"bold {bar.style}"),
        *bars,
        _format_bounds(pool.size),
        _format_bounds(accelerators) if accelerators.max else "",
        *_format_costs(costs, pool),
    )
    for kind in pool.types:
        instance = instances.load().get(kind)
        marks = [_render_mark(instance, fleet.region, zone) if zone in pool_zones else Text() for zone in fleet.zones]
        table.add_row(
            f"  {kind}",
            *marks,
            "",
            _format_accelerators(instance),
            "",
            _format_unit_price(instance, fleet.region),
            style="dim" if instance is None else "",
        )
    table.add_row(Text(f"  {_describe_purchase(fleet, pool)}", "dim"), end_section=True)


def _render_mark(instance: Instance | None, region: str, zone: str) -> Text:
    if instance is None or not instances.has_region(region):
        return Text("?", "yellow")
    return Text("●", "green") if zone in instance.zones.get(region, ()) else Text("✗", "red")


def _format_costs(costs: cost.PoolCost, pool: Pool) -> tuple[str, str]:
    if costs.prepaid:
        return "prepaid", "prepaid"
    most = "unknown" if costs.unknown and not costs.max_usd_h else _format_usd(costs.max_usd_h, costs.unknown)
    if not (pool.size.min or pool.spare):
        return _format_usd(costs.min_usd_h), most
    return most if most == "unknown" else _format_usd(costs.min_usd_h, costs.unknown), most


def _format_accelerators(instance: Instance | None) -> str:
    if instance is None:
        return "not in the catalog"
    accelerators = instance.accelerators
    return (
        f"{accelerators.count} × {accelerators.name.removeprefix('RTX ')}"
        if accelerators
        else f"{instance.vcpus} vCPUs"
    )


def _format_unit_price(instance: Instance | None, region: str) -> str:
    price = instance.get_price_usd_h(region) if instance else None
    return "unknown" if price is None else f"@ {_format_usd(price)}"


def _describe_purchase(fleet: Fleet, pool: Pool) -> str:
    options = [option if isinstance(option, str) else _describe_reservation(option) for option in pool.buy]
    attributes = [
        "EFA" if pool.efa else "",
        f"{pool.warm} warm" if pool.warm else "",
        f"{pool.spare} spare" if pool.spare else "",
        f"on {fleet.get_orchestrator(pool).upper()}" if fleet.orchestrator == "both" else "",
    ]
    return ", ".join(filter(None, [" → ".join(options), *attributes]))


def _describe_reservation(reservation: Reservation) -> str:
    if reservation.reserve:
        return f"{reservation.reserve} reserved by the fleet"
    return "Capacity Block" if reservation.capacity_block else "reserved"


def _render_gauge(costs: cost.Cost, limit: float) -> Text:
    """Render the share of the spend limit that the maximum size uses."""
    share = costs.max_usd_h / limit
    filled = min(_GAUGE_WIDTH, round(share * _GAUGE_WIDTH))
    colour = "red" if share > 1 or costs.unknown else "green"
    prefix = "at least " if costs.unknown else ""
    return Text.assemble(
        "spend limit ",
        ("█" * filled, colour),
        ("░" * (_GAUGE_WIDTH - filled), "dim"),
        f" {prefix}{_format_usd(costs.max_usd_h)} of {_format_usd(limit)} USD/h ({share:.0%})",
    )


def _render_legend(fleet: Fleet, costs: cost.Cost) -> Iterator[Text]:
    offer_source = instances.load_regions().get(fleet.region)
    if offer_source:
        yield _render_note(
            "● offered, ✗ not offered: ",
            f"{offer_source.name}, {offer_source.date}; zone names differ between accounts",
        )
    else:
        yield _render_note("? unknown: ", f"the catalog has no data for {fleet.region}")
    yield from _render_standing(fleet, costs)
    yield from _render_prices(fleet, costs)
    if fleet.creates_eks:
        message, is_soon = eks.describe_support(fleet.eks.version)
        yield Text(message, "yellow") if is_soon else _render_note("EKS: ", message)
    yield from _render_efa(fleet)


def _render_prices(fleet: Fleet, costs: cost.Cost) -> Iterator[Text]:
    """Say whose the prices of the pools are, and what they leave out."""
    for source in costs.sources:
        yield _render_note("on-demand prices: ", f"{source.name}, {source.date}")
    if reserved := sum(pool.reserved_usd_h for pool in costs.pools):
        yield _render_note(
            "reservations: ", f"{_format_usd(reserved)} USD/h from the apply on, used or not; in both totals"
        )
    yield _render_note("in no total: ", describe_excluded(fleet))
    if any("spot" in pool.buy for pool in fleet.pools.values()):
        yield _render_note("spot: ", "costs less than shown; prices change hourly")
    if costs.unknown and fleet.spend_limit is not None:
        yield Text(f"spend limit: blind for {join_words(costs.unknown)}, whose price is not known", "yellow")
    reasons = {row.name: row.unpriced.get(fleet.region, "") for row in instances.select_known(costs.unknown)}
    for kinds, reason in _group_by_text(reasons):
        yield _render_note(f"no price for {kinds}: ", reason)


def describe_excluded(fleet: Fleet) -> str:
    """Describe what costs too and is in no total."""
    rest = "S3, ECR, logs, metrics and traffic"
    return f"load balancers of Gateways, volumes of charts, {rest}" if "eks" in fleet.orchestrators else rest


def _render_efa(fleet: Fleet) -> Iterator[Text]:
    """Say what the types of pools with EFA have of it."""
    pools = [pool for pool in fleet.pools.values() if pool.efa]
    types = [row for pool in pools for row in instances.select_known(pool.types)]
    for kinds, text in _group_by_text({row.name: _describe_efa(row) for row in types}):
        yield _render_note(f"EFA on {kinds}: ", text)
    if any(fleet.get_orchestrator(pool) == "ecs" for pool in pools):
        yield Text(_UNSEEN_EFA, "yellow")


_UNSEEN_EFA = (
    "EFA on ECS: not yet seen on AWS. Interfaces and devices follow AWS's example for Batch on ECS; start with one "
    "instance, and read `fi_info -p efa` in a task"
)


def _render_standing(fleet: Fleet, costs: cost.Cost) -> Iterator[Text]:
    """List what costs while no instance of a pool runs, and whose prices those are."""
    items = [
        f"{item.name} {item.unit_usd_h:.4g}" if item.count == 1 else f"{item.name} {item.count} × {item.unit_usd_h:.4g}"
        for item in sorted(costs.standing, key=lambda item: -item.usd_h)
    ]
    dates = join_words(sorted({item.source.date for item in costs.standing}))
    yield _render_note("without instances: ", f"{join_words(items)} USD/h; prices of {dates}")
    foreign = [item.name for item in costs.standing if not item.is_regional_price]
    if foreign := foreign + ["root volumes"] * (not costs.volumes.is_regional_price):
        yield _render_note(
            "estimated: ", f"{join_words(foreign)}, at us-east-1's prices: those of {fleet.region} are not known here"
        )


def _describe_efa(instance: Instance) -> str:
    count = f"{format_count(instance.efa_interfaces, 'interface')} per instance" if instance.efa_interfaces else ""
    rdma_note = "no GPUDirect RDMA: transfers go through host memory" if instance.gpudirect_rdma is False else ""
    return "; ".join(filter(None, [count, rdma_note, instance.layout_note]))


def _group_by_text(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for text in dict.fromkeys(filter(None, texts.values())):
        yield join_words(kind for kind in texts if texts[kind] == text), text


def _render_note(label: str, text: str) -> Text:
    return Text.assemble((label, "dim bold"), (text, "dim"))


def _sum_bounds(sizes: list[Bounds]) -> Bounds:
    return Bounds(sum(size.min for size in sizes), sum(size.max for size in sizes))


def _format_bounds(bounds: Bounds) -> str:
    return f"{bounds.min:,}" if bounds.min == bounds.max else f"{bounds.min:,}..{bounds.max:,}"


def _format_usd(usd: float, unknown: Sequence[str] = ()) -> str:
    """Format an amount, of which the prices of some types are not known."""
    return f"{'≥ ' if unknown else ''}{usd:,.{0 if usd >= 1000 else 2}f}"
