"""Progress output: steps with their times, and every external command, quoted so that a shell can run it again.

Progress goes to standard error; results go to standard output, so that `--json` can be piped.
"""

from __future__ import annotations

import json
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

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from llm_serving import processes
from llm_serving.settings.errors import BlueprintError, Unavailable, make_safe


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render with text made safe; control sequences are rich's own. Cells and parts of a group are no markup."""
        for segment in super().render(renderable, (options or self.options).update(markup=False)):
            yield segment if segment.control else Segment(make_safe(segment.text), segment.style)


out = _Console(highlight=False, emoji=False, soft_wrap=True)
err = _Console(highlight=False, emoji=False, soft_wrap=True, stderr=True)
if out.width < 80:  # a narrower terminal wraps the lines of tables and of typer's helps, which would be cut
    out.width = 80
    os.environ["TERMINAL_WIDTH"] = "80"


def print_log(line: str, end: str = "\n") -> None:
    """Print a program's line without its colors."""
    out.print(line, end=end, markup=False)


def print_result(renderable: RenderableType) -> None:
    """Print prose and tables: wrapped at words in a terminal, unwrapped elsewhere."""
    out.print(renderable, soft_wrap=not out.is_terminal)


def print_json(payload: object) -> None:
    print(json.dumps(payload, indent=2))


def print_rows(payload: object, table: RenderableType, *, as_json: bool, soft_wrap: bool = True) -> None:
    """Print what a command lists, as JSON for a program or as a table for a person."""
    if as_json:
        print_json(payload)
    else:
        out.print(table, soft_wrap=soft_wrap)


@dataclass(eq=False)
class Step:
    """One step, and how long it took in seconds."""

    title: str
    seconds: float = 0.0
    note: str = ""
    in_background: bool = False
    """Whether other steps ran meanwhile."""

    def __str__(self) -> str:
        return f"{self.title}: {self.note}" if self.note else self.title

    def note_bytes(self, done: int, total: int) -> None:
        """Note how much of a file is there."""
        from llm_serving.settings.units import format_bytes  # imports pydantic, which takes longer than most commands

        self.note = f"{format_bytes(done)} of {format_bytes(total)}"


_active_steps: list[Step] = []
_recordings: list[list[Step]] = []


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Show `title` while the block runs, then its time, with the `note` that the block may set."""
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
        record(current)


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Collect the steps that succeed in the block, for a summary, without those nested in others."""
    steps: list[Step] = []
    _recordings.append(steps)
    try:
        yield steps
    finally:
        _recordings.remove(steps)


def record(step: Step) -> None:
    """Add a step to the summaries that are being recorded."""
    for recording in _recordings:
        recording.append(step)


def render_times(steps: Sequence[Step]) -> Table:
    """Render each step with its time, and the total of those that followed each other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    in_turn = [step for step in steps if not step.in_background]
    for step in in_turn:
        table.add_row(re.sub(r" \(.*", "", step.title), f"{step.seconds:.1f} s")
    table.add_row("Total", f"{sum(step.seconds for step in in_turn):.1f} s", style="bold")
    for step in steps:
        if step.in_background:
            table.add_row(f"In the background: {step.title}", f"{step.seconds:.1f} s", style="dim")
    return table


@contextmanager
def _show_progress(current: Step, start: float) -> Iterator[None]:
    """Show that a step still runs: a live line in a terminal, a line every ten seconds elsewhere."""
    finished = threading.Event()

    def refresh() -> None:
        if err.is_terminal:
            with err.status("") as line:
                while not finished.wait(0.5):
                    line.update(f"{escape(str(current))} [dim]{time.monotonic() - start:.0f} s[/dim]")
        else:
            while not finished.wait(10):
                if _active_steps[-1:] == [current]:  # of nested steps the innermost reports
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
    """Quote a command as a line to paste into a shell."""
    words = [f"{key}={shlex.quote(value)}" for key, value in (environment or {}).items()]
    line = " ".join([*words, shlex.join(command)])
    return f"(cd {shlex.quote(shorten_path(cwd))} && {line})" if cwd and cwd.resolve() != Path.cwd() else line


def show_command(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Print an external command that is about to run."""
    err.print(f"  [dim]$ {escape(quote_command(command, cwd=cwd, environment=environment))}[/dim]")


