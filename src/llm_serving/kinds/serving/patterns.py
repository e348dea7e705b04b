"""The serving patterns: the folders under blueprints/ whose blueprint.yaml is of this kind.

A pattern's own blueprint.yaml says which roles it has; `pattern.yaml` beside it holds the few facts that roles do not
tell. To add a pattern is to add a folder.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from llm_serving import paths
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME
from llm_serving.settings import own_yaml
from llm_serving.settings.choices import Task
from llm_serving.settings.document import Settings, load
from llm_serving.settings.units import Switch

FACTS_FILE = "pattern.yaml"

ENGINE_ROLES = ("worker", "prefill", "decode", "models")
"""Keys of `roles` that run engines."""


class PatternFacts(Settings):
    """pattern.yaml: what a pattern's roles do not tell."""

    spans_nodes: Annotated[bool, Switch()] = False
    """Whether a replica can span several nodes."""

    tasks: list[Task] = Field(default_factory=lambda: list[Task](("generate",)))
    """Tasks of models that it serves."""

    baseline: str | None = None
    """The pattern that `blueprint baseline` measures this one against, with as many accelerators."""


class Pattern(PatternFacts):
    name: str
    roles: tuple[str, ...]
    """Keys of `roles` in its blueprints, beside `router`."""


@functools.cache
def load_patterns() -> Mapping[str, Pattern]:
    patterns = {}
    for file in sorted(paths.PATTERNS.glob(f"*/{FILE_NAME}")):
        blueprint = own_yaml.read(file)
        if blueprint.get("kind", DEFAULT_KIND) == "serving":
            facts_file = file.with_name(FACTS_FILE)
            facts = load(facts_file, PatternFacts).value if facts_file.exists() else PatternFacts()
            roles = tuple(name for name in ENGINE_ROLES if name in blueprint["roles"])
            patterns[file.parent.name] = Pattern(name=file.parent.name, roles=roles, **facts.model_dump())
    return MappingProxyType(patterns)


def find_multi_node(roles: tuple[str, ...]) -> str:
    """Return the pattern with these roles whose replicas span several nodes; empty where there is none."""
    patterns = load_patterns().values()
    return next((pattern.name for pattern in patterns if pattern.spans_nodes and pattern.roles == roles), "")
