"""An AWS Budgets budget of what carries the fleet's tag, by month, from the fleet's hourly spend limit."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack

HOURS_PER_MONTH = 730
"""Hours of an average month, as AWS's own pricing pages reckon."""

_ALERTS = (("ACTUAL", 80), ("FORECASTED", 100))
"""Percent of the budget that tells: most of it is spent, or the month will end above it."""


def add_budget(stack: FleetStack, spend_limit_usd_h: float) -> None:
    """Add the budget, whose alerts go to the fleet's addresses.

    It counts costs by the tag `fleet` only once the payer has activated that as a cost allocation tag, and by region:
    a fleet of this name in another one has the same tag, and a budget of its own. Sources: AWS Billing user guide,
    "Activating user-defined cost allocation tags"; AWS Cost Management user guide, "Budget filters"; 2026-11.
    """
    budget = aws.budgets_budget
    filters = {"TagKeyValue": f"user:fleet${stack.fleet.name}", "Region": stack.fleet.region}
    budget.BudgetsBudget(
        stack,
        "budget",
        name=f"{stack.fleet.name}-{stack.fleet.region}",
        budget_type="COST",
        time_unit="MONTHLY",
        limit_amount=f"{spend_limit_usd_h * HOURS_PER_MONTH:.2f}",
        limit_unit="USD",
        cost_filter=[budget.BudgetsBudgetCostFilter(name=name, values=[value]) for name, value in filters.items()],
        notification=[
            budget.BudgetsBudgetNotification(
                notification_type=kind,
                comparison_operator="GREATER_THAN",
                threshold=percent,
                threshold_type="PERCENTAGE",
                subscriber_email_addresses=list(stack.fleet.budget_to),
            )
            for kind, percent in _ALERTS
        ],
    )
