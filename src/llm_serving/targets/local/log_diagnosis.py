"""Finds the line of a process's log that says why it ended."""

from __future__ import annotations

import re

# "(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510] " before the text proper.
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] )?")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: \S")
_ERROR = re.compile(r"\berror\b|panicked at|cannot|failed", re.IGNORECASE)
_UNREAD = re.compile(r"Failed to read from file (\S+)")
"""What the weight streamer says of a file; the exception that follows does not name it."""

_ELSEWHERE = ("Engine core initialization failed", "See root cause above")
"""What says only that another process has failed."""


def find(log: str) -> str:
    """The one line that tells most: what the last exception said, else the last line that speaks of an error.

    Empty where no line does.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in log.splitlines()]
    raised = [text for text in _raised(lines) if not any(words in text for words in _ELSEWHERE)]
    if raised:
        unread = _UNREAD.findall(log)
        return f"{raised[-1]} (reading {unread[-1]})" if unread else raised[-1]
    return next((line.strip() for line in reversed(lines) if _ERROR.search(line)), "")


def tail(log: str, count: int = 15) -> list[str]:
    """The last lines that hold anything."""
    return [line for line in log.splitlines() if line.strip()][-count:]


def _raised(lines: list[str]) -> list[str]:
    """What each traceback ends with: its first line that is not indented."""
    found, inside = [], False
    for line, after in zip(lines, [*lines, ""][1:], strict=True):
        if line == _TRACEBACK:
            inside = True
        elif inside and _RAISED.match(line):
            inside = False
            # pydantic counts its errors there and names the first on the next line.
            found.append(f"{line}: {after.strip()}" if "validation error" in line else line)
    return found
