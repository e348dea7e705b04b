"""A rehearsal as a table: for each stack, how many resources were planned and applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.rehearsal import emulator_gaps
from llm_serving.rehearsal.run import Rehearsal, StackResult


def render(rehearsals: Sequence[Rehearsal]) -> RenderableType:
    """Render the table of one fleet or several, and why some resources are not emulated."""
    return Group(_render_table(rehearsals), *_render_reasons(rehearsals))


def _render_table(rehearsals: Sequence[Rehearsal]) -> Table:
    stacks = [stack for rehearsal in rehearsals for stack in rehearsal.stacks.values()]
    table = Table(box=box.HORIZONTALS, show_footer=True, show_edge=False, pad_edge=False)
    table.add_column("fleet", footer="total", overflow="fold")
    table.add_column("stack", no_wrap=True)
    for title, footer in zip(
        ("resources", "mocked plan", "emulated apply", "not emulated"), _format_figures(stacks), strict=True
    ):
        table.add_column(title, footer=footer, justify="right")
    for rehearsal in rehearsals:
        for index, (name, stack) in enumerate(rehearsal.stacks.items()):
            last = index == len(rehearsal.stacks) - 1
            table.add_row("" if index else rehearsal.fleet, name, *_format_figures([stack]), end_section=last)
    return table


def _format_figures(stacks: Sequence[StackResult]) -> tuple[str, str, str, str]:
    applied = [stack.applied for stack in stacks if stack.applied is not None]
    return (
        f"{sum(stack.resources for stack in stacks):,}",
        f"{sum(stack.mocked for stack in stacks):,}",
        f"{sum(applied):,}" if applied else "-",
        f"{sum(sum(stack.not_held.values()) for stack in stacks):,}",
    )


def _render_reasons(rehearsals: Sequence[Rehearsal]) -> Iterator[Text]:
    kinds: Counter[str] = Counter()
    for rehearsal in rehearsals:
        for stack in rehearsal.stacks.values():
            kinds.update(stack.not_held)
    for kind, count in sorted(kinds.items()):
        yield Text.assemble("not emulated: ", (f"{count} {kind}", "bold"), f": {emulator_gaps.REASONS[kind]}")
