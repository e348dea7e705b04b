"""One answer of a preflight: what it is about, whether it is good, and what to do where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_serving import console

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """One answer."""

    name: str
    status: Status
    message: str

    fix: str = ""
    """What to do, in words; "" where nothing is to be done."""

    command: tuple[str, ...] = ()
    """A command that does it, ready to paste."""

    unknown_reason: str = ""
    """Why AWS gave no answer, so that nothing is claimed; "" where it did."""

    usage_ratio: float | None = None
    """How much of what there is the fleet takes, 1 being all of it; infinite of nothing, None where none is counted."""

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return not self.unknown_reason

    def build_payload(self) -> dict[str, Any]:
        """The line as `--json` shows it."""
        return {
            "about": self.name,
            "status": self.status,
            "known": self.known,
            "unanswered": self.unknown_reason,
            "said": self.message,
            "share": None if self.usage_ratio is None or math.isinf(self.usage_ratio) else round(self.usage_ratio, 4),
            "remedy": self.fix,
            "command": console.quote_command(self.command) if self.command else "",
        }


@dataclass(frozen=True)
class Check:
    """Something to ask of AWS, independent of all other questions."""

    group: str
    """The heading that its lines stand under."""

    name: str

    execute: Callable[[], Sequence[CheckResult]]

    actions: tuple[str, ...] = ()
    """IAM actions that asking takes."""


@dataclass(frozen=True)
class CheckGroup:
    """Lines under one heading."""

    title: str
    results: tuple[CheckResult, ...]


def build_unknown_result(name: str, unknown_reason: str, fix: str = "", *, message: str = "not known") -> CheckResult:
    """What could not be found out: a warning, and no claim."""
    return CheckResult(name, "warn", message, fix, unknown_reason=unknown_reason)
