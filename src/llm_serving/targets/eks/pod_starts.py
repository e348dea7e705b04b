"""How long pods took to start, by their conditions, Kubernetes' events and their logs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from llm_serving.operations.kube_api import ApiError, Kind, KubeApi, Manifest
from llm_serving.targets import starts
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods
from llm_serving.targets.starts import Start

EVENT = Kind("v1", "Event")

_PULLED = re.compile(r"Successfully pulled image \S+ in (?:(\d+)h)?(?:(\d+)m)?([\d.]+)(ms|s) ")
"""Kubelet's event `Pulled`, with a Go duration. Source: kubernetes 1.36.3, pkg/kubelet/images/image_manager.go."""

_PRESENT = "already present on"


def read(plan: DeploymentPlan) -> list[Start]:
    """Read how long the release's pods took to start, by role and name.

    Raises:
        Unavailable: the cluster does not answer.
    """
    api = pods.open_api(plan)
    pod_starts = [_read_start(plan, api, pod) for pod in pods.list_pods(plan)]
    return sorted(pod_starts, key=lambda start: (start.role, start.name))


def _read_start(plan: DeploymentPlan, api: KubeApi, pod: Manifest) -> Start:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    events = api.list_objects(EVENT, namespace, fields=f"involvedObject.name={name},reason=Pulled")
    load_s, compile_s = starts.read_log(_read_log(api, pod), plan.deployment.engine)
    return Start(
        name=name,
        role=pod["metadata"]["labels"].get("app.kubernetes.io/component", ""),
        pull_s=sum_pulls(event["message"] for event in events),
        load_s=load_s,
        compile_s=compile_s,
        first_answer_s=compute_answer_s(pod),
        copy_s=sum_copies(pod),
    )


def _read_log(api: KubeApi, pod: Manifest) -> list[str]:
    """Read the log of a pod's first container; a container that waits has none."""
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    try:
        return list(api.stream_log(metadata["name"], metadata["namespace"], container=container))
    except ApiError:
        return []


def sum_pulls(messages: Iterable[str]) -> float | None:
    """Sum the seconds of a pod's pulls; None where no event says anything of them."""
    seconds = [_parse_pull(message) for message in messages]
    known_seconds = [value for value in seconds if value is not None]
    return sum(known_seconds) if known_seconds else None


def _parse_pull(message: str) -> float | None:
    match = _PULLED.search(message)
    if match is None:
        return 0.0 if _PRESENT in message else None
    hours, minutes, amount, unit = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(amount) / (1000 if unit == "ms" else 1)


def compute_answer_s(pod: Manifest) -> float | None:
    """Compute the seconds from a pod's creation until it was ready; None unless it is, and since its first start."""
    status = pod.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    has_restarted = any(entry.get("restartCount") for entry in status.get("containerStatuses", []))
    if ready.get("status") != "True" or has_restarted:
        return None
    return _subtract(ready["lastTransitionTime"], pod["metadata"]["creationTimestamp"])


def sum_copies(pod: Manifest) -> float | None:
    """Sum the whole seconds of the containers that copied weights and adapters; None where there are none."""
    seconds = [
        _subtract(ended["finishedAt"], ended["startedAt"])
        for entry in pod.get("status", {}).get("initContainerStatuses", [])
        if entry["name"].startswith("fetch-") and (ended := entry["state"].get("terminated"))
    ]
    return sum(seconds) if seconds else None


def _subtract(later: str, earlier: str) -> float:
    return (datetime.datetime.fromisoformat(later) - datetime.datetime.fromisoformat(earlier)).total_seconds()
