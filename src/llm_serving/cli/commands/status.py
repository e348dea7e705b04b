"""`blueprint status` and `blueprint logs`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.settings.errors import CheckFailed
from llm_serving.tables import starts_table, status_table
from llm_serving.targets import registry


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
    else:
        _show_status(folder, fleet, target, as_json=as_json)


def _show_status(folder: Path, fleet: Path, target: str, *, as_json: bool) -> None:
    deployment_status = registry.load_target(target).read_status(folder, fleet)
    if as_json:
        console.print_json(deployment_status.build_payload())
    elif deployment_status.rows:
        console.out.print(status_table.render(deployment_status))
    if not deployment_status.rows:
        raise CheckFailed(deployment_status.missing)
    if deployment_status.unready:
        raise CheckFailed(f"{deployment_status.name}: not ready: {', '.join(deployment_status.unready)}")


def _show_starts(folder: Path, fleet: Path, target: str, *, as_json: bool) -> None:
    starts = registry.load_target(target).read_starts(folder, fleet)
    if not starts:
        raise CheckFailed(f"{folder.name}: no replica runs. Fix: run blueprint deploy {console.shorten_path(folder)}")
    payload = {"starts": [asdict(start) for start in starts]}
    console.print_rows(payload, starts_table.render(starts), as_json=as_json)


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
