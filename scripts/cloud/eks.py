"""The target eks: the chart `inference` with the rendered values, by the user's own helm and kubectl.

Readiness is the chart's: a pod that has not answered a completion is not ready, so helm's wait is a wait for answers.
What fails is rolled back by helm to what ran before.
"""

from __future__ import annotations

import difflib
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from infra import names
from infra.errors import AnswerIsNo, Unavailable
from scripts import console
from scripts.addons import install as addons
from scripts.cloud import plan as plans
from scripts.cloud import tunnel
from scripts.cloud.member import READY, Member
from scripts.cloud.plan import Plan
from scripts.console import CommandFailed

CHART = Path(__file__).resolve().parents[2] / "charts" / "inference"

_ASK_S = 60
"""Helm and kubectl answer a question within that time, or the cluster is out of reach."""

_TEST_S = 180
"""The chart's own test, one completion through the router, ends within that time."""

_LAST_LINES = 20


def difference(plan: Plan) -> str:
    """What deploying would change in the cluster: a unified diff, or of a first deployment the objects' names.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
        CommandFailed: the chart refuses the values.
    """
    _require("helm")
    before = _manifest(plan)
    after = _ask([*_helm("template", plan), str(CHART), "--values", "-"], told=plan.text)
    if not before:
        return "\n".join(f"+ {one['kind']} {one['metadata']['name']}" for one in _read(after))
    lines = difflib.unified_diff(
        _objects(before), _objects(after), "deployed", console.near(plan.rendered), lineterm="", n=2
    )
    return "\n".join(lines)


def deploy(plan: Plan, agree: Callable[[str], None], *, force: bool = False) -> bool:
    """Brings the release to what the plan says, and waits until it answers; False where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: helm or kubectl is missing, or the cluster does not answer.
        AnswerIsNo: it did not come to answer; what ran before runs again.
    """
    _require("helm", "kubectl")
    values = plans.write(plan, force=force)
    changes = difference(plan)
    if not changes:
        return False
    agree(changes)
    log = _log(plan)
    limit = _limit_s(plan)
    with console.step("Namespace and service account of the engines"):
        console.run(["kubectl", "apply", "--server-side", "-f", str(_base(plan))], log=log, timeout_s=_ASK_S)
    with console.step(f"Start {plan.deployment.name} and wait for its answers (at most {limit / 60:.0f} min)"):
        words = [
            *(*_helm("upgrade", plan), str(CHART), "--install", "--values", str(values)),
            *("--wait", "--rollback-on-failure" if _helm_version() >= 4 else "--atomic", "--timeout", f"{limit}s"),
        ]
        try:
            console.run(words, log=log, timeout_s=limit + 120)
        except CommandFailed as failed:
            raise AnswerIsNo(f"{failed}\n{_why(plan)}") from None
    with console.step("Ask it, as a client would"):
        console.run([*_helm("test", plan), "--timeout", f"{_TEST_S}s"], log=log, timeout_s=_TEST_S + 30)
    return True


def members(plan: Plan) -> list[Member]:
    """The deployment's pods, by role and name.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require("kubectl")
    label = f"app.kubernetes.io/instance={plan.deployment.name}"
    said = _ask(["kubectl", "get", "pods", "--namespace", names.SERVING, "-l", label, "-o", "json"])
    return sorted(map(_pod, json.loads(said)["items"]), key=lambda pod: (pod.role, pod.name))


def logs(plan: Plan, role: str | None, *, lines: int, follow: bool) -> None:
    """Shows what the pods write, with kubectl's own words in front of each line.

    Raises:
        Unavailable: kubectl is missing.
    """
    _require("kubectl")
    label = f"app.kubernetes.io/instance={plan.deployment.name}"
    label += f",app.kubernetes.io/component={role}" if role else ""
    words = ["kubectl", "logs", "--namespace", names.SERVING, "-l", label, "--prefix", f"--tail={lines}"]
    subprocess.run([*words, *(["--follow"] if follow else [])], check=False)


def reachable(plan: Plan) -> AbstractContextManager[str]:
    """A URL of the deployment on this machine, by kubectl's port forwarding: good for a trial, not for load tests of
    thousands of requests a second.

    Raises:
        Unavailable: kubectl is missing, or the cluster does not answer.
    """
    _require("kubectl")
    port = plan.deployment.router.processes[0].port
    words = ["kubectl", "port-forward", "--namespace", names.SERVING, f"service/{plan.deployment.name}"]
    return tunnel.through(lambda near: [*words, f"{near}:{port}"], plan.run.logs / "tunnel.log")


def destroy(plan: Plan) -> bool:
    """Removes the release and waits until its objects are gone; False where there was none.

    Raises:
        Unavailable: helm is missing, or the cluster does not answer.
    """
    _require("helm")
    if not _manifest(plan):
        return False
    limit = int(plan.deployment.disruption.drain) + 300
    words = ["helm", "uninstall", plan.deployment.name, "--namespace", names.SERVING, "--wait", f"--timeout={limit}s"]
    with console.step(f"Remove {plan.deployment.name}"):
        console.run(words, log=_log(plan), timeout_s=limit + 60)
    return True


def _helm(command: str, plan: Plan) -> list[str]:
    return ["helm", command, plan.deployment.name, "--namespace", names.SERVING]


def _limit_s(plan: Plan) -> int:
    """A start's own limit and the time that a machine takes to come, which Karpenter and images need."""
    deadlines = [process.probe.deadline_s for process in plan.deployment.replicas if process.probe]
    return int(max(deadlines)) + 900


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


def _manifest(plan: Plan) -> str:
    """The release's objects as they are; empty where there is no release."""
    try:
        return _ask(["helm", "get", "manifest", plan.deployment.name, "--namespace", names.SERVING])
    except Unavailable as error:
        if "release: not found" in str(error):
            return ""
        raise


def _objects(manifest: str) -> list[str]:
    """Objects in one order and one form, so that a difference is one of content."""
    return yaml.safe_dump_all(_read(manifest), sort_keys=True, width=10**6).splitlines()


def _read(manifest: str) -> list[dict[str, Any]]:
    """A release's objects by kind and name, without what runs only when it is asked for."""
    found = [one for one in yaml.safe_load_all(manifest) if one]
    kept = [one for one in found if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    return sorted(kept, key=lambda one: (one["kind"], one["metadata"]["name"]))


def _why(plan: Plan) -> str:
    """The pods that did not come to answer, with the last lines of the first of them."""
    try:
        failed = [pod for pod in members(plan) if pod.state != READY]
        if not failed:
            return "what ran before runs again; the pods that failed are gone"
        said = "\n".join(f"  {pod.role}: {pod.name}: {pod.state}, {pod.restarts} restarts" for pod in failed)
        words = ["kubectl", "logs", "--namespace", names.SERVING, failed[0].name, f"--tail={_LAST_LINES}"]
        return f"{said}\n{_ask(words)}"
    except Unavailable as error:
        return f"why cannot be asked: {error}"


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


def _helm_version() -> int:
    """Helm 4 calls --atomic by another name."""
    return int(_ask(["helm", "version", "--template", "{{.Version}}"]).lstrip("v").split(".")[0])


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
