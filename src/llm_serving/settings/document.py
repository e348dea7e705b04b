"""Typed, frozen settings read from a YAML file; every mistake comes back with its line and column, all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NoReturn, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema

from llm_serving.settings import yaml_source
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.yaml_source import Spot, Steps, dotted

WRITTEN = {"written": True}
"""Validation context of values that a person wrote: units are then required, where code may give plain numbers."""


class Contradiction(NamedTuple):
    """Values that are right by themselves and cannot stand together."""

    where: Steps
    """The field to blame, below the model that says it, in the file's own keys."""

    why: str
    write: str


class Settings(BaseModel):
    """Base of every settings model: frozen, and a key it does not know is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        """What cannot stand together, one iterator a rule; a model with such rules overrides this."""
        return ()

    @model_validator(mode="after")
    def _without_contradiction(self) -> Self:
        found = [contradiction for rule in self.contradictions() for contradiction in _heard(rule)]
        if found:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [
                    InitErrorDetails(
                        type=PydanticCustomError("contradiction", "{why}. Write {write}", {"why": why, "write": write}),
                        loc=where,
                        input=None,
                    )
                    for where, why, write in found
                ],
            )
        return self

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_unknown(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, _Unknown) else check(value)


class _NotKnownError(Exception):
    """A rule asked for a value that is wrong by itself."""


class _Unknown:
    """Stands where a value is wrong by itself, so that rules about the other fields can still be heard."""

    def _ask(self, *_: Any) -> NoReturn:
        raise _NotKnownError

    __getattr__ = __getitem__ = __iter__ = __contains__ = __len__ = __bool__ = _ask
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = _ask
    __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _ask
    __eq__ = __ne__ = __hash__ = __str__ = __format__ = _ask


def _heard(rule: Iterator[Contradiction]) -> Iterator[Contradiction]:
    try:
        yield from rule
    except _NotKnownError:
        return


@dataclass(frozen=True)
class Listed:
    """One item stands for a list of one."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._listed, handler(kind))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        return {"anyOf": [schema["items"], schema]}

    def _listed(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, list | tuple) else (value,)


def written(text: str) -> Any:
    """A field's default, in the words that a person would write."""
    return Field(text)


T = TypeVar("T")

OneOrMore = Annotated[tuple[T, ...], Field(min_length=1), Listed()]
"""`a` or `[a, b]`: a list in which one item need not be in brackets."""

M = TypeVar("M", bound=Settings)


@dataclass(frozen=True)
class Document(Generic[M]):
    """A settings model together with the file it came from, so that a later check can still name line and column."""

    path: Path
    value: M
    positions: Mapping[Steps, Spot]

    def mistake(self, where: Sequence[str | int], value: Any, why: str, write: str) -> Mistake:
        """A mistake at the field `where`, or at its nearest parent that stands in the file."""
        return _mistake(self.path, self.positions, where, _show(value), why, write)


def load(path: Path, kind: type[M]) -> Document[M]:
    """Reads `path` as `kind`.

    Raises:
        InputError: with every mistake of the file at once.
    """
    read = yaml_source.read(path)
    if not isinstance(read.data, dict):
        why = "the file is not a mapping of keys to values"
        raise InputError([*read.mistakes, Mistake(path, 1, 1, "", _show(read.data), why, "KEY: VALUE lines")])
    mistakes = list(read.mistakes)
    value, details = _validated(kind, read.data)
    meant = _meant(kind, read.data, details)
    for detail in details:
        if detail["loc"] not in meant and not _said(read, detail):
            mistakes.append(_told(read, kind, detail))
    if mistakes or value is None:
        told = sorted(dict.fromkeys(mistakes), key=lambda mistake: (mistake.line, mistake.column))
        raise InputError(told)
    return Document(path, value, read.spots)


def _mistake(
    path: Path, spots: Mapping[Steps, Spot], where: Sequence[str | int], value: str, why: str, write: str
) -> Mistake:
    at = tuple(where)
    while at and at not in spots:
        at = at[:-1]
    spot = spots.get(at, Spot(1, 1, 1, 1))
    if all(isinstance(step, int) for step in where[len(at) :]):  # one item may stand for a list of one
        return Mistake(path, spot.line, spot.column, dotted(at), value, why, write)
    # A field that is not there is best looked for at its parent's key.
    return Mistake(path, spot.key_line, spot.key_column, dotted(where), value, why, write)


