"""A Helm release of a deployment's chart with the rendered values, through the user's own helm and the Kubernetes API.

Readiness is the chart's: a pod that has not answered a completion is not ready. Waiting for it is done here, for helm's
own wait is content with fewer pods (a rollout may have some unavailable), knows no LeaderWorkerSet, and takes the pods
away before anyone could ask why they failed. What fails is rolled back to what ran before.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from llm_serving import console, paths
from llm_serving.console import CommandFailed
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.operations import add_ons as addons
from llm_serving.operations import kube_api
from llm_serving.operations.kube_api import POD, ApiError, Kind, KubeApi, Manifest
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import namespace
from llm_serving.targets.on_aws import images, metrics_pages
from llm_serving.targets.on_aws.replica_container import ReplicaContainer
from llm_serving.targets.on_aws.replica_status import ReplicaStatus
from llm_serving.validation.base import MetricsPage

_QUERY_TIMEOUT_S = 60
"""Longest query of helm; after that the cluster counts as unreachable."""

_INSTALL_TIMEOUT_S = 120
"""Longest time until helm has submitted all objects."""

_TEST_TIMEOUT_S = 180
"""Longest run of the chart's test: one request to the release's Service."""

_WAKE_INTERVAL_S = 30.0
"""Interval of test requests that wake a role without replicas: each keeps it awake for two minutes at least."""

_LAST_LINES = 20

_NODE_CHECK = "check-node"
"""The chart's init container that refuses a node."""

_POLL_INTERVAL_S = 5.0
"""Interval between two readiness checks."""

_WORKLOADS = (Kind("apps/v1", "Deployment"), Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))
"""What keeps replicas running: of one node, and of several."""

_BUSY_MESSAGE = "another operation (install/upgrade/rollback) is in progress"
"""Helm's message when the last revision is neither deployed nor failed."""


@dataclass(frozen=True)
class _Release:
    """The state of a Helm release."""

    revision: int | None
    """The last deployed revision; None if there is none."""

    is_latest: bool
    """Whether it is the last revision."""

    manifest: str
    """The objects of `revision`; empty if there is none."""


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change: a unified diff, or the objects' names for a first deploy.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
        CommandFailed: the chart refuses the values.
    """
    addons.require_tools()
    return _diff_release(plan, _read_release(plan))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Upgrade the release and wait until it is ready; returns whether anything changed.

    Args:
        confirm: shows the changes; raises if the user declines.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
        CommandFailed: the cluster refuses an object.
        CheckFailed: an image is missing, or it did not become ready; says why, and what runs now.
    """
    from llm_serving.aws.preflight import identity

    addons.require_tools()
    if plan.fleet.value.account:
        identity.require_account(plan.fleet, plan.aws)
    values_file = planning.write_rendered(plan, force=force)
    release = _read_release(plan)
    changes = _diff_release(plan, release)
    if not changes and release.is_latest:
        wait_until_ready(plan)
        return False
    require_images(plan)
    require_objects(plan)
    confirm(changes)
    with console.step("Apply namespace and service account"):
        open_api(plan).apply(namespace.build_manifests(plan.deployment))
    try:
        with console.step(f"Upgrade release {plan.deployment.name}"):
            _run_helm(plan, "upgrade", str(_get_chart(plan)), "--install", "--values", str(values_file))
        wait_until_ready(plan)
        _run_chart_test(plan)
    except (CheckFailed, CommandFailed) as error:
        if _BUSY_MESSAGE in str(error):
            raise CheckFailed(_describe_remedy(plan, release)) from None
        raise CheckFailed(f"{error}\n{_roll_back(plan, release)}") from None
    return True


def require_images(plan: DeploymentPlan) -> None:
    """Check that the fleet's registry has the release's images that are its own.

    Raises:
        CheckFailed: an image is missing.
        Unavailable: AWS cannot be asked.
    """
    images.require_images(plan, (service.image for service in plan.deployment.services))


