"""What a fleet meets at its greatest size, as the last part of `fleet show`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.fleet.capacity import Capacity, Limit, Need, Subnet
from llm_serving.fleet.checks import join_words


def build_payload(capacity: Capacity) -> dict[str, Any]:
    """The same as plain data: amounts, what a new account has, shares from 0 to 1, seconds."""
    return {
        "quotas": [{**asdict(need.quota), "needed": need.amount, "why": need.breakdown} for need in capacity.needs],
        "limits": [asdict(limit) for limit in capacity.limits],
        "subnets": [asdict(subnet) for subnet in capacity.subnets],
        "ceiling_machines": capacity.max_machines,
        "ceiling_usd_h": capacity.max_usd_h,
        "launch_s": capacity.launch_s,
        "lost_with_zone": dict(capacity.zone_shares),
        "pools_in_one_zone": list(capacity.single_zone_pools),
    }


def render(capacity: Capacity, machines: int) -> RenderableType:
    """Quotas to ask for, then a line each for limits, addresses, fallbacks, launch and a zone's loss.

    `machines` is the sum of the pools' greatest sizes.
    """
    exceeded = [need for need in capacity.needs if need.amount > need.quota.default]
    parts: list[RenderableType] = [Text("\nat its greatest size", "bold")]
    if exceeded:
        parts.append(_render_quotas(exceeded))
    within = len(capacity.needs) - len(exceeded)
    if within:
        parts.append(_render_line("quotas", [Text(f"{within} more are within what a new account has")]))
    for label, texts in (
        ("limits", [_render_limit(limit) for limit in capacity.limits]),
        ("addresses", [_render_subnet(subnet) for subnet in capacity.subnets]),
        ("fallbacks", list(_render_fallbacks(capacity, machines))),
        ("launch", list(_render_launch(capacity))),
        ("a zone lost", list(_render_zone_loss(capacity))),
    ):
        if texts:
            parts.append(_render_line(label, texts))
    return Group(*parts)


def _render_quotas(needs: list[Need]) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("quota to ask for", overflow="fold")
    table.add_column("code", no_wrap=True)
    table.add_column("needed", justify="right", no_wrap=True)
    table.add_column("new account", justify="right", no_wrap=True)
    for need in needs:
        unit = f" {need.quota.unit}" if need.quota.unit else ""
        table.add_row(need.quota.name, need.quota.code, f"{need.amount:,}{unit}", f"{need.quota.default:,.0f}")
    return table


def _render_line(label: str, texts: list[Text]) -> Table:
    """A label, and beside it words that wrap below one another."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim bold", width=11)
    grid.add_column()
    for index, text in enumerate(texts):
        grid.add_row("" if index else label, text)
    return grid


def _render_limit(limit: Limit) -> Text:
    return _render_share(limit.name, limit.amount, limit.most)


def _render_subnet(subnet: Subnet) -> Text:
    return _render_share(f"{subnet.zone}, {subnet.cidr}", subnet.needed, subnet.there)


def _render_share(name: str, amount: int, maximum: int) -> Text:
    share = amount / maximum
    colour = "red" if share > 1 else "yellow" if share > 0.8 else "green"
    return Text.assemble((f"{share:4.0%} ", colour), f"{name}: {amount:,} of {maximum:,}")


def _render_fallbacks(capacity: Capacity, machines: int) -> Iterator[Text]:
    if capacity.max_machines > machines:
        yield Text(
            f"groups may hold {capacity.max_machines:,} machines if all fallbacks fill at once ({capacity.max_usd_h:,.0f} USD/h); "
            f"tasks and pods ask for {machines:,} at the most"
        )


def _render_launch(capacity: Capacity) -> Iterator[Text]:
    if capacity.launch_s:
        minutes, seconds = divmod(round(capacity.launch_s), 60)
        duration = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        yield Text(f"EC2's API takes {duration} to accept all machines from none (1,000 at once, then 2 a second)")


def _render_zone_loss(capacity: Capacity) -> Iterator[Text]:
    shares = dict(capacity.zone_shares)
    if len(shares) < 2 or not any(shares.values()):
        return
    worst = max(shares, key=lambda zone: shares[zone])
    yield Text(f"takes up to {shares[worst]:.0%} of the accelerators with it ({worst})")
    if capacity.single_zone_pools:
        yield Text(f"in one zone alone: {join_words(capacity.single_zone_pools)}")
