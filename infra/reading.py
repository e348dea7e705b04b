"""`fleet.yaml` read, and held against what the catalogue and AWS say: where every way to its stacks begins."""

from __future__ import annotations

from pathlib import Path

from infra import feasibility
from infra.constructs import limits
from infra.errors import Gather, InputError
from infra.fleet import Fleet
from infra.settings import Document, load


def read(path: Path) -> Document[Fleet]:
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
