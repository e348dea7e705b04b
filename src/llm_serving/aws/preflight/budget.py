"""Whether the fleet's budget counts anything: AWS counts by a tag only once its payer has activated it."""

from __future__ import annotations

from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet

_TAG = "fleet"


def list_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
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
