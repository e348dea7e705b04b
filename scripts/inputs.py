"""The two files that every command starts from: read, and held against what the catalogue and AWS say, all at once."""

from __future__ import annotations

from pathlib import Path

from blueprints import blueprint
from blueprints.blueprint import Blueprint
from infra import feasibility
from infra.constructs import limits
from infra.errors import Gather, InputError
from infra.fleet import Fleet
from infra.settings import Document, load


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


def read_fleet(path: Path) -> Document[Fleet]:
    """The fleet of the file `path`.

    Raises:
        InputError: with every mistake: of the file, then of what cannot be rented or made.
    """
    document = load(path, Fleet)
    gather = Gather()
    gather(lambda: feasibility.require(document))
    gather(lambda: _within_limits(document))
    gather.tell()
    return document


def _within_limits(document: Document[Fleet]) -> None:
    found = limits.mistakes(document)
    if found:
        raise InputError(found)
