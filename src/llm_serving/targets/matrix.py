"""Every pattern on every target with every example fleet: what renders, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llm_serving import paths
from llm_serving.catalog import instances
from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets.conventions import load_conventions
from llm_serving.targets.on_aws import environment as aws_environment
from llm_serving.workloads import render
from llm_serving.workloads.environment import Environment
from llm_serving.workloads.serving import blueprint, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment

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

    reason: str
    """Why it is empty, pool by pool; `` where it is not."""

    reasons: tuple[str, ...] = ()
    """The same, each reason once and without its pools."""

    preset: str = ""
    """The pattern's preset that it was made of, where that was not its own blueprint."""

    @property
    def pool(self) -> str:
        """The pool of its engines."""
        return self.deployment.engine_roles[0].pool if self.deployment else ""


def build_cells() -> Iterator[Cell]:
    """All of them: by pattern, by target, by fleet."""
    fleets = [read_fleet(file) for file in sorted(paths.EXAMPLE_FLEETS.glob("*.yaml"))]
    for folder in list_patterns():
        document = blueprint.read(folder)
        for target in TARGETS:
            for fleet in fleets:
                yield _build_cell(document, target, fleet)


def list_patterns() -> list[Path]:
    """The patterns' folders."""
    return sorted(path.parent for path in paths.PATTERNS.glob("*/blueprint.yaml"))


def _build_cell(document: Document[Blueprint], target: str, fleet: Document[Fleet]) -> Cell:
    folder = document.path.parent
    message = f"the pattern has no template for {target}"
    empty = Cell(folder.name, target, fleet.path.stem, None, message, (message,))
    if target not in render.list_targets(folder):
        return empty
    reasons: dict[str, list[str]] = {}
    for pool in fleet.value.pools:
        preset = _select_preset(folder, target, fleet.value, pool)
        candidate = load(folder / "presets" / f"{preset}.yaml", Blueprint) if preset else document
        try:
            deployment = resolve.resolve(
                move_to_pool(candidate, pool), fleet, build_environment(target, document.value, fleet.value)
            )
        except InputError as error:
            reasons.setdefault(_get_first_reason(error), []).append(pool)
            continue
        return replace(empty, deployment=deployment, reason="", reasons=(), preset=preset)
    message = "; ".join(f"{', '.join(pools)}: {reason}" for reason, pools in reasons.items())
    return replace(empty, reason=message, reasons=tuple(reasons))


def _select_preset(folder: Path, target: str, fleet: Fleet, pool: str) -> str:
    """The preset for a pool's kind of accelerator; empty where the pattern's own blueprint is for it."""
    rows = [instances.load()[name] for name in fleet.pools[pool].types if name in instances.load()]
    is_neuron = any(row.accelerators and row.accelerators.kind == "neuron" for row in rows)
    has_preset = (folder / "presets" / f"{NEURON_PRESET}.yaml").is_file()
    return NEURON_PRESET if is_neuron and has_preset and target != "local" else ""


def move_to_pool(document: Document[Blueprint], pool: str) -> Document[Blueprint]:
    """The blueprint with all engines on another pool."""
    roles = document.value.roles
    roles_by_name = {name: getattr(roles, name) for name in ("worker", "prefill", "decode")}
    moved = {name: role.model_copy(update={"pool": pool}) for name, role in roles_by_name.items() if role}
    models = {name: role.model_copy(update={"pool": pool}) for name, role in roles.models.items()}
    value = document.value.model_copy(update={"roles": roles.model_copy(update={**moved, "models": models})})
    return replace(document, value=value)


def build_environment(target: str, settings: Blueprint, fleet: Fleet) -> Environment:
    """Where a deployment would run that nobody deploys."""
    if target != "local":
        return aws_environment.resolve_environment(target, fleet, account=emulator.ACCOUNT)
    ports = {name: 20000 + number for number, name in enumerate(resolve.list_port_names(settings))}
    return Environment(
        target="local",
        conventions=load_conventions("local"),
        region=fleet.region,
        bucket="models",
        ports=ports,
        cores=CORES,
    )


def _get_first_reason(error: InputError) -> str:
    """The first reason, without its place in a file and without what to write instead."""
    first = error.parts[0]
    return first.reason if isinstance(first, Mistake) else first
