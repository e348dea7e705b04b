"""Every pattern with every engine under every framework on every target with every example fleet: what renders, and why
the rest does not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.catalog import engines, frameworks, instances, models
from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.services import inputs, kinds
from llm_serving.services.deployment import Deployment
from llm_serving.settings import own_yaml
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets import registry, render

NEURON_PRESET = "trainium2"
"""Replaces the pattern's own blueprint on Neuron devices, which need whole instances and larger models."""

RENDERED_ONLY = "rendered, not run"
"""What is said of an engine or a framework that only its maker's schemas and lists of options have checked."""

CORES = 2
"""Of the machine that cells of a target on this machine assume: the smallest that it supports."""


@dataclass(frozen=True)
class Cell:
    """One pattern with one engine under one framework on one target with one fleet."""

    pattern: str
    kind: str
    target: str
    fleet: str
    engine: str
    framework: str
    deployment: Deployment | None
    """On the first of the fleet's pools that fits all of its roles; None if none does."""

    reason: str
    """Why the cell is empty, pool by pool; "" if it is not."""

    reasons: tuple[str, ...] = ()
    """Each reason once and without the pools, with its fix."""

    preset: str = ""
    """The pattern's preset that was rendered, if not its own blueprint."""

    @property
    def pool(self) -> str:
        return next((role.pool for role in getattr(self.deployment, "engine_roles", ())), "")

    @property
    def is_local(self) -> bool:
        return registry.load_target(self.target).conventions.is_local

    @property
    def is_rendered_only(self) -> bool:
        """Whether nothing of the engine, or of the framework, has run, on this machine or as on AWS."""
        rows = (engines.load_engines().get(self.engine), frameworks.load_frameworks().get(self.framework))
        has_note = any(row.rendered_only for row in rows if row)
        return self.deployment is not None and not self.is_local and has_note

    def build_payload(self) -> dict[str, str | None]:
        return {
            "pattern": self.pattern,
            "kind": self.kind,
            "target": self.target,
            "fleet": self.fleet,
            "engine": self.engine,
            "framework": self.framework,
            "pool": self.pool or None,
            "preset": self.preset or None,
            "reason": self.reason,
            "note": RENDERED_ONLY if self.is_rendered_only else None,
        }


def build_cells(*only: str) -> Iterator[Cell]:
    """Build the cells of the targets `only`, or all: by pattern, by framework, by engine, by target, by fleet."""
    targets = sorted(only or registry.list_targets(), key=lambda name: registry.load_target(name).needs_aws)
    fleets = [read_fleet(file) for file in sorted(paths.EXAMPLE_FLEETS.glob("*.yaml"))]
    read_preset = functools.cache(load)
    for folder in paths.list_patterns():
        document = inputs.read_blueprint(folder)
        for choice in _list_choices(document):
            for target in targets:
                for fleet in fleets:
                    yield _build_cell(document, choice, target, fleet, read_preset)


def _list_choices(document: Document[Any]) -> list[dict[str, str]]:
    """Return the frameworks and engines that a pattern is tried with, its own first; none for a kind without."""
    rows: dict[str, Iterable[str]] = {"framework": frameworks.load_frameworks(), "engine": engines.load_engines()}
    own = {key: getattr(document.value, key) for key in rows if hasattr(document.value, key)}
    names = [[own[key], *(name for name in rows[key] if name != own[key])] for key in own]
    return [dict(zip(own, choice, strict=True)) for choice in itertools.product(*names)]


def _choose(document: Document[Any], choice: Mapping[str, str]) -> Document[Any]:
    return replace(document, value=document.value.model_copy(update=dict(choice)))


def _build_cell(
    document: Document[Any],
    choice: Mapping[str, str],
    target: str,
    fleet: Document[Fleet],
    read_preset: Callable[[Path, Any], Document[Any]],
) -> Cell:
    document = _choose(document, choice)
    folder, selected_target = document.path.parent, registry.load_target(target)
    settings, kind = document.value, kinds.get_for(document)
    engine, framework = choice.get("engine", ""), choice.get("framework", "")
    empty = Cell(folder.name, kind.NAME, target, fleet.path.stem, engine, framework, None, "")
    if refusal := kind.find_refusal(selected_target.conventions):
        return _explain(empty, refusal)
    if target not in render.list_targets(folder):
        return _explain(empty, f"the pattern has no template {target}.*.j2")
    environment = selected_target.assume_environment(settings, fleet.value, cores=CORES)
    mistakes: dict[str, list[str]] = {}
    explanations: dict[str, None] = {}
    for pool in fleet.value.pools:
        preset = _select_preset(folder, target, fleet.value, pool) or _find_engine_preset(folder, settings, engine)
        candidate = read_preset(folder / "presets" / f"{preset}.yaml", kind.SETTINGS) if preset else document
        candidate = _choose(candidate, choice)
        try:
            deployment = kind.resolve(kind.move_to_pool(candidate, pool), fleet, environment)
        except InputError as error:
            reason, fix = _split_first_part(error)
            mistakes.setdefault(reason, []).append(pool)
            explanations[f"{reason}. Fix: {fix}." if fix else reason] = None
            continue
        return replace(empty, deployment=deployment, preset=preset)
    message = "; ".join(f"{', '.join(pools)}: {reason}" for reason, pools in mistakes.items())
    return replace(empty, reason=message, reasons=tuple(explanations))


def _explain(cell: Cell, reason: str) -> Cell:
    return replace(cell, reason=reason, reasons=(reason,))


def _select_preset(folder: Path, target: str, fleet: Fleet, pool: str) -> str:
    """Return the preset for a pool's kind of accelerator; "" for the pattern's own blueprint."""
    rows = instances.select_known(fleet.pools[pool].types)
    is_neuron = any(row.accelerators and row.accelerators.kind == "neuron" for row in rows)
    has_preset = (folder / "presets" / f"{NEURON_PRESET}.yaml").is_file()
    return NEURON_PRESET if is_neuron and has_preset and registry.load_target(target).needs_aws else ""


@functools.cache
def _list_preset_engines(folder: Path) -> Mapping[str, str]:
    """Return the preset of each engine that a pattern's presets name."""
    presets = {file.stem: own_yaml.read(file) for file in sorted((folder / "presets").glob("*.yaml"))}
    return {preset["engine"]: name for name, preset in presets.items() if "engine" in preset}


def _find_engine_preset(folder: Path, settings: Any, engine: str) -> str:
    """Return the preset for an engine that reads no model as the pattern's own is; "" where it does."""
    row, name = engines.load_engines().get(engine), getattr(settings, "model", None)
    if row is None or name is None or row.weights_format in models.find(name).formats:
        return ""
    return _list_preset_engines(folder).get(engine, "")


def _split_first_part(error: InputError) -> tuple[str, str]:
    """Return reason and fix of the first mistake, without file and line."""
    first = error.parts[0]
    return (first.reason, first.fix) if isinstance(first, Mistake) else (first, "")
