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
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.operations.context import FleetContext
from llm_serving.operations.destroy import DestroyPlan
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import emulator_gaps
from llm_serving.tables import fleet_table

_MAX_SHOWN = 20
"""Resources that change, of one stack: more are in Terraform's own words in the log."""


def build_payload(context: FleetContext, stack_plans: Sequence[StackPlan], catalogue: Catalogue) -> dict[str, Any]:
    """What `--json` prints. Costs are US dollars an hour on demand, as far as prices are known."""
    costs = cost.estimate(context.fleet, catalogue)
    return {
        "fleet": context.fleet.name,
        "region": context.fleet.region,
        "account": context.account,
        "answered_by": context.cloud_name,
        "stacks": [plan.build_payload() for plan in stack_plans],
        "least_usd_h": costs.min_usd_h,
        "most_usd_h": costs.max_usd_h,
        "price_unknown": list(costs.unknown),
        "end_of_standard_support": fleet_table.find_support_end(context.fleet),
    }


def render(context: FleetContext, stack_plans: Sequence[StackPlan], catalogue: Catalogue) -> RenderableType:
    """The plan; 80 columns are enough."""
    return Group(
        _render_title(context),
        _render_table(stack_plans),
        *_render_affected(stack_plans),
        *_render_notes(context.fleet, stack_plans, catalogue),
    )


def _render_title(context: FleetContext) -> Text:
    title = Text.assemble((context.fleet.name, "bold"), f"  {context.fleet.region}, account {context.account}")
    if context.endpoint:
        title.append(
            f"\nanswered by {context.cloud_name} at {context.endpoint}, which stands in for AWS and costs nothing",
            "yellow",
        )
    return title


def _render_table(stack_plans: Sequence[StackPlan]) -> Table:
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False)
    table.add_column("stack", no_wrap=True)
    for name in ("add", "change", "destroy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for plan in stack_plans:
        if plan.deferred_reason:
            message = f"Plan deferred: {plan.deferred_reason} ({plan.resources} resources)"
            table.add_row(plan.name, "?", "?", "?", Text(message, "dim"))
        else:
            counts = (
                _format_count(plan.plan.add, "green"),
                _format_count(plan.plan.change, "yellow"),
                _format_count(plan.plan.destroy, "bold red"),
            )
            table.add_row(plan.name, *counts, Text("up to date" if plan.is_empty else "", "dim"))
    return table


def _format_count(number: int, colour: str) -> Text:
    return Text(f"{number:,}", colour if number else "dim")


def _render_affected(stack_plans: Sequence[StackPlan]) -> Iterator[RenderableType]:
    """What is there and would not stay as it is, by name: it is what a reader must not miss."""
    for plan in stack_plans:
        rows = [(address, action) for address, action in plan.plan.affected.items()]
        for address, action in rows[:_MAX_SHOWN]:
            colour = "yellow" if action == "updated in-place" else "bold red"
            yield Padding(Text.assemble((action, colour), f"  {plan.name}: {address}"), (0, 0, 0, 2))
        if rows[_MAX_SHOWN:]:
            yield Padding(Text(f"and {len(rows) - _MAX_SHOWN} more of {plan.name}", "dim"), (0, 0, 0, 2))


def _render_notes(fleet: Fleet, stack_plans: Sequence[StackPlan], catalogue: Catalogue) -> Iterator[Text]:
    yield Text.assemble("\n", ("cost  ", "bold"), describe_cost(fleet, catalogue))
    yield Text("      machines alone; NAT gateways, endpoints, load balancers, storage and traffic come on top", "dim")
    if "eks" in fleet.orchestrators:
        yield Text.assemble(("EKS   ", "bold"), describe_support(fleet))
    for plan in stack_plans:
        for kind, count in plan.not_emulated.items():
            yield Text(f"left out of {plan.name}: {count} {kind}, for {emulator_gaps.REASONS[kind]}", "dim")


def describe_cost(fleet: Fleet, catalogue: Catalogue) -> str:
    """What an hour costs, in one line."""
    costs = cost.estimate(fleet, catalogue)
    sign = "at least " if costs.unknown else ""
    dates = join_words(list(dict.fromkeys(source.date for source in costs.sources)))
    unknown = f"; the price of {join_words(costs.unknown)} is not known" if costs.unknown else ""
    message = f"{costs.min_usd_h:,.2f} to {sign}{costs.max_usd_h:,.2f} USD an hour on demand"
    return f"{message}{f', prices of {dates}' if dates else ''}{unknown}"


def describe_support(fleet: Fleet) -> Text:
    """Until when the fleet's Kubernetes version is looked after at the usual price."""
    message, is_soon = eks.describe_support(fleet.eks.version, datetime.date.today())
    return Text(message, "yellow" if is_soon else "")


def render_destroy_plan(plan: DestroyPlan) -> RenderableType:
    """What a destroy would take, in the order of going, and what stays."""
    parts: list[RenderableType] = [_render_title(plan.context)]
    if not plan.states:
        return Group(*parts, Text("nothing of it is there"))
    if plan.karpenter_instances:
        parts.append(Text(f"  first {len(plan.karpenter_instances)} machine(s) that Karpenter started"))
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False)
    table.add_column("goes, in this order", no_wrap=True)
    table.add_column("resources", justify="right", no_wrap=True)
    for name in plan.stacks:
        table.add_row(name, f"{len(plan.states[name].resources):,}")
    parts.append(table)
    for store in plan.stores:
        label = Text("stays  ", "yellow") if plan.keeps_storage else Text("deleted for ever  ", "bold red")
        parts.append(Padding(label + Text(f"{store.kind} {store.name}: {store.summary}"), (0, 0, 0, 2)))
    if plan.keeps_storage:
        parts.append(
            Text(
                f"The stack storage stays for that; to delete it too: {format_with_data_command(plan.context)}",
                "yellow",
            )
        )
    return Group(*parts)


def render_destroy_summary(plan: DestroyPlan) -> RenderableType:
    """What is left after a destroy."""
    counts = ", ".join(f"{name} {len(plan.states[name].resources)}" for name in plan.stacks)
    parts: list[RenderableType] = [Text(f"Gone, by stack: {counts}; no machine of {plan.context.fleet.name} runs.")]
    if plan.keeps_storage:
        names = join_words([store.name for store in plan.stores])
        parts.append(
            Text(
                f"What remains: the stack storage with {names}. To delete it: {format_with_data_command(plan.context)}"
            )
        )
    if plan.context.fleet.state != "local":
        file = shlex.quote(console.shorten_path(plan.context.document.path))
        parts.append(Text(f"The state's bucket stays: blueprint state remove --fleet {file}"))
    return Group(*parts)


def format_with_data_command(context: FleetContext) -> str:
    """The command that takes the data as well."""
    return f"blueprint fleet destroy --fleet {shlex.quote(console.shorten_path(context.document.path))} --with-data"
