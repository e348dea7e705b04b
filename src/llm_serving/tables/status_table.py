"""What runs of a deployment, one row for each process or replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.targets.base import DeploymentStatus

_MINUTES_FROM_S = 120


def render(status: DeploymentStatus) -> RenderableType:
    """Render the rows, and the endpoint below them."""
    columns = [
        name for name in ("role", "name", "state", "uptime", "port", "restarts", "pid", "machine") if _has(status, name)
    ]
    headings = {"machine": "node"} | ({} if "role" in columns else {"name": "process"})
    table = Table(*(headings.get(name, name) for name in columns))
    for row in status.rows:
        table.add_row(*(_format_cell(row, name) for name in columns))
    address = "not deployed yet" if status.url is None else status.url or "no endpoint"
    notes = [Text.assemble(("• ", "yellow"), note) for note in status.notes]
    return Group(table, Text(f"{status.name}: {address}"), *notes)


def _has(status: DeploymentStatus, column: str) -> bool:
    return any(("uptime_s" if column == "uptime" else column) in row for row in status.rows)


def _format_cell(row: Mapping[str, Any], column: str) -> str:
    if column == "uptime":
        return _format_uptime(row["uptime_s"]) if row["pid"] else ""
    if column in ("port", "pid"):
        return str(row[column] or "")
    return str(row[column])


def _format_uptime(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= _MINUTES_FROM_S else f"{seconds:.0f} s"
