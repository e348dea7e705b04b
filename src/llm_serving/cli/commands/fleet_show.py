"""`blueprint fleet show`: the fleet as a table, and what cannot be rented."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.fleet import capacity, checks
from llm_serving.fleet.capacity import Capacity, Need
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.groups import has_known_types, resolve_pool
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.system_group import build_system_group
from llm_serving.options import arguments
from llm_serving.services import kinds
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.tables import fleet_table


def show(fleet: arguments.Fleet = arguments.FLEET, as_json: arguments.AsJson = False) -> None:
    """Show the pools by zone, with accelerators and cost per hour.

    The cost includes what deployments that are rendered here rent beside instances.
    """
    document = load(fleet, Fleet)
    deployed = kinds.list_rented(document, Path())
    mistakes = checks.find_mistakes(document)
    is_in_catalog = has_known_types(document.value)
    fleet_capacity = capacity.compute(document.value) if is_in_catalog else None
    if as_json:
        payload = {
            "ok": not mistakes,
            **fleet_table.build_payload(document.value, deployed),
            "image_platforms": _list_platforms(document.value) if is_in_catalog else [],
            "scale": build_capacity_payload(fleet_capacity) if fleet_capacity else None,
            "mistakes": [mistake.to_dict() for mistake in mistakes],
        }
        console.print_json(payload)
        raise typer.Exit(console.print_error(InputError(mistakes)) if mistakes else 0)
    table = fleet_table.render(document.value, console.out.width, deployed)
    console.out.print(table, soft_wrap=False)
    if fleet_capacity:
        machines = sum(pool.size.max for pool in document.value.pools.values())
        console.out.print(render_capacity(fleet_capacity, machines), soft_wrap=False)
    if mistakes:
        raise InputError(mistakes)


def _list_platforms(fleet: Fleet) -> list[str]:
    """Return the platforms of images: of the pools' instances, of the system's nodes on EKS and of Fargate on ECS."""
    architectures: set[str] = {group.arch for name in fleet.pools for group in resolve_pool(fleet, name)}
    if fleet.creates_eks:
        architectures.add(build_system_group(fleet).arch)
    if "ecs" in fleet.orchestrators:
        architectures.add("x86_64")  # as the task definitions of Fargate have it
    return sorted({"x86_64": "linux/amd64", "arm64": "linux/arm64"}[architecture] for architecture in architectures)


def build_capacity_payload(capacity: Capacity) -> dict[str, Any]:
    """Return the table as data: amounts, defaults of a new account, shares from 0 to 1, seconds."""
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


def render_capacity(capacity: Capacity, machines: int) -> RenderableType:
    """Render quotas to request, limits, addresses, fallbacks, launch time and the loss of a zone.

    Args:
        machines: sum of the pools' maximum sizes.
    """
    exceeded = [need for need in capacity.needs if need.amount > need.quota.default]
    parts: list[RenderableType] = [Text("\nAt maximum size", "bold")]
    if exceeded:
        parts.append(_render_quotas(exceeded))
    within = len(capacity.needs) - len(exceeded)
    if within:
        parts.append(_render_line("quotas", [Text(f"{within} more are within the defaults of a new account")]))
    for label, texts in (
        ("limits", [_render_share(limit.name, limit.amount, limit.most) for limit in capacity.limits]),
        (
            "addresses",
            [
                _render_share(f"{subnet.zone}, {subnet.cidr}", subnet.needed, subnet.available)
                for subnet in capacity.subnets
            ],
        ),
        ("fallbacks", list(_render_fallbacks(capacity, machines))),
        ("launch", list(_render_launch(capacity))),
        ("zone loss", list(_render_zone_loss(capacity))),
    ):
        if texts:
            parts.append(_render_line(label, texts))
    return Group(*parts)


def _render_quotas(needs: list[Need]) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("quota to request", overflow="fold")
    table.add_column("code", no_wrap=True)
    table.add_column("needed", justify="right", no_wrap=True)
    table.add_column("new account", justify="right", no_wrap=True)
    for need in needs:
        unit = f" {need.quota.unit}" if need.quota.unit else ""
        table.add_row(need.quota.name, need.quota.code, f"{need.amount:,}{unit}", f"{need.quota.default:,.0f}")
    return table


def _render_line(label: str, texts: list[Text]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim bold", width=11)
    grid.add_column()
    for index, text in enumerate(texts):
        grid.add_row("" if index else label, text)
    return grid


def _render_share(name: str, amount: int, maximum: int) -> Text:
    share = amount / maximum
    colour = "red" if share > 1 else "yellow" if share > 0.8 else "green"
    return Text.assemble((f"{share:4.0%} ", colour), f"{name}: {amount:,} of {maximum:,}")


def _render_fallbacks(capacity: Capacity, machines: int) -> Iterator[Text]:
    if capacity.max_machines > machines:
        yield Text(
            f"up to {capacity.max_machines:,} instances if all fallbacks fill at once "
            f"({capacity.max_usd_h:,.0f} USD/h); pods and tasks request at most {machines:,}"
        )


def _render_launch(capacity: Capacity) -> Iterator[Text]:
    if capacity.launch_s:
        minutes, seconds = divmod(round(capacity.launch_s), 60)
        duration = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        yield Text(f"EC2 accepts all instances from zero within {duration} (1,000 at once, then 2/s)")


def _render_zone_loss(capacity: Capacity) -> Iterator[Text]:
    shares = dict(capacity.zone_shares)
    if len(shares) < 2 or not any(shares.values()):
        return
    worst = max(shares, key=lambda zone: shares[zone])
    yield Text(f"up to {shares[worst]:.0%} of the accelerators, in {worst}")
    if capacity.single_zone_pools:
        yield Text(f"pools in one zone only: {join_words(capacity.single_zone_pools)}")
