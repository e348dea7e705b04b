"""Patterns, targets and fleets as a picture in the terminal: what renders, and each reason of the rest once."""

from __future__ import annotations

import string
from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from llm_serving.targets.matrix import Cell


class Picture:
    """Fleets by their names where the terminal is wide enough, else by letters that a line above explains."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.fleets = list(dict.fromkeys(one.fleet for one in cells))
        every = dict.fromkeys(reason for one in cells for reason in one.reasons)
        self.numbers = {reason: number for number, reason in enumerate(every, 1)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        named = self._table(self.fleets)
        if Measurement.get(console, options.update(max_width=10_000), named).maximum <= options.max_width:
            yield named
        else:
            letters = dict(zip(string.ascii_uppercase, self.fleets, strict=False))
            yield Columns([f"[bold]{letter}[/bold] {fleet}" for letter, fleet in letters.items()], padding=(0, 3))
            yield self._table(list(letters))
        yield Group(Text(self._sum()), self._reasons())

    def _table(self, headings: Sequence[str]) -> Table:
        table = Table("pattern", "target", *headings, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        before = ""
        for pattern, target in dict.fromkeys((one.pattern, one.target) for one in self.cells):
            row = [one for one in self.cells if (one.pattern, one.target) == (pattern, target)]
            if before and pattern != before:
                table.add_section()
            table.add_row("" if pattern == before else pattern, target, *map(self._said, row))
            before = pattern
        return table

    def _said(self, cell: Cell) -> Text:
        if cell.reasons:
            return Text(" ".join(map(str, sorted(self.numbers[reason] for reason in cell.reasons))), "dim")
        return Text("yes*" if cell.preset else "yes", "green")

    def _sum(self) -> str:
        made = sum(not one.reasons for one in self.cells)
        presets = " and ".join(dict.fromkeys(one.preset for one in self.cells if one.preset))
        star = f"; yes* with the preset {presets}" if presets else ""
        return f"{made} of {len(self.cells)} render{star}." + (" The others do not:" if self.numbers else "")

    def _reasons(self) -> Table:
        table = Table.grid("number", "reason", padding=(0, 1))
        table.columns[0].justify, table.columns[0].no_wrap = "right", True
        for reason, number in self.numbers.items():
            table.add_row(Text(str(number)), Text(reason))
        return table
