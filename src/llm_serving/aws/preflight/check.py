"""One answer of a preflight: what it is about, whether it is good, and what to do where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_serving import console

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    """One answer."""

    about: str
    status: Status
    said: str

    remedy: str = ""
    """What to do, in words; "" where nothing is to be done."""

    command: tuple[str, ...] = ()
    """A command that does it, ready to paste."""

    unanswered: str = ""
    """Why AWS gave no answer, so that nothing is claimed; "" where it did."""

    share: float | None = None
    """How much of what there is the fleet takes, 1 being all of it; infinite of nothing, None where none is counted."""

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return not self.unanswered

    def plain(self) -> dict[str, Any]:
        """The line as `--json` shows it."""
        return {
            "about": self.about,
            "status": self.status,
            "known": self.known,
            "unanswered": self.unanswered,
            "said": self.said,
            "share": None if self.share is None or math.isinf(self.share) else round(self.share, 4),
            "remedy": self.remedy,
            "command": console.quoted(self.command) if self.command else "",
        }


@dataclass(frozen=True)
class Question:
    """Something to ask of AWS, independent of all other questions."""

    group: str
    """The heading that its lines stand under."""

    about: str

    ask: Callable[[], Sequence[Line]]

    actions: tuple[str, ...] = ()
    """IAM actions that asking takes."""


@dataclass(frozen=True)
class Group:
    """Lines under one heading."""

    title: str
    lines: tuple[Line, ...]


def unknown(about: str, unanswered: str, remedy: str = "", *, said: str = "not known") -> Line:
    """What could not be found out: a warning, and no claim."""
    return Line(about, "warn", said, remedy, unanswered=unanswered)
