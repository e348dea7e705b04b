"""Reads YAML that nobody edits, of this repository and of programs: mistakes need no line, and libyaml is fast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(file: Path) -> Any:
    """Return what `file` holds."""
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)


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
