"""Installs the platform: helm and kubectl, one command a row, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra import karpenter
from infra.catalog.instances import Catalogue
from infra.fleet import Fleet
from scripts import console
from scripts.addons import table
from scripts.addons.table import Step

_LIMIT_S = 900
"""Images of a chart are pulled and its pods become ready within that time, or it is said to have failed."""


@dataclass(frozen=True)
class Command:
    """One row's command; running it again changes nothing."""

    step: Step
    words: Sequence[str]


def commands(fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[Command]:
    """Writes values and manifests to `folder`, and returns the commands that take them."""
    folder.mkdir(parents=True, exist_ok=True)
    return [Command(step, _words(step, fleet, catalogue, folder)) for step in table.steps(fleet, catalogue)]


def run(made: Sequence[Command], folder: Path) -> None:
    """Runs them in order against the cluster that kubectl talks to.

    Raises:
        Unavailable: helm or kubectl is missing.
        CommandFailed: one failed; the same command line goes on where it stopped.
    """
    for command in made:
        row = command.step.row
        with console.step(f"Install {row.name}: {row.why}"):
            console.run(command.words, log=folder / f"{row.name}.log", timeout_s=_LIMIT_S + 60)


def _words(step: Step, fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[str]:
    row = step.row
    if row.manifest:
        return ["kubectl", "apply", "--server-side", "-f", _manifest(row.manifest, fleet, catalogue, folder)]
    values = folder / f"{row.name}.values.yaml"
    values.write_text(yaml.safe_dump(dict(step.values), sort_keys=False))
    where = ["--repo", row.repository] if row.repository else []
    return [
        *("helm", "upgrade", "--install", row.name, str(row.chart), *where),
        *("--version", str(row.version), "--namespace", str(row.namespace), "--create-namespace"),
        *("--values", console.near(values), "--wait", "--timeout", f"{_LIMIT_S}s"),
    ]


def _manifest(named: str, fleet: Fleet, catalogue: Catalogue, folder: Path) -> str:
    if named != table.NODE_POOLS:
        return named
    file = folder / f"{named}.yaml"
    file.write_text(yaml.safe_dump_all(karpenter.manifests(fleet, catalogue), sort_keys=False))
    return console.near(file)
