"""`blueprint model`: make a model, list the catalogue, see what a model fits on, copy one to S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from blueprints.catalog import models
from infra.errors import InputError
from scripts import console

app = typer.Typer(help="Models: make, copy, and see what they fit on.", no_args_is_help=True)


@app.command("make-tiny")
def make_tiny(
    to: Annotated[Path, typer.Option(help="The folder to make it in.")],
    size: Annotated[
        str, typer.Option(help="tiny: a few MB. mid: 0.9 GB, so that streaming is worth measuring.")
    ] = "tiny",
) -> None:
    """Make a Qwen3 with random weights and a real tokenizer, the same bytes each time."""
    from scripts.models import make_tiny

    known = next((one for one in make_tiny.SIZES if one == size), None)
    if known is None:
        raise InputError(f"--size: now {size!r}: there is no such size. Write {' or '.join(make_tiny.SIZES)}.")
    with console.step(f"make the model {size} in {to}") as step, _bytes_bar("writing") as progress:
        folder = make_tiny.make(known, to, progress)
        step.note = f"{models.find(size).parameters / 1e6:.0f} million parameters"
    console.err.print(f"[yellow]{models.RANDOM_NOTICE}[/yellow]")
    console.out.print(str(folder), markup=False)


@contextmanager
def _bytes_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told the bytes done and the bytes in all; gone when the block ends."""
    columns = (TextColumn("  {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console.err, transient=True, disable=not console.err.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
