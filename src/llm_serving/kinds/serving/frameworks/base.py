"""What a framework's module does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from pydantic import JsonValue

from llm_serving.catalog import engines
from llm_serving.kinds.serving.placement import PlacedRole
from llm_serving.kinds.serving.processes import Context
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict


class Adapted(NamedTuple):
    """What a target runs under a framework."""

    services: Sequence[Service]
    config: Mapping[str, JsonValue]
    """Of the framework itself: `frameworkConfig` of the chart's values."""


class FrameworkModule(Protocol):
    """The module of one framework."""

    def check(self, context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
        """Yield what the framework cannot run, beyond what its row says."""

    def adapt(self, context: Context, placed_roles: Sequence[PlacedRole], services: Sequence[Service]) -> Adapted:
        """Turn services, the router's last, into those that the framework runs, and its own configuration."""


def check(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield what the blueprint's framework cannot run, beyond what its row says."""
    module = _load_module(context)
    if module:
        yield from module.check(context, placed_roles)


def adapt(context: Context, placed_roles: Sequence[PlacedRole], services: Sequence[Service]) -> Adapted:
    """Return what the target runs under the blueprint's framework."""
    module = _load_module(context)
    return module.adapt(context, placed_roles, services) if module else Adapted(services, {})


def _load_module(context: Context) -> FrameworkModule | None:
    name = engines.load_frameworks()[context.blueprint.framework].module
    return cast(FrameworkModule, importlib.import_module(f"{__package__}.{name}")) if name else None
