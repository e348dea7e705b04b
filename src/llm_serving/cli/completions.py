"""What the shell offers where an argument names something: read from data alone, so that it comes at once."""

from __future__ import annotations

from collections.abc import Iterable

from llm_serving import paths

BLUEPRINTS = paths.PATTERNS


def patterns(incomplete: str) -> list[str]:
    """Patterns to copy."""
    return _starting(incomplete, (file.parent.name for file in BLUEPRINTS.glob("*/blueprint.yaml")))


def targets(incomplete: str) -> list[str]:
    """Targets that some pattern has a template for."""
    return _starting(incomplete, {file.name.partition(".")[0] for file in BLUEPRINTS.glob("*/*.*.j2")})


def models(incomplete: str) -> list[str]:
    """Models of the catalogue."""
    from llm_serving.catalog import models

    return _starting(incomplete, models.catalogue())


def instance_types(incomplete: str) -> list[str]:
    """Instance types of the catalogue."""
    from llm_serving.catalog import instances

    return _starting(incomplete, instances.load())


def _starting(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))
