"""`blueprint schema`: the JSON Schema of a file that people write or scripts read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class SchemaFile(StrEnum):
    """The files with a published schema."""

    FLEET = "fleet"
    BLUEPRINT = "blueprint"
    REPORT = "report"


def schema(file: Annotated[SchemaFile, typer.Argument(help="Which file.")]) -> None:
    """Print the JSON Schema of fleet.yaml, blueprint.yaml or a validation's report.json."""
    print(render_schema(file), end="")


def render_schema(file: SchemaFile) -> str:
    """The schema as it is published."""
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings import schema as settings
    from llm_serving.validation import report
    from llm_serving.workloads.serving.blueprint import Blueprint

    match file:
        case SchemaFile.FLEET:
            return settings.render(Fleet, "fleet.yaml")
        case SchemaFile.BLUEPRINT:
            return settings.render(Blueprint, "blueprint.yaml")
        case SchemaFile.REPORT:
            return report.render_schema()