def _said(read: yaml_source.Source, detail: ErrorDetails) -> bool:
    """Whether other mistakes already speak of the field: the YAML's own, or those of a list's items."""
    if detail["type"] == "too_short" and detail["input"]:
        return True
    return any(detail["loc"][:length] in read.wrong for length in range(len(detail["loc"]) + 1))


def _meant(kind: type[Settings], data: Any, details: Sequence[ErrorDetails]) -> set[Steps]:
    """The fields that misspelt keys were meant for: they are not missing."""
    return {
        (*detail["loc"][:-1], near)
        for detail in details
        if detail["type"] == "extra_forbidden" and (near := _nearest(kind, data, detail["loc"]))
    }


def _nearest(kind: type[Settings], data: Any, loc: Steps) -> str | None:
    """The key that a misspelt one at `loc` was meant for, where it is not there too."""
    near = difflib.get_close_matches(str(loc[-1]), _free_keys(kind, data, loc), n=1)
    return near[0] if near else None


def _free_keys(kind: type[Settings], data: Any, loc: Steps) -> list[str]:
    """The keys that could still be written beside the one at `loc`."""
    *_, (_, model) = _way(kind, loc)
    held = yaml_source.value_at(data, _steps(data, loc[:-1]))
    return [name for name in _fields(model) if name not in held] if model and isinstance(held, dict) else []


def _validated(kind: type[M], data: Any) -> tuple[M | None, list[ErrorDetails]]:
    """The model of `data`, or all that is wrong.

    Pydantic looks for contradictions only where each field is right by itself; so what is wrong is set to unknown, and
    the rest is looked at again, until nothing new is found.
    """
    details: list[ErrorDetails] = []
    while True:
        try:
            value = kind.model_validate(data, context=WRITTEN)
        except ValidationError as error:
            new = [detail for detail in error.errors(include_url=False) if _is_new(detail, details)]
        else:
            return (None, details) if details else (value, [])
        if not new:
            return None, details
        details += new
        for detail in new:
            data = _with_unknown(kind, data, detail)


def _is_new(detail: ErrorDetails, known: Sequence[ErrorDetails]) -> bool:
    """Whether a further look tells more: contradictions alone can, and where there is one already, it says no more."""
    return not known or (detail["type"] == "contradiction" and all(detail["loc"] != one["loc"] for one in known))


def _with_unknown(kind: type[Settings], data: Any, detail: ErrorDetails) -> Any:
    """`data` with the field of a mistake unknown; copied where it changes."""
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        near = _nearest(kind, data, loc)
        steps = _steps(data, loc)
        data = _replaced(data, steps, None)
        return _replaced(data, (*steps[:-1], near), _Unknown()) if near else data
    known = [length for length, (step, model) in enumerate(_way(kind, loc), 1) if model and step in _fields(model)]
    return _replaced(data, _steps(data, loc[: known[-1]]), _Unknown()) if known else data


