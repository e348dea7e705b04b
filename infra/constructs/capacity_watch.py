"""What watches a fleet as a whole: its budget, alarms on quotas that are nearly used, and Capacity Blocks that end."""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import alarm
from infra.constructs.fleet_stack import FleetStack
from llm_serving.fleet import capacity, groups

_QUOTA_PERCENT = 80
_PERIOD_S = 300

_BLOCK_ENDS = ("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning")
"""The event comes 40 minutes before the end; instances are ended from 30 minutes before it on.

Source: EC2 user guide, "Monitor Capacity Blocks using EventBridge", whose editions differ in the name, 2026-11.
"""


def add_capacity_watch(stack: FleetStack) -> None:
    """Add an alarm for each quota of vCPUs that the fleet meets, and a rule for its Capacity Blocks."""
    for need in capacity.compute(stack.fleet).needs:
        if need.quota.usage_class:
            _add_quota_alarm(stack, need.quota.usage_class)
    blocks = {
        group.reservation
        for group in groups.resolve_all(stack.fleet)
        if group.purchase_option == "capacity-block" and group.reservation
    }
    if blocks:
        detail = {"capacity-reservation-id": sorted(blocks)}
        alarm.add_topic_rule(
            stack,
            "capacity-block-ends",
            "A Capacity Block ends in 40 minutes, and its instances from 10 minutes on",
            {"source": ["aws.ec2"], "detail-type": _BLOCK_ENDS, "detail": detail},
            detail="<block>, seen at <time>. To do: move what runs there to another pool, or buy the next one",
            fields={"block": "$.detail.capacity-reservation-id", "time": "$.time"},
        )


def _add_quota_alarm(stack: FleetStack, usage_class: str) -> None:
    purpose = f"quota-{usage_class.lower().replace('/', '-')}"
    dimensions = {"Service": "EC2", "Type": "Resource", "Resource": "vCPU", "Class": usage_class}
    alarm.add_alarm(
        stack,
        stack.fleet.name,
        purpose,
        alarm.find_metric("used", "vcpus-used", dimensions, "Maximum"),
        alarm.Expression("percent", "100 * used / SERVICE_QUOTA(used)", "Percent of the quota"),
        description=f"More than {_QUOTA_PERCENT}% of the region's quota of vCPUs, {usage_class}, is in use",
        signal="vcpus-used",
        condition=alarm.Condition(_QUOTA_PERCENT, period_s=_PERIOD_S, periods=1),
    )


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