def shorten_path(path: Path) -> str:
    """Return a path relative to the current directory if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


@dataclass(frozen=True)
class Command:
    """An external command, with its working directory and its log."""

    arguments: Sequence[str]
    log: Path
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None
    """Added to this process's own; printed with the command, so never a secret."""

    hidden_environment: Mapping[str, str] = field(default_factory=dict)
    """Added too, but not printed: the command does the same without it."""

    accepted_codes: tuple[int, ...] = (0,)
    """Exit codes that count as success."""


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

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
    """Print an external command, run it with its output in `log`, and return that output; see `run_together`."""
    return run_together([Command(command, log, cwd, environment)], timeout_s=timeout_s, on_poll=on_poll)[0].output


def run_together(
    commands: Sequence[Command],
    *,
    timeout_s: float = 1800.0,
    on_poll: Callable[[], None] = lambda: None,
    grace_s: float = 20.0,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> list[CommandResult]:
    """Print external commands, run them in parallel, and return the result of each.

    Args:
        on_poll: called a few times a second while they run.
        grace_s: seconds for them to end after an interruption, before they are killed.
        stop_signal: sent to them after an interruption.

    Raises:
        Unavailable: a program is not on PATH.
        CommandFailed: one failed, or not all of them ended within `timeout_s` seconds.
    """
    started: list[tuple[Command, subprocess.Popen[bytes], int]] = []
    try:
        for command in commands:
            started.append((command, *_start_command(command)))
        _wait_until_ended(started, timeout_s, on_poll)
    except KeyboardInterrupt:
        err.print(f"  [dim]Interrupted: running commands get up to {grace_s:.0f} s to end[/dim]")
        raise
    finally:
        processes.stop_all([child for _, child, _ in started], grace_s, stop_signal=stop_signal)
    for command, child, start in started:
        if child.returncode not in command.accepted_codes:
            raise CommandFailed(command.arguments, command.log, f"exit code {child.returncode}", start)
    return [CommandResult(child.returncode, _read_from(command.log, start)) for command, child, start in started]


def _start_command(command: Command) -> tuple[subprocess.Popen[bytes], int]:
    show_command(command.arguments, cwd=command.cwd, environment=command.environment)
    command.log.parent.mkdir(parents=True, exist_ok=True)
    with command.log.open("ab") as sink:
        start = sink.tell()
        try:
            environment = {**(command.environment or {}), **command.hidden_environment}
            child = processes.spawn(command.arguments, cwd=command.cwd, environment=environment, output=sink)
        except FileNotFoundError:
            raise Unavailable(f"{command.arguments[0]}: not found on PATH. Fix: install it.") from None
    return child, start


def _wait_until_ended(
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
                    failure = f"timed out after {timeout_s:.0f} s"
                    raise CommandFailed(command.arguments, command.log, failure, start) from None


class CommandFailed(BlueprintError):
    """An external command failed; has its last lines of output."""

    exit_code = 1

    def __init__(self, command: Sequence[str], log: Path, failure: str, start: int = 0) -> None:
        self.command, self.log, self.failure = command, log, failure
        self.output = _read_from(log, start)
        tail = "\n".join(f"    {line}" for line in self.output.splitlines()[-20:])
        super().__init__(f"{shlex.join(command)}\n  failed: {failure}; last lines of {shorten_path(log)}:\n{tail}")


def _read_from(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def print_error(error: BlueprintError) -> int:
    """Print an error without its traceback; return its exit code."""
    print(make_safe(str(error)), file=sys.stderr)
    return error.exit_code
