"""Shell completions of arguments: read from directory listings and data files, so that they are fast."""

from __future__ import annotations

from collections.abc import Iterable

from llm_serving import paths
from llm_serving.targets import registry


def complete_patterns(incomplete: str) -> list[str]:
    return _select_matches(incomplete, (folder.name for folder in paths.list_patterns()))


def complete_targets(incomplete: str) -> list[str]:
    return _select_matches(incomplete, registry.list_targets())


def complete_models(incomplete: str) -> list[str]:
    from llm_serving.catalog import models  # pydantic takes longer to import than a completion may take

    return _select_matches(incomplete, models.load())


def complete_instance_types(incomplete: str) -> list[str]:
    from llm_serving.catalog import instances  # as above

    return _select_matches(incomplete, instances.load())


def _select_matches(incomplete: str, candidates: Iterable[str]) -> list[str]:
    return sorted(candidate for candidate in candidates if candidate.startswith(incomplete))
