"""Installs the platform, and removes it: helm and kubectl, one command a row, in the table's order or against it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from llm_serving import console
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import add_ons, karpenter_manifests
from llm_serving.fleet.add_ons import Step
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Unavailable

LIMIT_S = 900
"""Images of a chart are pulled and its pods become ready within that time, or it is said to have failed."""

TOOLS: Mapping[str, str] = {
    "helm": "https://helm.sh/docs/intro/install",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
}
"""What the commands call, and where it is to be had."""


@dataclass(frozen=True)
class Command:
    """One row's command; running it again changes nothing."""

    step: Step
    words: Sequence[str]


def require_tools(tools: Mapping[str, str] = TOOLS) -> None:
    """Looks for the programs.

    Raises:
        Unavailable: some are missing; names all of them, and where to get them.
    """
    missing = [name for name in tools if not shutil.which(name)]
    if missing:
        how = ", ".join(f"{name} ({tools[name]})" for name in missing)
        raise Unavailable(f"not on this machine's PATH: {' and '.join(missing)}. Install {how}")


def commands(fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[Command]:
    """Writes values and manifests to `folder`, and returns the commands that take them, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        Command(step, _install(step, _manifest(step, fleet, catalogue, folder), folder))
        for step in add_ons.steps(fleet, catalogue)
    ]


def removals(fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[Command]:
    """Writes manifests to `folder`, and returns the commands that take everything away, the last installed first.

    Node pools go before the Karpenter that ends their machines, and what made load balancers goes late.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        Command(step, _remove(step, _manifest(step, fleet, catalogue, folder)))
        for step in reversed(add_ons.steps(fleet, catalogue))
    ]


def run(
    made: Sequence[Command],
    folder: Path,
    *,
    doing: str = "Install",
    environment: Mapping[str, str] | None = None,
    done: Callable[[Command], None] = lambda _: None,
) -> None:
    """Runs them in order against the cluster that kubectl talks to.

    Args:
        environment: names another cluster, by KUBECONFIG.
        done: told of each one that ended well.

    Raises:
        Unavailable: helm or kubectl is missing.
        CommandFailed: one failed; the same command line goes on where it stopped.
    """
    require_tools()
    for command in made:
        row = command.step.row
        with console.step(f"{doing} {row.name}: {row.why}"):
            log = folder / f"{row.name}.log"
            console.run(command.words, log=log, environment=environment, timeout_s=LIMIT_S + 60)
        done(command)


def _install(step: Step, manifest: str, folder: Path) -> list[str]:
    row = step.row
    if manifest:
        return ["kubectl", "apply", "--server-side", "-f", manifest]
    values = folder / f"{row.name}.values.yaml"
    values.write_text(yaml.safe_dump(dict(step.values), sort_keys=False))
    where = ["--repo", row.repository] if row.repository else []
    return [
        *("helm", "upgrade", "--install", row.name, str(row.chart), *where),
        *("--version", str(row.version), "--namespace", str(row.namespace), "--create-namespace"),
        *("--values", console.near(values), "--wait", "--timeout", f"{LIMIT_S}s"),
    ]


def _remove(step: Step, manifest: str) -> list[str]:
    row = step.row
    if manifest:
        return ["kubectl", "delete", "--ignore-not-found", f"--timeout={LIMIT_S}s", "-f", manifest]
    return [
        *("helm", "uninstall", row.name, "--namespace", str(row.namespace)),
        *("--ignore-not-found", "--wait", "--timeout", f"{LIMIT_S}s"),
    ]


def _manifest(step: Step, fleet: Fleet, catalogue: Catalogue, folder: Path) -> str:
    """The row's manifest, written where it is made from the fleet; "" for a chart."""
    named = step.row.manifest or ""
    if named != add_ons.NODE_POOLS:
        return named
    file = folder / f"{named}.yaml"
    file.write_text(yaml.safe_dump_all(karpenter_manifests.manifests(fleet, catalogue), sort_keys=False))
    return console.near(file)
