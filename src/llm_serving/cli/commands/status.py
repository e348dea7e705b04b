"""`blueprint status` and `blueprint logs`: what the supervisor says of a deployment's processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli.arguments import FLEET, LOCAL, AsJson, Fleet, Folder, Target, find_deployment_dir
from llm_serving.targets.on_aws import commands

if TYPE_CHECKING:
    from llm_serving.targets.local.deployment_dir import DeploymentDir
    from llm_serving.targets.local.supervisor import ProcessState


def status(folder: Folder, fleet: Fleet = FLEET, target: Target = LOCAL, as_json: AsJson = False) -> None:
    """Show a deployment's processes; exit 1 where not all of them run."""
    from llm_serving.settings.errors import CheckFailed
    from llm_serving.targets.local import supervisor

    if target in commands.TARGETS:
        commands.show_status(commands.plan(folder, fleet, target), as_json=as_json)
        return

    directory = find_deployment_dir(folder, target)
    supervisord, deployment, ports = (
        supervisor.find_running(directory),
        directory.load_deployment(),
        directory.load_ports(),
    )
    states = supervisord.list_states() if supervisord else []
    if as_json:
        processes = [{**asdict(state), "port": ports.get(state.name)} for state in states]
        print(
            json.dumps(
                {"name": directory.name, "url": deployment.url if deployment else None, "processes": processes},
                indent=2,
            )
        )
    elif states:
        _print_table(states, ports)
        console.out.print(f"{directory.name}: {deployment.url if deployment else 'not deployed yet'}", markup=False)
    if not states:
        raise CheckFailed(
            f"{directory.name}: nothing runs here; blueprint deploy {console.shorten_path(folder)} brings it up"
        )
    stopped = [state.name for state in states if state.state not in ("STARTING", "RUNNING")]
    if stopped:
        raise CheckFailed(f"{directory.name}: {', '.join(stopped)} not running")


def _print_table(states: list[ProcessState], ports: dict[str, int]) -> None:
    from rich.table import Table

    table = Table("process", "state", "uptime", "port", "restarts", "pid")
    for state in states:
        uptime = f"{state.uptime_s / 60:.0f} min" if state.uptime_s >= 120 else f"{state.uptime_s:.0f} s"
        port, pid = str(ports.get(state.name, "")), str(state.pid or "")
        table.add_row(state.name, state.state.lower(), uptime if state.pid else "", port, str(state.restarts), pid)
    console.out.print(table)


def logs(
    folder: Folder,
    process: Annotated[str | None, typer.Argument(metavar="PROCESS", help="One of them; all otherwise.")] = None,
    fleet: Fleet = FLEET,
    target: Target = LOCAL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 20,
) -> None:
    """Show what a deployment's processes write."""
    if target in commands.TARGETS:
        commands.load_target(target).show_logs(
            commands.plan(folder, fleet, target), process, lines=lines, follow=follow
        )
        return
    directory = find_deployment_dir(folder, target)
    files = _select_log_files(directory, process)
    offsets = {}
    for file in files:
        content = _read_whole_lines(file, 0)
        offsets[file] = len(content)
        log_lines = content.decode("utf-8", "replace").splitlines()
        for line in log_lines[len(log_lines) - min(lines, len(log_lines)) :]:
            _print_line(file, line, len(files) > 1)
    if follow:
        for file, line in _follow_lines(offsets):
            _print_line(file, line, len(files) > 1)


def _select_log_files(directory: DeploymentDir, process: str | None) -> list[Path]:
    from llm_serving.settings.errors import CheckFailed, InputError

    log_files = sorted(directory.logs.glob("*.log")) if directory.logs.is_dir() else []
    if not log_files:
        raise CheckFailed(f"{directory.name}: nothing has run here yet")
    if process is None:
        return log_files
    if directory.get_log_path(process) not in log_files:
        names = ", ".join(file.stem for file in log_files)
        raise InputError(f"PROCESS: now {process!r}: {directory.name} has no such process. Fix: one of {names}.")
    return [directory.get_log_path(process)]


def _follow_lines(offsets: dict[Path, int]) -> Iterator[tuple[Path, str]]:
    """Whole lines as they are written behind the bytes `read`, until the user interrupts."""
    while True:
        for file in offsets:
            if file.exists() and file.stat().st_size < offsets[file]:
                offsets[file] = 0  # the log was set aside and begins anew
            content = _read_whole_lines(file, offsets[file])
            offsets[file] += len(content)
            for line in content.decode("utf-8", "replace").splitlines():
                yield file, line
        time.sleep(0.3)


def _read_whole_lines(file: Path, start: int) -> bytes:
    """What a log holds from the byte `start` to the end of its last whole line."""
    if not file.exists():
        return b""
    with file.open("rb") as log:
        log.seek(start)
        content = log.read()
    return content[: content.rfind(b"\n") + 1]


def _print_line(file: Path, line: str, show_name: bool) -> None:
    console.out.print(f"{file.stem} | {line}" if show_name else line, markup=False)
