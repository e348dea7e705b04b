"""All errors that users see, as one small tree; each leaf has an exit code that scripts may rely on.

BlueprintError
├── CheckFailed   exit 1: an SLO missed, a plan not empty, a check failed
├── InputError    exit 2: a file, a field or an argument is wrong
└── Unavailable   exit 3: a tool, a server or a resource of this machine is missing
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar


class BlueprintError(Exception):
    """An error that the user sees as its message only, without a traceback."""

    exit_code = 1


class CheckFailed(BlueprintError):
    """A check failed: an SLO was missed, or a plan is not empty."""


class Unavailable(BlueprintError):
    """The machine or a server lacks what the command needs."""

    exit_code = 3


@dataclass(frozen=True)
class Mistake:
    """One mistake at one position of a file, and its fix.

    `line` and `column` count from 1; both are 0 for a mistake of a file or folder as a whole. `field` is a dotted path
    such as `pools.general.size`.
    """

    file: Path
    line: int
    column: int
    field: str
    value: str
    reason: str
    fix: str

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        quoted_value = f"{self.value}: " if self.value else ""
        position = f":{self.line}:{self.column}" if self.line else ""
        return escape_unprintable(f"{self.file}{position}: {subject}{quoted_value}{self.reason}. Fix: {self.fix}.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "line": self.line or None,
            "column": self.column or None,
            "field": self.field,
            "value": self.value,
            "why": self.reason,
            "write": self.fix,
            "message": str(self),
        }


def quote_value(value: object) -> str:
    """Return a value as messages quote it: a number as it is, anything else in double quotes."""
    return str(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)


def escape_unprintable(text: str, keep: str = "") -> str:
    """Return the text with what cannot be printed spelled out: paths, keys and values may hold anything.

    Args:
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape", "replace").decode()
        for char in text
    )


_COLORS = re.compile(r"\x1b\[[0-9;]*(?:m|$)")
"""Of a terminal; the last one of a line may be cut."""


def make_safe(text: str) -> str:
    """Return a text for a terminal, whoever wrote it: what would move the cursor or hide other lines is spelled out.

    Colors of other programs are left out.
    """
    return escape_unprintable(_COLORS.sub("", text), keep="\n\t")


class InputError(BlueprintError):
    """All mistakes found at once, or one sentence about an argument."""

    exit_code = 2

    def __init__(self, mistakes: Iterable[Mistake | str] | str) -> None:
        self.parts: tuple[Mistake | str, ...] = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        self.mistakes = tuple(part for part in self.parts if isinstance(part, Mistake))
        super().__init__("\n".join(map(str, self.parts)))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the mistakes as `--json` shows them; of a sentence about an argument, only `message` is known."""
        return [part.to_dict() if isinstance(part, Mistake) else {"message": part} for part in self.parts]


def build_file_error(path: Path, reason: str, fix: str) -> InputError:
    """Return the error of a file or folder as a whole, which has no line."""
    return InputError([Mistake(path, 0, 0, "", "", reason, fix)])


def require_choice(option: str, value: str, noun: str, choices: Collection[str], verb: str = "use") -> None:
    """Check that an argument is one of those that there are.

    Raises:
        InputError: it is none; names all of them.
    """
    if value not in choices:
        fix = f"{verb} {' or '.join(choices)}"
        raise InputError(f"{option}: {quote_value(value)}: there is no such {noun}. Fix: {fix}.")


A = TypeVar("A")


class ErrorCollector:
    """Run several checks, and raise their mistakes together."""

    def __init__(self) -> None:
        self._parts: list[Mistake | str] = []

    def __call__(self, check: Callable[[], A]) -> A | None:
        """Return what `check` returns, or None if it raised an InputError."""
        try:
            return check()
        except InputError as error:
            self._parts += [part for part in error.parts if part not in self._parts]
            return None

    def raise_if_any(self) -> None:
        """Let pass what has no mistake.

        Raises:
            InputError: with the mistakes of all checks, in their order.
        """
        if self._parts:
            raise InputError(self._parts)
