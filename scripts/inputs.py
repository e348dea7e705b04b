"""The two files that a blueprint's commands start from: read, with the mistakes of both at once."""

from __future__ import annotations

from pathlib import Path

from blueprints import blueprint
from blueprints.blueprint import Blueprint
from infra.errors import Gather
from infra.fleet import Fleet
from infra.reading import read as read_fleet
from infra.settings import Document

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