def require_objects(plan: DeploymentPlan) -> None:
    """Check that the cluster knows every kind of the release's objects, in the version that the chart writes, and that
    their names are free: a release `a-b` with a role `c` has those of a release `a` with a role `b-c`, and a role
    `engines` that of AIBrix's Service.

    Raises:
        CheckFailed: it lacks kinds, which operators bring, has objects of others, or would have two of a name; names
            all of them.
        Unavailable: the cluster does not answer.
    """
    api, objects = open_api(plan), _parse_objects(_render_objects(plan))
    kinds = {Kind(item["apiVersion"], item["kind"]): None for item in objects}
    if missing := [f"{kind.kind} ({kind.api_version})" for kind in kinds if not api.has_kind(kind)]:
        raise CheckFailed(
            f"{plan.deployment.name}: the cluster does not know {', '.join(missing)}. Nothing was changed. "
            f"Fix: install the operators, in the versions that charts/{plan.deployment.chart}/README.md names."
        )
    names = Counter(f"{item['kind']} {item['metadata']['name']}" for item in objects)
    if twice := [name for name, count in names.items() if count > 1]:
        raise CheckFailed(
            f"{plan.deployment.name}: two of its objects would be {', '.join(twice)}: a role has the name of another "
            f"part of the release. Nothing was changed. Fix: give the role another name in {plan.blueprint.path}"
        )
    if taken := [line for item in objects for line in _describe_other_owner(plan, api, item)]:
        raise CheckFailed(
            f"{plan.deployment.name}: its objects have names that are taken: {', '.join(taken)}. Nothing was changed. "
            f"Fix: choose another `name` in {plan.blueprint.path}"
        )


def _describe_other_owner(plan: DeploymentPlan, api: KubeApi, resource: Manifest) -> Iterator[str]:
    """Yield an object of the name that another release, or nobody's, has in the cluster."""
    kind, metadata = Kind(resource["apiVersion"], resource["kind"]), resource["metadata"]
    present = api.find(kind, metadata["name"], metadata.get("namespace"))
    owner = present["metadata"].get("annotations", {}).get("meta.helm.sh/release-name") if present else None
    if present and owner != plan.deployment.name:
        yield f"{kind.kind} {metadata['name']} (of {f'the release {owner}' if owner else 'no release'})"


def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """List the release's pods, by role and name, but for those that are to end.

    Raises:
        Unavailable: the cluster does not answer.
    """
    return sorted(map(parse_pod, _list_lasting_pods(plan)), key=lambda pod: (pod.role, pod.name))


