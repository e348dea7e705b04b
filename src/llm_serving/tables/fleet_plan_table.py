"""A fleet's plan as a table: what Terraform would change in each stack, and the cost per hour."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.catalog import eks
from llm_serving.fleet import cost, upgrade
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.operations import plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.destroy import DestroyPlan
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import override
from llm_serving.services import kinds
from llm_serving.settings.units import format_count
from llm_serving.tables import fleet_table
from llm_serving.terraform.plan import UPDATED

_MAX_SHOWN = 20
"""Most resources listed for one stack; Terraform's log has all."""


def build_payload(context: FleetContext, stack_plans: Sequence[StackPlan]) -> dict[str, Any]:
    """Return what `--json` prints; costs in USD per hour on demand, as far as prices are known."""
    costs = _estimate_cost(context)
    return {
        "fleet": context.fleet.name,
        "region": context.fleet.region,
        "account": context.account,
        "answered_by": context.cloud_name,
        "stacks": [{**plan.build_payload(), "plan_file": _find_plan_file(context, plan.name)} for plan in stack_plans],
        "standing_usd_h": costs.standing_usd_h,
        "least_usd_h": costs.min_usd_h,
        "most_usd_h": costs.max_usd_h,
        "price_unknown": list(costs.unknown),
        "end_of_standard_support": fleet_table.find_support_end(context.fleet),
    }


def _find_plan_file(context: FleetContext, stack_name: str) -> str | None:
    """Return the path of the saved plan, if it was kept."""
    file = context.folders[stack_name] / plans.FILE
    return str(file) if file.is_file() else None


def render(context: FleetContext, stack_plans: Sequence[StackPlan]) -> RenderableType:
    """Render the plan; 80 columns are enough."""
    return Group(
        _render_title(context),
        _render_table(stack_plans),
        *_render_affected(stack_plans),
        *_render_notes(context, stack_plans),
    )


