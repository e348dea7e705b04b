"""Reads the two files that a blueprint's commands start from, and reports the mistakes of both at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.services import kinds
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME
from llm_serving.settings import yaml_source
from llm_serving.settings.document import Document
from llm_serving.settings.errors import ErrorCollector, InputError, Mistake, quote_value

__all__ = ["read", "read_blueprint", "read_fleet"]


def read(folder: Path, fleet_file: Path) -> tuple[Document[Any], Document[Fleet]]:
    """The blueprint in `folder`, of whichever kind, and the fleet of `fleet_file`.

    Raises:
        InputError: with every mistake of both.
    """
    collector = ErrorCollector()
    fleet_document = collector(lambda: read_fleet(fleet_file))
    blueprint_document = collector(lambda: read_blueprint(folder))
    collector.raise_if_any()
    assert blueprint_document and fleet_document
    return blueprint_document, fleet_document


def read_blueprint(folder: Path) -> Document[Any]:
    """The blueprint in `folder`, read by the kind that its `kind` names.

    Raises:
        InputError: with every mistake of its file.
    """
    return kinds.get(_read_kind(folder / FILE_NAME)).read(folder)


def _read_kind(file: Path) -> str:
    """The kind that a blueprint names; the default one where it names none, or is no file, which its reader reports.

    Raises:
        InputError: there is no such kind.
    """
    if not file.is_file():
        return DEFAULT_KIND
    source = yaml_source.read(file)
    kind = source.data.get("kind", DEFAULT_KIND) if isinstance(source.data, dict) else DEFAULT_KIND
    if kind in kinds.list_kinds():
        return str(kind)
    position = source.positions.get(("kind",))
    line, column = (position.line, position.column) if position else (1, 1)
    choices = " or ".join(kinds.list_kinds())
    raise InputError(
        [Mistake(file, line, column, "kind", quote_value(kind), "there is no such kind", f"kind: {choices}")]
    )
