"""The two files that a blueprint's commands start from: read, with the mistakes of both at once."""

from __future__ import annotations

from pathlib import Path

from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import ErrorCollector
from llm_serving.workloads.serving import blueprint
from llm_serving.workloads.serving.blueprint import Blueprint

__all__ = ["read", "read_fleet"]


def read(folder: Path, fleet_file: Path) -> tuple[Document[Blueprint], Document[Fleet]]:
    """The blueprint in `folder` and the fleet of the file `fleet`.

    Raises:
        InputError: with every mistake of both.
    """
    collector = ErrorCollector()
    fleet_document = collector(lambda: read_fleet(fleet_file))
    blueprint_document = collector(lambda: blueprint.read(folder))
    collector.raise_if_any()
    assert blueprint_document and fleet_document
    return blueprint_document, fleet_document
