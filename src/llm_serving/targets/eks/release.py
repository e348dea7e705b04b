"""The target eks: the chart `inference` with the rendered values, by the user's own helm and kubectl.

Readiness is the chart's: a pod that has not answered a completion is not ready. Waiting for it is done here, for helm's
own wait is content with fewer pods (a rollout may have some unavailable), knows no LeaderWorkerSet, and takes the pods
away before anyone could ask why they failed. What fails is rolled back to what ran before.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_serving import console, paths
from llm_serving.console import CommandFailed
from llm_serving.fleet import names
from llm_serving.operations import add_ons as addons
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning, tunnel
from llm_serving.targets.base import READY
from llm_serving.targets.on_aws.limits import MACHINE_START_S
from llm_serving.targets.on_aws.replica_status import ReplicaStatus
from llm_serving.targets.planning import DeploymentPlan

CHART = paths.CHARTS / "inference"

_QUERY_TIMEOUT_S = 60
"""Helm and kubectl answer a question within that time, or the cluster is out of reach."""

_INSTALL_TIMEOUT_S = 120
"""Helm hands all objects to the cluster within that time."""

_TEST_TIMEOUT_S = 180
"""The chart's own test, one completion through the router, ends within that time."""

_LAST_LINES = 20

_POLL_INTERVAL_S = 5.0
"""Between two looks at what is coming up."""

_MAX_LOG_PODS = 1000
"""Whose logs kubectl follows at once; its own limit is five."""

_BUSY_MESSAGE = "another operation (install/upgrade/rollback) is in progress"
"""Helm's words where it finds a revision that is neither installed nor failed."""


@dataclass(frozen=True)
class _Release:
    """What helm knows of a deployment."""

    revision: int | None
    """The last one that was installed in full; None where none was."""

    is_latest: bool
    """Whether that is the last one of all."""

    manifest: str
    """The objects of `revision`; empty where there is none."""


def diff(plan: DeploymentPlan) -> str:
    """What deploying would change in the cluster: a unified diff, or of a first deployment the objects' names.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
        CommandFailed: the chart refuses the values.
    """
    _require_tools("helm")
    return _diff_release(plan, _read_release(plan))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Brings the release to what the plan says, and waits until it answers; False where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: helm or kubectl is missing, or the cluster does not answer.
        CommandFailed: the cluster refuses an object.
        CheckFailed: it did not come to answer; says why, and what runs now.
    """
    _require_tools("helm", "kubectl")
    values_file = planning.write_rendered(plan, force=force)
    release = _read_release(plan)
    changes = _diff_release(plan, release)
    if not changes and release.is_latest:
        _wait_until_ready(plan)
        return False
    confirm(changes)
    log = _prepare_log(plan)
    with console.step("Namespace and service account of the engines"):
        console.run(
            ["kubectl", "apply", "--server-side", "-f", str(_write_namespace(plan))],
            log=log,
            environment=plan.aws.child_env,
            timeout_s=_QUERY_TIMEOUT_S,
        )
    try:
        with console.step(f"Start {plan.deployment.name}"):
            command = [*_build_helm_command("upgrade", plan), str(CHART), "--install", "--values", str(values_file)]
            console.run(command, log=log, environment=plan.aws.child_env, timeout_s=_INSTALL_TIMEOUT_S)
        _wait_until_ready(plan)
        _run_chart_test(plan)
    except (CheckFailed, CommandFailed) as error:
        if _BUSY_MESSAGE in str(error):
            raise CheckFailed(_describe_remedy(plan, release)) from None
        raise CheckFailed(f"{error}\n{_roll_back(plan, release)}") from None
    return True


def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """The deployment's pods, by role and name.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require_tools("kubectl")
    response = _run_query(
        plan, [*_build_kubectl_command("get", plan), "pods", "-l", _build_pod_selector(plan), "-o", "json"]
    )
    return sorted(map(_parse_pod, json.loads(response)["items"]), key=lambda pod: (pod.role, pod.name))


