"""Finds the line in a process's log that has the cause of its end."""

from __future__ import annotations

import re

# "(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510] " before the text proper.
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] )?")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*: \S")
_ERROR = re.compile(r"\berror\b|panicked at|cannot|failed", re.IGNORECASE)
_READ_FAILURE = re.compile(r"Failed to read from file (\S+)")
"""The weight streamer's message with the file's name, which the exception after it lacks."""

_SECONDARY_ERRORS = ("Engine core initialization failed", "See root cause above")
"""Messages which say only that another process failed."""


def find_cause(log: str) -> str:
    """Find the most telling line: the last exception, else the last line with an error; empty if there is none."""
    lines = [_PREFIX.sub("", line).rstrip() for line in log.splitlines()]
    exceptions = [text for text in _find_exceptions(lines) if not any(phrase in text for phrase in _SECONDARY_ERRORS)]
    if exceptions:
        unreadable_files = _READ_FAILURE.findall(log)
        return f"{exceptions[-1]} (reading {unreadable_files[-1]})" if unreadable_files else exceptions[-1]
    return next((line.strip() for line in reversed(lines) if _ERROR.search(line)), "")


def extract_tail(log: str, count: int = 15) -> list[str]:
    """Return the last `count` lines that are not empty."""
    return [line for line in log.splitlines() if line.strip()][-count:]


def _find_exceptions(lines: list[str]) -> list[str]:
    """Find the last line of each traceback: the first one that is not indented."""
    exceptions, in_traceback = [], False
    for line, next_line in zip(lines, [*lines, ""][1:], strict=True):
        if line == _TRACEBACK:
            in_traceback = True
        elif in_traceback and _EXCEPTION.match(line):
            in_traceback = False
            # pydantic counts its errors there and names the first on the next line.
            exceptions.append(f"{line}: {next_line.strip()}" if "validation error" in line else line)
    return exceptions
