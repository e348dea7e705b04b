"""Installs and removes the platform's add-ons: charts with Helm, manifests through the cluster's API."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_serving import console
from llm_serving.fleet import add_ons, karpenter_manifests, kueue_manifests, spare_manifests
from llm_serving.fleet.add_ons import SelectedAddOn
from llm_serving.fleet.model import Fleet
from llm_serving.operations import cached_images, chart_archives, image_pins, kube_api, old_pools
from llm_serving.operations.chart_archives import ChartArchive
from llm_serving.operations.kube_api import KubeApi, Manifest
from llm_serving.services import load_balancer
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import CheckFailed, Unavailable

LIMIT_S = 900
"""Time in which a chart's images are pulled and its pods become ready."""


def _build_gateway_classes(fleet: Fleet) -> list[Manifest]:
    """Return the classes of Gateways, whose load balancers let in the fleet's network where a Gateway names no ranges.

    By default the controller opens them to every address. Source: kubernetes-sigs/aws-load-balancer-controller,
    pkg/gateway/model/model_build_security_group.go, 2026-11.
    """
    objects = own_yaml.parse_all((add_ons.FILE.parent / "gateway-classes.yaml").read_text(encoding="utf-8"))
    for item in objects:
        if item["kind"] == "LoadBalancerConfiguration":
            item["spec"]["sourceRanges"] = list(load_balancer.list_ranges(fleet))
    return objects


BUILDERS: Mapping[str, Callable[[Fleet], list[dict[str, Any]]]] = {
    add_ons.NODE_POOLS: karpenter_manifests.build,
    add_ons.QUEUES: kueue_manifests.build,
    add_ons.SPARE: spare_manifests.build,
    "gateway-classes": _build_gateway_classes,
}
"""Manifests that are made from the fleet."""

_ENDERS: Mapping[str, Callable[[KubeApi, list[Manifest]], None]] = {
    add_ons.NODE_POOLS: old_pools.retire_node_pools,
    add_ons.SPARE: old_pools.delete_spare,
}
"""What ends the objects of such a manifest that an earlier fleet file made, and this one does not."""

TOOLS: Mapping[str, str] = {"helm": "https://helm.sh/docs/intro/install"}
"""Programs that the commands call, with the address of their installation guides."""

HELM_MAJORS = (3, 4)
"""Versions of Helm that the charts were rendered with in the tests."""

BUSY_MESSAGE = "another operation (install/upgrade/rollback) is in progress"
"""Helm's message when the last revision of a release is neither deployed nor failed."""

_HELM_CLUSTERS = ("HELM_KUBECONTEXT", "HELM_KUBEAPISERVER")
"""Variables that lead Helm to another cluster than the one whose name and API are asked here."""

_VERSION_TIMEOUT_S = 60


@dataclass(frozen=True)
class Command:
    """One row's command, which is idempotent."""

    selected: SelectedAddOn
    arguments: Sequence[str]
    archive: ChartArchive | None = None
    """What is pulled before; None for manifests of this repository, and for charts that are removed."""

    act: Callable[[KubeApi], None] | None = None
    """What is done through the cluster's API, of which `arguments` are kubectl's words; None for a chart."""

    renderer: Path | None = None
    """Folder of Helm's post-renderer; None without one."""

    @property
    def environment(self) -> dict[str, str]:
        return cached_images.build_environment(self.renderer) if self.renderer else {}

    def format(self) -> str:
        line = console.quote_command(self.arguments)
        if not self.renderer:
            return line
        plugins, path = shlex.quote(str(self.renderer.parent)), shlex.quote(str(self.renderer))
        return f'HELM_PLUGINS={plugins} PATH={path}:"$PATH" {line}'


def require_tools(tools: Mapping[str, str] = TOOLS) -> None:
    """Look for the programs, ask Helm for its version, and have it follow the kubeconfig alone.

    Raises:
        Unavailable: some are missing, or Helm is too old or new; the message names all, and where to get them.
    """
    missing_tools = [name for name in tools if not shutil.which(name)]
    if missing_tools:
        hints = ", ".join(f"{name} ({tools[name]})" for name in missing_tools)
        raise Unavailable(f"not on this machine's PATH: {' and '.join(missing_tools)}. Fix: install {hints}.")
    if "helm" in tools:
        for variable in _HELM_CLUSTERS:
            os.environ.pop(variable, None)
        _read_helm_major(str(shutil.which("helm")))


