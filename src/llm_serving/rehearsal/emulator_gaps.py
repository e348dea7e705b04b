"""What the embedded AWS does not support: left out of a rehearsal by kind, counted, and shown with the reason.

The synthesized stack stays as it is; the override beside it changes this:

- `count` is 0, or `for_each` empty, for kinds of resources that the embedded AWS lacks. So a stack may read
  an attribute of such a resource only by a splat (`[*]`), or depend on it (depends_on).
- Changes are ignored in settings that it accepts and does not return.

The mocked provider's tests cover both: there every resource is planned whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_serving.settings import own_yaml

SynthesizedStack = Mapping[str, Any]

_DATA = own_yaml.read(Path(__file__).with_name("emulator_gaps.yaml"))

REASONS: Mapping[str, str] = _DATA["missing"]
"""Why, by kind of resource."""


def count_gaps(stack: SynthesizedStack) -> dict[str, int]:
    """Return the resources of a stack that are not supported, by kind."""
    resources = stack.get("resource", {})
    return {kind: len(resources[kind]) for kind in REASONS if kind in resources}


def build_override(stack: SynthesizedStack) -> dict[str, dict[str, Any]]:
    """Return the resources of an override, by kind and name."""
    overrides: dict[str, dict[str, Any]] = {
        kind: {name: _build_absence(settings) for name, settings in stack["resource"][kind].items()}
        for kind in count_gaps(stack)
    }
    for row in _DATA["ignored_changes"]:
        if ignored := dict(_build_lifecycles(stack, **row)):
            overrides[row["kind"]] = ignored
    return overrides


def _build_absence(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"for_each": "${toset([])}"} if "for_each" in settings else {"count": 0}


def _build_lifecycles(
    stack: SynthesizedStack, kind: str, settings: list[str], only_with: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, resource in stack.get("resource", {}).get(kind, {}).items():
        if not only_with or only_with in resource:
            existing = resource.get("lifecycle", {}).get("ignore_changes", [])
            yield name, {"lifecycle": {"ignore_changes": [*existing, *settings]}}
