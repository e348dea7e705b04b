"""Value types of the settings: each owns the shorthand that a person writes, its bounds and its JSON Schema.

A value type parses once, at the edge; behind it the program sees plain values in the unit that its docstring names.
A file must name the unit; code may give the plain number.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema

from llm_serving.settings import own_yaml


def build_error(reason: str, fix: str, *, error_type: str = "wrong") -> PydanticCustomError:
    # The texts go in as context: pydantic would read braces in a template as fields. The kind is one of a few literals.
    return PydanticCustomError(error_type, "{why}. Fix: {write}", {"why": reason, "write": fix})


def _write_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _build_format_error(reason: str, fix: str) -> PydanticCustomError:
    """Return an error that the JSON Schema finds too, where `wrong` is beyond it."""
    return build_error(reason, fix, error_type="form")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class TextFormat:
    """A text of one form; messages use the field's words, never the pattern."""

    pattern: str
    description: str
    example: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": f"^(?:{self.pattern})$" if "|" in self.pattern else f"^{self.pattern}$",
            "description": _write_sentence(self.description),
            "examples": [self.example],
        }

    def _check(self, value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        if not isinstance(value, str | dict | list) and re.fullmatch(self.pattern, text := _format_scalar(value)):
            raise _build_format_error("it is not text", f"write it in quotes: '{text}'")
        raise self._build_mismatch()

    def _build_mismatch(self) -> PydanticCustomError:
        return _build_format_error(
            f"it is not {self.description}", f"use {self.description.partition(':')[0]} such as {self.example}"
        )


def read_formats(file: Path) -> Mapping[str, TextFormat]:
    """Read forms of texts by name, each with the fields of `TextFormat`."""
    return {name: TextFormat(**row) for name, row in own_yaml.read(file).items()}


@dataclass(frozen=True)
class TextOrOff(TextFormat):
    """A text of one form, or off, which YAML reads as false."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [super().__get_pydantic_json_schema__(core, handler), {"enum": [False, "off"]}]}

    def _check(self, value: Any) -> str:
        if value is True:  # the other half of a switch, and no text
            raise self._build_mismatch()
        return "off" if value is False else super()._check(value)


class _ZoneName(TextFormat):
    """A name of the tz database; any of its form where the machine has no such database."""

    def _check(self, value: Any) -> str:
        name = super()._check(value)
        if name != "UTC" and name not in (zoneinfo.available_timezones() or (name,)):
            raise build_error("there is no such time zone", f"use a name of the tz database such as {self.example}")
        return name


def _format_scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, such as 20/s; becomes a float, or an int where it is `whole`."""

    units: tuple[tuple[str, Decimal], ...]
    """Each unit with its size in what comes out."""
    description: str
    example: str
    min: Decimal = Decimal(0)
    """In what comes out; 0 itself is taken only where `zero`."""
    max: Decimal = Decimal(10) ** 15
    allow_zero: bool = False
    as_integer: bool = False
    """Becomes an int."""
    allow_fraction: bool = True
    """Whether a person may write a decimal point."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        description = _write_sentence(self.description)
        return {
            "type": "string",
            "pattern": f"^{self._pattern}$",
            "description": description,
            "examples": [self.example],
        }

    @property
    def _pattern(self) -> str:
        fraction = r"(?:\.[0-9]{1,9})?" if self.allow_fraction else ""
        return rf"([0-9]{{1,12}}{fraction}) ?({'|'.join(re.escape(unit) for unit, _ in self.units)})"

    def _parse(self, value: Any, info: ValidationInfo) -> float | int:
        if _is_number(value):
            if info.context and info.context.get("written"):
                raise _build_format_error("it has no unit", self._fix)
            number = Decimal(str(value))
        else:
            match = re.fullmatch(self._pattern, value) if isinstance(value, str) else None
            if not match:
                raise _build_format_error(f"it is not {self.description}", self._fix)
            number = Decimal(match[1]) * dict(self.units)[match[2]]
        if number > self.max or number < self.min or (number == 0 and not self.allow_zero):
            raise build_error(f"it is not {self._format_range()}", self._fix)
        return int(number) if self.as_integer else float(number)

    @property
    def _fix(self) -> str:
        *others, last = (unit for unit, _ in self.units)
        units = f" in {', '.join(others)} or {last}," if others else ""
        return f"use {self.description}{units} such as {self.example}"

    def _format_range(self) -> str:
        lower = "" if self.allow_zero else f"from {self.format_bound(self.min)} " if self.min else "above 0 and "
        return f"{lower}up to {self.format_bound(self.max)}"

    def format_bound(self, number: Decimal) -> str:
        """Return a bound in the largest unit that gives a whole number."""
        exact_units = [(unit, size) for unit, size in self.units if number % size == 0] or self.units[:1]
        unit, size = max(exact_units, key=lambda item: item[1])
        return f"{number / size:f}{unit}"


_COUNT_PATTERN = r"[0-9]{1,9}[km]?"
_MULTIPLIERS = {"k": 1_000, "m": 1_000_000}


def _parse_count(text: str) -> int:
    """Return `8k` as 8000."""
    return int(text[:-1]) * _MULTIPLIERS[text[-1]] if text[-1] in _MULTIPLIERS else int(text)


@dataclass(frozen=True)
class _IntegerFormat(ABC):
    """A whole number within bounds, or a text for one or several."""

    description: str
    example: str
    min: int
    max: int

    pattern: ClassVar[str]
    """Of the text."""

    alternative: ClassVar[str] = ""
    """What the text may be besides one number, as the end of a sentence."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        description = _write_sentence(self.description + self.alternative)
        number = {"type": "integer", "minimum": self.min, "maximum": self.max}
        text = {"type": "string", "pattern": f"^{self.pattern}$"}
        return {"anyOf": [number, text], "description": description, "examples": [self.example]}

    @abstractmethod
    def _parse(self, value: Any) -> Any: ...


class Count(_IntegerFormat):
    """A whole number such as 4096 or 8k."""

    pattern = _COUNT_PATTERN

    def _parse(self, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return self._require_within(_parse_count(value), build_error)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._require_within(value, _build_format_error)
        raise _build_format_error(f"it is not {self.description}", f"use {self.description} such as {self.example}")

    def _require_within(self, number: int, build: Any) -> int:
        if not self.min <= number <= self.max:
            raise build(f"it is not from {self.min} to {self.max}", f"use {self.description} such as {self.example}")
        return number


class Bounds(NamedTuple):
    """A least and a most, both included."""

    min: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}"


class Range(_IntegerFormat):
    """A whole number or a range of them with both ends included, such as 4, 0..40 or 2k..4k; becomes Bounds."""

    pattern = rf"{_COUNT_PATTERN}(?:\.\.{_COUNT_PATTERN})?"
    alternative = ", or a range with both ends included"

    def _parse(self, value: Any) -> Bounds:
        if isinstance(value, Bounds):
            return self._require_within(value, build_error)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._require_within(Bounds(value, value), _build_format_error)
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise _build_format_error(
                f"it is neither {self.description} nor a range",
                f"use {self.description} such as 4, or a range such as {self.example}",
            )
        lower, _, upper = value.partition("..")
        return self._require_within(Bounds(_parse_count(lower), _parse_count(upper or lower)), build_error)

    def _require_within(self, bounds: Bounds, build: Any) -> Bounds:
        if bounds.min > bounds.max:
            raise build_error(
                f"the least, {bounds.min}, is more than the most, {bounds.max}", f"write {bounds.max}..{bounds.min}"
            )
        if bounds.min < self.min or bounds.max > self.max:
            raise build(
                f"it is not within {self.min}..{self.max}",
                f"use {self.description} such as 4, or a range such as {self.example}",
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
        raise _build_format_error("it is neither true nor false", "use true or false (on and off mean the same)")


@dataclass(frozen=True)
class OrOff:
    """A quantity, or off (which YAML reads as false) for 0."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._parse, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"enum": [False, "off"]}]}

    def _parse(self, value: Any, parse_quantity: Callable[[Any], Any]) -> Any:
        return 0.0 if value is False or value == "off" else parse_quantity(value)


_ONE = Decimal(1)
_DAY = Decimal(86400)

_as_text = PlainSerializer(str, return_type=str)

Machines = Annotated[Bounds, Range("a number of machines", "0..40", 0, 100_000), _as_text]
"""`4` or `0..40`: a least and a most, both included."""

Replicas = Annotated[Bounds, Range("a number of replicas", "1..8", 0, 10_000), _as_text]
"""`2` or `1..8`: a least and a most, both included."""

Turns = Annotated[Bounds, Range("a number of turns", "2..6", 1, 1000), _as_text]
"""`4` or `2..6`: a least and a most, both included."""

Inputs = Annotated[Bounds, Range("a number of texts", "1..8", 1, 10_000), _as_text]
"""`4` or `1..8`: a least and a most, both included."""

ImageCount = Annotated[Bounds, Range("a number of pictures", "1..4", 0, 100), _as_text]
"""`1` or `0..4`: a least and a most, both included."""

TokenRange = Annotated[Bounds, Range("a number of tokens", "2k..4k", 1, 10_000_000), _as_text]
"""`200` or `2k..4k`: a least and a most, both included."""

Tokens = Annotated[int, Count("a number of tokens", "8k", 1, 10_000_000)]
"""`4096` or `8k` (8000): a number of tokens."""

Rate = Annotated[float, Quantity((("/s", _ONE),), "a rate", "20/s", max=Decimal(1_000_000))]
"""`20/s`: events a second."""

Share = Annotated[float, Quantity((("%", _ONE / 100),), "a percentage", "5%", max=_ONE, allow_zero=True)]
"""`5%`: a share from 0 to 1."""

Spend = Annotated[
    float, Quantity((("USD/h", _ONE),), "an amount of money an hour", "500 USD/h", max=Decimal(10_000_000))
]
"""`500 USD/h`: US dollars an hour."""

Memory = Annotated[
    int,
    Quantity(
        (("Ki", Decimal(2**10)), ("Mi", Decimal(2**20)), ("Gi", Decimal(2**30)), ("Ti", Decimal(2**40))),
        "an amount of memory",
        "4Gi",
        min=Decimal(2**10),
        max=Decimal(2**50),
        as_integer=True,
    ),
]
"""`512Mi` or `4Gi`: bytes."""

Duration = Annotated[
    float,
    Quantity(
        (("s", _ONE), ("min", Decimal(60)), ("h", Decimal(3600)), ("d", _DAY)),
        "a length of time",
        "30s",
        max=_DAY * 3653,
    ),
]
"""`30s`, `5min`, `8h`, `30d`: seconds."""

TimeZone = Annotated[
    str, _ZoneName("[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*", "a time zone", "America/Los_Angeles")
]
"""`Europe/Berlin`: a name of the tz database."""

Days = Annotated[
    float, Quantity((("d", _DAY),), "a number of days", "30d", min=_DAY, max=_DAY * 3653, allow_fraction=False)
]
"""`30d`: whole days, in seconds."""


def format_bytes(count: float) -> str:
    """Return `886 MB`, `65.5 GB`: bytes in powers of ten, as disks and files are sold."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun, as in `1 stack`, `2 stacks` and `1,000 objects`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
