"""`blueprint fleet synth`: the fleet file in, Terraform stacks out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from scripts import console


def synth(
    fleet: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file.")] = Path("fleet.yaml"),
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the stacks go.")] = Path("cdktf.out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the stacks' folders as JSON.")] = False,
) -> None:
    """Synthesize the fleet's stacks; terraform and cdktf take them as they are."""
    from scripts import inputs

    document = inputs.read_fleet(fleet)
    with console.step(f"Synthesize the stacks of {console.near(fleet)}"):
        from infra import main  # starts Node: only for a file that could be read

        folders = main.synthesize(document, out)
    if as_json:
        print(json.dumps({name: str(folder) for name, folder in folders.items()}, indent=2))
        return
    for name, folder in folders.items():
        console.out.print(f"[bold]{name}[/bold]: {console.near(folder / 'cdk.tf.json')}")
    first = console.near(next(iter(folders.values())))
    console.out.print(f"next, with an AWS account: terraform -chdir={first} init && terraform -chdir={first} plan")
