"""A release as the user's own helm sees it: its revisions, its objects, and what would change them."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_serving import console, paths
from llm_serving.operations import cluster
from llm_serving.operations.kube_api import ApiError, Kind, Manifest
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods

QUERY_TIMEOUT_S = 60
"""Longest query of helm; after that the cluster counts as unreachable."""

UNREACHABLE = "cluster unreachable"
"""What helm says in small letters where no cluster answers."""

NOT_FOUND = "release: not found"
"""What helm says where no release has the name."""

ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute")
"""The kind of the one object of a route of `blueprint shift`."""

_INSTALL_TIMEOUT_S = 120
"""Longest time until helm has submitted all objects."""


@dataclass(frozen=True)
class Release:
    """The state of a Helm release."""

    revision: int | None
    """The last deployed revision; None if there is none."""

    is_latest: bool
    """Whether it is the last revision."""

    manifest: str
    """The objects of `revision`; empty if there is none."""


def get_chart(plan: DeploymentPlan) -> Path:
    return paths.CHARTS / plan.deployment.chart


def build_command(command: str, plan: DeploymentPlan) -> list[str]:
    return ["helm", *command.split(), plan.deployment.name, "--namespace", pods.get_namespace(plan)]


def read(plan: DeploymentPlan) -> Release:
    """Read the state of the release.

    Raises:
        CheckFailed: it is being removed, or a removal was interrupted; or as of `list_revisions`.
        Unavailable: the cluster does not answer.
    """
    revisions = list_revisions(plan)
    if revisions and revisions[-1]["status"] == "uninstalling":
        reason = "it is being removed, or its removal was interrupted. Nothing was changed"
        raise CheckFailed(f"{plan.deployment.name}: {reason}. Fix: run blueprint destroy, and deploy it again.")
    # A helm that was killed may leave no deployed revision; then the last superseded one runs.
    rank = ("superseded", "deployed")
    installed = sorted(
        (rank.index(entry["status"]), entry["revision"]) for entry in revisions if entry["status"] in rank
    )
    if not installed:
        return Release(None, False, "")
    _, latest = installed[-1]
    return Release(latest, latest == revisions[-1]["revision"], read_manifest(plan, f"--revision={latest}"))


def read_manifest(plan: DeploymentPlan, *options: str) -> str:
    """Read the objects of the release's last revision, or of the one that `options` name."""
    return run_query([*build_command("get manifest", plan), *options], plan.aws.child_env)


def list_revisions(plan: DeploymentPlan) -> list[dict[str, Any]]:
    """List the release's revisions, oldest first; empty if there is no release.

    Raises:
        CheckFailed: a release of another chart has the name, as where deployments of two kinds have one name.
        Unavailable: the cluster does not answer, or is another fleet's.
    """
    cluster.require_own(plan.fleet.value, plan.aws.kubeconfig)
    try:
        revisions: list[dict[str, Any]] = json.loads(
            run_query([*build_command("history", plan), "--output=json"], plan.aws.child_env)
        )
    except Unavailable as error:
        if NOT_FOUND in str(error):
            return []
        if UNREACHABLE in str(error).lower():
            command = console.quote_command(cluster.build_kubeconfig_command(plan.fleet.value))
            fix = f"run {command}, or blueprint platform tunnel where its endpoint is private"
            raise Unavailable(f"{str(error).rstrip('.')}. Fix: {fix}.") from None
        raise
    chart, name = plan.deployment.chart, plan.deployment.name
    # Helm writes NAME-VERSION, and a version may have hyphens too: 1.4.0-rc.1.
    if others := {re.split(r"-v?\d+\.\d+\.\d+", entry["chart"])[0] for entry in revisions} - {chart}:
        raise CheckFailed(
            f"{name}: a release of the chart {', '.join(sorted(others))} has this name. Nothing was changed. "
            f"Fix: choose another `name` in {plan.blueprint.path}"
        )
    return revisions


def diff(plan: DeploymentPlan, release: Release) -> str:
    """Return what an upgrade would change: a unified diff, or the names of the objects of a first release.

    Where the rendered values change nothing, it is what somebody has changed in the cluster, which an upgrade restores.

    Raises:
        CheckFailed: the release is a route of `blueprint shift`, which a deployment would replace.
    """
    rendered = render_objects(plan)
    if not release.manifest:
        return "\n".join(f"+ {resource['kind']} {resource['metadata']['name']}" for resource in parse_objects(rendered))
    require_deployment(plan, release.manifest)
    lines = difflib.unified_diff(
        _format_objects(release.manifest),
        _format_objects(rendered),
        "deployed",
        console.shorten_path(plan.rendered),
        lineterm="",
        n=2,
    )
    changes = [*lines, *_describe_lost_replicas(release.manifest, rendered)]
    return "\n".join(changes or _diff_cluster(plan, rendered))