def list_restore_options() -> list[str]:
    """List the options by which Helm restores what somebody has changed by hand, as Helm 3 does without any."""
    is_old = _read_helm_major(str(shutil.which("helm"))) == HELM_MAJORS[0]
    return [] if is_old else ["--server-side=true", "--force-conflicts"]


@functools.cache  # a deploy has several parts that need it
def _read_helm_major(program: str) -> int:
    try:
        version = subprocess.run(
            [program, "version", "--short"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"helm does not run: {error}. Fix: install it ({TOOLS['helm']}).") from None
    major = re.match(r"v(\d+)\.", version)
    if not major or int(major[1]) not in HELM_MAJORS:
        supported = " and ".join(map(str, HELM_MAJORS))
        raise Unavailable(f'helm: "{version}": versions {supported} are supported. Fix: install one ({TOOLS["helm"]}).')
    return int(major[1])


def build_install_commands(fleet: Fleet, folder: Path, fleet_file: Path) -> list[Command]:
    """Write values and manifests to `folder`, and return the commands that use them, in order.

    Raises:
        InputError: the lock file beside `fleet_file`, which has charts' digests, is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = cached_images.build_helm_options(fleet)
    renderer = cached_images.write_renderer(folder / "plugins") if options else None
    commands = []
    for selected in add_ons.select_add_ons(fleet):
        archive = _plan_archive(selected, folder, fleet_file)
        if selected.add_on.chart and archive:
            words = _build_helm_install(selected, archive, folder, options)
            commands.append(Command(selected, words, archive, renderer=renderer))
        else:
            manifest = archive.file if archive else _write_manifest(selected, fleet, folder)
            words = ["kubectl", "apply", "--server-side", "-f", console.shorten_path(manifest)]
            end_old = _ENDERS.get(selected.add_on.manifest or "")
            commands.append(
                Command(selected, words, archive, functools.partial(_apply_manifest, manifest, end_old=end_old))
            )
    return commands


def _plan_archive(selected: SelectedAddOn, folder: Path, fleet_file: Path) -> ChartArchive | None:
    """Return what is pulled of a row; None for a manifest of this repository."""
    add_on = selected.add_on
    return chart_archives.plan(add_on, folder / "charts", fleet_file) if add_on.chart or add_on.is_page else None


def build_remove_commands(fleet: Fleet, folder: Path, fleet_file: Path) -> list[Command]:
    """Write manifests to `folder`, and return the commands that remove everything, the last installed first.

    Node pools are removed before Karpenter, which terminates their instances; load balancer controllers late.

    Raises:
        InputError: the lock file beside `fleet_file`, which has digests of pages, is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    commands = []
    for selected in reversed(add_ons.select_add_ons(fleet)):
        if selected.add_on.chart:
            uninstall = ("helm", "uninstall", selected.add_on.name, "--namespace", str(selected.add_on.namespace))
            words = [*uninstall, "--ignore-not-found", "--wait", "--timeout", f"{LIMIT_S}s"]
            commands.append(Command(selected, words))
        elif selected.add_on.removed:
            page = _plan_archive(selected, folder, fleet_file)
            manifest = page.file if page else _write_manifest(selected, fleet, folder, without=_NOT_REMOVED)
            place = console.shorten_path(manifest)
            words = ["kubectl", "delete", "--ignore-not-found", f"--timeout={LIMIT_S}s", "-f", place]
            commands.append(Command(selected, words, page, functools.partial(_delete_manifest, manifest)))
    return commands


def install(
    commands: Sequence[Command],
    folder: Path,
    fleet_file: Path,
    *,
    kubeconfig: Path | None = None,
    on_done: Callable[[Command], None] = lambda _: None,
) -> None:
    """Pull and check every chart and page, then run the commands; the lock file gets digests that were not known.

    Args:
        kubeconfig, on_done: as of `run_commands`.

    Raises:
        Unavailable: helm is missing, or Helm wrote no archive.
        CheckFailed: a chart has another digest than it must have; none is installed.
        CommandFailed: a command failed; the same command line resumes there.
    """
    require_tools()
    digests = _fetch_archives(commands, folder)

    def keep_digest(command: Command) -> None:
        if command.archive and not command.archive.digest:
            reference = command.archive.reference
            image_pins.write(fleet_file, {}, charts={reference: digests[reference]})
        on_done(command)

    run_commands(commands, folder, kubeconfig=kubeconfig, on_done=keep_digest)


def remove(commands: Sequence[Command], folder: Path, *, kubeconfig: Path | None = None) -> None:
    """Pull and check the pages that name what goes, then run the commands."""
    _fetch_archives(commands, folder)
    run_commands(commands, folder, verb="Remove", kubeconfig=kubeconfig)


def _fetch_archives(commands: Sequence[Command], folder: Path) -> dict[str, str]:
    return {
        command.archive.reference: chart_archives.fetch(
            command.archive, folder / f"{command.selected.add_on.name}.pull.log"
        )
        for command in commands
        if command.archive
    }


def run_commands(
    commands: Sequence[Command],
    folder: Path,
    *,
    verb: str = "Install",
    kubeconfig: Path | None = None,
    on_done: Callable[[Command], None] = lambda _: None,
) -> None:
    """Run them in order.

    Args:
        kubeconfig: of the cluster; the user's own where None.
        on_done: called with each command that succeeded.

    Raises:
        Unavailable: helm is missing.
        CheckFailed: another helm changes a chart's release, or was killed there.
        CommandFailed: one failed; the same command line resumes there.
    """
    require_tools()
    for command in commands:
        add_on = command.selected.add_on
        with console.step(f"{verb} {add_on.name}: {add_on.why}"):
            if command.act:
                command.act(kube_api.open_api(kubeconfig))
            else:
                _run_helm(command, folder / f"{add_on.name}.log", kubeconfig)
        on_done(command)


def _run_helm(command: Command, log: Path, kubeconfig: Path | None) -> None:
    add_on = command.selected.add_on
    _update_crds(command, kubeconfig)
    environment = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
    program = console.Command(command.arguments, log, environment=environment, hidden_environment=command.environment)
    try:
        console.run_together([program], timeout_s=LIMIT_S + 60)
    except console.CommandFailed as error:
        if BUSY_MESSAGE not in error.output:
            raise
        place = f"{add_on.name} --namespace {add_on.namespace}"
        ways = f"helm rollback {place}, or helm uninstall {place} where it was the first"
        raise CheckFailed(describe_busy(add_on.name, f"{ways}, and then the same command again")) from None


def describe_busy(release: str, ways: str) -> str:
    """Describe what to do if helm is running, or was killed: the release does not tell which."""
    return (
        f"{release}: another helm operation is in progress. Nothing was changed. Fix: wait for it; if it was "
        f"interrupted, run {ways}"
    )


def _update_crds(command: Command, kubeconfig: Path | None) -> None:
    """Bring a chart's CRDs to its version: Helm creates them with a release, and never changes them.

    Source: helm.sh/docs/chart_best_practices/custom_resource_definitions; karpenter.sh/docs/upgrading/upgrade-guide,
    2026-11.
    """
    crds = chart_archives.read_crds(command.archive.file) if command.archive else []
    if crds:
        kube_api.open_api(kubeconfig).apply_crds(crds)


def _build_helm_install(
    selected: SelectedAddOn, archive: ChartArchive, folder: Path, options: Sequence[str]
) -> list[str]:
    add_on = selected.add_on
    values = folder / f"{add_on.name}.values.yaml"
    values.write_text(yaml.safe_dump(dict(selected.values), sort_keys=False))
    return [
        *("helm", "upgrade", "--install", add_on.name, console.shorten_path(archive.file)),
        *("--namespace", str(add_on.namespace), "--create-namespace"),
        *("--values", console.shorten_path(values), "--wait", "--timeout", f"{LIMIT_S}s"),
        *options,
    ]


def _apply_manifest(
    manifest: Path, api: KubeApi, *, end_old: Callable[[KubeApi, list[Manifest]], None] | None = None
) -> None:
    objects = own_yaml.parse_all(manifest.read_text(encoding="utf-8"))
    api.apply(objects)
    if end_old:
        end_old(api, objects)


def _delete_manifest(manifest: Path, api: KubeApi) -> None:
    api.delete_objects(own_yaml.parse_all(manifest.read_text(encoding="utf-8")), LIMIT_S)


_NOT_REMOVED = ("Namespace",)
"""Kinds that a removal leaves: a namespace takes along whatever else is in it."""


def _write_manifest(selected: SelectedAddOn, fleet: Fleet, folder: Path, without: Sequence[str] = ()) -> Path:
    """Return the row's manifest, written first if it depends on the fleet."""
    manifest = str(selected.add_on.manifest)
    if manifest not in BUILDERS:
        return add_ons.FILE.parent / manifest
    file = folder / f"{manifest}.yaml"
    objects = [item for item in BUILDERS[manifest](fleet) if item["kind"] not in without]
    file.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return file
