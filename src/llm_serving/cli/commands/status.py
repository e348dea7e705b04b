"""`blueprint status` and `blueprint logs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import registry
from llm_serving.targets.base import DeploymentStatus
from llm_serving.targets.starts import Start


def status(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    starts: Annotated[
        bool, typer.Option("--starts", help="Show how long each replica took to pull, load, compile and answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether a deployment is ready.

    Asks each process or replica; exits 1 unless all are ready.
    """
    if starts:
        _show_starts(folder, fleet, target, as_json=as_json)
        return
    deployment_status = registry.load_target(target).read_status(folder, fleet)
    if as_json:
        console.print_json(deployment_status.build_payload())
    elif deployment_status.rows:
        console.out.print(render(deployment_status))
    if not deployment_status.rows:
        raise CheckFailed(deployment_status.missing)
    if deployment_status.unready:
        raise CheckFailed(f"{deployment_status.name}: not ready: {', '.join(deployment_status.unready)}")


def _show_starts(folder: Path, fleet: Path, target: str, *, as_json: bool) -> None:
    starts = registry.load_target(target).read_starts(folder, fleet)
    if starts or as_json:
        payload = {"starts": [asdict(start) for start in starts]}
        console.print_rows(payload, _render_starts(starts), as_json=as_json)
    if not starts:
        fix = f"run blueprint deploy {console.shorten_path(folder)}"
        raise CheckFailed(f"{folder.resolve().name}: no replica runs. Fix: {fix}")


def logs(
    folder: Folder,
    process: Annotated[
        str | None, typer.Argument(metavar="PROCESS", help="One process, or on AWS one role; all if left out.")
    ] = None,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log output.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to show.")] = 20,
) -> None:
    """Print the logs of a deployment."""
    registry.load_target(target).show_logs(folder, fleet, process, lines=lines, follow=follow)


def render(status: DeploymentStatus) -> RenderableType:
    """Render the rows, and the endpoint below them."""
    columns = [
        name
        for name in ("role", "name", "state", "uptime", "port", "restarts", "pid", "machine")
        if _has_column(status, name)
    ]
    headings = {"machine": "node"} | ({} if "role" in columns else {"name": "process"})
    table = Table(*(headings.get(name, name) for name in columns))
    for row in status.rows:
        table.add_row(*(_format_cell(row, name) for name in columns))
    address = "not deployed yet" if status.url is None else status.url or "no endpoint"
    notes = [Text.assemble(("• ", "yellow"), note) for note in status.notes]
    return Group(table, Text(f"{status.name}: {address}"), *notes)


def _has_column(status: DeploymentStatus, column: str) -> bool:
    return any(("uptime_s" if column == "uptime" else column) in row for row in status.rows)


def _format_cell(row: Mapping[str, Any], column: str) -> str:
    if column == "uptime":
        if not row["pid"]:
            return ""
        seconds = row["uptime_s"]
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    if column in ("port", "pid"):
        return str(row[column] or "")
    return str(row[column])


def _render_starts(starts: Sequence[Start]) -> Table:
    table = Table("role", "replica")
    for heading in ("pull s", "copy s", "load s", "compile s", "first answer s"):
        table.add_column(heading, justify="right")
    for start in starts:
        parts = (start.pull_s, start.copy_s, start.load_s, start.compile_s, start.first_answer_s)
        table.add_row(start.role, start.name, *("" if part is None else f"{part:.1f}" for part in parts))
    return table
