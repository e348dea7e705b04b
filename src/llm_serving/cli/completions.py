"""What the shell offers where an argument names something: read from data alone, so that it comes at once."""

from __future__ import annotations

from collections.abc import Iterable

from llm_serving import paths

BLUEPRINTS = paths.PATTERNS


def complete_patterns(incomplete: str) -> list[str]:
    """Patterns to copy."""
    return _select_matches(incomplete, (file.parent.name for file in BLUEPRINTS.glob("*/blueprint.yaml")))


def complete_targets(incomplete: str) -> list[str]:
    """Targets that some pattern has a template for."""
    return _select_matches(incomplete, {file.name.partition(".")[0] for file in BLUEPRINTS.glob("*/*.*.j2")})


def complete_models(incomplete: str) -> list[str]:
    """Models of the catalogue."""
    from llm_serving.catalog import models

    return _select_matches(incomplete, models.load())


def complete_instance_types(incomplete: str) -> list[str]:
    """Instance types of the catalogue."""
    from llm_serving.catalog import instances

    return _select_matches(incomplete, instances.load())


def _select_matches(incomplete: str, candidates: Iterable[str]) -> list[str]:
    return sorted(candidate for candidate in candidates if candidate.startswith(incomplete))
