"""What blueprint.yaml of every kind has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from llm_serving.fleet.model import Name
from llm_serving.settings.document import Document, Settings
from llm_serving.settings.errors import InputError

DEFAULT_KIND = "serving"

FILE_NAME = "blueprint.yaml"


class BaseBlueprint(Settings):
    """What every kind's blueprint.yaml has."""

    kind: str = DEFAULT_KIND
    """What sort of work this is."""

    name: Name | None = None
    """Name of the deployment; the folder's name where left out."""

    logs: Literal["text", "json"] = "text"
    """`json`: a JSON object on each line of the logs, and a line for each request with its `X-Request-Id`, for a log
    collector. No line holds what requests ask."""


def resolve_name(blueprint: Document[Any]) -> str:
    """Return the deployment's name: as written, or the folder's.

    Raises:
        InputError: the folder's name is not a valid name.
    """
    if blueprint.value.name:
        name: str = blueprint.value.name
        return name
    folder = blueprint.path.resolve().parent.name
    try:
        return TypeAdapter(Name).validate_python(folder)
    except ValidationError:
        reason = "the folder's name is used, and is not a valid name"
        fix = "set name: NAME, 2 to 32 of a-z, 0-9 and -"
        raise InputError([blueprint.build_mistake(["name"], folder, reason, fix)]) from None
