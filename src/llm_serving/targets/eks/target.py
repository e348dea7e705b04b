"""The target eks: the chart `inference` with the rendered values, by the user's own helm and kubectl.

Readiness is the chart's: a pod that has not answered a completion is not ready. Waiting for it is done here, for helm's
own wait is content with fewer pods (a rollout may have some unavailable), knows no LeaderWorkerSet, and takes the pods
away before anyone could ask why they failed. What fails is rolled back to what ran before.
"""

from __future__ import annotations

import difflib
import json
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
from llm_serving.settings.errors import AnswerIsNo, Unavailable
from llm_serving.targets import tunnel
from llm_serving.targets.ecs import manifest as serving
from llm_serving.targets.on_aws import plan as plans
from llm_serving.targets.on_aws.plan import Plan
from llm_serving.targets.replica_status import READY, Member

CHART = paths.CHARTS / "inference"

_ASK_S = 60
"""Helm and kubectl answer a question within that time, or the cluster is out of reach."""

_INSTALL_S = 120
"""Helm hands all objects to the cluster within that time."""

_TEST_S = 180
"""The chart's own test, one completion through the router, ends within that time."""

_LAST_LINES = 20

_EVERY_S = 5.0
"""Between two looks at what is coming up."""

_MOST_PODS = 1000
"""Whose logs kubectl follows at once; its own limit is five."""

_BUSY = "another operation (install/upgrade/rollback) is in progress"
"""Helm's words where it finds a revision that is neither installed nor failed."""


@dataclass(frozen=True)
class _Release:
    """What helm knows of a deployment."""

    revision: int | None
    """The last one that was installed in full; None where none was."""

    settled: bool
    """Whether that is the last one of all."""

    manifest: str
    """The objects of `revision`; empty where there is none."""


def difference(plan: Plan) -> str:
    """What deploying would change in the cluster: a unified diff, or of a first deployment the objects' names.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
        CommandFailed: the chart refuses the values.
    """
    _require("helm")
    return _difference(plan, _release(plan))


def deploy(plan: Plan, agree: Callable[[str], None], *, force: bool = False) -> bool:
    """Brings the release to what the plan says, and waits until it answers; False where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: helm or kubectl is missing, or the cluster does not answer.
        CommandFailed: the cluster refuses an object.
        AnswerIsNo: it did not come to answer; says why, and what runs now.
    """
    _require("helm", "kubectl")
    values = plans.write(plan, force=force)
    before = _release(plan)
    changes = _difference(plan, before)
    if not changes and before.settled:
        _wait(plan)
        return False
    agree(changes)
    log = _log(plan)
    with console.step("Namespace and service account of the engines"):
        console.run(["kubectl", "apply", "--server-side", "-f", str(_base(plan))], log=log, timeout_s=_ASK_S)
    try:
        with console.step(f"Start {plan.deployment.name}"):
            words = [*_helm("upgrade", plan), str(CHART), "--install", "--values", str(values)]
            console.run(words, log=log, timeout_s=_INSTALL_S)
        _wait(plan)
        _try(plan)
    except (AnswerIsNo, CommandFailed) as failed:
        if _BUSY in str(failed):
            raise AnswerIsNo(_remedy(plan, before)) from None
        raise AnswerIsNo(f"{failed}\n{_go_back(plan, before)}") from None
    return True


def members(plan: Plan) -> list[Member]:
    """The deployment's pods, by role and name.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require("kubectl")
    said = _ask([*_kubectl("get", plan), "pods", "-l", _pods(plan), "-o", "json"])
    return sorted(map(_pod, json.loads(said)["items"]), key=lambda pod: (pod.role, pod.name))


def logs(plan: Plan, role: str | None, *, lines: int, follow: bool) -> None:
    """Shows what the pods write, with kubectl's own words in front of each line.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require("kubectl")
    # A pod that waits for a machine has no log, and hides no other's.
    words = [*_kubectl("logs", plan), "-l", _pods(plan, role), "--prefix", "--ignore-errors", f"--tail={lines}"]
    words += ["--follow", f"--max-log-requests={_MOST_PODS}"] if follow else []
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise Unavailable(f"{console.quoted(words)}: ended with code {done.returncode}; what it said stands above")


