"""Value types of the settings: each owns the shorthand that a person writes, its bounds and its JSON Schema.

A value type parses once, at the edge; behind it the program sees plain values in the unit that its docstring names.
A file must name the unit; code may give the plain number.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema


def wrong(why: str, write: str, *, kind: str = "wrong") -> PydanticCustomError:
    """An error that says why a value cannot work and what to write instead."""
    # The texts go in as context: pydantic would read braces in a template as fields. The kind is one of a few literals.
    return PydanticCustomError(kind, "{why}. Write {write}", {"why": why, "write": write})


def _misformed(why: str, write: str) -> PydanticCustomError:
    """An error that the JSON Schema finds too, where `wrong` is beyond it."""
    return wrong(why, write, kind="form")


def _in_file(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("written"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Form:
    """A text of one form; messages use the field's words, never the pattern."""

    pattern: str
    what: str
    example: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": f"^(?:{self.pattern})$" if "|" in self.pattern else f"^{self.pattern}$",
            "description": f"{self.what[0].upper()}{self.what[1:]}.",
            "examples": [self.example],
        }

    def _check(self, value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        if not isinstance(value, str | dict | list) and re.fullmatch(self.pattern, text := _as_written(value)):
            raise _misformed("it is no text", f"it in quotes: '{text}'")
        raise _misformed(f"it is not {self.what}", f"{self.what.partition(':')[0]} such as {self.example}")


def _as_written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, such as 20/s; becomes a float, or an int where it is `whole`."""

    units: tuple[tuple[str, Decimal], ...]
    """Each unit with its size in what comes out."""
    what: str
    example: str
    least: Decimal = Decimal(0)
    """In what comes out; 0 itself is taken only where `zero`."""
    most: Decimal = Decimal(10) ** 15
    zero: bool = False
    whole: bool = False
    """Becomes an int."""
    fraction: bool = True
    """Whether a person may write a decimal point."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        what = f"{self.what[0].upper()}{self.what[1:]}."
        return {"type": "string", "pattern": f"^{self._pattern}$", "description": what, "examples": [self.example]}

    @property
    def _pattern(self) -> str:
        fraction = r"(?:\.[0-9]{1,9})?" if self.fraction else ""
        return rf"([0-9]{{1,12}}{fraction}) ?({'|'.join(re.escape(unit) for unit, _ in self.units)})"

    def _parse(self, value: Any, info: ValidationInfo) -> float | int:
        if _is_number(value):
            if _in_file(info):
                raise _misformed("it has no unit", f"{self.what} such as {self.example}")
            number = Decimal(str(value))
        else:
            found = re.fullmatch(self._pattern, value) if isinstance(value, str) else None
            if not found:
                raise _misformed(f"it is not {self.what}", f"{self.what} such as {self.example}")
            number = Decimal(found[1]) * dict(self.units)[found[2]]
        if number > self.most or number < self.least or (number == 0 and not self.zero):
            raise wrong(f"it is not {self._span()}", f"{self.what} such as {self.example}")
        return int(number) if self.whole else float(number)

    def _span(self) -> str:
        most = f"up to {self._in_units(self.most)}"
        return (
            most if self.zero else f"from {self._in_units(self.least)} {most}" if self.least else f"above 0 and {most}"
        )

    def _in_units(self, number: Decimal) -> str:
        """A bound in the largest unit that gives a whole number."""
        whole = [(unit, size) for unit, size in self.units if number % size == 0] or self.units[:1]
        unit, size = max(whole, key=lambda one: one[1])
        return f"{number / size:f}{unit}"


_COUNT = r"[0-9]{1,9}[km]?"
_SUFFIX = {"k": 1_000, "m": 1_000_000}


def _count(text: str) -> int:
    """`8k` as 8000."""
    return int(text[:-1]) * _SUFFIX[text[-1]] if text[-1] in _SUFFIX else int(text)


@dataclass(frozen=True)
class _Whole(ABC):
    """What a file says as a whole number within bounds, or as a text that stands for one or more."""

    what: str
    example: str
    least: int
    most: int

    pattern: ClassVar[str]
    """Of the text."""

    also: ClassVar[str] = ""
    """What the text may be besides one number, as the end of a sentence."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        what = f"{self.what[0].upper()}{self.what[1:]}{self.also}."
        number = {"type": "integer", "minimum": self.least, "maximum": self.most}
        text = {"type": "string", "pattern": f"^{self.pattern}$"}
        return {"anyOf": [number, text], "description": what, "examples": [self.example]}

    @abstractmethod
    def _parse(self, value: Any) -> Any: ...


class Count(_Whole):
    """A whole number such as 4096 or 8k."""

    pattern = _COUNT

    def _parse(self, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return self._within(_count(value), wrong)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._within(value, _misformed)
        raise _misformed(f"it is not {self.what}", f"{self.what} such as {self.example}")

    def _within(self, number: int, error: Any) -> int:
        if not self.least <= number <= self.most:
            raise error(f"it is not from {self.least} to {self.most}", f"{self.what} such as {self.example}")
        return number


class Bounds(NamedTuple):
    """A least and a most, both included."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"


class Span(_Whole):
    """A whole number or a range of them with both ends included, such as 4, 0..40 or 2k..4k; becomes Bounds."""

    pattern = rf"{_COUNT}(?:\.\.{_COUNT})?"
    also = ", or a range with both ends included"

    def _parse(self, value: Any) -> Bounds:
        if isinstance(value, Bounds):
            return self._within(value, wrong)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._within(Bounds(value, value), _misformed)
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise _misformed(
                f"it is neither {self.what} nor a range", f"{self.what} such as 4, or a range such as {self.example}"
            )
        least, _, most = value.partition("..")
        return self._within(Bounds(_count(least), _count(most or least)), wrong)

    def _within(self, bounds: Bounds, error: Any) -> Bounds:
        if bounds.least > bounds.most:
            raise wrong(
                f"the least, {bounds.least}, is more than the most, {bounds.most}", f"{bounds.most}..{bounds.least}"
            )
        if bounds.least < self.least or bounds.most > self.most:
            raise error(
                f"it is not within {self.least}..{self.most}",
                f"{self.what} such as 4, or a range such as {self.example}",
            )
        return bounds


@dataclass(frozen=True)
class Switch:
    """True or false, also written on or off."""

    example: str = "true"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}

    def _parse(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if value in ("on", "off"):
            return bool(value == "on")
        raise _misformed("it is neither true nor false", "true or false (on and off mean the same)")


_ONE = Decimal(1)
_DAY = Decimal(86400)

_written = PlainSerializer(str, return_type=str)

Machines = Annotated[Bounds, Span("a number of machines", "0..40", 0, 100_000), _written]
"""`4` or `0..40`: a least and a most, both included."""

Replicas = Annotated[Bounds, Span("a number of replicas", "1..8", 0, 10_000), _written]
"""`2` or `1..8`: a least and a most, both included."""

TokenRange = Annotated[Bounds, Span("a number of tokens", "2k..4k", 1, 10_000_000), _written]
"""`200` or `2k..4k`: a least and a most, both included."""

Tokens = Annotated[int, Count("a number of tokens", "8k", 1, 10_000_000)]
"""`4096` or `8k` (8000): a number of tokens."""

Rate = Annotated[float, Quantity((("/s", _ONE),), "a rate", "20/s", most=Decimal(1_000_000))]
"""`20/s`: events a second."""

Share = Annotated[float, Quantity((("%", _ONE / 100),), "a percentage", "0.1%", most=_ONE, zero=True)]
"""`0.1%`: a share from 0 to 1."""

Spend = Annotated[
    float, Quantity((("USD/h", _ONE),), "an amount of money an hour", "500 USD/h", most=Decimal(10_000_000))
]
"""`500 USD/h`: US dollars an hour."""

Memory = Annotated[
    int,
    Quantity(
        (("Ki", Decimal(2**10)), ("Mi", Decimal(2**20)), ("Gi", Decimal(2**30)), ("Ti", Decimal(2**40))),
        "an amount of memory",
        "4Gi",
        least=Decimal(2**10),
        most=Decimal(2**50),
        whole=True,
    ),
]
"""`512Mi` or `4Gi`: bytes."""

Duration = Annotated[
    float,
    Quantity(
        (("s", _ONE), ("min", Decimal(60)), ("h", Decimal(3600)), ("d", _DAY)),
        "a length of time",
        "30s",
        most=_DAY * 3653,
    ),
]
"""`30s`, `5min`, `8h`, `30d`: seconds."""

Days = Annotated[
    float, Quantity((("d", _DAY),), "a number of days", "30d", least=_DAY, most=_DAY * 3653, fraction=False)
]
"""`30d`: whole days, in seconds."""


def human_bytes(count: float) -> str:
    """`886 MB`, `65.5 GB`: bytes in powers of ten, as disks and files are sold."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"
