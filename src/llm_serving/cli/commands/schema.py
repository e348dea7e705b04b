"""`blueprint schema`: the JSON Schema of a file that people write or scripts read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class File(StrEnum):
    """The files with a published schema."""

    FLEET = "fleet"
    BLUEPRINT = "blueprint"
    REPORT = "report"


def schema(file: Annotated[File, typer.Argument(help="Which file.")]) -> None:
    """Print the JSON Schema of fleet.yaml, blueprint.yaml or a validation's report.json."""
    print(text(file), end="")


def text(file: File) -> str:
    """The schema as it is published."""
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings import schema as settings
    from llm_serving.validation import report
    from llm_serving.workloads.serving.blueprint import Blueprint

    match file:
        case File.FLEET:
            return settings.text(Fleet, "fleet.yaml")
        case File.BLUEPRINT:
            return settings.text(Blueprint, "blueprint.yaml")
        case File.REPORT:
            return report.schema_text()
