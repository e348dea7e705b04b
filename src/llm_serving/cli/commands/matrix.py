"""`blueprint matrix`: every pattern on every target with every example fleet."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from llm_serving import console
from llm_serving.catalog import frameworks
from llm_serving.options.arguments import AsJson
from llm_serving.targets import matrix as target_matrix
from llm_serving.targets.matrix import RENDERED_ONLY, Cell


def matrix(as_json: AsJson = False) -> None:
    """Show which pattern renders for which target and fleet.

    Covers every pattern, target and example fleet, and gives the reason of each empty cell.
    """
    cells = list(target_matrix.build_cells())
    console.print_rows([cell.build_payload() for cell in cells], MatrixTable(cells), as_json=as_json)


_MAX_NOTE_WIDTH = 80


class MatrixTable:
    """A table with fleets' names as headings if the terminal is wide enough, otherwise letters with a legend."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.fleets = list(dict.fromkeys(cell.fleet for cell in cells))
        self.choices: dict[tuple[str, str, str], list[Cell]] = {}
        """The cells of each pattern, framework and engine."""

        for cell in cells:
            self.choices.setdefault((cell.pattern, cell.framework, cell.engine), []).append(cell)
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
        refused = self._render_refused_choices()
        if refused.row_count:
            yield refused
        yield Group(Text(self._format_summary()), self._render_reasons(options.max_width))

    def _render_table(self, headings: Sequence[str]) -> Table:
        names = [Column(name, no_wrap=True) for name in ("pattern", "target")]  # the reasons wrap; no name is cut
        table = Table(*names, *headings, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for cells in self.choices.values():
            if all(cell.reasons for cell in cells):
                continue
            targets = list(dict.fromkeys(cell.target for cell in cells))
            first = cells[0]
            choice = ", ".join(filter(None, (first.engine, first.framework)))
            labels: list[str | Text] = [first.pattern, Text(first.kind, "dim"), Text(choice, "dim")]
            for label, target in itertools.zip_longest(labels, targets, fillvalue=""):
                row = [cell for cell in cells if cell.target == target]
                table.add_row(label, target, *map(self._render_cell, row))
            table.add_section()
        return table

    def _render_refused_choices(self) -> Table:
        """Render a line for each engine and framework that renders for no target and no fleet, with its patterns."""
        refused: dict[tuple[str, str, str], list[str]] = {}
        for (pattern, framework, engine), cells in self.choices.items():
            if all(cell.reasons for cell in cells):
                refused.setdefault((engine, framework, self._format_reasons(cells)), []).append(pattern)
        table = Table("engine, framework", "patterns", "why none renders", box=box.SIMPLE_HEAD, pad_edge=False)
        for (engine, framework, reasons), patterns in refused.items():
            table.add_row(f"{engine}, {framework}", ", ".join(patterns), Text(reasons, "dim"))
        return table

    def _format_reasons(self, cells: Sequence[Cell]) -> str:
        return " ".join(map(str, sorted({self.numbers[reason] for cell in cells for reason in cell.reasons})))

    def _render_cell(self, cell: Cell) -> Text:
        if cell.reasons:
            return Text(self._format_reasons([cell]), "dim")
        return Text(f"yes{'*' if cell.preset else ''}{'†' if cell.is_rendered_only else ''}", "green")

    def _format_summary(self) -> str:
        rendered = [cell for cell in self.cells if not cell.reasons]
        local_count = sum(cell.is_local for cell in rendered)
        presets = " and ".join(dict.fromkeys(cell.preset for cell in self.cells if cell.preset))
        star = f"; yes* with preset {presets}" if presets else ""
        rendered_only_count = sum(cell.is_rendered_only for cell in rendered)
        dagger = f", {rendered_only_count} of them yes†: {RENDERED_ONLY}" if rendered_only_count else ""
        return (
            f"{len(rendered)} of {len(self.cells)} render: {local_count} run on this machine, "
            f"{len(rendered) - local_count} are for AWS{dagger}{star}."
        ) + (" Reasons of the others:" if self.numbers else "")

    def _render_reasons(self, width: int) -> Table:
        table = Table.grid("number", "reason", padding=(0, 1), pad_edge=False)
        table.width = min(width, _MAX_NOTE_WIDTH)
        table.columns[0].justify, table.columns[0].no_wrap = "right", True
        for reason, number in self.numbers.items():
            table.add_row(Text(str(number)), Text(reason))
        for name, framework in frameworks.load_frameworks().items():
            if framework.brings:
                table.add_row("", Text(f"framework {name} brings {framework.brings}."))
        return table