def show_logs(plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
    """Shows what the pods write, with kubectl's own words in front of each line.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require_tools("kubectl")
    # A pod that waits for a machine has no log, and hides no other's.
    command = [
        *_build_kubectl_command("logs", plan),
        "-l",
        _build_pod_selector(plan, role),
        "--prefix",
        "--ignore-errors",
        f"--tail={lines}",
    ]
    command += ["--follow", f"--max-log-requests={_MAX_LOG_PODS}"] if follow else []
    result = subprocess.run(command, env={**os.environ, **plan.aws.child_env}, check=False)
    if result.returncode:
        raise Unavailable(
            f"{console.quote_command(command)}: ended with code {result.returncode}; what it said stands above"
        )


def open_tunnel(plan: DeploymentPlan) -> AbstractContextManager[str]:
    """A URL of the deployment on this machine, by kubectl's port forwarding: good for a trial, not for load tests of
    thousands of requests a second.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require_tools("kubectl")
    port = plan.deployment.router.processes[0].port
    command = [*_build_kubectl_command("port-forward", plan), f"service/{plan.deployment.name}"]
    return tunnel.open_tunnel(
        lambda local_port: [*command, f"{local_port}:{port}"], plan.directory.logs / "tunnel.log", plan.aws.child_env
    )


def destroy(plan: DeploymentPlan) -> bool:
    """Removes the release and waits until its objects and pods are gone; False where there was none.

    Raises:
        Unavailable: helm or kubectl is missing, or the cluster does not answer.
    """
    _require_tools("helm", "kubectl")
    if not _list_revisions(plan):
        return False
    with console.step(f"Remove {plan.deployment.name}"):
        _uninstall(plan)
    return True


def _uninstall(plan: DeploymentPlan) -> None:
    timeout_s = int(plan.deployment.disruption.drain) + 300
    # In the foreground: what made the pods goes when they are gone.
    command = [*_build_helm_command("uninstall", plan), "--cascade=foreground", "--wait", f"--timeout={timeout_s}s"]
    console.run(command, log=_prepare_log(plan), environment=plan.aws.child_env, timeout_s=timeout_s + 60)
    # Helm keeps the pod of a test that failed, for its log.
    command = [
        *_build_kubectl_command("delete", plan),
        "pods",
        "-l",
        _build_selector(plan),
        "--ignore-not-found",
        f"--timeout={_QUERY_TIMEOUT_S}s",
    ]
    console.run(command, log=_prepare_log(plan), environment=plan.aws.child_env, timeout_s=_QUERY_TIMEOUT_S + 30)


def _build_helm_command(command: str, plan: DeploymentPlan) -> list[str]:
    """A command of helm's on the release."""
    return ["helm", *command.split(), plan.deployment.name, "--namespace", plan.deployment.environment.namespace]


def _build_kubectl_command(command: str, plan: DeploymentPlan) -> list[str]:
    return ["kubectl", command, "--namespace", plan.deployment.environment.namespace]


def _build_selector(plan: DeploymentPlan) -> str:
    """Selects all of the release's objects."""
    return f"app.kubernetes.io/instance={plan.deployment.name}"


def _build_pod_selector(plan: DeploymentPlan, role: str | None = None) -> str:
    """Selects the pods of one role, or of all; no pod of helm's tests is among them."""
    return ",".join(
        [_build_selector(plan), "inference/kind", *([f"app.kubernetes.io/component={role}"] if role else [])]
    )


def _compute_start_timeout(plan: DeploymentPlan) -> int:
    """A start's own limit, after the machine has come."""
    timeouts = [
        process.probe.deadline_s + (role.prefetch.timeout_s if role.prefetch else 0)
        for role in plan.deployment.engine_roles
        for process in role.processes
        if process.probe
    ]
    return int(max(timeouts)) + MACHINE_START_S


def _wait_until_ready(plan: DeploymentPlan) -> None:
    """Waits until all of the release's pods are of what was deployed last, and each has answered.

    Raises:
        CheckFailed: they are not in time; says which, and why.
    """
    timeout_s = _compute_start_timeout(plan)
    deadline = time.monotonic() + timeout_s
    with console.step(f"Wait for {plan.deployment.name}'s answers (at most {timeout_s / 60:.0f} min)") as step:
        while pending := list(_list_pending_roles(plan)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    "\n".join(
                        [f"{plan.deployment.name} does not answer: {'; '.join(pending)}", *_describe_failures(plan)]
                    )
                )
            step.note = "; ".join(pending)
            time.sleep(_POLL_INTERVAL_S)
        step.note = ""


def _run_chart_test(plan: DeploymentPlan) -> None:
    """Has a pod ask the router for a completion.

    Raises:
        CheckFailed: no answer came; with what the pod said.
    """
    with console.step("Ask it, as a client would"):
        try:
            console.run(
                [*_build_helm_command("test", plan), "--timeout", f"{_TEST_TIMEOUT_S}s"],
                log=_prepare_log(plan),
                environment=plan.aws.child_env,
                timeout_s=_TEST_TIMEOUT_S + 30,
            )
        except CommandFailed as error:
            raise CheckFailed(f"{error}\n{_read_pod_log(plan, f'{plan.deployment.name}-test')}") from None


def _list_pending_roles(plan: DeploymentPlan) -> Iterator[str]:
    """The roles whose pods are not all there yet, with what the cluster says against making them."""
    kinds = ["deployments.apps"]
    if any(role.nodes > 1 for role in plan.deployment.roles):
        kinds.append("leaderworkersets.leaderworkerset.x-k8s.io")
    try:
        response = _run_query(
            plan, [*_build_kubectl_command("get", plan), ",".join(kinds), "-l", _build_selector(plan), "-o", "json"]
        )
    except Unavailable as error:  # for as long as the wait, an answer may come
        yield str(error)
        return
    for resource in json.loads(response)["items"]:
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


def _describe_remedy(plan: DeploymentPlan, release: _Release) -> str:
    """What to do where helm is at work, or was killed at it: nothing here knows which."""
    name = plan.deployment.name
    rollback = (
        [*_build_helm_command("rollback", plan), str(release.revision)]
        if release.revision
        else _build_helm_command("uninstall", plan)
    )
    return (
        f"helm says that another command is at work on {name}. Nothing was changed: wait for it; "
        f"where it was broken off, {console.quote_command(rollback)}, and deploy again"
    )


def _roll_back(plan: DeploymentPlan, release: _Release) -> str:
    """Puts back what ran before; returns what runs now."""
    name = plan.deployment.name
    try:
        if release.revision is None:
            with console.step(f"Remove {name}, before which nothing ran"):
                _uninstall(plan)
            return f"nothing of {name} ran before, and nothing is left of it"
        with console.step(f"Put back what ran before, revision {release.revision}"):
            console.run(
                [*_build_helm_command("rollback", plan), str(release.revision)],
                log=_prepare_log(plan),
                environment=plan.aws.child_env,
                timeout_s=_INSTALL_TIMEOUT_S,
            )
        _wait_until_ready(plan)
    except (CheckFailed, CommandFailed) as error:
        return f"what ran before is not back: {error}"
    return "what ran before runs again"


def _write_namespace(plan: DeploymentPlan) -> Path:
    """Namespace and service account, which the fleet's role is tied to by name and all releases share."""
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": names.SERVING_NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "blueprint"}},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": names.ENGINE_SERVICE_ACCOUNT, "namespace": names.SERVING_NAMESPACE},
            "automountServiceAccountToken": False,
        },
    ]
    file = plan.rendered / "namespace.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return file


