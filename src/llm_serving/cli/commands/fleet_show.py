"""`blueprint fleet show`: draws the fleet, and says what cannot be rented."""

from __future__ import annotations

import json

import typer

from llm_serving import console
from llm_serving.cli import arguments


def show(
    fleet: arguments.Fleet = arguments.FLEET,
    as_json: arguments.AsJson = False,
) -> None:
    """Draw the fleet: zones across, pools down, accelerators and cost an hour at least and at most."""
    from llm_serving.catalog import instances
    from llm_serving.fleet import capacity, checks
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings.document import load
    from llm_serving.settings.errors import InputError
    from llm_serving.tables import capacity_table, fleet_table

    document = load(fleet, Fleet)
    catalogue = instances.load()
    mistakes = checks.check(document, catalogue)
    known = all(kind in catalogue for pool in document.value.pools.values() for kind in pool.types)
    met = capacity.of(document.value, catalogue) if known else None
    if as_json:
        said = {
            **fleet_table.plain(document.value, catalogue),
            "scale": capacity_table.plain(met) if met else None,
            "mistakes": [one.plain() for one in mistakes],
        }
        print(json.dumps(said, indent=2))
        raise typer.Exit(InputError.exit_code if mistakes else 0)
    console.out.print(fleet_table.draw(document.value, catalogue, console.out.width), soft_wrap=False)
    if met:
        machines = sum(pool.size.most for pool in document.value.pools.values())
        console.out.print(capacity_table.draw(met, machines), soft_wrap=False)
    if mistakes:
        raise InputError(mistakes)
