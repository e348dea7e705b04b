"""Reads YAML that nobody edits, of this repository and of programs: mistakes need no line, and libyaml is fast."""

from __future__ import annotations

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
