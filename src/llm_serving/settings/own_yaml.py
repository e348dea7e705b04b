"""Reads YAML that nobody edits, of this repository and of programs: mistakes need no line, and libyaml is fast."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

_Row = TypeVar("_Row", bound=BaseModel)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)


def read_rows(file: Path, row_type: type[_Row]) -> Mapping[str, _Row]:
    """Return the rows of `file` by name."""
    return MappingProxyType({name: row_type.model_validate(row) for name, row in read(file).items()})


def flatten(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a list, some of which may be lists that another one shares."""
    for item in items:
        if isinstance(item, list):
            yield from flatten(item)
        else:
            yield item


def parse_all(text: str) -> list[Any]:
    """Return each document of a text that is not empty."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document]


def fill_values(value: Any, values: Mapping[str, Any]) -> Any:
    """Return values with what `values` has in place of each text that is a name in braces."""
    if isinstance(value, Mapping):
        return {key: fill_values(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_values(item, values) for item in value]
    if isinstance(value, str):
        match = re.fullmatch(r"\{(\w+)\}", value)
        return values[match[1]] if match else value
    return value
