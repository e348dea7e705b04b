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


class MatrixTable:
    """Fleets by their names where the terminal is wide enough, else by letters that a line above explains."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.fleets = list(dict.fromkeys(cell.fleet for cell in cells))
        all_reasons = dict.fromkeys(reason for cell in cells for reason in cell.reasons)
        self.numbers = {reason: number for number, reason in enumerate(all_reasons, 1)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full_table = self._render_table(self.fleets)
        if Measurement.get(console, options.update(max_width=10_000), full_table).maximum <= options.max_width:
            yield full_table
        else:
            letters = dict(zip(string.ascii_uppercase, self.fleets, strict=False))
            yield Columns([f"[bold]{letter}[/bold] {fleet}" for letter, fleet in letters.items()], padding=(0, 3))
            yield self._render_table(list(letters))
        yield Group(Text(self._format_summary()), self._render_reasons())

    def _render_table(self, headings: Sequence[str]) -> Table:
        table = Table("pattern", "target", *headings, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        previous = ""
        for pattern, target in dict.fromkeys((cell.pattern, cell.target) for cell in self.cells):
            row = [cell for cell in self.cells if (cell.pattern, cell.target) == (pattern, target)]
            if previous and pattern != previous:
                table.add_section()
            table.add_row("" if pattern == previous else pattern, target, *map(self._render_cell, row))
            previous = pattern
        return table

    def _render_cell(self, cell: Cell) -> Text:
        if cell.reasons:
            return Text(" ".join(map(str, sorted(self.numbers[reason] for reason in cell.reasons))), "dim")
        return Text("yes*" if cell.preset else "yes", "green")

    def _format_summary(self) -> str:
        rendered_count = sum(not cell.reasons for cell in self.cells)
        presets = " and ".join(dict.fromkeys(cell.preset for cell in self.cells if cell.preset))
        star = f"; yes* with the preset {presets}" if presets else ""
        return f"{rendered_count} of {len(self.cells)} render{star}." + (" The others do not:" if self.numbers else "")

    def _render_reasons(self) -> Table:
        table = Table.grid("number", "reason", padding=(0, 1))
        table.columns[0].justify, table.columns[0].no_wrap = "right", True
        for reason, number in self.numbers.items():
            table.add_row(Text(str(number)), Text(reason))
        return table
