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


def result(what: RenderableType) -> None:
    """Prints prose and tables: folded between words in a terminal, in whole lines elsewhere."""
    out.print(what, soft_wrap=not out.is_terminal)


@dataclass(eq=False)
class Step:
    """One step with the time it took, in seconds."""

    title: str
    seconds: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.note}" if self.note else self.title


_under_way: list[Step] = []
_recordings: list[list[Step]] = []


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Shows `title` while the block runs, then its time. The block may set `note`: it shows at once and at the end."""
    now = Step(title)
    start = time.monotonic()
    indent = "  " * len(_under_way)
    err.print(f"{indent}[bold]▸[/bold] {escape(title)}")
    _under_way.append(now)
    try:
        with _alive(now, start):
            yield now
    except BaseException:
        err.print(f"{indent}[red]✗[/red] {escape(title)} [dim]({time.monotonic() - start:.1f} s)[/dim]")
        raise
    finally:
        now.seconds = time.monotonic() - start
        _under_way.pop()
    err.print(f"{indent}[green]✓[/green] {escape(str(now))} [dim]({now.seconds:.1f} s)[/dim]")
    if not _under_way:
        for recording in _recordings:
            recording.append(now)


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """Collects the steps that end well inside the block, for a summary; those within others are part of these."""
    steps: list[Step] = []
    _recordings.append(steps)
    try:
        yield steps
    finally:
        _recordings.remove(steps)


def times(steps: Sequence[Step]) -> Table:
    """Every step with its time, and the sum."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for step in steps:
        table.add_row(escape(re.sub(r" \(.*", "", step.title)), f"{step.seconds:.1f} s")
    table.add_row("[bold]In all[/bold]", f"[bold]{sum(step.seconds for step in steps):.1f} s[/bold]")
    return table


@contextmanager
def _alive(now: Step, start: float) -> Iterator[None]:
    """Shows that a step goes on: a running line in a terminal, a line every ten seconds elsewhere."""
    done = threading.Event()

    def show() -> None:
        if err.is_terminal:
            with err.status("") as line:
                while not done.wait(0.5):
                    line.update(f"{escape(str(now))} [dim]{time.monotonic() - start:.0f} s[/dim]")
        else:
            while not done.wait(10):
                if _under_way[-1:] == [now]:  # of steps within steps the innermost speaks
                    err.print(f"  … {escape(str(now))} ({time.monotonic() - start:.0f} s)")

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


def quoted(command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """The command as a line that a person can paste into a shell."""
    words = [f"{key}={shlex.quote(value)}" for key, value in (environment or {}).items()]
    line = " ".join([*words, shlex.join(command)])
    return f"(cd {shlex.quote(near(cwd))} && {line})" if cwd and cwd.resolve() != Path.cwd() else line


def show(command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Prints an external command as it is about to run."""
    err.print(f"  [dim]$ {escape(quoted(command, cwd=cwd, environment=environment))}[/dim]")


def near(path: Path) -> str:
    """A path as seen from here where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


@dataclass(frozen=True)
class Command:
    """An external command: where it runs, and where its output goes."""

    words: Sequence[str]
    log: Path
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None
    """Set on top of this process's own; printed with the command, so nothing secret goes in."""

    lent: Mapping[str, str] = field(default_factory=dict)
    """Set too, and not printed: without it the command does the same."""

    good: tuple[int, ...] = (0,)
    """Exit codes that are no failure."""


@dataclass(frozen=True)
class Ended:
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
    watch: Callable[[], None] = lambda: None,
) -> str:
    """Prints an external command, runs it with its output in `log`, and returns that output; see `run_together`."""
    return run_together([Command(command, log, cwd, environment)], timeout_s=timeout_s, watch=watch)[0].output


def run_together(
    commands: Sequence[Command],
    *,
    timeout_s: float = 1800.0,
    watch: Callable[[], None] = lambda: None,
    grace_s: float = 20.0,
    stop_by: signal.Signals = signal.SIGTERM,
) -> list[Ended]:
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
        _wait(started, timeout_s, watch)
    except KeyboardInterrupt:
        err.print(f"  [dim]asked to stop: what runs has up to {grace_s:.0f} s to end in order[/dim]")
        raise
    finally:
        processes.stop_all([child for _, child, _ in started], grace_s, by=stop_by)
    for command, child, start in started:
        if child.returncode not in command.good:
            raise CommandFailed(command.words, command.log, f"ended with code {child.returncode}", start)
    return [Ended(child.returncode, _since(command.log, start)) for command, child, start in started]


def _start(command: Command) -> tuple[subprocess.Popen[bytes], int]:
    """The running command, and where in its log its own output begins."""
    show(command.words, cwd=command.cwd, environment=command.environment)
    command.log.parent.mkdir(parents=True, exist_ok=True)
    with command.log.open("ab") as sink:
        start = sink.tell()
        try:
            environment = {**(command.environment or {}), **command.lent}
            child = processes.spawn(command.words, cwd=command.cwd, environment=environment, output=sink)
        except FileNotFoundError:
            raise Unavailable(f"{command.words[0]} is not on this machine's PATH") from None
    return child, start


def _wait(
    started: Sequence[tuple[Command, subprocess.Popen[bytes], int]], timeout_s: float, watch: Callable[[], None]
) -> None:
    end = time.monotonic() + timeout_s
    for command, child, start in started:
        while child.poll() is None:
            watch()
            try:
                child.wait(max(0.0, min(0.25, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    how = f"did not end within {timeout_s:.0f} s"
                    raise CommandFailed(command.words, command.log, how, start) from None


class CommandFailed(BlueprintError):
    """An external command failed; carries what it printed last."""

    exit_code = 1

    def __init__(self, command: Sequence[str], log: Path, how: str, start: int = 0) -> None:
        self.output = _since(log, start)
        tail = "\n".join(f"    {line}" for line in self.output.splitlines()[-20:])
        super().__init__(f"{shlex.join(command)}\n  {how}; its last lines, all of them in {near(log)}:\n{tail}")


def _since(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def fail(error: BlueprintError) -> int:
    """Shows a refusal as its text alone; returns the exit code."""
    print(error, file=sys.stderr)
    return error.exit_code