def reachable(plan: Plan) -> AbstractContextManager[str]:
    """A URL of the deployment on this machine, by kubectl's port forwarding: good for a trial, not for load tests of
    thousands of requests a second.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require("kubectl")
    port = plan.deployment.router.processes[0].port
    words = [*_kubectl("port-forward", plan), f"service/{plan.deployment.name}"]
    return tunnel.through(lambda near: [*words, f"{near}:{port}"], plan.run.logs / "tunnel.log")


def destroy(plan: Plan) -> bool:
    """Removes the release and waits until its objects and pods are gone; False where there was none.

    Raises:
        Unavailable: helm or kubectl is missing, or the cluster does not answer.
    """
    _require("helm", "kubectl")
    if not _history(plan):
        return False
    with console.step(f"Remove {plan.deployment.name}"):
        _remove(plan)
    return True


def _remove(plan: Plan) -> None:
    limit = int(plan.deployment.disruption.drain) + 300
    # In the foreground: what made the pods goes when they are gone.
    words = [*_helm("uninstall", plan), "--cascade=foreground", "--wait", f"--timeout={limit}s"]
    console.run(words, log=_log(plan), timeout_s=limit + 60)
    # Helm keeps the pod of a test that failed, for its log.
    words = [*_kubectl("delete", plan), "pods", "-l", _of(plan), "--ignore-not-found", f"--timeout={_ASK_S}s"]
    console.run(words, log=_log(plan), timeout_s=_ASK_S + 30)


def _helm(command: str, plan: Plan) -> list[str]:
    """A command of helm's on the release."""
    return ["helm", *command.split(), plan.deployment.name, "--namespace", plan.deployment.place.namespace]


def _kubectl(command: str, plan: Plan) -> list[str]:
    return ["kubectl", command, "--namespace", plan.deployment.place.namespace]


def _of(plan: Plan) -> str:
    """Selects all of the release's objects."""
    return f"app.kubernetes.io/instance={plan.deployment.name}"


def _pods(plan: Plan, role: str | None = None) -> str:
    """Selects the pods of one role, or of all; no pod of helm's tests is among them."""
    return ",".join([_of(plan), "inference/kind", *([f"app.kubernetes.io/component={role}"] if role else [])])


def _limit_s(plan: Plan) -> int:
    """A start's own limit, after the machine has come."""
    starts = [
        process.probe.deadline_s + (role.fetched.limit_s if role.fetched else 0)
        for role in plan.deployment.engines
        for process in role.processes
        if process.probe
    ]
    return int(max(starts)) + serving.MACHINES_S


def _wait(plan: Plan) -> None:
    """Waits until all of the release's pods are of what was deployed last, and each has answered.

    Raises:
        AnswerIsNo: they are not in time; says which, and why.
    """
    limit = _limit_s(plan)
    end = time.monotonic() + limit
    with console.step(f"Wait for {plan.deployment.name}'s answers (at most {limit / 60:.0f} min)") as step:
        while late := list(_late(plan)):
            if time.monotonic() > end:
                raise AnswerIsNo("\n".join([f"{plan.deployment.name} does not answer: {'; '.join(late)}", *_why(plan)]))
            step.note = "; ".join(late)
            time.sleep(_EVERY_S)
        step.note = ""


def _try(plan: Plan) -> None:
    """Has a pod ask the router for a completion.

    Raises:
        AnswerIsNo: no answer came; with what the pod said.
    """
    with console.step("Ask it, as a client would"):
        try:
            console.run([*_helm("test", plan), "--timeout", f"{_TEST_S}s"], log=_log(plan), timeout_s=_TEST_S + 30)
        except CommandFailed as failed:
            raise AnswerIsNo(f"{failed}\n{_log_of(plan, f'{plan.deployment.name}-test')}") from None


def _late(plan: Plan) -> Iterator[str]:
    """The roles whose pods are not all there yet, with what the cluster says against making them."""
    kinds = ["deployments.apps"]
    if any(role.machines > 1 for role in plan.deployment.roles):
        kinds.append("leaderworkersets.leaderworkerset.x-k8s.io")
    try:
        said = _ask([*_kubectl("get", plan), ",".join(kinds), "-l", _of(plan), "-o", "json"])
    except Unavailable as error:  # for as long as the wait, an answer may come
        yield str(error)
        return
    for one in json.loads(said)["items"]:
        status, wanted = one.get("status", {}), one["spec"].get("replicas", 1)
        new, ready = (status.get(key, 0) for key in ("updatedReplicas", "readyReplicas"))
        seen = status.get("observedGeneration", 0) >= one["metadata"]["generation"]
        if not (seen and new == ready == status.get("replicas", 0) == wanted):
            refused = [c["message"] for c in status.get("conditions", []) if c["type"] == "ReplicaFailure"]
            role = one["metadata"]["labels"]["app.kubernetes.io/component"]
            yield ": ".join([f"{role} {min(new, ready)} of {wanted}", *refused])


def _remedy(plan: Plan, before: _Release) -> str:
    """What to do where helm is at work, or was killed at it: nothing here knows which."""
    name = plan.deployment.name
    back = [*_helm("rollback", plan), str(before.revision)] if before.revision else _helm("uninstall", plan)
    return (
        f"helm says that another command is at work on {name}. Nothing was changed: wait for it; "
        f"where it was broken off, {console.quoted(back)}, and deploy again"
    )


def _go_back(plan: Plan, before: _Release) -> str:
    """Puts back what ran before; returns what runs now."""
    name = plan.deployment.name
    try:
        if before.revision is None:
            with console.step(f"Remove {name}, before which nothing ran"):
                _remove(plan)
            return f"nothing of {name} ran before, and nothing is left of it"
        with console.step(f"Put back what ran before, revision {before.revision}"):
            console.run([*_helm("rollback", plan), str(before.revision)], log=_log(plan), timeout_s=_INSTALL_S)
        _wait(plan)
    except (AnswerIsNo, CommandFailed) as failed:
        return f"what ran before is not back: {failed}"
    return "what ran before runs again"


