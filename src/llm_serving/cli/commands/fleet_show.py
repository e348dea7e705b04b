"""`blueprint fleet show`: the fleet as a table, and what cannot be rented."""

from __future__ import annotations

from pathlib import Path

import typer

from llm_serving import console
from llm_serving.fleet import capacity, checks, image_platforms
from llm_serving.fleet.groups import has_known_types
from llm_serving.fleet.model import Fleet
from llm_serving.options import arguments
from llm_serving.services import kinds
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.tables import capacity_table, fleet_table


def show(fleet: arguments.Fleet = arguments.FLEET, as_json: arguments.AsJson = False) -> None:
    """Show the pools by zone, with accelerators and cost per hour.

    The cost includes what deployments that are rendered here rent beside instances.
    """
    document = load(fleet, Fleet)
    deployed = kinds.list_rented(document, Path())
    mistakes = checks.find_mistakes(document)
    is_in_catalog = has_known_types(document.value)
    fleet_capacity = capacity.compute(document.value) if is_in_catalog else None
    if as_json:
        payload = {
            **fleet_table.build_payload(document.value, deployed),
            "image_platforms": image_platforms.list_platforms(document.value) if is_in_catalog else [],
            "scale": capacity_table.build_payload(fleet_capacity) if fleet_capacity else None,
            "mistakes": [mistake.to_dict() for mistake in mistakes],
        }
        console.print_json(payload)
        raise typer.Exit(InputError.exit_code if mistakes else 0)
    table = fleet_table.render(document.value, console.out.width, deployed)
    console.out.print(table, soft_wrap=False)
    if fleet_capacity:
        machines = sum(pool.size.max for pool in document.value.pools.values())
        console.out.print(capacity_table.render(fleet_capacity, machines), soft_wrap=False)
    if mistakes:
        raise InputError(mistakes)
