"""Typed, frozen settings read from a YAML file; every mistake comes back with its line and column, all at once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, NoReturn, Self, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema

from llm_serving.settings import diagnostics, yaml_source
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.plain import Described
from llm_serving.settings.yaml_source import KeyPath, Position

FILE_CONTEXT = {"written": True}
"""Validation context of values that a person wrote: units are then required, where code may give plain numbers."""


class Conflict(NamedTuple):
    """Values that are valid by themselves and conflict with each other."""

    key_path: KeyPath
    """The field to report, relative to the model, in the file's keys."""

    reason: str
    fix: str
    value: Any = None
    """The current value to show, for checks that run after the file is read."""


class Settings(Described):
    """Base of every settings model: frozen, and a key it does not know is refused.

    Each method whose name begins with `_check_` is a rule, and yields the conflicts between fields that it finds.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    other_names: ClassVar[Mapping[str, str]] = {}
    """What engines call some of its keys, in Python's form: who writes one is told the key."""

    distinct: ClassVar[tuple[str, ...]] = ()
    """Its fields with lists that name no item twice."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        """Return the conflicts between fields, one iterator for each rule."""
        rules = [getattr(self, name)() for name in _list_rules(type(self))]
        return [*(find_duplicates(name, getattr(self, name)) for name in self.distinct), *rules]

    @model_validator(mode="after")
    def _raise_conflicts(self) -> Self:
        conflicts = [conflict for rule in self.find_conflicts() for conflict in _apply_rule(rule)]
        if conflicts:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [
                    InitErrorDetails(
                        type=PydanticCustomError("contradiction", "{why}. Fix: {write}", {"why": reason, "write": fix}),
                        loc=key_path,
                        input=None,
                    )
                    for key_path, reason, fix, _ in conflicts
                ],
            )
        return self

    @field_validator("*", mode="wrap")
    @classmethod
    def _skip_invalid(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, _InvalidValue) else handler(value)


@functools.cache
def _list_rules(model: type[Settings]) -> tuple[str, ...]:
    """Return the names of a model's rules, those of its bases first."""
    names = (name for base in reversed(model.__mro__) for name in vars(base) if name.startswith("_check_"))
    return tuple(dict.fromkeys(names))


def find_duplicates(field: str, items: Sequence[Any]) -> Iterator[Conflict]:
    """Yield the items of a list that are there before."""
    for index, item in enumerate(items):
        if item in items[:index]:
            yield Conflict((field, index), "it is listed twice", "remove the duplicate")


def check_one_of(settings: Settings, *names: str, fix: str) -> Iterator[Conflict]:
    """Yield that none or several of the fields are written, of which a model has exactly one."""
    written_names = [name for name in names if getattr(settings, name) is not None]
    if len(written_names) != 1:
        *others, last = names
        reason = f"it must have exactly one of {', '.join(others)} and {last}"
        yield Conflict((written_names[1],) if written_names else (), reason, fix)


class _InvalidValueError(Exception):
    """A rule used a value that is invalid by itself."""


class _InvalidValue:
    """Placeholder for an invalid value, so that rules about the other fields still run."""

    def _reject_use(self, *_: Any) -> NoReturn:
        raise _InvalidValueError

    __getattr__ = __getitem__ = __iter__ = __contains__ = __len__ = __bool__ = _reject_use
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = _reject_use
    __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _reject_use
    __eq__ = __ne__ = __hash__ = __str__ = __format__ = _reject_use


def _apply_rule(rule: Iterator[Conflict]) -> Iterator[Conflict]:
    try:
        yield from rule
    except _InvalidValueError:
        return


@dataclass(frozen=True)
class AllowSingleItem:
    """Accept a single item in place of a list of one."""

    def __get_pydantic_core_schema__(self, source_type: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._wrap_item, handler(source_type))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        return {"anyOf": [schema["items"], schema]}

    def _wrap_item(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, list | tuple) else (value,)


def parse_default(text: str) -> Any:
    """Return a field's default, in the words that a person would write."""
    return Field(text)


T = TypeVar("T")

OneOrMore = Annotated[tuple[T, ...], Field(min_length=1), AllowSingleItem()]
"""`a` or `[a, b]`: a list in which one item need not be in brackets."""

M = TypeVar("M", bound=Settings)