def _render_title(context: FleetContext) -> Text:
    title = Text.assemble((context.fleet.name, "bold"), f"  {context.fleet.region}, account {context.account}")
    if context.endpoint:
        title.append(
            f"\nemulated by {context.cloud_name} at {context.endpoint}: no AWS account is used, no cost", "yellow"
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
    """List existing resources that would be changed or destroyed, first what goes."""
    for plan in stack_plans:
        rows = sorted(plan.plan.affected.items(), key=lambda row: row[1] == UPDATED)
        for address, action in rows[:_MAX_SHOWN]:
            colour = "yellow" if action == UPDATED else "bold red"
            moves = plan.plan.resources[address].moves
            versions = f"  {' -> '.join(moves)}" if moves else ""
            yield Padding(Text.assemble((action, colour), f"  {plan.name}: {address}{versions}"), (0, 0, 0, 2))
        if rows[_MAX_SHOWN:]:
            yield Padding(Text(f"and {len(rows) - _MAX_SHOWN} more in {plan.name}", "dim"), (0, 0, 0, 2))


def _render_notes(context: FleetContext, stack_plans: Sequence[StackPlan]) -> Iterator[RenderableType]:
    yield Text.assemble("\n", ("cost  ", "bold"), describe_cost(context))
    yield Padding(Text(f"Excludes {fleet_table.describe_excluded(context.fleet)}", "dim"), (0, 0, 0, 6))
    if context.fleet.creates_eks:
        yield Text.assemble(("EKS   ", "bold"), describe_support(context.fleet))
        yield Text("      A pool's new size or types take `blueprint platform install` too", "dim")
    for plan in stack_plans:
        if groups := _list_renewed(plan):
            yield _render_drain(plan, groups, upgrade.PACES[plan.name])
        node_groups = plan.plan.select("aws_eks_node_group")
        if groups := [name for name, change in node_groups.items() if "delete" in change.actions]:
            yield _render_drain(plan, groups, "all at once")
    for plan in stack_plans:
        for kind, count in plan.not_emulated.items():
            yield Text(f"not emulated in {plan.name}: {count} {kind}: {override.REASONS[kind]}", "dim")


def _render_drain(plan: StackPlan, groups: Sequence[str], pace: str) -> Text:
    return Text.assemble(("drain ", "bold"), (f"{plan.name}: every instance of {join_words(groups)}, {pace}", "yellow"))


def _list_renewed(plan: StackPlan) -> list[str]:
    """List the groups whose instances are replaced: their launch template changes, if only by the fleet's tags."""
    changes = plan.plan.select("aws_launch_template")
    return [name.removesuffix("-template") for name, change in changes.items() if change.verb == UPDATED]


def describe_cost(context: FleetContext) -> str:
    """Describe the cost per hour in one line."""
    costs = _estimate_cost(context)
    sign = "at least " if costs.unknown else ""
    dates = join_words(list(dict.fromkeys(source.date for source in costs.sources)))
    unknown = f"; no price for {join_words(costs.unknown)}" if costs.unknown else ""
    message = f"{costs.min_usd_h:,.2f} to {sign}{costs.max_usd_h:,.2f} USD/h on demand"
    message += f" ({costs.standing_usd_h:,.2f} while no instance runs)"
    return f"{message}{f', prices of {dates}' if dates else ''}{unknown}"


def _estimate_cost(context: FleetContext) -> cost.Cost:
    return cost.estimate(context.fleet, kinds.list_rented(context.document, Path()))


def describe_support(fleet: Fleet) -> Text:
    """Describe when standard support of the fleet's Kubernetes version ends."""
    message, is_soon = eks.describe_support(fleet.eks.version)
    return Text(message, "yellow" if is_soon else "")


def render_destroy_plan(plan: DestroyPlan) -> RenderableType:
    """Render what a destroy would delete, in order, and what it keeps."""
    parts: list[RenderableType] = [_render_title(plan.context)]
    if not plan.states and not plan.volumes:
        return Group(*parts, Text("nothing to destroy"))
    if plan.karpenter_instances:
        parts.append(Text(f"  first {len(plan.karpenter_instances)} instance(s) started by Karpenter"))
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False)
    table.add_column("destroy, in this order", no_wrap=True)
    table.add_column("resources", justify="right", no_wrap=True)
    for name in plan.stacks:
        table.add_row(name, f"{len(plan.states[name].resources):,}")
    parts.append(table)
    for store in plan.stores:
        label = Text("kept  ", "yellow") if plan.keeps_storage else Text("permanently deleted  ", "bold red")
        parts.append(Padding(label + Text(f"{store.kind} {store.name}: {store.summary}"), (0, 0, 0, 2)))
    if cluster_name := plan.context.fleet.eks.cluster:
        reason = "whose engines cannot read weights without this fleet: run `blueprint destroy` for each first"
        text = Text(f"cluster {cluster_name} and the deployments in it, {reason}")
        parts.append(Padding(Text("kept  ", "yellow") + text, (0, 0, 0, 2)))
    for volume in plan.volumes:
        label = Text("permanently deleted  ", "bold red") if plan.with_data else Text("kept  ", "yellow")
        parts.append(Padding(label + Text(f"volume {volume.id}: {volume.summary}"), (0, 0, 0, 2)))
    if kept_data := _describe_kept(plan):
        parts.append(Text(f"Kept: {kept_data}. To delete it too: {format_with_data_command(plan.context)}", "yellow"))
    return Group(*parts)


def _describe_kept(plan: DestroyPlan) -> str:
    """Describe what a destroy keeps for its data; "" where it keeps nothing."""
    parts = []
    if plan.keeps_storage:
        parts.append(f"the stack storage with {join_words([store.name for store in plan.stores])}")
    if plan.volumes and not plan.with_data:
        parts.append(f"{format_count(len(plan.volumes), 'volume')} of claims, which cost")
    return " and ".join(parts)


def render_destroy_summary(plan: DestroyPlan) -> RenderableType:
    counts = [f"{name} {len(plan.states[name].resources)}" for name in plan.stacks]
    if plan.with_data and plan.volumes:
        counts.append(f"volumes {len(plan.volumes)}")
    parts: list[RenderableType] = [Text(f"Destroyed: {', '.join(counts)}; no instances are running.")]
    if kept_data := _describe_kept(plan):
        parts.append(Text(f"Kept: {kept_data}. To delete it too: {format_with_data_command(plan.context)}"))
    if plan.context.fleet.state != "local":
        file = shlex.quote(console.shorten_path(plan.context.document.path))
        parts.append(Text(f"The state bucket is kept. To delete it: blueprint state remove --fleet {file}"))
    return Group(*parts)


def format_with_data_command(context: FleetContext) -> str:
    return f"blueprint fleet destroy --fleet {shlex.quote(console.shorten_path(context.document.path))} --with-data"
