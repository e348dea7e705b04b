"""Reads the two files that a blueprint's commands start from, and reports the mistakes of both at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.services import kinds
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME
from llm_serving.services.kinds import Capability
from llm_serving.settings import diagnostics, own_yaml, yaml_source
from llm_serving.settings.document import Document
from llm_serving.settings.errors import ErrorCollector, InputError, Mistake

__all__ = ["read", "read_blueprint", "read_fleet", "require_capability"]


def read(folder: Path, fleet_file: Path) -> tuple[Document[Any], Document[Fleet]]:
    """Read the blueprint in `folder`, of whichever kind, and the fleet of `fleet_file`.

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
    """Read the blueprint in `folder` by the kind that its `kind` names.

    Raises:
        InputError: with every mistake of its file.
    """
    return kinds.get(_read_kind(folder / FILE_NAME)).read(folder)


def require_capability(folder: Path, capability: Capability) -> None:
    """Refuse a command that the kind of the blueprint in `folder` cannot do.

    Raises:
        InputError: with the kind and the reason, at its line of the file.
    """
    file = folder / FILE_NAME
    kind = _read_kind(file)
    if capability in kinds.get(kind).CAPABILITIES:
        return
    capable = [name for name in kinds.list_kinds() if capability in kinds.get(name).CAPABILITIES]
    reason = f"`blueprint {capability}` does not work with this kind: {capability.reason}"
    raise InputError(
        [_build_mistake(file, "kind", kind, reason, f"use a blueprint of the kind {' or '.join(capable)}")]
    )


def _read_kind(file: Path) -> str:
    """Return the kind that a blueprint names; the default one without `kind`, or without a file, as `read` reports."""
    document = yaml_source.read(file).data if file.is_file() else {}
    keys = document if isinstance(document, dict) else {}
    kind, pattern = keys.get("kind", DEFAULT_KIND), keys.get("pattern")
    if kind not in kinds.list_kinds():
        choices = " or ".join(kinds.list_kinds())
        raise InputError([_build_mistake(file, "kind", kind, "there is no such kind", f"write {choices}")])
    for folder in paths.list_patterns():
        pattern_kind = own_yaml.read(folder / FILE_NAME).get("kind", DEFAULT_KIND) if folder.name == pattern else kind
        if pattern_kind != kind:
            fix = f"{'set' if 'kind' in keys else 'add'} kind: {pattern_kind}"
            raise InputError(
                [_build_mistake(file, "pattern", pattern, f"it is a pattern of the kind {pattern_kind}", fix)]
            )
    return str(kind)


def _build_mistake(file: Path, key: str, value: object, reason: str, fix: str) -> Mistake:
    positions = yaml_source.read(file).positions
    return diagnostics.build_mistake(file, positions, (key,), diagnostics.format_value(value), reason, fix)
