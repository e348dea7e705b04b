"""Installs and removes the platform's add-ons with helm and kubectl, one command a row of the table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from llm_serving import console
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import add_ons, karpenter_manifests
from llm_serving.fleet.add_ons import SelectedAddOn
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Unavailable

LIMIT_S = 900
"""Time in which a chart's images are pulled and its pods become ready."""

TOOLS: Mapping[str, str] = {
    "helm": "https://helm.sh/docs/intro/install",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
}
"""Programs that the commands call, with the address of their installation guides."""


@dataclass(frozen=True)
class Command:
    """One row's command, which is idempotent."""

    selected: SelectedAddOn
    arguments: Sequence[str]


def require_tools(tools: Mapping[str, str] = TOOLS) -> None:
    """Looks for the programs.

    Raises:
        Unavailable: some are missing; the message names all, and where to get them.
    """
    missing = [name for name in tools if not shutil.which(name)]
    if missing:
        hints = ", ".join(f"{name} ({tools[name]})" for name in missing)
        raise Unavailable(f"not on this machine's PATH: {' and '.join(missing)}. Install {hints}")


def build_install_commands(fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[Command]:
    """Writes values and manifests to `folder`, and returns the commands that use them, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        Command(selected, _build_install(selected, _write_manifest(selected, fleet, catalogue, folder), folder))
        for selected in add_ons.select_add_ons(fleet, catalogue)
    ]


def build_remove_commands(fleet: Fleet, catalogue: Catalogue, folder: Path) -> list[Command]:
    """Writes manifests to `folder`, and returns the commands that remove everything, the last installed first.

    Node pools are removed before Karpenter, which terminates their instances; load balancer controllers late.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        Command(selected, _build_remove(selected, _write_manifest(selected, fleet, catalogue, folder)))
        for selected in reversed(add_ons.select_add_ons(fleet, catalogue))
    ]


def run_commands(
    commands: Sequence[Command],
    folder: Path,
    *,
    verb: str = "Install",
    environment: Mapping[str, str] | None = None,
    on_done: Callable[[Command], None] = lambda _: None,
) -> None:
    """Runs them in order against the cluster that kubectl talks to.

    Args:
        environment: KUBECONFIG of another cluster.
        on_done: called with each command that succeeded.

    Raises:
        Unavailable: helm or kubectl is missing.
        CommandFailed: one failed; the same command line resumes there.
    """
    require_tools()
    for command in commands:
        add_on = command.selected.add_on
        with console.step(f"{verb} {add_on.name}: {add_on.why}"):
            log = folder / f"{add_on.name}.log"
            console.run(command.arguments, log=log, environment=environment, timeout_s=LIMIT_S + 60)
        on_done(command)


def _build_install(selected: SelectedAddOn, manifest: str, folder: Path) -> list[str]:
    add_on = selected.add_on
    if manifest:
        return ["kubectl", "apply", "--server-side", "-f", manifest]
    values = folder / f"{add_on.name}.values.yaml"
    values.write_text(yaml.safe_dump(dict(selected.values), sort_keys=False))
    repository_options = ["--repo", add_on.repository] if add_on.repository else []
    return [
        *("helm", "upgrade", "--install", add_on.name, str(add_on.chart), *repository_options),
        *("--version", str(add_on.version), "--namespace", str(add_on.namespace), "--create-namespace"),
        *("--values", console.shorten_path(values), "--wait", "--timeout", f"{LIMIT_S}s"),
    ]


def _build_remove(selected: SelectedAddOn, manifest: str) -> list[str]:
    add_on = selected.add_on
    if manifest:
        return ["kubectl", "delete", "--ignore-not-found", f"--timeout={LIMIT_S}s", "-f", manifest]
    return [
        *("helm", "uninstall", add_on.name, "--namespace", str(add_on.namespace)),
        *("--ignore-not-found", "--wait", "--timeout", f"{LIMIT_S}s"),
    ]


def _write_manifest(selected: SelectedAddOn, fleet: Fleet, catalogue: Catalogue, folder: Path) -> str:
    """The row's manifest, written first if it depends on the fleet; "" for a chart."""
    manifest = selected.add_on.manifest or ""
    if manifest != add_ons.NODE_POOLS:
        return manifest
    file = folder / f"{manifest}.yaml"
    file.write_text(yaml.safe_dump_all(karpenter_manifests.build(fleet, catalogue), sort_keys=False))
    return console.shorten_path(file)