@dataclass(frozen=True)
class Document(Generic[M]):
    """A settings model together with the file it came from, so that a later check can still name line and column."""

    path: Path
    value: M
    positions: Mapping[KeyPath, Position]

    def build_mistake(self, key_path: Sequence[str | int], value: Any, reason: str, fix: str) -> Mistake:
        """Build a mistake at the field `key_path`, or at its nearest parent in the file."""
        return diagnostics.build_mistake(
            self.path, self.positions, key_path, diagnostics.format_value(value), reason, fix
        )

    def locate(self, conflicts: Iterable[Conflict]) -> list[Mistake]:
        """Return the conflicts of the model as mistakes at their positions in the file."""
        return [self.build_mistake(key_path, value, reason, fix) for key_path, reason, fix, value in conflicts]


def raise_mistakes(mistakes: Iterable[Mistake]) -> None:
    """Raise InputError with all mistakes, in the order of the file, if there are any."""
    ordered = sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))
    if ordered:
        raise InputError(ordered)


def load(path: Path, model_type: type[M]) -> Document[M]:
    """Read `path` as settings of `model_type`.

    Raises:
        InputError: with every mistake of the file at once.
    """
    yaml_file = yaml_source.read(path)
    if not isinstance(yaml_file.data, dict):
        reason = "the file is not a mapping of keys to values"
        raise InputError(
            [Mistake(path, 1, 1, "", diagnostics.format_value(yaml_file.data), reason, "write KEY: VALUE lines")]
        )
    mistakes = list(yaml_file.mistakes)
    value, details = _validate(model_type, yaml_file.data)
    intended_keys = diagnostics.find_intended_keys(model_type, yaml_file.data, details)
    for detail in details:
        if detail["loc"] not in intended_keys and not _is_reported(yaml_file, detail):
            mistakes.append(diagnostics.convert_error(yaml_file, model_type, detail))
    raise_mistakes(dict.fromkeys(mistakes))
    assert value is not None, "what is wrong with it is a mistake"
    return Document(path, value, yaml_file.positions)


def _is_reported(yaml_file: yaml_source.YamlFile, detail: ErrorDetails) -> bool:
    """Return whether other mistakes already cover the field: the YAML's own, or those of a list's items."""
    if detail["type"] == "too_short" and detail["input"]:
        return True
    return any(detail["loc"][:length] in yaml_file.rejected for length in range(len(detail["loc"]) + 1))


def _validate(model_type: type[M], data: Any) -> tuple[M | None, list[ErrorDetails]]:
    """Return the model of `data`, or all its errors.

    Pydantic checks for conflicts only if all fields are valid. So invalid fields are set aside, and the rest is
    validated again, until nothing new is found.
    """
    details: list[ErrorDetails] = []
    while True:
        try:
            value = model_type.model_validate(data, context=FILE_CONTEXT)
        except ValidationError as error:
            new_details = [detail for detail in error.errors(include_url=False) if _is_new(detail, details)]
        else:
            return (None, details) if details else (value, [])
        if not new_details:
            return None, details
        details += new_details
        for detail in new_details:
            data = _mark_invalid(model_type, data, detail)


def _is_new(detail: ErrorDetails, known_details: Sequence[ErrorDetails]) -> bool:
    """Return whether a repeated validation found something new: a conflict, at a field without a mistake so far."""
    return not known_details or (
        detail["type"] == "contradiction" and all(detail["loc"] != other["loc"] for other in known_details)
    )


def _mark_invalid(model_type: type[Settings], data: Any, detail: ErrorDetails) -> Any:
    """Return a copy of `data` in which the field of a mistake is set aside."""
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        nearest_key = diagnostics.find_nearest_key(model_type, data, loc)
        key_path = diagnostics.resolve_key_path(data, loc)
        data = _replace_value(data, key_path, None)
        return _replace_value(data, (*key_path[:-1], nearest_key), _InvalidValue()) if nearest_key else data
    known_lengths = [
        length
        for length, (step, model) in enumerate(diagnostics.walk_models(model_type, loc), 1)
        if model and step in diagnostics.get_fields(model)
    ]
    return (
        _replace_value(data, diagnostics.resolve_key_path(data, loc[: known_lengths[-1]]), _InvalidValue())
        if known_lengths
        else data
    )


def _replace_value(data: Any, key_path: KeyPath, value: Any) -> Any:
    """Return a copy of nested mappings and lists with another value at `key_path`; None removes the key."""
    if not key_path:
        return value
    first, *rest = key_path
    if isinstance(data, list) and isinstance(first, int):
        return [_replace_value(item, tuple(rest), value) if index == first else item for index, item in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if not rest and value is None:
        return {key: child for key, child in data.items() if key != first}
    return {**data, first: _replace_value(data.get(first), tuple(rest), value)}