def list_containers(plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
    """List the containers of a role's pods, but for those that are to end.

    Raises:
        Unavailable: the cluster does not answer.
    """
    api = open_api(plan)
    return [
        ReplicaContainer(
            pod["metadata"]["name"],
            pod["metadata"]["labels"].get("inference/listens") == "true",
            functools.partial(
                api.run_command, pod["metadata"]["name"], _get_namespace(plan), pod["spec"]["containers"][0]["name"]
            ),
        )
        for pod in _list_lasting_pods(plan, role)
    ]


def _list_lasting_pods(plan: DeploymentPlan, role: str | None = None) -> list[Manifest]:
    """List pods as `list_pods`, but for those that are to end: they may drain for minutes after a rollout."""
    return [pod for pod in list_pods(plan, role) if "deletionTimestamp" not in pod["metadata"]]


def show_logs(plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
    """Print the pods' logs, each line with its pod and container.

    Raises:
        Unavailable: the cluster does not answer.
    """
    pods = list_pods(plan, role)
    with ThreadPoolExecutor(max(1, len(pods))) as executor:
        list(executor.map(lambda pod: _print_log(plan, pod, lines=lines, follow=follow), pods))


def _print_log(plan: DeploymentPlan, pod: Manifest, *, lines: int, follow: bool) -> None:
    """Print the log of a pod's engine, after that of the check of its node."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    checks = [entry["name"] for entry in spec.get("initContainers", []) if entry["name"] == _NODE_CHECK]
    for container in (*checks, spec["containers"][0]["name"]):
        log = open_api(plan).stream_log(name, _get_namespace(plan), container=container, lines=lines, follow=follow)
        with contextlib.suppress(ApiError):  # a pod that is not running has none, which must not hide the others'
            for line in log:
                text = f"[pod/{name}/{container}] {line}"
                console.out.print(text, end="", markup=False, highlight=False, soft_wrap=True)


def list_metrics_pages(plan: DeploymentPlan) -> list[MetricsPage]:
    """List the metrics pages of the release's pods, by their addresses in the cluster.

    Raises:
        Unavailable: the cluster does not answer.
    """
    addresses = [
        (pod["metadata"]["name"], pod["metadata"]["labels"]["app.kubernetes.io/component"], pod["status"]["podIP"])
        for pod in list_pods(plan)
        if pod["metadata"]["labels"].get("inference/listens") == "true" and pod.get("status", {}).get("podIP")
    ]
    return metrics_pages.build(plan.deployment.services, addresses)


@contextlib.contextmanager
def open_tunnel(plan: DeploymentPlan, port: int = 0) -> Iterator[str]:
    """Forward a port of this machine to what clients call; suits trials, not thousands of requests per second.

    Args:
        port: another one of a pod than that behind the Service's.

    Raises:
        Unavailable: the cluster does not answer.
    """
    planning.require_endpoint(plan)
    address = urlsplit(plan.deployment.url)
    service = str(address.hostname).partition(".")[0]
    with open_api(plan).forward_port(service, _get_namespace(plan), address.port or 80, port) as near_port:
        far_port = port or address.port
        console.err.print(f"  Forwarding 127.0.0.1:{near_port} to the Service {service} port {far_port}", markup=False)
        yield f"http://127.0.0.1:{near_port}"


def destroy(plan: DeploymentPlan) -> bool:
    """Uninstall the release and wait until its pods are gone; returns whether there was one.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
    """
    addons.require_tools()
    if not _list_revisions(plan):
        return False
    with console.step(f"Remove {plan.deployment.name}"):
        _uninstall(plan)
    return True


def _uninstall(plan: DeploymentPlan) -> None:
    timeout_s = max((service.stop.stop_s for service in plan.deployment.services), default=0) + 300
    # Foreground deletion: controllers go after their pods.
    options = ("--cascade=foreground", "--wait", f"--timeout={timeout_s}s")
    _run_helm(plan, "uninstall", *options, timeout_s=timeout_s + 60)
    # Helm keeps the pod of a failed test for its log.
    api = open_api(plan)
    pods = api.list_objects(POD, _get_namespace(plan), labels=build_selector(plan))
    api.delete_objects(pods, _QUERY_TIMEOUT_S)


def _get_chart(plan: DeploymentPlan) -> Path:
    return paths.CHARTS / plan.deployment.chart


def _build_helm_command(command: str, plan: DeploymentPlan) -> list[str]:
    return ["helm", *command.split(), plan.deployment.name, "--namespace", _get_namespace(plan)]


def open_api(plan: DeploymentPlan) -> KubeApi:
    """Return the API of the cluster that helm reaches.

    Raises:
        ApiError: it does not answer.
    """
    return kube_api.open_api(plan.aws.kubeconfig)


def _get_namespace(plan: DeploymentPlan) -> str:
    return plan.deployment.environment.namespace


def list_pods(plan: DeploymentPlan, role: str | None = None) -> list[Manifest]:
    """List the release's pods of one role, or of all; without those of helm tests."""
    labels = [build_selector(plan), "inference/kind", *([f"app.kubernetes.io/component={role}"] if role else [])]
    return open_api(plan).list_objects(POD, _get_namespace(plan), labels=",".join(labels))


def build_selector(plan: DeploymentPlan) -> str:
    """Build a label selector of the release's objects."""
    return f"app.kubernetes.io/instance={plan.deployment.name}"


def require_release(plan: DeploymentPlan) -> None:
    """Accept a deployment that has a release.

    Raises:
        Unavailable: it has none, helm is missing, or the cluster does not answer.
    """
    addons.require_tools()
    if not _list_revisions(plan):
        raise Unavailable(f"{plan.deployment.name}: not deployed on eks. Fix: run blueprint deploy.")


def wait_until_ready(plan: DeploymentPlan) -> None:
    """Wait until all pods are of the last revision and ready.

    Raises:
        CheckFailed: they are not ready in time; says which, and why.
    """
    timeout_s = _compute_start_s(plan)
    deadline = time.monotonic() + timeout_s
    with console.step(f"Wait until {plan.deployment.name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        while pending := list(_list_pending_roles(plan)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    "\n".join([f"{plan.deployment.name} is not ready: {'; '.join(pending)}", *_describe_failures(plan)])
                )
            step.note = "; ".join(pending)
            _wait_for_change(plan)
        step.note = ""


def _wait_for_change(plan: DeploymentPlan) -> None:
    try:
        open_api(plan).wait_for_change(POD, _get_namespace(plan), labels=build_selector(plan), limit_s=_POLL_INTERVAL_S)
    except ApiError:  # the cluster may answer the next time
        time.sleep(_POLL_INTERVAL_S)


def _compute_start_s(plan: DeploymentPlan) -> int:
    """Return the longest start of a replica in seconds, with its node's."""
    return planning.compute_start_s(plan.deployment.services) + INSTANCE_START_S


def _run_chart_test(plan: DeploymentPlan) -> None:
    """Run the chart's test: a pod calls the release's Service as a client would.

    Where a role sleeps, the request fails and wakes it; it is sent again until a replica had the time to start.

    Raises:
        CheckFailed: the request failed; with the pod's log.
    """
    deadline = time.monotonic() + _compute_start_s(plan)
    with console.step("Send a test request") as step:
        while True:
            asleep = _list_sleeping_roles(plan)
            try:
                _run_helm(plan, "test", "--timeout", f"{_TEST_TIMEOUT_S}s", timeout_s=_TEST_TIMEOUT_S + 30)
            except CommandFailed as error:
                if not asleep or time.monotonic() > deadline:
                    raise CheckFailed(f"{error}\n{read_pod_log(plan, f'{plan.deployment.name}-test')}") from None
            else:
                return
            step.note = f"it wakes {', '.join(asleep)}"
            time.sleep(_WAKE_INTERVAL_S)


def _list_sleeping_roles(plan: DeploymentPlan) -> list[str]:
    """List the roles that may have no replica and have none that is ready."""
    awake = {pod.role for pod in list_replicas(plan) if pod.state == READY}
    may_sleep = [service.role for service in plan.deployment.services if service.replicas.min == 0]
    return [role for role in may_sleep if role not in awake]


def _list_pending_roles(plan: DeploymentPlan) -> Iterator[str]:
    """Yield the roles whose pods are not all ready, with the cluster's reasons."""
    try:
        api = open_api(plan)
        resources = [
            resource
            for kind in _list_workloads(plan)
            for resource in api.list_objects(kind, _get_namespace(plan), labels=build_selector(plan))
        ]
    except Unavailable as error:  # the cluster may answer the next time
        yield str(error)
        return
    for resource in resources:
        if plan.deployment.workload:
            yield from _describe_condition(resource, plan.deployment.workload.condition)
            continue
        status, desired = resource.get("status", {}), resource["spec"].get("replicas", 1)
        updated, ready = (status.get(key, 0) for key in ("updatedReplicas", "readyReplicas"))
        is_observed = status.get("observedGeneration", 0) >= resource["metadata"]["generation"]
        if not (is_observed and updated == ready == status.get("replicas", 0) == desired):
            failures = [
                condition["message"]
                for condition in status.get("conditions", [])
                if condition["type"] == "ReplicaFailure"
            ]
            role = resource["metadata"]["labels"]["app.kubernetes.io/component"]
            yield ": ".join([f"{role} {min(updated, ready)} of {desired}", *failures])


def _list_workloads(plan: DeploymentPlan) -> Sequence[Kind]:
    """List the kinds that keep the release's replicas running."""
    workload = plan.deployment.workload
    if workload:
        return [Kind(workload.api_version, workload.kind)]
    return _WORKLOADS if any(service.nodes > 1 for service in plan.deployment.services) else _WORKLOADS[:1]


def _describe_condition(resource: Manifest, condition: str) -> Iterator[str]:
    """Yield why an object of an operator is not ready, by its conditions; nothing where it is."""
    status = resource.get("status", {})
    [ready] = [entry for entry in status.get("conditions", []) if entry["type"] == condition] or [{}]
    is_observed = status.get("observedGeneration", 0) >= resource["metadata"]["generation"]
    if not (is_observed and ready.get("status") == "True"):
        yield f"{resource['kind']} {resource['metadata']['name']}: {ready.get('message') or 'not ready'}"


def _describe_remedy(plan: DeploymentPlan, release: _Release) -> str:
    """Describe what to do if helm is running, or was killed: the release does not tell which."""
    name = plan.deployment.name
    rollback = (
        [*_build_helm_command("rollback", plan), str(release.revision)]
        if release.revision
        else _build_helm_command("uninstall", plan)
    )
    return (
        f"{name}: another helm operation is in progress. Nothing was changed. Fix: wait for it; "
        f"if it was interrupted, run {console.quote_command(rollback)} and deploy again"
    )


def _roll_back(plan: DeploymentPlan, release: _Release) -> str:
    """Roll back to the previous revision; returns what runs now."""
    name = plan.deployment.name
    try:
        if release.revision is None:
            with console.step(f"Remove {name} (there was no previous release)"):
                _uninstall(plan)
            return f"{name} had no previous release and was removed"
        with console.step(f"Roll back to revision {release.revision}"):
            _run_helm(plan, "rollback", str(release.revision))
        wait_until_ready(plan)
    except (CheckFailed, CommandFailed) as error:
        return f"rollback failed: {error}"
    return "rolled back: the previous revision runs"


def _read_release(plan: DeploymentPlan) -> _Release:
    """Read the state of the release.

    Raises:
        Unavailable: the cluster does not answer.
    """
    revisions = _list_revisions(plan)
    # A helm that was killed may leave no deployed revision; then the last superseded one runs.
    rank = ("superseded", "deployed")
    installed = sorted(
        (rank.index(entry["status"]), entry["revision"]) for entry in revisions if entry["status"] in rank
    )
    if not installed:
        return _Release(None, False, "")
    _, latest = installed[-1]
    manifest = run_query(plan, [*_build_helm_command("get manifest", plan), f"--revision={latest}"])
    return _Release(latest, latest == revisions[-1]["revision"], manifest)


def _list_revisions(plan: DeploymentPlan) -> list[dict[str, Any]]:
    """List the release's revisions, oldest first; empty if there is no release.

    Raises:
        CheckFailed: a release of another chart has the name, as where deployments of two kinds have one name.
    """
    try:
        revisions: list[dict[str, Any]] = json.loads(
            run_query(plan, [*_build_helm_command("history", plan), "--output=json"])
        )
    except Unavailable as error:
        if "release: not found" in str(error):
            return []
        raise
    chart, name = plan.deployment.chart, plan.deployment.name
    if others := {entry["chart"].rpartition("-")[0] for entry in revisions} - {chart}:
        raise CheckFailed(
            f"{name}: a release of the chart {', '.join(sorted(others))} has this name. Nothing was changed. "
            f"Fix: choose another `name` in {plan.blueprint.path}"
        )
    return revisions


def _diff_release(plan: DeploymentPlan, release: _Release) -> str:
    rendered = _render_objects(plan)
    if not release.manifest:
        return "\n".join(
            f"+ {resource['kind']} {resource['metadata']['name']}" for resource in _parse_objects(rendered)
        )
    lines = difflib.unified_diff(
        _format_objects(release.manifest),
        _format_objects(rendered),
        "deployed",
        console.shorten_path(plan.rendered),
        lineterm="",
        n=2,
    )
    return "\n".join([*lines, *_describe_lost_replicas(release.manifest, rendered)])


def _describe_lost_replicas(deployed: str, rendered: str) -> Iterator[str]:
    """Yield the workloads whose number of replicas an autoscaler takes over: Kubernetes sets it to 1 first.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling", migrating Deployments, 2026-11.
    """
    scaled = {
        item["spec"]["scaleTargetRef"]["name"] for item in _parse_objects(rendered) if item["kind"] == "ScaledObject"
    }
    for item in _parse_objects(deployed):
        kind, name, replicas = item["kind"], item["metadata"]["name"], item.get("spec", {}).get("replicas", 0)
        if kind in {workload.kind for workload in _WORKLOADS} and name in scaled and replicas > 1:
            yield (
                f"! {kind} {name}: its {replicas} replicas become 1 at once, as `replicas` leaves the release, until "
                "the autoscaler has started others. Deploy it while few ask, or under another name, and move the "
                "requests by `blueprint shift`."
            )


def _render_objects(plan: DeploymentPlan) -> str:
    command = [*_build_helm_command("template", plan), str(_get_chart(plan)), "--values", "-"]
    return run_query(plan, command, stdin=plan.text)


def _format_objects(manifest: str) -> list[str]:
    """Format objects in one order, so that only differences of content show."""
    return yaml.safe_dump_all(_parse_objects(manifest), sort_keys=True, width=10**6).splitlines()


def _parse_objects(manifest: str) -> list[dict[str, Any]]:
    """Parse a release's objects, sorted by kind and name, without hooks."""
    objects = own_yaml.parse_all(manifest)
    installed = [resource for resource in objects if "helm.sh/hook" not in resource["metadata"].get("annotations", {})]
    return sorted(installed, key=lambda resource: (resource["kind"], resource["metadata"]["name"]))


def _describe_failures(plan: DeploymentPlan) -> list[str]:
    """List the pods that are not ready, with the log of the one that restarted most."""
    try:
        unready = [pod for pod in list_replicas(plan) if pod.state != READY]
    except Unavailable as error:
        return [f"pods cannot be listed: {error}"]
    lines = [
        f"  {pod.role}: {pod.name}: {pod.state}" + (f", {pod.restarts} restarts" if pod.restarts else "")
        for pod in unready
    ]
    scheduled = sorted((pod for pod in unready if pod.machine), key=lambda pod: -pod.restarts)
    return [*lines, *(read_pod_log(plan, pod.name) for pod in scheduled[:1])]


def read_pod_log(plan: DeploymentPlan, pod: str) -> str:
    """Read the last lines of a pod's log."""
    try:
        return open_api(plan).read_log(pod, _get_namespace(plan), lines=_LAST_LINES).rstrip()
    except Unavailable as error:
        return f"log cannot be read: {error}"


def parse_pod(pod: dict[str, Any]) -> ReplicaStatus:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    waiting = [entry["state"]["waiting"]["reason"] for entry in containers if "waiting" in entry.get("state", {})]
    refusal = _find_refusal(status.get("initContainerStatuses", []))
    ready = conditions.get("Ready", {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    scheduling_error = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    return ReplicaStatus(
        name=pod["metadata"]["name"],
        role=pod["metadata"]["labels"].get("app.kubernetes.io/component", ""),
        state=READY if ready else scheduling_error or [*refusal, *waiting, status.get("phase", "unknown").lower()][0],
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
        machine=pod.get("spec", {}).get("nodeName", ""),
    )


def _find_refusal(containers: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a node lacks, by the last run of the check that has not passed: the lines with a fix."""
    for entry in containers:
        for state in (entry.get("state", {}), entry.get("lastState", {})):
            ended = state.get("terminated", {})
            if entry["name"] == _NODE_CHECK and ended.get("exitCode"):
                lines = ended.get("message", "").splitlines()
                return [" ".join(line for line in lines if "Fix: " in line) or f"{_NODE_CHECK}: {ended.get('reason')}"]
    return []


def run_query(plan: DeploymentPlan, command: Sequence[str], stdin: str = "") -> str:
    """Run a command and return its output.

    Raises:
        Unavailable: it failed or timed out; with its message.
    """
    try:
        result = subprocess.run(
            command,
            env={**os.environ, **plan.aws.child_env},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_QUERY_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{command[0]} did not answer within {_QUERY_TIMEOUT_S} s; is the cluster's endpoint reachable?"
        ) from None
    if result.returncode:
        raise Unavailable(f"{console.quote_command(command)}: {' '.join(result.stderr.split()) or 'failed'}")
    return result.stdout


def _run_helm(plan: DeploymentPlan, command: str, *options: str, timeout_s: float = _INSTALL_TIMEOUT_S) -> None:
    """Run a command that changes the release, with its output in the deployment's log.

    Raises:
        CommandFailed: it failed or timed out.
    """
    plan.directory.logs.mkdir(parents=True, exist_ok=True)
    words = [*_build_helm_command(command, plan), *options]
    console.run(words, log=plan.directory.logs / "eks.log", environment=plan.aws.child_env, timeout_s=timeout_s)
