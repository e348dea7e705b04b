"""`blueprint matrix`: every pattern on every target with every example fleet."""

from __future__ import annotations

import json

from scripts import console
from scripts.commands.arguments import AsJson


def matrix(as_json: AsJson = False) -> None:
    """Show which pattern renders for which target on which example fleet, and why the others do not."""
    from rich.table import Table

    from scripts import matrix

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
    fleets = list(dict.fromkeys(one.fleet for one in cells))
    reasons = {why: number for number, why in enumerate(dict.fromkeys(one.why for one in cells if one.why), 1)}
    table = Table("pattern", "target", *fleets)
    for pattern, target in dict.fromkeys((one.pattern, one.target) for one in cells):
        row = [one for one in cells if (one.pattern, one.target) == (pattern, target)]
        table.add_row(
            pattern, target, *(f"({reasons[one.why]})" if one.why else "yes*" if one.preset else "yes" for one in row)
        )
    console.out.print(table)
    rendered = sum(one.deployment is not None for one in cells)
    presets = " and ".join(dict.fromkeys(one.preset for one in cells if one.preset))
    console.out.print(f"{rendered} of {len(cells)} render, yes* with the preset {presets}. The others do not, because:")
    for why, number in reasons.items():
        console.out.print(f"({number}) {why}", markup=False)
