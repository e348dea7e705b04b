"""A whole preflight: all checks of a fleet, and their results as plain data."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving import console
from llm_serving.aws.preflight import (
    account_settings,
    identity,
    pins,
    price,
    quotas,
    reservations,
    runner,
    state,
    subnets,
    zones,
)
from llm_serving.aws.preflight.check import (
    Check,
    CheckGroup,
    CheckResult,
    build_group_payloads,
    build_unknown_result,
    count_by_status,
)
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import capacity, checks
from llm_serving.fleet.groups import has_known_types
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake


@dataclass(frozen=True)
class PreflightReport:
    """What a preflight found."""

    fleet: Fleet
    caller: Identity
    endpoint: str
    """Who answered: AWS, or another server."""

    groups: tuple[CheckGroup, ...]

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """All results, without headings."""
        return tuple(result for group in self.groups for result in group.results)

    @property
    def counts(self) -> dict[str, int]:
        """Number of results by status."""
        return count_by_status(self.groups)

    def build_payload(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "fleet": self.fleet.name,
            "region": self.fleet.region,
            "account": self.caller.account,
            "identity": self.caller.arn,
            "answered_by": self.endpoint,
            "ok": not self.counts["fail"],
            "counts": {**self.counts, "unknown": sum(not result.is_known for result in self.results)},
            "groups": build_group_payloads(self.groups),
        }


def run_preflight(document: Document[Fleet], aws: AwsSession, *, further: Sequence[Check] = ()) -> PreflightReport:
    """Run all checks; change nothing.

    Args:
        further: checks of what is to run on the fleet.

    Raises:
        Unavailable: no credentials, or no network.
    """
    fleet = document.value
    with console.step("Check the AWS identity"):
        caller = identity.fetch_identity(aws)
    mistakes = checks.find_mistakes(document)
    all_checks = [*_list_checks(document, aws, caller, mistakes), *further]
    with console.step(f"Check {fleet.name} in {fleet.region}: asking {aws.describe_endpoint()}") as step:
        groups = runner.run_checks(all_checks, step)
    return PreflightReport(fleet, caller, aws.describe_endpoint(), tuple(group for group in groups if group.results))


def _list_checks(
    document: Document[Fleet], aws: AwsSession, caller: Identity, mistakes: Sequence[Mistake]
) -> list[Check]:
    fleet = document.value
    limit_mistakes = [mistake for mistake in mistakes if mistake.field == "spend_limit"]
    other_mistakes = [mistake for mistake in mistakes if mistake.field not in _REPORTED_ELSEWHERE]
    return [
        *identity.list_checks(aws, fleet, caller),
        Check("fleet file", "fleet file", lambda: [_build_mistake_result(mistake) for mistake in other_mistakes]),
        *account_settings.list_checks(aws, fleet, caller),
        *zones.list_checks(aws, fleet),
        *_list_size_checks(document, aws),
        *reservations.list_checks(aws, fleet),
        *pins.list_checks(aws, fleet),
        *state.list_checks(aws, fleet, caller, str(document.path)),
        Check("price", "price", lambda: price.check_price(fleet, limit_mistakes, datetime.date.today())),
        *price.list_budget_checks(aws, fleet),
    ]


_REPORTED_ELSEWHERE = ("spend_limit", "network.cidr", "pools")
"""Fields whose mistakes have results of their own: price, subnets, limits."""


def _list_size_checks(document: Document[Fleet], aws: AwsSession) -> list[Check]:
    """Return checks of quotas and subnets; a warning where a type is unknown and instances cannot be counted."""
    fleet = document.value
    if not has_known_types(fleet):
        reason = "a type is not in the catalog, so usage was not counted"
        unknown_result = build_unknown_result("quotas", reason, "use a type of the catalog, as listed above")
        return [Check("quotas", "quotas", lambda: unknown_result)]
    requirements = capacity.compute(fleet)
    return [*quotas.list_checks(aws, fleet, requirements), *subnets.list_checks(aws, fleet, requirements)]


def _build_mistake_result(mistake: Mistake) -> CheckResult:
    return CheckResult(
        f"line {mistake.line}", "fail", f"{mistake.field}: {mistake.value}: {mistake.reason}", mistake.fix
    )
