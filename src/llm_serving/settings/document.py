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
from llm_serving.settings.yaml_source import KeyPath, Position, format_key_path

FILE_CONTEXT = {"written": True}
"""Validation context of values that a person wrote: units are then required, where code may give plain numbers."""


class Conflict(NamedTuple):
    """Values that are right by themselves and cannot stand together."""

    key_path: KeyPath
    """The field to blame, below the model that says it, in the file's own keys."""

    reason: str
    fix: str


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

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        """What cannot stand together, one iterator a rule; a model with such rules overrides this."""
        return ()

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
                    for key_path, reason, fix in conflicts
                ],
            )
        return self

    @field_validator("*", mode="wrap")
    @classmethod
    def _skip_invalid(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, _InvalidValue) else handler(value)


class _InvalidValueError(Exception):
    """A rule asked for a value that is wrong by itself."""


class _InvalidValue:
    """Stands where a value is wrong by itself, so that rules about the other fields can still be heard."""

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
    """One item stands for a list of one."""

    def __get_pydantic_core_schema__(self, source_type: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._wrap_item, handler(source_type))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        return {"anyOf": [schema["items"], schema]}

    def _wrap_item(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, list | tuple) else (value,)


def parse_default(text: str) -> Any:
    """A field's default, in the words that a person would write."""
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
        """A mistake at the field `where`, or at its nearest parent that stands in the file."""
        return _build_mistake(self.path, self.positions, key_path, _format_value(value), reason, fix)


def load(path: Path, model_type: type[M]) -> Document[M]:
    """Reads `path` as `kind`.

    Raises:
        InputError: with every mistake of the file at once.
    """
    yaml_file = yaml_source.read(path)
    if not isinstance(yaml_file.data, dict):
        reason = "the file is not a mapping of keys to values"
        raise InputError(
            [*yaml_file.mistakes, Mistake(path, 1, 1, "", _format_value(yaml_file.data), reason, "KEY: VALUE lines")]
        )
    mistakes = list(yaml_file.mistakes)
    value, details = _validate(model_type, yaml_file.data)
    intended_keys = _find_intended_keys(model_type, yaml_file.data, details)
    for detail in details:
        if detail["loc"] not in intended_keys and not _is_reported(yaml_file, detail):
            mistakes.append(_convert_error(yaml_file, model_type, detail))
    if mistakes or value is None:
        ordered = sorted(dict.fromkeys(mistakes), key=lambda mistake: (mistake.line, mistake.column))
        raise InputError(ordered)
    return Document(path, value, yaml_file.positions)


def _build_mistake(
    path: Path, positions: Mapping[KeyPath, Position], key_path: Sequence[str | int], value: str, reason: str, fix: str
) -> Mistake:
    known_path = tuple(key_path)
    while known_path and known_path not in positions:
        known_path = known_path[:-1]
    position = positions.get(known_path, Position(1, 1, 1, 1))
    if all(isinstance(step, int) for step in key_path[len(known_path) :]):  # one item may stand for a list of one
        return Mistake(path, position.line, position.column, format_key_path(known_path), value, reason, fix)
    # A field that is not there is best looked for at its parent's key.
    return Mistake(path, position.key_line, position.key_column, format_key_path(key_path), value, reason, fix)


def _is_reported(yaml_file: yaml_source.YamlFile, detail: ErrorDetails) -> bool:
    """Whether other mistakes already speak of the field: the YAML's own, or those of a list's items."""
    if detail["type"] == "too_short" and detail["input"]:
        return True
    return any(detail["loc"][:length] in yaml_file.rejected for length in range(len(detail["loc"]) + 1))


def _find_intended_keys(model_type: type[Settings], data: Any, details: Sequence[ErrorDetails]) -> set[KeyPath]:
    """The fields that misspelt keys were meant for: they are not missing."""
    return {
        (*detail["loc"][:-1], nearest_key)
        for detail in details
        if detail["type"] == "extra_forbidden" and (nearest_key := _find_nearest_key(model_type, data, detail["loc"]))
    }


