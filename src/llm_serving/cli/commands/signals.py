"""`blueprint signals`: the metrics that scaling, alarms, alerts and dashboards read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from llm_serving import console
from llm_serving.catalog import signals
from llm_serving.options.arguments import AsJson


def list_signals(as_json: AsJson = False) -> None:
    """List the metrics that scaling and alerts read.

    A signal has a row for each program's name of it.
    """
    rows = [_build_row(name) for name in signals.list_program_names()]
    console.print_rows(rows, _render_signals(rows), as_json=as_json)


def _build_row(program_name: signals.ProgramName) -> dict[str, str]:
    signal = signals.load()[program_name.signal]
    return {
        "name": program_name.signal,
        "program": program_name.program,
        "program_name": program_name.name,
        "unit": signal.unit,
        "role": signal.role,
        "meaning": signal.meaning,
        "action": signal.action,
    }


def _render_signals(rows: Iterable[Mapping[str, str]]) -> Table:
    table = Table("signal", "program's name, and what it means", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        signal = Text.assemble((row["name"], "bold"), f"\n{row['program']}")
        table.add_row(signal, f"{row['program_name']}\n{row['meaning']}")
    return table
