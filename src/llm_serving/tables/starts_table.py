"""How long replicas took to start, a row each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from llm_serving.targets.starts import Start


def render(starts: Sequence[Start]) -> Table:
    """Render the parts of each start in seconds."""
    table = Table("role", "replica")
    for heading in ("pull s", "copy s", "load s", "compile s", "first answer s"):
        table.add_column(heading, justify="right")
    for start in starts:
        parts = (start.pull_s, start.copy_s, start.load_s, start.compile_s, start.first_answer_s)
        table.add_row(start.role, start.name, *("" if part is None else f"{part:.1f}" for part in parts))
    return table