def _read_release(plan: DeploymentPlan) -> _Release:
    """The release as it is.

    Raises:
        Unavailable: the cluster does not answer.
    """
    revisions = _list_revisions(plan)
    # Helm killed between two of its notes leaves none that is deployed, and the last one superseded runs.
    rank = ("superseded", "deployed")
    installed = sorted(
        (rank.index(entry["status"]), entry["revision"]) for entry in revisions if entry["status"] in rank
    )
    if not installed:
        return _Release(None, False, "")
    _, latest = installed[-1]
    manifest = _run_query(plan, [*_build_helm_command("get manifest", plan), f"--revision={latest}"])
    return _Release(latest, latest == revisions[-1]["revision"], manifest)


def _list_revisions(plan: DeploymentPlan) -> list[dict[str, Any]]:
    """The release's revisions, the last one last; none where there is no release."""
    try:
        revisions: list[dict[str, Any]] = json.loads(
            _run_query(plan, [*_build_helm_command("history", plan), "--output=json"])
        )
    except Unavailable as error:
        if "release: not found" in str(error):
            return []
        raise
    return revisions


def _diff_release(plan: DeploymentPlan, release: _Release) -> str:
    rendered = _run_query(plan, [*_build_helm_command("template", plan), str(CHART), "--values", "-"], stdin=plan.text)
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
    return "\n".join(lines)


