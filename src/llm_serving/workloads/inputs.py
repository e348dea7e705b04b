"""The two files that a blueprint's commands start from: read, with the mistakes of both at once."""

from __future__ import annotations

from pathlib import Path

from llm_serving.fleet.loading import read as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Gather
from llm_serving.workloads.serving import blueprint
from llm_serving.workloads.serving.blueprint import Blueprint

__all__ = ["read", "read_fleet"]


def read(folder: Path, fleet: Path) -> tuple[Document[Blueprint], Document[Fleet]]:
    """The blueprint in `folder` and the fleet of the file `fleet`.

    Raises:
        InputError: with every mistake of both.
    """
    gather = Gather()
    rented = gather(lambda: read_fleet(fleet))
    served = gather(lambda: blueprint.read(folder))
    gather.tell()
    assert served and rented
    return served, rented
