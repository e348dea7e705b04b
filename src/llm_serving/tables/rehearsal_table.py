"""A rehearsal as a table: stack by stack, how many of its resources were proven in which way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.rehearsal import emulator_gaps
from llm_serving.rehearsal.run import Rehearsal, Stack


def draw(done: Sequence[Rehearsal]) -> RenderableType:
    """The table of one fleet or several, and under it why the embedded AWS does not hold the rest."""
    return Group(_table(done), *_reasons(done))


def _table(done: Sequence[Rehearsal]) -> Table:
    every = [stack for one in done for stack in one.stacks.values()]
    table = Table(box=box.HORIZONTALS, show_footer=True, show_edge=False, pad_edge=False)
    table.add_column("fleet", footer="in all", overflow="fold")
    table.add_column("stack", no_wrap=True)
    for title, footer in zip(("resources", "mocked plan", "emulated apply", "not held"), _figures(every), strict=True):
        table.add_column(title, footer=footer, justify="right")
    for one in done:
        for index, (name, stack) in enumerate(one.stacks.items()):
            last = index == len(one.stacks) - 1
            table.add_row("" if index else one.fleet, name, *_figures([stack]), end_section=last)
    return table


def _figures(stacks: Sequence[Stack]) -> tuple[str, str, str, str]:
    applied = [stack.applied for stack in stacks if stack.applied is not None]
    return (
        f"{sum(stack.resources for stack in stacks):,}",
        f"{sum(stack.mocked for stack in stacks):,}",
        f"{sum(applied):,}" if applied else "-",
        f"{sum(sum(stack.not_held.values()) for stack in stacks):,}",
    )


def _reasons(done: Sequence[Rehearsal]) -> Iterator[Text]:
    kinds: Counter[str] = Counter()
    for one in done:
        for stack in one.stacks.values():
            kinds.update(stack.not_held)
    for kind, count in sorted(kinds.items()):
        yield Text.assemble("not held: ", (f"{count} {kind}", "bold"), f", for {emulator_gaps.REASONS[kind]}")
