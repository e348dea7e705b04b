"""What a person sees while work goes on: steps with their times, and every external command, quoted to run again.

Progress goes to standard error; results go to standard output, so that `--json` can be piped.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from llm_serving import processes
from llm_serving.settings.errors import BlueprintError, Unavailable


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise


out = _Console(highlight=False, soft_wrap=True)
err = _Console(highlight=False, soft_wrap=True, stderr=True)


def print_result(renderable: RenderableType) -> None:
    """Prints prose and tables: folded between words in a terminal, in whole lines elsewhere."""
    out.print(renderable, soft_wrap=not out.is_terminal)


@dataclass(eq=False)
class Step:
    """One step with the time it took, in seconds."""

    title: str
    seconds: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.note}" if self.note else self.title


_active_steps: list[Step] = []
_recordings: list[list[Step]] = []


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Shows `title` while the block runs, then its time. The block may set `note`: it shows at once and at the end."""
    current = Step(title)
    start = time.monotonic()
    indent = "  " * len(_active_steps)
    err.print(f"{indent}[bold]▸[/bold] {escape(title)}")
    _active_steps.append(current)
    try:
        with _show_progress(current, start):
            yield current
    except BaseException:
        err.print(f"{indent}[red]✗[/red] {escape(title)} [dim]({time.monotonic() - start:.1f} s)[/dim]")
        raise
    finally:
        current.seconds = time.monotonic() - start
        _active_steps.pop()
    err.print(f"{indent}[green]✓[/green] {escape(str(current))} [dim]({current.seconds:.1f} s)[/dim]")
    if not _active_steps:
        for recording in _recordings:
            recording.append(current)


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Collects the steps that end well inside the block, for a summary; those within others are part of these."""
    steps: list[Step] = []
    _recordings.append(steps)
    try:
        yield steps
    finally:
        _recordings.remove(steps)


def render_times(steps: Sequence[Step]) -> Table:
    """Every step with its time, and the sum."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for step in steps:
        table.add_row(escape(re.sub(r" \(.*", "", step.title)), f"{step.seconds:.1f} s")
    table.add_row("[bold]In all[/bold]", f"[bold]{sum(step.seconds for step in steps):.1f} s[/bold]")
    return table


@contextmanager
def _show_progress(current: Step, start: float) -> Iterator[None]:
    """Shows that a step goes on: a running line in a terminal, a line every ten seconds elsewhere."""
    finished = threading.Event()

    def refresh() -> None:
        if err.is_terminal:
            with err.status("") as line:
                while not finished.wait(0.5):
                    line.update(f"{escape(str(current))} [dim]{time.monotonic() - start:.0f} s[/dim]")
        else:
            while not finished.wait(10):
                if _active_steps[-1:] == [current]:  # of steps within steps the innermost speaks
                    err.print(f"  … {escape(str(current))} ({time.monotonic() - start:.0f} s)")

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def quote_command(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The command as a line that a person can paste into a shell."""
    words = [f"{key}={shlex.quote(value)}" for key, value in (environment or {}).items()]
    line = " ".join([*words, shlex.join(command)])
    return f"(cd {shlex.quote(shorten_path(cwd))} && {line})" if cwd and cwd.resolve() != Path.cwd() else line


def show_command(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Prints an external command as it is about to run."""
    err.print(f"  [dim]$ {escape(quote_command(command, cwd=cwd, environment=environment))}[/dim]")


def shorten_path(path: Path) -> str:
    """A path as seen from here where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


@dataclass(frozen=True)
class Command:
    """An external command: where it runs, and where its output goes."""

    arguments: Sequence[str]
    log: Path
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None
    """Set on top of this process's own; printed with the command, so nothing secret goes in."""

    hidden_environment: Mapping[str, str] = field(default_factory=dict)
    """Set too, and not printed: without it the command does the same."""

    accepted_codes: tuple[int, ...] = (0,)
    """Exit codes that are no failure."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it printed."""

    code: int
    output: str


def run(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 1800.0,
    on_poll: Callable[[], None] = lambda: None,
) -> str:
    """Prints an external command, runs it with its output in `log`, and returns that output; see `run_together`."""
    return run_together([Command(command, log, cwd, environment)], timeout_s=timeout_s, on_poll=on_poll)[0].output


def run_together(
    commands: Sequence[Command],
    *,
    timeout_s: float = 1800.0,
    on_poll: Callable[[], None] = lambda: None,
    grace_s: float = 20.0,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> list[CommandResult]:
    """Prints external commands, runs them side by side, and returns how each ended.

    Args:
        watch: called a few times a second while they run.
        grace_s: how long they may take to end where this is interrupted, before they are killed.
        stop_by: what asks them to end.

    Raises:
        Unavailable: a program is not there.
        CommandFailed: one ended with a code that is not good, or they did not all end within `timeout_s` seconds.
    """
    started: list[tuple[Command, subprocess.Popen[bytes], int]] = []
    try:
        for command in commands:
            started.append((command, *_start(command)))
        _wait(started, timeout_s, on_poll)
    except KeyboardInterrupt:
        err.print(f"  [dim]asked to stop: what runs has up to {grace_s:.0f} s to end in order[/dim]")
        raise
    finally:
        processes.stop_all([child for _, child, _ in started], grace_s, stop_signal=stop_signal)
    for command, child, start in started:
        if child.returncode not in command.accepted_codes:
            raise CommandFailed(command.arguments, command.log, f"ended with code {child.returncode}", start)
    return [CommandResult(child.returncode, _read_from(command.log, start)) for command, child, start in started]


def _start(command: Command) -> tuple[subprocess.Popen[bytes], int]:
    """The running command, and where in its log its own output begins."""
    show_command(command.arguments, cwd=command.cwd, environment=command.environment)
    command.log.parent.mkdir(parents=True, exist_ok=True)
    with command.log.open("ab") as sink:
        start = sink.tell()
        try:
            environment = {**(command.environment or {}), **command.hidden_environment}
            child = processes.spawn(command.arguments, cwd=command.cwd, environment=environment, output=sink)
        except FileNotFoundError:
            raise Unavailable(f"{command.arguments[0]} is not on this machine's PATH") from None
    return child, start


def _wait(
    started: Sequence[tuple[Command, subprocess.Popen[bytes], int]], timeout_s: float, on_poll: Callable[[], None]
) -> None:
    deadline = time.monotonic() + timeout_s
    for command, child, start in started:
        while child.poll() is None:
            on_poll()
            try:
                child.wait(max(0.0, min(0.25, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    failure = f"did not end within {timeout_s:.0f} s"
                    raise CommandFailed(command.arguments, command.log, failure, start) from None


class CommandFailed(BlueprintError):
    """An external command failed; carries what it printed last."""

    exit_code = 1

    def __init__(self, command: Sequence[str], log: Path, failure: str, start: int = 0) -> None:
        self.command, self.log, self.failure = command, log, failure
        self.output = _read_from(log, start)
        tail = "\n".join(f"    {line}" for line in self.output.splitlines()[-20:])
        super().__init__(
            f"{shlex.join(command)}\n  {failure}; its last lines, all of them in {shorten_path(log)}:\n{tail}"
        )


def _read_from(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def print_error(error: BlueprintError) -> int:
    """Shows a refusal as its text alone; returns the exit code."""
    print(error, file=sys.stderr)
    return error.exit_code
