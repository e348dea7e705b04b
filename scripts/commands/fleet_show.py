"""`blueprint fleet show`: draws the fleet, and says what cannot be rented."""

from __future__ import annotations

import json

import typer

from scripts import console
from scripts.commands import arguments


def show(
    fleet: arguments.Fleet = arguments.FLEET,
    as_json: arguments.AsJson = False,
) -> None:
    """Draw the fleet: zones across, pools down, accelerators and cost an hour at least and at most."""
    from infra import feasibility, scale, settings
    from infra.catalog import instances
    from infra.errors import InputError
    from infra.fleet import Fleet
    from scripts import fleet_picture, scale_picture

    document = settings.load(fleet, Fleet)
    catalogue = instances.load()
    mistakes = feasibility.check(document, catalogue)
    known = all(kind in catalogue for pool in document.value.pools.values() for kind in pool.types)
    met = scale.of(document.value, catalogue) if known else None
    if as_json:
        said = {
            **fleet_picture.plain(document.value, catalogue),
            "scale": scale_picture.plain(met) if met else None,
            "mistakes": [one.plain() for one in mistakes],
        }
        print(json.dumps(said, indent=2))
        raise typer.Exit(InputError.exit_code if mistakes else 0)
    console.out.print(fleet_picture.draw(document.value, catalogue, console.out.width), soft_wrap=False)
    if met:
        machines = sum(pool.size.most for pool in document.value.pools.values())
        console.out.print(scale_picture.draw(met, machines), soft_wrap=False)
    if mistakes:
        raise InputError(mistakes)
