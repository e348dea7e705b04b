"""What runs of a release: its pods, what they say of themselves, their logs, and whether they scale."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Iterator, Sequence

from llm_serving import console
from llm_serving.operations import cluster, kube_api
from llm_serving.operations.kube_api import POD, ApiError, Kind, KubeApi, Manifest
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import replicas
from llm_serving.targets.on_aws.replicas import ReplicaContainer, ReplicaStatus
from llm_serving.validation.base import MetricsPage

_LAST_LINES = 20

WORKLOADS = (Kind("apps/v1", "Deployment"), Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))
"""What keeps replicas running: of one node, and of several."""

SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject")

_ENDED = ("Failed", "Succeeded")

_FAILING = "Failing"
"""KEDA's word for a trigger whose last query failed. Source: kedacore/keda, pkg/fallback/fallback.go."""


def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """List the release's pods, by role and name."""
    return sorted(map(parse_pod, list_pods(plan)), key=lambda pod: (pod.role, pod.name))


def list_containers(plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
    """List the containers of a role's pods."""
    api = open_api(plan)
    return [
        ReplicaContainer(
            pod["metadata"]["name"],
            pod["metadata"]["labels"].get("inference/listens") == "true",
            functools.partial(
                api.run_command, pod["metadata"]["name"], get_namespace(plan), pod["spec"]["containers"][0]["name"]
            ),
        )
        for pod in list_pods(plan, role)
    ]


def show_logs(plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
    """Print the pods' logs, each line with its pod and container.

    Raises:
        CheckFailed: there is no pod.
    """
    pods = _list_all_pods(plan, role)
    if not pods:
        raise replicas.build_no_logs(plan, role)
    printed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(pod: Manifest) -> None:
        try:
            for line in _read_log(plan, pod, lines=lines, follow=follow):
                printed.put(line)
        finally:
            printed.put("")

    for pod in pods:  # daemons, for which an interrupted command does not wait until each has its next line
        threading.Thread(target=read, args=(pod,), daemon=True).start()
    ended = 0
    while ended < len(pods):
        line = printed.get()
        ended += not line
        console.print_log(line, end="")


def _read_log(plan: DeploymentPlan, pod: Manifest, *, lines: int, follow: bool) -> Iterator[str]:
    """Yield the lines of a pod's engine, after those of what ends before it starts."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    before = [entry["name"] for entry in spec.get("initContainers", []) if "restartPolicy" not in entry]
    for container in (*before, spec["containers"][0]["name"]):
        log = open_api(plan).stream_log(name, get_namespace(plan), container=container, lines=lines, follow=follow)
        with contextlib.suppress(ApiError):  # a pod that is not running has none, which must not hide the others'
            for line in log:
                yield f"[pod/{name}/{container}] {line}"


def list_metrics_pages(plan: DeploymentPlan) -> list[MetricsPage]:
    """List the metrics pages of the release's pods, by their addresses in the cluster."""
    addresses = [
        (pod["metadata"]["name"], pod["metadata"]["labels"]["app.kubernetes.io/component"], pod["status"]["podIP"])
        for pod in list_pods(plan)
        if pod["metadata"]["labels"].get("inference/listens") == "true" and pod.get("status", {}).get("podIP")
    ]
    return replicas.build_pages(plan.deployment.services, addresses)


def open_api(plan: DeploymentPlan) -> KubeApi:
    """Return the API of the cluster that helm reaches.

    Raises:
        ApiError: it does not answer.
        Unavailable: it is another fleet's.
    """
    cluster.require_own(plan.fleet.value, plan.aws.kubeconfig)
    return kube_api.open_api(plan.aws.kubeconfig)


def get_namespace(plan: DeploymentPlan) -> str:
    return plan.deployment.environment.namespace


def list_pods(plan: DeploymentPlan, role: str | None = None) -> list[Manifest]:
    """List the release's pods of one role, or of all, but for those of helm tests, and those that end or have ended.

    A pod may drain for minutes after a rollout; one that was evicted, or whose node refused it, stays beside the pod
    that replaces it.
    """
    return [
        pod
        for pod in _list_all_pods(plan, role)
        if "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") not in _ENDED
    ]


def _list_all_pods(plan: DeploymentPlan, role: str | None) -> list[Manifest]:
    labels = [build_selector(plan), "inference/kind", *([f"app.kubernetes.io/component={role}"] if role else [])]
    return open_api(plan).list_objects(POD, get_namespace(plan), labels=",".join(labels))


def build_selector(plan: DeploymentPlan) -> str:
    """Build a label selector of the release's objects."""
    return f"app.kubernetes.io/instance={plan.deployment.name}"


def read_pod_log(plan: DeploymentPlan, pod: str) -> str:
    """Read the last lines of a pod's log."""
    try:
        return open_api(plan).read_log(pod, get_namespace(plan), lines=_LAST_LINES).rstrip()
    except Unavailable as error:
        return f"log cannot be read: {error}"


def parse_pod(pod: Manifest) -> ReplicaStatus:
    status = pod.get("status", {})
    started, containers = (status.get(key, []) for key in ("initContainerStatuses", "containerStatuses"))
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    states = [entry.get("state", {}) for entry in (*started, *containers)]
    waiting = [state["waiting"]["reason"] for state in states if "waiting" in state]
    refusal = _find_refusal(started)
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


def _find_refusal(containers: Sequence[Manifest]) -> list[str]:
    """Return why the last run of an init container failed: of the node's check the lines with a fix, else the last."""
    for entry in containers:
        ended = entry.get("state", {}).get("terminated") or entry.get("lastState", {}).get("terminated") or {}
        if ended.get("exitCode") and not entry.get("ready"):
            lines = ended.get("message", "").splitlines()
            reason = f"{entry['name']}: {[ended.get('reason'), *lines][-1]}"
            return [" ".join(line for line in lines if "Fix: " in line) or reason]
    return []


def list_notes(plan: DeploymentPlan) -> list[str]:
    """List the roles whose autoscaler reads no metrics: without Prometheus, KEDA keeps the replicas that there are."""
    api = open_api(plan)
    if not api.has_kind(SCALED_OBJECT):
        return []
    scaled = api.list_objects(SCALED_OBJECT, get_namespace(plan), labels=build_selector(plan))
    return [note for scaled_object in scaled for note in _describe_scaling(scaled_object)]


def _describe_scaling(scaled: Manifest) -> Iterator[str]:
    health = (scaled.get("status") or {}).get("health") or {}
    failures = [row.get("numberOfFailures", 0) for row in health.values() if row.get("status") == _FAILING]
    if failures:
        role = scaled["metadata"]["labels"]["app.kubernetes.io/component"]
        address = scaled["spec"]["triggers"][0]["metadata"].get("serverAddress")
        times = f"{max(failures)} time{'s' * (max(failures) != 1)} in a row"
        yield (
            f"{role}: does not scale: KEDA reads no metrics from {address}, {times}; its replicas stay as many as they "
            "are. Fix: look at the pods of Prometheus, by default `kubectl get pods --namespace monitoring`."
        )
