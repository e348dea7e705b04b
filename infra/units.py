"""Value types of the settings: each owns the shorthand that a person writes, its bounds and its JSON Schema.

A value type parses once, at the edge; behind it the program sees plain numbers in the unit that its docstring names.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_SUFFIX = {"": 1, "k": 1_000, "m": 1_000_000}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def wrong(why: str, write: str) -> PydanticCustomError:
    """An error that says why a value cannot work and what to write instead."""
    # The texts go in as context: pydantic would read braces in a template as fields.
    return PydanticCustomError("wrong", "{why}. Write {write}", {"why": why, "write": write})


def _schema(pattern: str, description: str, example: Any, *, number: bool = False) -> WithJsonSchema:
    text: dict[str, Any] = {"type": "string", "pattern": pattern}
    shape: dict[str, Any] = {"anyOf": [{"type": "integer", "minimum": 0}, text]} if number else text
    return WithJsonSchema({**shape, "description": description, "examples": [example]})


def _count(text: str) -> int | None:
    """`8k` as 8000; None where the text is no such number."""
    found = re.fullmatch(r"(\d+)([km]?)", text.strip())
    return int(found[1]) * _SUFFIX[found[2]] if found else None


class Bounds(NamedTuple):
    """A least and a most, both included."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"


def _bounds(value: Any) -> Bounds:
    if isinstance(value, Bounds):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong("it is not a number or a range", "a number such as 4, or a range such as 0..40")
    ends = [_count(end) for end in str(value).split("..")]
    if len(ends) > 2 or any(end is None for end in ends):
        raise wrong("it is not a number or a range", "a number such as 4, or a range such as 0..40")
    least, most = ends[0] or 0, ends[-1] or 0
    if least > most:
        raise wrong(f"the least, {least}, is more than the most, {most}", f"{most}..{least}")
    return Bounds(least, most)


def _tokens(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        count: int | None = value
    else:
        count = _count(value) if isinstance(value, str) else None
    if count is None or count <= 0:
        raise wrong("it is not a number of tokens above 0", "a number such as 4096, or 8k")
    return count


def _per_second(value: Any) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/s", value.strip()) if isinstance(value, str) else None
    if not found or float(found[1]) <= 0:
        raise wrong("it is not a rate above 0", "a rate such as 20/s")
    return float(found[1])


def _percent(value: Any) -> float:
    if isinstance(value, float) and 0 <= value <= 1:  # already a share: the model was built in code
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip()) if isinstance(value, str) else None
    if not found or float(found[1]) > 100:
        raise wrong("it is not a percentage from 0% to 100%", "a percentage such as 0.1%")
    return float(found[1]) / 100


def _spend(value: Any) -> float:
    if isinstance(value, float) and value > 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*USD/h", value.strip()) if isinstance(value, str) else None
    if not found or float(found[1]) <= 0:
        raise wrong("it is not an amount of money an hour", "an amount such as 500 USD/h")
    return float(found[1])


def _memory(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti)B?", value.strip()) if isinstance(value, str) else None
    if not found or float(found[1]) <= 0:
        raise wrong("it is not an amount of memory", "an amount such as 512Mi or 4Gi")
    return int(float(found[1]) * _BINARY[found[2]])


_DURATION = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def _seconds(value: Any) -> float:
    if isinstance(value, float) and value > 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)", value.strip()) if isinstance(value, str) else None
    if not found or float(found[1]) <= 0:
        raise wrong("it is not a length of time above 0", "a length of time such as 30s, 5min, 8h or 30d")
    return float(found[1]) * _DURATION[found[2]]


_number = r"[0-9]+(\.[0-9]+)?"

Range = Annotated[
    Bounds,
    BeforeValidator(_bounds),
    PlainSerializer(str, return_type=str),
    _schema(r"^[0-9]+[km]?(\.\.[0-9]+[km]?)?$", "A number, or a range with both ends included.", "0..40", number=True),
]
"""`4`, `0..40` or `2k..4k`: a least and a most, both included."""

Tokens = Annotated[int, BeforeValidator(_tokens), _schema(r"^[0-9]+[km]?$", "A number of tokens.", "8k", number=True)]
"""`4096` or `8k` (8000): a number of tokens."""

Rate = Annotated[float, BeforeValidator(_per_second), _schema(rf"^{_number} ?/s$", "A rate a second.", "20/s")]
"""`20/s`: events a second."""

Share = Annotated[float, BeforeValidator(_percent), _schema(rf"^{_number} ?%$", "A percentage.", "0.1%")]
"""`0.1%`: a share from 0 to 1."""

Spend = Annotated[float, BeforeValidator(_spend), _schema(rf"^{_number} ?USD/h$", "Money an hour.", "500 USD/h")]
"""`500 USD/h`: US dollars an hour."""

Memory = Annotated[
    int, BeforeValidator(_memory), _schema(rf"^{_number} ?(Ki|Mi|Gi|Ti)B?$", "An amount of memory.", "4Gi")
]
"""`4Gi`: bytes."""

Duration = Annotated[
    float, BeforeValidator(_seconds), _schema(rf"^{_number} ?(s|min|h|d)$", "A length of time.", "30s")
]
"""`30s`, `5min`, `8h`, `30d`: seconds."""


def human_bytes(count: float) -> str:
    """`886 MB`, `65.5 GB`: bytes in powers of ten, as disks and files are sold."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"
