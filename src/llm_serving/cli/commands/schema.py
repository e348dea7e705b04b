"""`blueprint schema`: the JSON Schema of a file that people write or scripts read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from llm_serving.fleet.model import Fleet
from llm_serving.services import kinds
from llm_serving.settings import schema as settings_schema
from llm_serving.validation.reports import report


class SchemaFile(StrEnum):
    """The files with a published schema."""

    FLEET = "fleet"
    BLUEPRINT = "blueprint"
    REPORT = "report"


def schema(file: Annotated[SchemaFile, typer.Argument(help="The file.")]) -> None:
    """Print the JSON Schema of a file.

    The files are fleet.yaml, blueprint.yaml, and the report.json of a validation.
    """
    print(render_schema(file), end="")


def render_schema(file: SchemaFile) -> str:
    """Render a schema as it is published."""
    match file:
        case SchemaFile.FLEET:
            return settings_schema.render(Fleet, "fleet.yaml")
        case SchemaFile.BLUEPRINT:
            default, *others = kinds.list_kinds()
            models = {kind: kinds.get(kind).SETTINGS for kind in others}
            return settings_schema.render(kinds.get(default).SETTINGS, "blueprint.yaml", models)
        case SchemaFile.REPORT:
            return report.render_schema()
