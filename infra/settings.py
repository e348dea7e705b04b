"""Reads a YAML file into a typed, frozen model; every mistake comes back with its line and column, all at once."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from infra.errors import InputError, Mistake

MAX_BYTES = 1_000_000
"""Settings are written by hand; a larger file is another file given by mistake."""

Path_ = tuple[str | int, ...]


class Settings(BaseModel):
    """Base of every settings model: frozen, and a key it does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


M = TypeVar("M", bound=Settings)


@dataclass(frozen=True)
class Document(Generic[M]):
    """A settings model together with the file it came from, so that a later check can still name line and column."""

    path: Path
    value: M
    positions: Mapping[Path_, tuple[int, int]]

    def mistake(self, where: Sequence[str | int], value: Any, why: str, write: str) -> Mistake:
        """A mistake at the field `where`, or at its nearest parent that stands in the file."""
        at = tuple(where)
        while at and at not in self.positions:
            at = at[:-1]
        line, column = self.positions.get(at, (1, 1))
        return Mistake(self.path, line, column, _dotted(where), _show(value), why, write)


def load(path: Path, kind: type[M]) -> Document[M]:
    """Reads `path` as `kind`.

    Raises:
        InputError: with every mistake of the file at once.
    """
    node, positions = _compose(path)
    data = yaml.SafeLoader("").construct_document(node)
    if not isinstance(data, dict):
        raise InputError(
            [Mistake(path, 1, 1, "", _show(data), "the file is not a mapping of keys to values", "KEY: VALUE lines")]
        )
    try:
        return Document(path, kind.model_validate(data), positions)
    except ValidationError as error:
        raise InputError(_mistakes(path, kind, positions, error)) from None


def _whole(path: Path, why: str, write: str) -> InputError:
    return InputError([Mistake(path, 1, 1, "", "", why, write)])


def _compose(path: Path) -> tuple[yaml.Node, dict[Path_, tuple[int, int]]]:
    """The YAML tree of `path` and the position of every value in it."""
    name = path.name
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _whole(path, "there is no such file", f"the path of a {name} that exists") from None
    except IsADirectoryError:
        raise _whole(path, "it is a folder", f"the path of the file, {path / name}") from None
    except OSError as error:
        raise _whole(path, f"it cannot be read: {error.strerror}", "the path of a file that you may read") from None
    if len(raw) > MAX_BYTES:
        raise _whole(path, f"it is larger than {MAX_BYTES // 1000} kB", "settings of a screenful, not a data file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _whole(path, "it is binary, not text in UTF-8", "a YAML file") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        why = f"it is not YAML: {error.problem or error.context}"
        raise InputError([Mistake(path, line, column, "", "", why, "KEY: VALUE lines, indented by spaces")]) from None
    except yaml.YAMLError:
        raise _whole(path, "it is binary, not text", "a YAML file") from None
    if node is None:
        raise _whole(path, "it is empty", "at least its required keys; `blueprint schema` lists them")
    positions: dict[Path_, tuple[int, int]] = {}
    twice: list[Mistake] = []
    _walk(path, node, (), positions, twice)
    if twice:
        raise InputError(twice)
    return node, positions


def _walk(path: Path, node: yaml.Node, at: Path_, found: dict[Path_, tuple[int, int]], twice: list[Mistake]) -> None:
    found[at] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(path, item, (*at, index), found, twice)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, key.value if isinstance(key, yaml.ScalarNode) else str(key.tag))
            if here in found:
                line, column = key.start_mark.line + 1, key.start_mark.column + 1
                why = f"the key stands twice; the first is on line {found[here][0]}"
                twice.append(Mistake(path, line, column, _dotted(here), "", why, "it once"))
                continue
            _walk(path, value, here, found, twice)


def _dotted(where: Sequence[str | int]) -> str:
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def _show(value: Any) -> str:
    """A value as a person wrote it, cut to a line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return _short.repr(value)


_KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list such as [a, b]",
    "list_type": "a list such as [a, b]",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def _mistakes(
    path: Path, kind: type[Settings], positions: Mapping[Path_, tuple[int, int]], error: ValidationError
) -> list[Mistake]:
    """Pydantic's errors in the project's words, in the order of the file."""
    found = []
    for detail in error.errors(include_url=False):
        # Pydantic's path holds names of union branches too; keep the steps that stand in the file.
        at: Path_ = ()
        for step in detail["loc"]:
            if (*at, step) in positions or detail["type"] in ("missing", "extra_forbidden"):
                at = (*at, step)
        known = at
        while known and known not in positions:
            known = known[:-1]
        line, column = positions.get(known, (1, 1))
        why, write = _words(kind, detail)
        value = "" if detail["type"] in ("missing", "extra_forbidden") else _show(detail["input"])
        found.append(Mistake(path, line, column, _dotted(at), value, why, write))
    # A union reports each of its branches: one mistake a place is enough, the most telling one last.
    return sorted({(m.line, m.column, m.field): m for m in found}.values(), key=lambda m: (m.line, m.column))


def _words(kind: type[Settings], detail: ErrorDetails) -> tuple[str, str]:
    """Why the value cannot work, and what to write."""
    what, context = detail["type"], detail.get("ctx", {})
    if what == "wrong":
        return str(context["why"]), str(context["write"])
    if what == "missing":
        return "it is required and missing", f"{detail['loc'][-1]}: VALUE"
    if what == "extra_forbidden":
        known = _fields(kind, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        return "there is no such key", f"{near[0]}:" if near else f"one of {', '.join(known)}"
    if what in ("literal_error", "enum"):
        return "it is none of the words known here", f"one of {context['expected']}"
    if what in _KINDS:
        return "it is of another kind", _KINDS[what]
    if "ge" in context or "gt" in context:
        return "it is too small", f"{context.get('ge', context.get('gt'))} or more"
    if "le" in context or "lt" in context:
        return "it is too large", f"{context.get('le', context.get('lt'))} or less"
    if what in ("too_short", "string_too_short"):
        return "it is too short", "at least one"
    if "pattern" in context:
        return "it is not of the form expected", f"a text of the form {context['pattern']}"
    return detail["msg"].lower(), "another value"


def _fields(kind: Any, steps: Sequence[str | int]) -> list[str]:
    """The keys that the model at `steps` below `kind` knows."""
    for step in steps:
        fields = getattr(kind, "model_fields", {})
        if step in fields:
            kind = fields[str(step)].annotation
        inner = [arg for arg in _flat(kind) if isinstance(arg, type) and issubclass(arg, BaseModel)]
        kind = inner[0] if inner else kind
    return sorted(getattr(kind, "model_fields", {}))


def _flat(kind: Any) -> list[Any]:
    args = get_args(kind)
    return [kind] if not args else [leaf for arg in args for leaf in _flat(arg)]