def _format_objects(manifest: str) -> list[str]:
    """Objects in one order and one form, so that a difference is one of content."""
    return yaml.safe_dump_all(_parse_objects(manifest), sort_keys=True, width=10**6).splitlines()


def _parse_objects(manifest: str) -> list[dict[str, Any]]:
    """A release's objects by kind and name, without what runs only when it is asked for."""
    objects = [resource for resource in yaml.safe_load_all(manifest) if resource]
    installed = [resource for resource in objects if "helm.sh/hook" not in resource["metadata"].get("annotations", {})]
    return sorted(installed, key=lambda resource: (resource["kind"], resource["metadata"]["name"]))


def _describe_failures(plan: DeploymentPlan) -> list[str]:
    """The pods that did not come to answer, with the last lines of the first that wrote any."""
    try:
        unready = [pod for pod in list_replicas(plan) if pod.state != READY]
    except Unavailable as error:
        return [f"why cannot be asked: {error}"]
    lines = [
        f"  {pod.role}: {pod.name}: {pod.state}" + (f", {pod.restarts} restarts" if pod.restarts else "")
        for pod in unready
    ]
    scheduled = sorted((pod for pod in unready if pod.machine), key=lambda pod: -pod.restarts)
    return [*lines, *(_read_pod_log(plan, pod.name) for pod in scheduled[:1])]


def _read_pod_log(plan: DeploymentPlan, pod: str) -> str:
    """The last lines that a pod wrote."""
    try:
        return _run_query(plan, [*_build_kubectl_command("logs", plan), pod, f"--tail={_LAST_LINES}"]).rstrip()
    except Unavailable as error:
        return f"its log cannot be read: {error}"


def _parse_pod(pod: dict[str, Any]) -> ReplicaStatus:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    waiting = [entry["state"]["waiting"]["reason"] for entry in containers if "waiting" in entry.get("state", {})]
    ready = conditions.get("Ready", {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    scheduling_error = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    return ReplicaStatus(
        name=pod["metadata"]["name"],
        role=pod["metadata"]["labels"].get("app.kubernetes.io/component", ""),
        state=READY if ready else scheduling_error or (waiting or [status.get("phase", "unknown").lower()])[0],
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
        machine=pod.get("spec", {}).get("nodeName", ""),
    )


def _require_tools(*tools: str) -> None:
    addons.require_tools({name: addons.TOOLS[name] for name in tools})


def _run_query(plan: DeploymentPlan, command: Sequence[str], stdin: str = "") -> str:
    """What a command prints, being told something on its standard input.

    Raises:
        Unavailable: it failed or did not answer; carries what it said.
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


def _prepare_log(plan: DeploymentPlan) -> Path:
    plan.directory.logs.mkdir(parents=True, exist_ok=True)
    return plan.directory.logs / "eks.log"
