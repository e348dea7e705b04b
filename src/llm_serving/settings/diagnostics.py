"""What is wrong with a settings file, as a person reads it: the field, its value, the reason, and what to write.

Pydantic's errors come in; a path of Pydantic's also names branches of unions, and a path of the file does not.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, Tag
from pydantic_core import ErrorDetails

from llm_serving.settings import yaml_source
from llm_serving.settings.errors import Mistake, quote_value
from llm_serving.settings.units import Quantity
from llm_serving.settings.yaml_source import KeyPath, Position, format_key_path


def convert_error(yaml_file: yaml_source.YamlFile, model_type: type[BaseModel], detail: ErrorDetails) -> Mistake:
    """Return Pydantic's error in the project's words."""
    reason, fix = _describe_error(model_type, yaml_file.data, detail)
    key_path = resolve_key_path(yaml_file.data, detail["loc"])
    value = yaml_source.get_value(yaml_file.data, key_path)
    value_text = "" if value is None or detail["type"] == "extra_forbidden" else format_value(value)
    if detail["type"] == "contradiction" and isinstance(value, dict | list):
        value_text = ""
    mistake = build_mistake(yaml_file.path, yaml_file.positions, key_path, value_text, reason, fix)
    if detail["type"] == "extra_forbidden" or "[key]" in detail["loc"]:
        position = yaml_file.positions[key_path]
        return Mistake(yaml_file.path, position.key_line, position.key_column, mistake.field, "", reason, fix)
    return mistake


def build_mistake(
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


def find_intended_keys(model_type: type[BaseModel], data: Any, details: Sequence[ErrorDetails]) -> set[KeyPath]:
    """Return the fields that misspelt keys were meant for: they are not missing."""
    return {
        (*detail["loc"][:-1], nearest_key)
        for detail in details
        if detail["type"] == "extra_forbidden" and (nearest_key := find_nearest_key(model_type, data, detail["loc"]))
    }


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


def _describe_error(model_type: type[BaseModel], data: Any, detail: ErrorDetails) -> tuple[str, str]:
    error_type, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if "why" in context:
        return str(context["why"]), str(context["write"])
    if error_type == "missing":
        return "required field is missing", _build_example(model_type, detail["loc"])
    if error_type == "extra_forbidden":
        return "unknown key", _suggest_keys(model_type, data, detail["loc"])
    if error_type == "literal_error":
        return "not one of the choices", f"use {_suggest_choice(value, str(context['expected']))}"
    if error_type in _EXPECTED_TYPES:
        keys = _list_keys(model_type, detail["loc"]) if error_type == "model_type" else ""
        return f"it is {_TYPE_NAMES.get(type(value), 'empty')}", f"use {_EXPECTED_TYPES[error_type]}{keys}"
    if "gt" in context:
        return "it is too small", f"use a number above {context['gt']:g}"
    if "lt" in context:
        return "it is too large", f"use a number below {context['lt']}"
    for key, size, word in (("ge", "small", "more"), ("le", "large", "less")):
        if key in context:
            return f"it is too {size}", f"use {_format_bound(model_type, detail['loc'], context[key])} or {word}"
    if error_type == "too_short":
        return "it is empty", "name at least one"
    if error_type == "too_long":
        return "it is too long", f"keep at most {context['max_length']}"
    return detail["msg"].lower(), "use another value"


def _suggest_choice(value: Any, choices: str) -> str:
    """Return what to write of `choices`, Pydantic's "'a', 'b' or 'c'"."""
    choice_by_lower = {choice.lower(): choice for choice in choices.replace("'", "").replace(" or ", ", ").split(", ")}
    word = "" if isinstance(value, dict | list) else str(value).lower()
    for match in difflib.get_close_matches(word, choice_by_lower, n=1):
        nearest = choice_by_lower[match] if isinstance(value, str) else f"'{choice_by_lower[match]}', in quotes"
        return f"{nearest}; the choices are {choices}"
    return f"one of {choices}" if len(choice_by_lower) > 1 else choices


def _list_keys(model_type: type[BaseModel], loc: KeyPath) -> str:
    """Return the keys that the mapping at `loc` may have, unless it is one of several forms."""
    *_, (_, model) = walk_models(model_type, (*loc, ""))
    return f"; the keys are {', '.join(get_fields(model))}" if model and not _is_schema_step(loc[-1]) else ""


def _format_bound(model_type: type[BaseModel], loc: KeyPath, bound: float) -> str:
    """Return a bound as the file would have it: with a unit, where the field takes one."""
    *_, (step, model) = walk_models(model_type, loc)
    field = get_fields(model).get(str(step)) if model else None
    quantities = [constraint for constraint in (field.metadata if field else ()) if isinstance(constraint, Quantity)]
    return quantities[0].format_bound(Decimal(str(bound))) if quantities else str(bound)


