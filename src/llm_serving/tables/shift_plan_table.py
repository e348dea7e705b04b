"""A week of a fleet that shifts, beside a static peak and an oracle."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from llm_serving.fleet import shift_plan
from llm_serving.fleet.shift_plan import Hours, PoolPlan


def render(plans: Sequence[PoolPlan]) -> Table:
    """Render the hours of GPUs by pool, and the cost."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("GPU-hours of a week")
    for heading in ("static", "planned", "oracle", "saved", "of oracle", "violations"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan in plans:
        hours = shift_plan.sum_hours([plan], "gpu")
        table.add_row(plan.pool, *_format(hours), str(len(plan.violations)))
    count = sum(len(plan.violations) for plan in plans)
    table.add_row("all", *_format(shift_plan.sum_hours(plans, "gpu")), str(count), style="bold")
    if all(plan.usd_h is not None for plan in plans):
        table.add_row("USD, on demand", *_format(shift_plan.sum_hours(plans, "usd")), "")
    return table


def _format(hours: Hours) -> tuple[str, ...]:
    """Format the three, what the plan saves of the static peak, and the oracle's share of the plan."""
    saved = 1 - hours.planned / hours.static if hours.static else 0
    reached = hours.oracle / hours.planned if hours.planned else 1
    amounts = (f"{value:,.0f}" for value in (hours.static, hours.planned, hours.oracle))
    return (*amounts, f"{saved:.1%}", f"{reached:.1%}")
