"""`blueprint matrix`: every pattern on every target with every example fleet."""

from __future__ import annotations

from llm_serving import console
from llm_serving.options.arguments import AsJson
from llm_serving.tables import matrix_table
from llm_serving.targets import matrix as target_matrix


def matrix(as_json: AsJson = False) -> None:
    """Show which pattern renders for which target and fleet.

    Covers every pattern, target and example fleet, and gives the reason of each empty cell.
    """
    cells = list(target_matrix.build_cells())
    console.print_rows([cell.build_payload() for cell in cells], matrix_table.MatrixTable(cells), as_json=as_json)