def _base(plan: Plan) -> Path:
    """Namespace and service account, which the fleet's role is tied to by name and all releases share."""
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": names.SERVING, "labels": {"app.kubernetes.io/managed-by": "blueprint"}},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": names.ENGINES, "namespace": names.SERVING},
            "automountServiceAccountToken": False,
        },
    ]
    file = plan.rendered / "namespace.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return file


def _release(plan: Plan) -> _Release:
    """The release as it is.

    Raises:
        Unavailable: the cluster does not answer.
    """
    known = _history(plan)
    # Helm killed between two of its notes leaves none that is deployed, and the last one superseded runs.
    rank = ("superseded", "deployed")
    whole = sorted((rank.index(one["status"]), one["revision"]) for one in known if one["status"] in rank)
    if not whole:
        return _Release(None, False, "")
    _, last = whole[-1]
    manifest = _ask([*_helm("get manifest", plan), f"--revision={last}"])
    return _Release(last, last == known[-1]["revision"], manifest)


def _history(plan: Plan) -> list[dict[str, Any]]:
    """The release's revisions, the last one last; none where there is no release."""
    try:
        said: list[dict[str, Any]] = json.loads(_ask([*_helm("history", plan), "--output=json"]))
    except Unavailable as error:
        if "release: not found" in str(error):
            return []
        raise
    return said


def _difference(plan: Plan, before: _Release) -> str:
    after = _ask([*_helm("template", plan), str(CHART), "--values", "-"], told=plan.text)
    if not before.manifest:
        return "\n".join(f"+ {one['kind']} {one['metadata']['name']}" for one in _read(after))
    lines = difflib.unified_diff(
        _objects(before.manifest), _objects(after), "deployed", console.near(plan.rendered), lineterm="", n=2
    )
    return "\n".join(lines)


def _objects(manifest: str) -> list[str]:
    """Objects in one order and one form, so that a difference is one of content."""
    return yaml.safe_dump_all(_read(manifest), sort_keys=True, width=10**6).splitlines()


def _read(manifest: str) -> list[dict[str, Any]]:
    """A release's objects by kind and name, without what runs only when it is asked for."""
    found = [one for one in yaml.safe_load_all(manifest) if one]
    kept = [one for one in found if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    return sorted(kept, key=lambda one: (one["kind"], one["metadata"]["name"]))


def _why(plan: Plan) -> list[str]:
    """The pods that did not come to answer, with the last lines of the first that wrote any."""
    try:
        failed = [pod for pod in members(plan) if pod.state != READY]
    except Unavailable as error:
        return [f"why cannot be asked: {error}"]
    said = [
        f"  {pod.role}: {pod.name}: {pod.state}" + (f", {pod.restarts} restarts" if pod.restarts else "")
        for pod in failed
    ]
    ran = sorted((pod for pod in failed if pod.machine), key=lambda pod: -pod.restarts)
    return [*said, *(_log_of(plan, pod.name) for pod in ran[:1])]


def _log_of(plan: Plan, pod: str) -> str:
    """The last lines that a pod wrote."""
    try:
        return _ask([*_kubectl("logs", plan), pod, f"--tail={_LAST_LINES}"]).rstrip()
    except Unavailable as error:
        return f"its log cannot be read: {error}"


def _pod(said: dict[str, Any]) -> Member:
    status = said.get("status", {})
    containers = status.get("containerStatuses", [])
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    waiting = [one["state"]["waiting"]["reason"] for one in containers if "waiting" in one.get("state", {})]
    ready = conditions.get("Ready", {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    unplaced = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    return Member(
        name=said["metadata"]["name"],
        role=said["metadata"]["labels"].get("app.kubernetes.io/component", ""),
        state=READY if ready else unplaced or (waiting or [status.get("phase", "unknown").lower()])[0],
        restarts=sum(one.get("restartCount", 0) for one in containers),
        machine=said.get("spec", {}).get("nodeName", ""),
    )


def _require(*tools: str) -> None:
    addons.require_tools({name: addons.TOOLS[name] for name in tools})


def _ask(words: Sequence[str], told: str = "") -> str:
    """What a command prints, being told something on its standard input.

    Raises:
        Unavailable: it failed or did not answer; carries what it said.
    """
    try:
        done = subprocess.run(words, input=told, capture_output=True, text=True, check=False, timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{words[0]} did not answer within {_ASK_S} s; is the cluster's endpoint reachable?"
        ) from None
    if done.returncode:
        raise Unavailable(f"{console.quoted(words)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout


def _log(plan: Plan) -> Path:
    plan.run.logs.mkdir(parents=True, exist_ok=True)
    return plan.run.logs / "eks.log"
