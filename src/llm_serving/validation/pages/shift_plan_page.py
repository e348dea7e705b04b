"""The page of a shift plan: what each pool's instances do over the week. No input or output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from llm_serving.fleet import shift_plan
from llm_serving.fleet.shift_plan import STEP_S, PoolPlan
from llm_serving.validation.pages import charts, html_report

_HOUR_STEPS = 3600 // STEP_S


def render(fleet: str, source: str, plans: Sequence[PoolPlan]) -> str:
    return html_report.render_page(
        "shift_plan.html.j2",
        fleet=fleet,
        source=source,
        hours=shift_plan.sum_hours(plans, "gpu"),
        violations=sum(len(plan.violations) for plan in plans),
        pictures={f"{plan.pool}: instances": Markup(_render_week(plan)) for plan in plans},
    )


def _render_week(plan: PoolPlan) -> str:
    curves = {
        "all": _sample(plan, lambda index: plan.allocations[index].total),
        "real time": _sample(plan, lambda index: plan.allocations[index].real_time),
        "busy": _sample(plan, lambda index: plan.needed[index]),
        "batch": _sample(plan, lambda index: plan.allocations[index].batch),
    }
    marks = {f"day {day}": 24.0 * (day - 1) for day in range(2, shift_plan.DAYS + 1)}
    return charts.render_curves(plan.pool, "h", "instances", curves, {"static": float(plan.static_instances)}, marks)


def _sample(plan: PoolPlan, get: Callable[[int], float]) -> list[tuple[float, float]]:
    return [(index * STEP_S / 3600, get(index)) for index in range(0, len(plan.needed), _HOUR_STEPS)]
