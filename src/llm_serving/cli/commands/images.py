"""`blueprint images`: pin container images by digest."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.operations import image_pins
from llm_serving.options.arguments import FLEET, AsJson, Fleet

app = typer.Typer(help="Pin container images by digest.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Pin container images by digest."""


@app.command()
def pin(
    image: Annotated[
        list[str] | None, typer.Argument(help="REPOSITORY:TAG; default is every image of the catalog without a digest.")
    ] = None,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> None:
    """Read the digests of images from their registries, and write them to images.lock.yaml beside the fleet file.

    Deployments then pull these images by digest.
    """
    digests = {}
    for reference in image or image_pins.list_unpinned():
        with console.step(f"Ask for the digest of {reference}") as step:
            digests[reference] = step.note = image_pins.fetch_digest(reference)
    path = image_pins.write(fleet, digests)
    if as_json:
        print(json.dumps({"file": str(path), "digests": digests}))
    else:
        console.out.print(console.shorten_path(path), markup=False)