def _find_nearest_key(model_type: type[Settings], data: Any, loc: KeyPath) -> str | None:
    """The key that a misspelt one at `loc` was meant for, where it is not there too."""
    matches = difflib.get_close_matches(str(loc[-1]), _list_free_keys(model_type, data, loc), n=1)
    return matches[0] if matches else None


def _list_free_keys(model_type: type[Settings], data: Any, loc: KeyPath) -> list[str]:
    """The keys that could still be written beside the one at `loc`."""
    *_, (_, model) = _walk_models(model_type, loc)
    mapping = yaml_source.get_value(data, _resolve_key_path(data, loc[:-1]))
    return [name for name in _get_fields(model) if name not in mapping] if model and isinstance(mapping, dict) else []


def _validate(model_type: type[M], data: Any) -> tuple[M | None, list[ErrorDetails]]:
    """The model of `data`, or all that is wrong.

    Pydantic looks for contradictions only where each field is right by itself; so what is wrong is set to unknown, and
    the rest is looked at again, until nothing new is found.
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
    """Whether a further look tells more: contradictions alone can, and where there is one already, it says no more."""
    return not known_details or (
        detail["type"] == "contradiction" and all(detail["loc"] != other["loc"] for other in known_details)
    )


def _mark_invalid(model_type: type[Settings], data: Any, detail: ErrorDetails) -> Any:
    """`data` with the field of a mistake unknown; copied where it changes."""
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        nearest_key = _find_nearest_key(model_type, data, loc)
        key_path = _resolve_key_path(data, loc)
        data = _replace_value(data, key_path, None)
        return _replace_value(data, (*key_path[:-1], nearest_key), _InvalidValue()) if nearest_key else data
    known_lengths = [
        length
        for length, (step, model) in enumerate(_walk_models(model_type, loc), 1)
        if model and step in _get_fields(model)
    ]
    return (
        _replace_value(data, _resolve_key_path(data, loc[: known_lengths[-1]]), _InvalidValue())
        if known_lengths
        else data
    )


def _replace_value(data: Any, key_path: KeyPath, value: Any) -> Any:
    """A copy of nested mappings and lists with another value at `steps`; None takes the key away."""
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


def _convert_error(yaml_file: yaml_source.YamlFile, model_type: type[Settings], detail: ErrorDetails) -> Mistake:
    """Pydantic's error in the project's words."""
    reason, fix = _describe_error(model_type, yaml_file.data, detail)
    key_path = _resolve_key_path(yaml_file.data, detail["loc"])
    value = yaml_source.get_value(yaml_file.data, key_path)
    value_text = "" if value is None or detail["type"] == "extra_forbidden" else _format_value(value)
    if detail["type"] == "contradiction" and isinstance(value, dict | list):
        value_text = ""
    mistake = _build_mistake(yaml_file.path, yaml_file.positions, key_path, value_text, reason, fix)
    if detail["type"] == "extra_forbidden" or "[key]" in detail["loc"]:
        position = yaml_file.positions[key_path]
        return Mistake(yaml_file.path, position.key_line, position.key_column, mistake.field, "", reason, fix)
    return mistake


def _resolve_key_path(data: Any, loc: KeyPath) -> KeyPath:
    """A path of Pydantic's as the file has it: no names of branches, no 0 where one item stands for a list."""
    key_path: KeyPath = ()
    for step in loc:
        if not _is_schema_step(step) and not (
            isinstance(step, int) and not isinstance(yaml_source.get_value(data, key_path), list)
        ):
            key_path = (*key_path, step)
    return key_path


def _is_schema_step(step: str | int) -> bool:
    """Whether a step of Pydantic's path is neither key nor index: the branch of a union, or "the key itself"."""
    return isinstance(step, str) and (step.startswith("<") or step == "[key]")


def _walk_models(annotation: Any, loc: Sequence[str | int]) -> Iterator[tuple[str | int, type[BaseModel] | None]]:
    """Each step of a path with the model that it is a key of, or None where it is none's."""
    for step in loc:
        model, annotation = _find_child(annotation, step)
        yield step, model


