"""`blueprint schema`: the JSON Schema of a settings file, for editors and other programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from blueprints.blueprint import Blueprint
from infra import schema as json_schema
from infra.fleet import Fleet
from infra.settings import Settings


class File(StrEnum):
    """The settings files."""

    FLEET = "fleet"
    BLUEPRINT = "blueprint"


_KINDS: dict[File, type[Settings]] = {File.FLEET: Fleet, File.BLUEPRINT: Blueprint}


def schema(file: Annotated[File, typer.Argument(help="Which settings file.")]) -> None:
    """Print the JSON Schema of fleet.yaml or blueprint.yaml."""
    print(json_schema.text(_KINDS[file], f"{file.value}.yaml"), end="")
