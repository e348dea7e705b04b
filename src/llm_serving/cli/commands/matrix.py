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
    if as_json:
        console.print_json([cell.build_payload() for cell in cells])
    else:
        console.out.print(matrix_table.MatrixTable(cells))