def _find_child(annotation: Any, step: str | int) -> tuple[type[BaseModel] | None, Any]:
    """The model at `kind` that may have the key `step`, and the type that stands there."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = _get_fields(annotation).get(str(step))
        return (None, None) if _is_schema_step(step) else (annotation, field.annotation if field else None)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        branch = any(isinstance(part, Tag) and part.tag == step for part in parts)
        return (None, parts[0]) if branch else _find_child(parts[0], step)
    if origin in (dict, tuple) and not _is_schema_step(step):
        return None, parts[1] if origin is dict else parts[0]
    for part in parts:
        model, inner = _find_child(part, step)
        if model is not None or inner is not None:
            return model, inner
    return None, None


def _get_fields(model: type[BaseModel]) -> dict[str, Any]:
    """A model's fields by the key that stands in the file."""
    return {field.alias or name: field for name, field in sorted(model.model_fields.items())}


def _format_value(value: Any) -> str:
    """A value as a person would write it, cut to a line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(_truncate(value)) if isinstance(value, str) else _truncate(_format_yaml(value))


def _format_yaml(value: Any) -> str:
    """A value as it would stand on one line of the file."""
    if isinstance(value, dict | list):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()
    return str(value)


def _truncate(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a text",
    list: "a list",
    dict: "a mapping of keys to values",
}

_EXPECTED_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list such as [a, b]",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}


def _describe_error(model_type: type[Settings], data: Any, detail: ErrorDetails) -> tuple[str, str]:
    """Why the value cannot work, and what to write."""
    error_type, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if "why" in context:
        return str(context["why"]), str(context["write"])
    if error_type == "missing":
        return "it is required and missing", _build_example(model_type, detail["loc"])
    if error_type == "extra_forbidden":
        return "there is no such key", _suggest_keys(model_type, data, detail["loc"])
    if error_type == "literal_error":
        choices = str(context["expected"])
        matches = difflib.get_close_matches(str(value), choices.replace("'", "").replace(" or ", ", ").split(", "), n=1)
        suggestion = matches and (matches[0] if isinstance(value, str) else f"'{matches[0]}', in quotes")
        return "there is no such choice", f"{suggestion}; the choices are {choices}" if matches else f"one of {choices}"
    if error_type in _EXPECTED_TYPES:
        return f"it is {_TYPE_NAMES.get(type(value), 'empty')}", _EXPECTED_TYPES[error_type]
    if "ge" in context or "gt" in context:
        return "it is too small", f"{context['ge']} or more" if "ge" in context else f"a number above {context['gt']:g}"
    if "le" in context or "lt" in context:
        return "it is too large", f"{context['le']} or less" if "le" in context else f"a number below {context['lt']}"
    if error_type == "too_short":
        return "it is empty", "at least one"
    if error_type == "too_long":
        return "it is too long", f"at most {context['max_length']}"
    return detail["msg"].lower(), "another value"


def _suggest_keys(model_type: type[Settings], data: Any, loc: KeyPath) -> str:
    """What to write in place of a key that does not exist."""
    nearest_key = _find_nearest_key(model_type, data, loc)
    free_keys = _list_free_keys(model_type, data, loc)
    return (
        f"{nearest_key}:" if nearest_key else f"one of {', '.join(free_keys)}" if free_keys else "nothing in its place"
    )


def _build_example(model_type: type[Settings], loc: KeyPath) -> str:
    """A line that would stand for a missing key."""
    *_, (step, model) = _walk_models(model_type, loc)
    field = _get_fields(model)[str(step)] if model else None
    if field is None:
        return f"{step}: VALUE"
    if field.examples:
        return f"{step}: {_format_yaml(field.examples[0])}"
    return f"{step}: {_find_example(field.annotation, field.metadata)}"


def _find_example(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    for constraint in metadata:
        if hasattr(constraint, "example"):
            return str(constraint.example)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _find_example(parts[0], parts[1:])
    if origin is tuple:
        return f"[{_find_example(parts[0])}]"
    if origin is dict:
        return f"{{{_find_example(parts[0])}: ...}}"
    return str(parts[0]) if parts and isinstance(parts[0], str) else "VALUE"
