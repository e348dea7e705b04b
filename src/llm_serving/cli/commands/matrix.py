"""`blueprint matrix`: every pattern on every target with every example fleet."""

from __future__ import annotations

import json

from llm_serving import console
from llm_serving.cli.arguments import AsJson


def matrix(as_json: AsJson = False) -> None:
    """Show which pattern renders for which target on which example fleet, and why the others do not."""
    from llm_serving.tables import matrix_table
    from llm_serving.targets import matrix

    cells = list(matrix.build_cells())
    if as_json:
        payload = [
            {
                "pattern": cell.pattern,
                "target": cell.target,
                "fleet": cell.fleet,
                "pool": cell.pool or None,
                "preset": cell.preset or None,
                "why": cell.reason,
            }
            for cell in cells
        ]
        print(json.dumps(payload, indent=2))
        return
    console.out.print(matrix_table.MatrixTable(cells))