def _replaced(data: Any, steps: Steps, value: Any) -> Any:
    """A copy of nested mappings and lists with another value at `steps`; None takes the key away."""
    if not steps:
        return value
    first, *rest = steps
    if isinstance(data, list) and isinstance(first, int):
        return [_replaced(item, tuple(rest), value) if index == first else item for index, item in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if not rest and value is None:
        return {key: held for key, held in data.items() if key != first}
    return {**data, first: _replaced(data.get(first), tuple(rest), value)}


def _told(read: yaml_source.Source, kind: type[Settings], detail: ErrorDetails) -> Mistake:
    """Pydantic's error in the project's words."""
    why, write = _words(kind, read.data, detail)
    steps = _steps(read.data, detail["loc"])
    value = yaml_source.value_at(read.data, steps)
    shown = "" if value is None or detail["type"] == "extra_forbidden" else _show(value)
    if detail["type"] == "contradiction" and isinstance(value, dict | list):
        shown = ""
    mistake = _mistake(read.path, read.spots, steps, shown, why, write)
    if detail["type"] == "extra_forbidden" or "[key]" in detail["loc"]:
        spot = read.spots[steps]
        return Mistake(read.path, spot.key_line, spot.key_column, mistake.field, "", why, write)
    return mistake


def _steps(data: Any, loc: Steps) -> Steps:
    """A path of Pydantic's as the file has it: no names of branches, no 0 where one item stands for a list."""
    steps: Steps = ()
    for step in loc:
        if not _is_inner(step) and not (
            isinstance(step, int) and not isinstance(yaml_source.value_at(data, steps), list)
        ):
            steps = (*steps, step)
    return steps


def _is_inner(step: str | int) -> bool:
    """Whether a step of Pydantic's path is neither key nor index: the branch of a union, or "the key itself"."""
    return isinstance(step, str) and (step.startswith("<") or step == "[key]")


def _way(kind: Any, loc: Sequence[str | int]) -> Iterator[tuple[str | int, type[BaseModel] | None]]:
    """Each step of a path with the model that it is a key of, or None where it is none's."""
    for step in loc:
        model, kind = _below(kind, step)
        yield step, model


def _below(kind: Any, step: str | int) -> tuple[type[BaseModel] | None, Any]:
    """The model at `kind` that may have the key `step`, and the type that stands there."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        found = _fields(kind).get(str(step))
        return (None, None) if _is_inner(step) else (kind, found.annotation if found else None)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        branch = any(isinstance(part, Tag) and part.tag == step for part in parts)
        return (None, parts[0]) if branch else _below(parts[0], step)
    if origin in (dict, tuple) and not _is_inner(step):
        return None, parts[1] if origin is dict else parts[0]
    for part in parts:
        model, inner = _below(part, step)
        if model is not None or inner is not None:
            return model, inner
    return None, None


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """A model's fields by the key that stands in the file."""
    return {field.alias or name: field for name, field in sorted(model.model_fields.items())}


def _show(value: Any) -> str:
    """A value as a person would write it, cut to a line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(_cut(value)) if isinstance(value, str) else _cut(_plain(value))


def _plain(value: Any) -> str:
    """A value as it would stand on one line of the file."""
    if isinstance(value, dict | list):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()
    return str(value)


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a text",
    list: "a list",
    dict: "a mapping of keys to values",
}

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list such as [a, b]",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}


def _words(kind: type[Settings], data: Any, detail: ErrorDetails) -> tuple[str, str]:
    """Why the value cannot work, and what to write."""
    what, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if "why" in context:
        return str(context["why"]), str(context["write"])
    if what == "missing":
        return "it is required and missing", _example(kind, detail["loc"])
    if what == "extra_forbidden":
        return "there is no such key", _known_keys(kind, data, detail["loc"])
    if what == "literal_error":
        words = str(context["expected"])
        near = difflib.get_close_matches(str(value), words.replace("'", "").replace(" or ", ", ").split(", "), n=1)
        nearest = near and (near[0] if isinstance(value, str) else f"'{near[0]}', in quotes")
        return "there is no such choice", f"{nearest}; the choices are {words}" if near else f"one of {words}"
    if what in _WANTED:
        return f"it is {_KINDS.get(type(value), 'empty')}", _WANTED[what]
    if "ge" in context or "gt" in context:
        return "it is too small", f"{context['ge']} or more" if "ge" in context else f"a number above {context['gt']:g}"
    if "le" in context or "lt" in context:
        return "it is too large", f"{context['le']} or less" if "le" in context else f"a number below {context['lt']}"
    if what == "too_short":
        return "it is empty", "at least one"
    if what == "too_long":
        return "it is too long", f"at most {context['max_length']}"
    return detail["msg"].lower(), "another value"


def _known_keys(kind: type[Settings], data: Any, loc: Steps) -> str:
    """What to write in place of a key that does not exist."""
    near = _nearest(kind, data, loc)
    free = _free_keys(kind, data, loc)
    return f"{near}:" if near else f"one of {', '.join(free)}" if free else "nothing in its place"


def _example(kind: type[Settings], loc: Steps) -> str:
    """A line that would stand for a missing key."""
    *_, (step, model) = _way(kind, loc)
    field = _fields(model)[str(step)] if model else None
    if field is None:
        return f"{step}: VALUE"
    if field.examples:
        return f"{step}: {_plain(field.examples[0])}"
    return f"{step}: {_example_of(field.annotation, field.metadata)}"


def _example_of(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    for note in metadata:
        if hasattr(note, "example"):
            return str(note.example)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _example_of(parts[0], parts[1:])
    if origin is tuple:
        return f"[{_example_of(parts[0])}]"
    if origin is dict:
        return f"{{{_example_of(parts[0])}: ...}}"
    return str(parts[0]) if parts and isinstance(parts[0], str) else "VALUE"
