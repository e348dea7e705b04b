"""`blueprint matrix`: every pattern on every target with every example fleet."""

from __future__ import annotations

import json

from llm_serving import console
from llm_serving.cli.arguments import AsJson


def matrix(as_json: AsJson = False) -> None:
    """Show which pattern renders for which target on which example fleet, and why the others do not."""
    from llm_serving.tables import matrix_table
    from llm_serving.targets import matrix

    cells = list(matrix.cells())
    if as_json:
        plain = [
            {
                "pattern": one.pattern,
                "target": one.target,
                "fleet": one.fleet,
                "pool": one.pool or None,
                "preset": one.preset or None,
                "why": one.why,
            }
            for one in cells
        ]
        print(json.dumps(plain, indent=2))
        return
    console.out.print(matrix_table.Picture(cells))
