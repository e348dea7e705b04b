"""`blueprint shift-plan`: a week in which instances move between real time and batch, before any of them does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from llm_serving import console
from llm_serving.fleet import loading, shift_plan, traffic_curves
from llm_serving.fleet.shift_plan import Hours, PoolPlan, Violation
from llm_serving.options.arguments import FLEET, AsJson, Fleet
from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.pages import shift_plan_page

Traffic = Annotated[Path, typer.Option("--traffic", metavar="FILE", help="A week's load of the fleet's pools.")]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="HTML page with the week's curves to write.")]


def show_plan(traffic: Traffic, fleet: Fleet = FLEET, page: Page = None, as_json: AsJson = False) -> None:
    """Plan a week of pools that real time and batch share.

    Shows GPU-hours, cost and violations beside a static peak and an oracle that knows the week. Exits 1 if the plan
    does not hold the load or a batch's deadline.
    """
    fleet_document = loading.load_fleet(fleet)
    curves = traffic_curves.load_curves(traffic, fleet_document.value).value
    plans = shift_plan.plan(fleet_document.value, curves)
    if as_json:
        console.print_json(_build_payload(fleet_document.value.name, plans))
    else:
        console.out.print(_render_plans(plans))
    if page:
        page.write_text(shift_plan_page.render(fleet_document.value.name, curves.source, plans), encoding="utf-8")
        if not as_json:
            console.out.print(console.shorten_path(page), markup=False)
    violations = [violation for plan in plans for violation in plan.violations]
    if violations:
        fix = f"raise size of the pool in {fleet}, or move the batch"
        raise CheckFailed(f"{traffic}: {_describe_violations(violations)}. Fix: {fix}.")


def _build_payload(name: str, plans: Sequence[PoolPlan]) -> dict[str, Any]:
    violations = [dataclasses.asdict(violation) for plan in plans for violation in plan.violations]
    has_prices = all(plan.usd_h is not None for plan in plans)
    return {
        "fleet": name,
        "days": shift_plan.DAYS,
        "gpu_hours": dataclasses.asdict(shift_plan.sum_hours(plans, "gpu")),
        "cost_usd": dataclasses.asdict(shift_plan.sum_hours(plans, "usd")) if has_prices else None,
        "violations": len(violations),
        "violated": violations,
        "pools": {plan.pool: {"instance_hours": dataclasses.asdict(plan.instance_hours)} for plan in plans},
    }


def _describe_violations(violations: Sequence[Violation]) -> str:
    first = violations[0]
    day, hour = divmod(first.at_s / 3600, 24)
    violation_text = {
        "real-time": f"{first.missing:.1f} instances are missing for the load",
        "zone": f"{first.missing:g} instances are missing if a zone is lost",
        "batch": f"{first.missing:.1f} instance-hours of a batch are left at its deadline",
    }[first.kind]
    others = f", and {len(violations) - 1} more" if len(violations) > 1 else ""
    return f"{first.pool}, day {int(day) + 1}, {int(hour)}h: {violation_text}{others}"


def _render_plans(plans: Sequence[PoolPlan]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("GPU-hours of a week")
    for heading in ("static", "planned", "oracle", "saved", "of oracle", "violations"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan in plans:
        hours = shift_plan.sum_hours([plan], "gpu")
        table.add_row(plan.pool, *_format_hours(hours), str(len(plan.violations)))
    count = sum(len(plan.violations) for plan in plans)
    table.add_row("all", *_format_hours(shift_plan.sum_hours(plans, "gpu")), str(count), style="bold")
    if all(plan.usd_h is not None for plan in plans):
        table.add_row("USD, on demand", *_format_hours(shift_plan.sum_hours(plans, "usd")), "")
    return table


def _format_hours(hours: Hours) -> tuple[str, ...]:
    amounts = (f"{value:,.0f}" for value in (hours.static, hours.planned, hours.oracle))
    return (*amounts, f"{hours.saved:.1%}", f"{hours.reached:.1%}")
