"""`blueprint rehearse`: the fleet's stacks against an embedded AWS, from the first apply to the last destroy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from scripts import console, processes
from scripts.commands.arguments import FLEET, OUT, AsJson, Fleet, Out


def rehearse(
    stacks: Annotated[
        list[str] | None, typer.Argument(metavar="[STACK]...", help="Stacks to rehearse; all by default.")
    ] = None,
    fleet: Fleet = FLEET,
    out: Out = OUT,
    as_json: AsJson = False,
) -> None:
    """Apply the fleet's stacks to an embedded AWS, plan again (nothing may change), destroy (nothing may be left)."""
    from scripts import inputs
    from scripts.rehearsal import embedded_aws, unheld
    from scripts.rehearsal import stacks as rehearsal

    document = inputs.read_fleet(fleet)
    data = Path(".blueprint") / "rehearsal" / document.value.name
    with processes.interruptible():
        done = rehearsal.rehearse(document, out=out, data=data, stacks=stacks or None)
    if as_json:
        print(json.dumps({**dataclasses.asdict(done), "emulated": [embedded_aws.EMULATED]}, indent=2))
        return
    counted = ", ".join(f"{name} {count}" for name, count in done.resources.items())
    console.out.print(f"{done.terraform}, AWS provider from {done.provider_from}")
    console.out.print(f"resources made and taken away: {counted}; the plan between was empty; nothing is left")
    for stack, kinds in done.left_out.items():
        for kind, count in kinds.items():
            console.out.print(f"left out of {stack}: {count} {kind}, for {unheld.REASONS[kind]}")
    console.out.print(embedded_aws.EMULATED)
