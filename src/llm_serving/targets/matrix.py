"""Every pattern on every target with every example fleet: what renders, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llm_serving import paths
from llm_serving.catalog import instances
from llm_serving.fleet.loading import read as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets.on_aws import environment as cloud
from llm_serving.workloads import render
from llm_serving.workloads.serving import blueprint, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment, Place

TARGETS = ("local", "eks", "ecs")

NEURON_PRESET = "trainium2"
"""Stands in for the pattern's own blueprint on Neuron devices, which take whole machines and larger models."""

CORES = 2
"""Of the machine that cells of `local` are meant for; the smallest that the local target runs on."""


@dataclass(frozen=True)
class Cell:
    """One pattern on one target with one fleet."""

    pattern: str
    target: str
    fleet: str
    deployment: Deployment | None
    """On the first of the fleet's pools that holds all of its roles; None where none does."""

    why: str
    """Why it is empty, pool by pool; `` where it is not."""

    reasons: tuple[str, ...] = ()
    """The same, each reason once and without its pools."""

    preset: str = ""
    """The pattern's preset that it was made of, where that was not its own blueprint."""

    @property
    def pool(self) -> str:
        """The pool of its engines."""
        return self.deployment.engines[0].pool if self.deployment else ""


def cells() -> Iterator[Cell]:
    """All of them: by pattern, by target, by fleet."""
    fleets = [read_fleet(file) for file in sorted(paths.EXAMPLE_FLEETS.glob("*.yaml"))]
    for folder in patterns():
        wanted = blueprint.read(folder)
        for target in TARGETS:
            for fleet in fleets:
                yield _cell(wanted, target, fleet)


def patterns() -> list[Path]:
    """The patterns' folders."""
    return sorted(path.parent for path in paths.PATTERNS.glob("*/blueprint.yaml"))


def _cell(wanted: Document[Blueprint], target: str, fleet: Document[Fleet]) -> Cell:
    folder = wanted.path.parent
    why = f"the pattern has no template for {target}"
    empty = Cell(folder.name, target, fleet.path.stem, None, why, (why,))
    if target not in render.targets(folder):
        return empty
    reasons: dict[str, list[str]] = {}
    for pool in fleet.value.pools:
        preset = _preset(folder, target, fleet.value, pool)
        start = load(folder / "presets" / f"{preset}.yaml", Blueprint) if preset else wanted
        try:
            made = resolve.resolve(on_pool(start, pool), fleet, place_of(target, wanted.value, fleet.value))
        except InputError as error:
            reasons.setdefault(_first(error), []).append(pool)
            continue
        return replace(empty, deployment=made, why="", reasons=(), preset=preset)
    why = "; ".join(f"{', '.join(pools)}: {reason}" for reason, pools in reasons.items())
    return replace(empty, why=why, reasons=tuple(reasons))


def _preset(folder: Path, target: str, fleet: Fleet, pool: str) -> str:
    """The preset for a pool's kind of accelerator; empty where the pattern's own blueprint is for it."""
    rows = [instances.load()[name] for name in fleet.pools[pool].types if name in instances.load()]
    neuron = any(row.accelerators and row.accelerators.kind == "neuron" for row in rows)
    there = (folder / "presets" / f"{NEURON_PRESET}.yaml").is_file()
    return NEURON_PRESET if neuron and there and target != "local" else ""


def on_pool(wanted: Document[Blueprint], pool: str) -> Document[Blueprint]:
    """The blueprint with all engines on another pool."""
    roles = wanted.value.roles
    named = {name: getattr(roles, name) for name in ("worker", "prefill", "decode")}
    moved = {name: role.model_copy(update={"pool": pool}) for name, role in named.items() if role}
    models = {name: role.model_copy(update={"pool": pool}) for name, role in roles.models.items()}
    value = wanted.value.model_copy(update={"roles": roles.model_copy(update={**moved, "models": models})})
    return replace(wanted, value=value)


def place_of(target: str, wanted: Blueprint, fleet: Fleet) -> Place:
    """Where a deployment would run that nobody deploys."""
    if target != "local":
        return cloud.find(target, fleet, account=emulator.ACCOUNT)
    ports = {name: 20000 + number for number, name in enumerate(resolve.ports(wanted))}
    return Place(target="local", region=fleet.region, bucket="models", ports=ports, cores=CORES)


def _first(error: InputError) -> str:
    """The first reason, without its place in a file and without what to write instead."""
    first = error.parts[0]
    return first.why if isinstance(first, Mistake) else first
