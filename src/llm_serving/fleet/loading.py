"""`fleet.yaml` read, and held against what the catalogue and AWS say: where every way to its stacks begins."""

from __future__ import annotations

from pathlib import Path

from llm_serving.fleet import aws_limits, checks
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import Gather, InputError


def read(path: Path) -> Document[Fleet]:
    """The fleet of the file `path`.

    Raises:
        InputError: with every mistake: of the file, then of what cannot be rented or made.
    """
    document = load(path, Fleet)
    gather = Gather()
    gather(lambda: checks.require(document))
    gather(lambda: _within_limits(document))
    gather.tell()
    return document


def _within_limits(document: Document[Fleet]) -> None:
    found = aws_limits.mistakes(document)
    if found:
        raise InputError(found)
