"""The patterns, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text


def render(entries: Iterable[Mapping[str, Any]]) -> Table:
    """Render names, targets, descriptions and presets in 80 columns."""
    table = Table("pattern", "targets", "description", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for entry in entries:
        presets = f" Presets: {', '.join(entry['presets'])}." if entry["presets"] else ""
        table.add_row(Text(entry["name"], "bold"), ", ".join(entry["targets"]), Text(f"{entry['about']}{presets}"))
    return table
