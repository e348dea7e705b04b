"""What the fleet costs an hour, from the catalog's dated prices, and whether its budget counts anything."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import cost
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Mistake

STALE_DAYS = 90
"""Older prices are doubted: AWS has changed those of accelerators about once a year, by up to 45% (P5, June 2025)."""


_TAG = "fleet"


def check_price(fleet: Fleet, mistakes: Sequence[Mistake], today: datetime.date) -> list[CheckResult]:
    """Check whether the spend limit holds the span of the cost."""
    costs = cost.estimate(fleet)
    # Who collected a list is in the catalog; here its date is what counts.
    dates = ", ".join(dict.fromkeys(f"{source.name.split(',')[0]}, {source.date}" for source in costs.sources))
    prefix = "at least " if costs.unknown else ""
    message = (
        f"{costs.min_usd_h:,.2f} to {prefix}{costs.max_usd_h:,.2f} USD/h on demand{f' ({dates})' if dates else ''}"
    )
    refresh = ("blueprint", "catalog", "refresh", "--region", fleet.region)
    limit_results = [CheckResult("spend limit", "fail", mistake.reason, mistake.fix) for mistake in mistakes]
    if costs.unknown:
        return [
            CheckResult("price", "warn", f"{message}; unknown for {join_words(costs.unknown)}", "ask AWS", refresh),
            *limit_results,
        ]
    if any(_is_stale(source.date, today) for source in costs.sources):
        return [
            CheckResult("price", "warn", f"{message}: older than {STALE_DAYS} days", "refresh it", refresh),
            *limit_results,
        ]
    if not limit_results and fleet.spend_limit is not None:
        message += f", within the limit of {fleet.spend_limit:,.10g}"
    prepaid = [name for name, pool in fleet.pools.items() if cost.is_prepaid(pool)]
    if prepaid:
        message += f"; {join_words(prepaid)} {'is' if len(prepaid) == 1 else 'are'} paid already"
    return [CheckResult("price", "pass", message), *limit_results]


def _is_stale(date: str, today: datetime.date) -> bool:
    day = datetime.date.fromisoformat(date if date.count("-") == 2 else f"{date}-01")
    return (today - day).days > STALE_DAYS


def list_budget_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
    """Return a check of the budget's tag: AWS counts by one only once its payer has activated it."""
    if not fleet.budget_to:
        return []
    return [Check("price", "budget", lambda: _check_tag(aws), ("ce:ListCostAllocationTags",))]


def _check_tag(aws: AwsSession) -> CheckResult:
    rows = aws.client("ce").list_cost_allocation_tags(TagKeys=[_TAG], Status="Active")["CostAllocationTags"]
    if rows:
        return CheckResult("budget", "pass", f"costs are counted by the tag {_TAG}")
    command = ("aws", "ce", "update-cost-allocation-tags-status", "--cost-allocation-tags-status")
    message = f"the tag {_TAG} is not an active cost allocation tag, so the budget counts nothing"
    fix = "activate it in the account that pays, a day after the first apply: AWS lists only tags that it has seen"
    return CheckResult("budget", "warn", message, fix, (*command, f"TagKey={_TAG},Status=Active"))
