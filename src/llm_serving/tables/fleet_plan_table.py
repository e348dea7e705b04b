"""A fleet's plan in the terminal: what Terraform would do, stack by stack, and what an hour of it costs."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.catalog import eks
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import cost
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet
from llm_serving.operations.context import Site
from llm_serving.operations.destroy import Going
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import emulator_gaps
from llm_serving.tables import fleet_table

_SHOWN = 20
"""Resources that change, of one stack: more are in Terraform's own words in the log."""


def plain(site: Site, made: Sequence[StackPlan], catalogue: Catalogue) -> dict[str, Any]:
    """What `--json` prints. Costs are US dollars an hour on demand, as far as prices are known."""
    costs = cost.of(site.fleet, catalogue)
    return {
        "fleet": site.fleet.name,
        "region": site.fleet.region,
        "account": site.account,
        "answered_by": site.at,
        "stacks": [plan.plain() for plan in made],
        "least_usd_h": costs.least_usd_h,
        "most_usd_h": costs.most_usd_h,
        "price_unknown": list(costs.unknown),
        "end_of_standard_support": fleet_table.end_of_support(site.fleet),
    }


def draw(site: Site, made: Sequence[StackPlan], catalogue: Catalogue) -> RenderableType:
    """The plan; 80 columns are enough."""
    return Group(_title(site), _table(made), *_touched(made), *_notes(site.fleet, made, catalogue))


def _title(site: Site) -> Text:
    title = Text.assemble((site.fleet.name, "bold"), f"  {site.fleet.region}, account {site.account}")
    if site.endpoint:
        title.append(f"\nanswered by {site.at} at {site.endpoint}, which stands in for AWS and costs nothing", "yellow")
    return title


def _table(made: Sequence[StackPlan]) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False)
    table.add_column("stack", no_wrap=True)
    for name in ("add", "change", "destroy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for plan in made:
        if plan.waits:
            said = f"not planned yet: it {plan.waits}; {plan.resources} resources, then"
            table.add_row(plan.name, "?", "?", "?", Text(said, "dim"))
        else:
            counts = (_count(plan.add, "green"), _count(plan.change, "yellow"), _count(plan.destroy, "bold red"))
            table.add_row(plan.name, *counts, Text("as it should be" if plan.empty else "", "dim"))
    return table


def _count(number: int, colour: str) -> Text:
    return Text(f"{number:,}", colour if number else "dim")


def _touched(made: Sequence[StackPlan]) -> Iterator[RenderableType]:
    """What is there and would not stay as it is, by name: it is what a reader must not miss."""
    for plan in made:
        rows = [(address, what) for address, what in plan.touched.items()]
        for address, what in rows[:_SHOWN]:
            colour = "yellow" if what == "updated in-place" else "bold red"
            yield Padding(Text.assemble((what, colour), f"  {plan.name}: {address}"), (0, 0, 0, 2))
        if rows[_SHOWN:]:
            yield Padding(Text(f"and {len(rows) - _SHOWN} more of {plan.name}", "dim"), (0, 0, 0, 2))


def _notes(fleet: Fleet, made: Sequence[StackPlan], catalogue: Catalogue) -> Iterator[Text]:
    yield Text.assemble("\n", ("cost  ", "bold"), price(fleet, catalogue))
    yield Text("      machines alone; NAT gateways, endpoints, load balancers, storage and traffic come on top", "dim")
    if "eks" in fleet.orchestrators:
        yield Text.assemble(("EKS   ", "bold"), support(fleet))
    for plan in made:
        for kind, count in plan.left_out.items():
            yield Text(f"left out of {plan.name}: {count} {kind}, for {emulator_gaps.REASONS[kind]}", "dim")


def price(fleet: Fleet, catalogue: Catalogue) -> str:
    """What an hour costs, in one line."""
    costs = cost.of(fleet, catalogue)
    sign = "at least " if costs.unknown else ""
    dates = listed(list(dict.fromkeys(source.date for source in costs.sources)))
    unknown = f"; the price of {listed(costs.unknown)} is not known" if costs.unknown else ""
    said = f"{costs.least_usd_h:,.2f} to {sign}{costs.most_usd_h:,.2f} USD an hour on demand"
    return f"{said}{f', prices of {dates}' if dates else ''}{unknown}"


def support(fleet: Fleet) -> Text:
    """Until when the fleet's Kubernetes version is looked after at the usual price."""
    said, soon = eks.support(fleet.eks.version, datetime.date.today())
    return Text(said, "yellow" if soon else "")


def going(going: Going) -> RenderableType:
    """What a destroy would take, in the order of going, and what stays."""
    parts: list[RenderableType] = [_title(going.site)]
    if not going.states:
        return Group(*parts, Text("nothing of it is there"))
    if going.karpenter:
        parts.append(Text(f"  first {len(going.karpenter)} machine(s) that Karpenter started"))
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False)
    table.add_column("goes, in this order", no_wrap=True)
    table.add_column("resources", justify="right", no_wrap=True)
    for name in going.stacks:
        table.add_row(name, f"{len(going.states[name].resources):,}")
    parts.append(table)
    for one in going.held:
        what = Text("stays  ", "yellow") if going.stays else Text("deleted for ever  ", "bold red")
        parts.append(Padding(what + Text(f"{one.kind} {one.name}: {one.said}"), (0, 0, 0, 2)))
    if going.stays:
        parts.append(Text(f"The stack storage stays for that; to delete it too: {with_data(going.site)}", "yellow"))
    return Group(*parts)


def gone(going: Going) -> RenderableType:
    """What is left after a destroy."""
    took = ", ".join(f"{name} {len(going.states[name].resources)}" for name in going.stacks)
    parts: list[RenderableType] = [Text(f"Gone, by stack: {took}; no machine of {going.site.fleet.name} runs.")]
    if going.stays:
        names = listed([one.name for one in going.held])
        parts.append(Text(f"What remains: the stack storage with {names}. To delete it: {with_data(going.site)}"))
    if going.site.fleet.state != "local":
        file = shlex.quote(console.near(going.site.document.path))
        parts.append(Text(f"The state's bucket stays: blueprint state remove --fleet {file}"))
    return Group(*parts)


def with_data(site: Site) -> str:
    """The command that takes the data as well."""
    return f"blueprint fleet destroy --fleet {shlex.quote(console.near(site.document.path))} --with-data"
