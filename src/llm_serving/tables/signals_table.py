"""The signals of the catalog, one row for each program's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text


def render(rows: Iterable[Mapping[str, str]]) -> Table:
    """Render our name, the program's name, and what it means, in 80 columns."""
    table = Table("signal", "program's name", "meaning", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[1].overflow = "fold"
    for row in rows:
        table.add_row(Text(row["name"], "bold"), f"{row['program_name']}\n{row['program']}", row["meaning"])
    return table
