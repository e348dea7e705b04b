"""Steps of a fleet's upgrade, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from llm_serving.fleet.upgrade import Step


def render(steps: Sequence[Step]) -> Table:
    """Render what changes, what is drained, and who says that it comes in this place."""
    table = Table.grid("", "", padding=(0, 2, 0, 0))
    for number, step in enumerate(steps, start=1):
        table.add_row(str(number), Text(step.name, "bold"))
        for change in step.changes:
            table.add_row("", Text(change))
        table.add_row("", Text(f"drains: {step.drains}"))
        table.add_row("", Text(f"because: {step.rule.reason} ({step.rule.source})"))
    return table


def build_payload(steps: Sequence[Step], unread: Sequence[str]) -> dict[str, Any]:
    """Build the same for `--json`; the first step is the next."""
    return {
        "steps": [
            {
                "name": step.name,
                "changes": list(step.changes),
                "drains": step.drains,
                "reason": step.rule.reason,
                "source": step.rule.source,
                "edit": {".".join(step.edit[0]): step.edit[1].strip('"')} if step.edit else {},
                "commands": list(step.commands),
            }
            for step in steps
        ],
        "not_read": list(unread),
    }
