"""Checks of a preflight and their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from llm_serving import console

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    name: str
    status: Status
    message: str

    fix: str = ""
    """What to do; "" where there is nothing to do."""

    command: tuple[str, ...] = ()
    unknown_reason: str = ""
    """Why AWS gave no answer; "" where it did."""

    usage_ratio: float | None = None
    """Share of the quota that the fleet uses, 1 being all; infinite for a quota of 0, None where nothing is counted."""

    @property
    def is_known(self) -> bool:
        """Whether AWS gave an answer."""
        return not self.unknown_reason

    def build_payload(self) -> dict[str, Any]:
        return {
            "about": self.name,
            "status": self.status,
            "known": self.is_known,
            "unanswered": self.unknown_reason,
            "said": self.message,
            "share": None if self.usage_ratio is None or math.isinf(self.usage_ratio) else round(self.usage_ratio, 4),
            "remedy": self.fix,
            "command": console.quote_command(self.command) if self.command else "",
        }


@dataclass(frozen=True)
class Check:
    """A check that is independent of all others."""

    group: str
    """Heading of its results."""

    name: str

    execute: Callable[[], CheckResult | Sequence[CheckResult]]

    actions: tuple[str, ...] = ()
    """IAM actions that it needs."""

    def list_results(self) -> Sequence[CheckResult]:
        results = self.execute()
        return [results] if isinstance(results, CheckResult) else results


@dataclass(frozen=True)
class CheckGroup:
    """Results under one heading."""

    title: str
    results: tuple[CheckResult, ...]


def count_by_status(groups: Sequence[CheckGroup]) -> dict[str, int]:
    """Return the number of results by status."""
    counter = Counter(result.status for group in groups for result in group.results)
    return {status: counter[status] for status in get_args(Status)}


def build_group_payloads(groups: Sequence[CheckGroup]) -> list[dict[str, Any]]:
    return [{"title": group.title, "lines": [result.build_payload() for result in group.results]} for group in groups]


def build_kind_result(result: CheckResult, kind: str) -> CheckResult:
    """Return a result for a kind of work: never a failure, because a fleet need not carry every kind."""
    return build_optional_result(result, f"deploy blueprints of kind: {kind}")


def build_optional_result(result: CheckResult, work: str) -> CheckResult:
    """Return a result for what not everybody does: never a failure."""
    fix = f"only if you {work}: {result.fix}"
    return result if result.status == "pass" else replace(result, status="warn", fix=fix)


def build_unknown_result(name: str, unknown_reason: str, fix: str = "", *, message: str = "not known") -> CheckResult:
    """Return a warning for a check without an answer."""
    return CheckResult(name, "warn", message, fix, unknown_reason=unknown_reason)
