"""What a fleet meets at its greatest size, as the last part of `fleet show`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.fleet.capacity import Limit, Need, Scale, Subnet
from llm_serving.fleet.checks import listed


def plain(met: Scale) -> dict[str, Any]:
    """The same as plain data: amounts, what a new account has, shares from 0 to 1, seconds."""
    return {
        "quotas": [{**asdict(need.quota), "needed": need.amount, "why": need.why} for need in met.needs],
        "limits": [asdict(limit) for limit in met.limits],
        "subnets": [asdict(subnet) for subnet in met.subnets],
        "ceiling_machines": met.ceiling,
        "ceiling_usd_h": met.ceiling_usd_h,
        "launch_s": met.launch_s,
        "lost_with_zone": dict(met.lost_with),
        "pools_in_one_zone": list(met.in_one_zone),
    }


def draw(met: Scale, machines: int) -> RenderableType:
    """Quotas to ask for, then a line each for limits, addresses, fallbacks, launch and a zone's loss.

    `machines` is the sum of the pools' greatest sizes.
    """
    over = [need for need in met.needs if need.amount > need.quota.default]
    parts: list[RenderableType] = [Text("\nat its greatest size", "bold")]
    if over:
        parts.append(_quotas(over))
    within = len(met.needs) - len(over)
    if within:
        parts.append(_line("quotas", [Text(f"{within} more are within what a new account has")]))
    for label, words in (
        ("limits", [_limit(limit) for limit in met.limits]),
        ("addresses", [_subnet(subnet) for subnet in met.subnets]),
        ("fallbacks", list(_fallbacks(met, machines))),
        ("launch", list(_launch(met))),
        ("a zone lost", list(_lost(met))),
    ):
        if words:
            parts.append(_line(label, words))
    return Group(*parts)


def _quotas(needs: list[Need]) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("quota to ask for", overflow="fold")
    table.add_column("code", no_wrap=True)
    table.add_column("needed", justify="right", no_wrap=True)
    table.add_column("new account", justify="right", no_wrap=True)
    for need in needs:
        unit = f" {need.quota.unit}" if need.quota.unit else ""
        table.add_row(need.quota.name, need.quota.code, f"{need.amount:,}{unit}", f"{need.quota.default:,.0f}")
    return table


def _line(label: str, words: list[Text]) -> Table:
    """A label, and beside it words that wrap below one another."""
    line = Table.grid(padding=(0, 1))
    line.add_column(style="dim bold", width=11)
    line.add_column()
    for index, word in enumerate(words):
        line.add_row("" if index else label, word)
    return line


def _limit(limit: Limit) -> Text:
    return _shared(limit.name, limit.amount, limit.most)


def _subnet(subnet: Subnet) -> Text:
    return _shared(f"{subnet.zone}, {subnet.cidr}", subnet.needed, subnet.there)


def _shared(name: str, amount: int, most: int) -> Text:
    share = amount / most
    colour = "red" if share > 1 else "yellow" if share > 0.8 else "green"
    return Text.assemble((f"{share:4.0%} ", colour), f"{name}: {amount:,} of {most:,}")


def _fallbacks(met: Scale, machines: int) -> Iterator[Text]:
    if met.ceiling > machines:
        yield Text(
            f"groups may hold {met.ceiling:,} machines if all fallbacks fill at once ({met.ceiling_usd_h:,.0f} USD/h); "
            f"tasks and pods ask for {machines:,} at the most"
        )


def _launch(met: Scale) -> Iterator[Text]:
    if met.launch_s:
        minutes, seconds = divmod(round(met.launch_s), 60)
        long = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        yield Text(f"EC2's API takes {long} to accept all machines from none (1,000 at once, then 2 a second)")


def _lost(met: Scale) -> Iterator[Text]:
    shares = dict(met.lost_with)
    if len(shares) < 2 or not any(shares.values()):
        return
    worst = max(shares, key=lambda zone: shares[zone])
    yield Text(f"takes up to {shares[worst]:.0%} of the accelerators with it ({worst})")
    if met.in_one_zone:
        yield Text(f"in one zone alone: {listed(met.in_one_zone)}")
