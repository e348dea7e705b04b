"""Reads YAML files of this repository. Nobody edits them, so mistakes need no line, and libyaml is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(file: Path) -> Any:
    """Return what `file` holds."""
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
