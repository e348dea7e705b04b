"""`blueprint rehearse`: the fleet's stacks with a mocked provider, then against an embedded AWS to the last destroy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console, processes
from llm_serving.cli.arguments import FLEET, OUT, AsJson, Out


def rehearse(
    stacks: Annotated[
        list[str] | None, typer.Argument(metavar="[STACK]...", help="Stacks to rehearse; all by default.")
    ] = None,
    fleet: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file, or a folder.")] = FLEET,
    out: Out = OUT,
    mocked: Annotated[
        bool, typer.Option("--mocked", help="Plan with a mocked provider alone: seconds, and no emulator.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan the stacks with a mocked provider, apply them to an embedded AWS, plan again, destroy, look what is left."""
    from llm_serving.rehearsal import emulator, run
    from llm_serving.settings.errors import InputError
    from llm_serving.tables import rehearsal_table
    from llm_serving.workloads import inputs

    if mocked and stacks:
        raise InputError("--mocked plans all stacks. Fix: no stack, or leave --mocked out")
    documents = [inputs.read_fleet(file) for file in _list_fleet_files(fleet)]
    data = Path(".blueprint") / "rehearsal"
    with processes.handle_interrupts():
        if mocked:
            rehearsals = run.plan(documents, out=out, data=data / "mocked")
        else:
            rehearsals = [
                run.rehearse(
                    document,
                    out=out if len(documents) == 1 else out / document.value.name,
                    data=data / document.value.name,
                    stack_names=stacks or None,
                )
                for document in documents
            ]
    if as_json:
        emulated = [] if mocked else [emulator.EMULATION_NOTE]
        print(
            json.dumps(
                {"rehearsals": [dataclasses.asdict(rehearsal) for rehearsal in rehearsals], "emulated": emulated},
                indent=2,
            )
        )
        return
    console.out.print(f"{rehearsals[0].terraform}, AWS provider from {rehearsals[0].provider_from}")
    console.out.print(rehearsal_table.render(rehearsals), soft_wrap=False)
    if not mocked:
        console.out.print("after each apply a plan was empty, and after the destroy nothing is left")
        console.out.print(emulator.EMULATION_NOTE)


def _list_fleet_files(fleet: Path) -> list[Path]:
    """The fleet file, or those of a folder."""
    from llm_serving.settings.errors import InputError

    if not fleet.is_dir():
        return [fleet]
    if files := sorted(fleet.glob("*.yaml")):
        return files
    raise InputError(f"{fleet} holds no fleet file. Fix: a folder with fleet files, *.yaml, or a file")