def _suggest_keys(model_type: type[BaseModel], data: Any, loc: KeyPath) -> str:
    """Return what to write in place of a key that does not exist."""
    if place := _find_place(model_type, loc):
        return f"write it {place}"
    nearest_key = find_nearest_key(model_type, data, loc)
    free_keys = _list_free_keys(model_type, data, loc)
    if nearest_key:
        return f"write {nearest_key}:"
    return f"use one of {', '.join(free_keys)}" if free_keys else "remove it"


def _find_place(model_type: type[BaseModel], loc: KeyPath) -> str:
    """Return where else the file has a key of this name: below a neighbour, or at the top; empty if nowhere."""
    *_, (step, model) = walk_models(model_type, loc)
    key = str(step)
    if model and (paths := _list_paths(model, key, 1) or _list_paths(model, key, 2)):
        return f"below {' or '.join(f'{path}:' for path in paths)}"
    return "at the top of the file" if len(loc) > 1 and key in get_fields(model_type) else ""


def _list_paths(model: type[BaseModel], key: str, depth: int) -> list[str]:
    """Return the keys, at most `depth` one below the other, below which a model has `key`."""
    paths = []
    for name, field in get_fields(model).items():
        child, annotation = _find_child(field.annotation, key)
        if child and annotation is not None:
            paths.append(name)
        elif child and depth > 1:
            paths += [f"{name}.{path}" for path in _list_paths(child, key, depth - 1)]
    return paths


def find_nearest_key(model_type: type[BaseModel], data: Any, loc: KeyPath) -> str | None:
    """Return the key that a misspelt one at `loc` was meant for, unless the file has it too."""
    *_, (_, model) = walk_models(model_type, loc)
    free_keys, other_names = _list_free_keys(model_type, data, loc), getattr(model, "other_names", {})
    if (key := other_names.get(str(loc[-1]).replace("-", "_"))) in free_keys:
        return str(key)
    matches = difflib.get_close_matches(str(loc[-1]), free_keys, n=1)
    return matches[0] if matches else None


def _list_free_keys(model_type: type[BaseModel], data: Any, loc: KeyPath) -> list[str]:
    """Return the keys that could still be written beside the one at `loc`."""
    *_, (_, model) = walk_models(model_type, loc)
    mapping = yaml_source.get_value(data, resolve_key_path(data, loc[:-1]))
    return [name for name in get_fields(model) if name not in mapping] if model and isinstance(mapping, dict) else []


def _build_example(model_type: type[BaseModel], loc: KeyPath) -> str:
    *_, (step, model) = walk_models(model_type, loc)
    field = get_fields(model)[str(step)] if model else None
    if field is None:
        return f"set {step}: VALUE"
    if field.examples:
        return f"set {step}: {_format_yaml(field.examples[0])}"
    return f"set {step}: {_find_example(field.annotation, field.metadata)}"


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


def format_value(value: Any) -> str:
    """Return a value as a person would write it, cut to a line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote_value(_truncate(value)) if isinstance(value, str) else _truncate(_format_yaml(value))


def _format_yaml(value: Any) -> str:
    if isinstance(value, dict | list):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()
    return str(value)


def _truncate(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def resolve_key_path(data: Any, loc: KeyPath) -> KeyPath:
    """Return Pydantic's path as a path of the file: without names of branches, and without 0 for a single item."""
    key_path: KeyPath = ()
    for step in loc:
        if not _is_schema_step(step) and not (
            isinstance(step, int) and not isinstance(yaml_source.get_value(data, key_path), list)
        ):
            key_path = (*key_path, step)
    return key_path


def _is_schema_step(step: str | int) -> bool:
    """Return whether a step of Pydantic's path is neither key nor index, but the branch of a union or "[key]"."""
    return isinstance(step, str) and (step.startswith("<") or step == "[key]")


def walk_models(annotation: Any, loc: Sequence[str | int]) -> Iterator[tuple[str | int, type[BaseModel] | None]]:
    """Yield each step of a path with the model that it is a key of, or None where it is none's."""
    for step in loc:
        model, annotation = _find_child(annotation, step)
        yield step, model


def _find_child(annotation: Any, step: str | int) -> tuple[type[BaseModel] | None, Any]:
    """Return the model at `annotation` that may have the key `step`, and the type of that key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = get_fields(annotation).get(str(step))
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


def get_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's fields by their key in the file."""
    return {field.alias or name: field for name, field in sorted(model.model_fields.items())}
