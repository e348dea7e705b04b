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
from llm_serving.cli.arguments import FLEET, LOCAL, AsJson, Fleet, Folder, Target, run_of
from llm_serving.targets.on_aws import commands

if TYPE_CHECKING:
    from llm_serving.targets.local.deployment_dir import Run
    from llm_serving.targets.local.supervisor import State


def status(folder: Folder, fleet: Fleet = FLEET, target: Target = LOCAL, as_json: AsJson = False) -> None:
    """Show a deployment's processes; exit 1 where not all of them run."""
    from llm_serving.settings.errors import AnswerIsNo
    from llm_serving.targets.local import supervisor

    if target in commands.TARGETS:
        commands.status(commands.plan(folder, fleet, target), as_json=as_json)
        return

    run = run_of(folder, target)
    up, deployed, ports = supervisor.running(run), run.deployment(), run.ports()
    states = up.states() if up else []
    if as_json:
        processes = [{**asdict(state), "port": ports.get(state.name)} for state in states]
        print(
            json.dumps({"name": run.name, "url": deployed.url if deployed else None, "processes": processes}, indent=2)
        )
    elif states:
        _draw(states, ports)
        console.out.print(f"{run.name}: {deployed.url if deployed else 'not deployed yet'}", markup=False)
    if not states:
        raise AnswerIsNo(f"{run.name}: nothing runs here; blueprint deploy {console.near(folder)} brings it up")
    down = [state.name for state in states if state.state not in ("STARTING", "RUNNING")]
    if down:
        raise AnswerIsNo(f"{run.name}: {', '.join(down)} not running")


def _draw(states: list[State], ports: dict[str, int]) -> None:
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
        commands.module_of(target).logs(commands.plan(folder, fleet, target), process, lines=lines, follow=follow)
        return
    run = run_of(folder, target)
    files = _files(run, process)
    read = {}
    for file in files:
        whole = _whole_lines(file, 0)
        read[file] = len(whole)
        text = whole.decode("utf-8", "replace").splitlines()
        for line in text[len(text) - min(lines, len(text)) :]:
            _line(file, line, len(files) > 1)
    if follow:
        for file, line in _new_lines(read):
            _line(file, line, len(files) > 1)


def _files(run: Run, process: str | None) -> list[Path]:
    from llm_serving.settings.errors import AnswerIsNo, InputError

    there = sorted(run.logs.glob("*.log")) if run.logs.is_dir() else []
    if not there:
        raise AnswerIsNo(f"{run.name}: nothing has run here yet")
    if process is None:
        return there
    if run.log(process) not in there:
        names = ", ".join(file.stem for file in there)
        raise InputError(f"PROCESS: now {process!r}: {run.name} has no such process. Write one of {names}.")
    return [run.log(process)]


def _new_lines(read: dict[Path, int]) -> Iterator[tuple[Path, str]]:
    """Whole lines as they are written behind the bytes `read`, until the user interrupts."""
    while True:
        for file in read:
            if file.exists() and file.stat().st_size < read[file]:
                read[file] = 0  # the log was set aside and begins anew
            new = _whole_lines(file, read[file])
            read[file] += len(new)
            for line in new.decode("utf-8", "replace").splitlines():
                yield file, line
        time.sleep(0.3)


def _whole_lines(file: Path, start: int) -> bytes:
    """What a log holds from the byte `start` to the end of its last whole line."""
    if not file.exists():
        return b""
    with file.open("rb") as log:
        log.seek(start)
        new = log.read()
    return new[: new.rfind(b"\n") + 1]


def _line(file: Path, line: str, named: bool) -> None:
    console.out.print(f"{file.stem} | {line}" if named else line, markup=False)