def _diff_cluster(plan: DeploymentPlan, rendered: str) -> Iterator[str]:
    """Yield how the cluster's objects differ from the rendered ones, a unified diff each; nothing where all are alike.

    What whoever asks may not change is taken to be alike, and so is an operator's object, in which the operator writes.
    """
    api, workload = pods.open_api(plan), plan.deployment.workload
    for item in parse_objects(rendered):
        kind, name = Kind(item["apiVersion"], item["kind"]), item["metadata"]["name"]
        if workload and kind.kind == workload.kind:
            continue
        with contextlib.suppress(ApiError):
            deployed = api.preview(item)
            live = api.find(kind, name, item["metadata"].get("namespace")) or {}
            texts = (_format_content(live), _format_content(deployed))
            yield from difflib.unified_diff(*texts, f"{kind.kind} {name} in the cluster", "deployed", lineterm="", n=2)


def _format_content(item: Manifest) -> list[str]:
    content = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    return yaml.safe_dump(content, sort_keys=True, width=10**6).splitlines()


def require_deployment(plan: DeploymentPlan, manifest: str) -> None:
    """Require that a release is no route of `blueprint shift`, which no blueprint deploys or destroys.

    Raises:
        CheckFailed: it is one.
    """
    if is_route(manifest):
        reason = "a route has this name, which sends requests to other deployments. Nothing was changed"
        removal = f"to remove the route, run {console.quote_command(build_command('uninstall', plan))}"
        fix = f"choose another `name` in {plan.blueprint.path}; {removal}"
        raise CheckFailed(f"{plan.deployment.name}: {reason}. Fix: {fix}.")


def is_route(manifest: str) -> bool:
    """Return whether a release's objects are those of a route: it has one, and a deployment has processes."""
    return {resource["kind"] for resource in parse_objects(manifest)} == {ROUTE.kind}


def _describe_lost_replicas(deployed: str, rendered: str) -> Iterator[str]:
    """Yield the workloads whose number of replicas an autoscaler takes over: Kubernetes sets it to 1 first.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling", migrating Deployments, 2026-11.
    """
    scaled = {
        item["spec"]["scaleTargetRef"]["name"] for item in parse_objects(rendered) if item["kind"] == "ScaledObject"
    }
    for item in parse_objects(deployed):
        kind, name, replicas = item["kind"], item["metadata"]["name"], item.get("spec", {}).get("replicas", 0)
        if kind in {workload.kind for workload in pods.WORKLOADS} and name in scaled and replicas > 1:
            yield (
                f"! {kind} {name}: its {replicas} replicas become 1 at once, as `replicas` leaves the release, until "
                "the autoscaler has started others. Deploy it while few ask, or under another name, and move the "
                "requests by `blueprint shift`."
            )


def render_objects(plan: DeploymentPlan) -> str:
    # By itself helm takes the cluster's version to be that of its own library, for which a chart may be too new.
    version = f"--kube-version={plan.fleet.value.eks.version}"
    command = [*build_command("template", plan), str(get_chart(plan)), version, "--values", "-"]
    return run_query(command, plan.aws.child_env, stdin=plan.text)


def _format_objects(manifest: str) -> list[str]:
    """Format objects in one order, so that only differences of content show."""
    objects = parse_objects(manifest)
    for component in (part for item in objects for part in item.get("spec", {}).get("components", [])):
        if "scalingAdapter" in component:  # an upgrade writes the replicas that run, which no rendered chart knows
            component.pop("replicas", None)
    return yaml.safe_dump_all(objects, sort_keys=True, width=10**6).splitlines()


def parse_objects(manifest: str) -> list[Manifest]:
    """Parse a release's objects, sorted by kind and name, without hooks."""
    objects = own_yaml.parse_all(manifest)
    installed = [resource for resource in objects if "helm.sh/hook" not in resource["metadata"].get("annotations", {})]
    return sorted(installed, key=lambda resource: (resource["kind"], resource["metadata"]["name"]))


def run_query(command: Sequence[str], environment: Mapping[str, str], stdin: str = "") -> str:
    """Run a command, with variables beside those of this process, and return its output.

    Raises:
        Unavailable: it failed or timed out; with its message.
    """
    try:
        result = subprocess.run(
            command,
            env={**os.environ, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=QUERY_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{command[0]} did not answer within {QUERY_TIMEOUT_S} s; is the cluster's endpoint reachable?"
        ) from None
    if result.returncode:
        raise Unavailable(f"{console.quote_command(command)}: {' '.join(result.stderr.split()) or 'failed'}")
    return result.stdout


def run(plan: DeploymentPlan, command: str, *options: str, timeout_s: float = _INSTALL_TIMEOUT_S) -> None:
    """Run a command that changes the release, with its output in the deployment's log.

    Raises:
        CommandFailed: it failed or timed out.
    """
    plan.directory.logs.mkdir(parents=True, exist_ok=True)
    words = [*build_command(command, plan), *options]
    console.run(words, log=plan.directory.logs / "eks.log", environment=plan.aws.child_env, timeout_s=timeout_s)
