"""Waiting for a release.

Readiness is the chart's: a pod that has not answered a completion is not ready. Waiting for it is done here, for helm's
own wait is content with fewer pods (a rollout may have some unavailable), knows no LeaderWorkerSet, and takes the pods
away before anyone could ask why they failed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from llm_serving import console
from llm_serving.operations.kube_api import POD, ApiError, Kind, Manifest
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods
from llm_serving.targets.on_aws.replicas import ReplicaStatus

_POLL_INTERVAL_S = 5.0
"""Interval between two readiness checks."""


def wait_until_ready(plan: DeploymentPlan) -> None:
    """Wait until all pods are of the last revision and ready.

    An upgrade replaces a few at a time, and each has its start.
    """
    timeout_s = planning.compute_start_s(plan.deployment.services)
    deadline, most_updated = time.monotonic() + timeout_s, 0
    with console.step(f"Wait until {plan.deployment.name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        while pending := list(list_pending_roles(plan)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    "\n".join([f"{plan.deployment.name} is not ready: {'; '.join(pending)}", *_describe_failures(plan)])
                )
            if (updated := _count_updated(plan)) > most_updated:
                deadline, most_updated = time.monotonic() + timeout_s, updated
            step.note = "; ".join(pending)
            _wait_for_change(plan)
        step.note = ""


def _wait_for_change(plan: DeploymentPlan) -> None:
    try:
        pods.open_api(plan).wait_for_change(
            POD, pods.get_namespace(plan), labels=pods.build_selector(plan), limit_s=_POLL_INTERVAL_S
        )
    except ApiError:  # the cluster may answer the next time
        time.sleep(_POLL_INTERVAL_S)


def list_replicas(plan: DeploymentPlan) -> list[ReplicaStatus]:
    """List the release's pods, by role and name; of what should have some and has none, itself."""
    rows = pods.list_replicas(plan)
    running = {row.role for row in rows} | ({""} if rows else set())
    empty = [
        ReplicaStatus(resource["metadata"]["name"], role, reason, 0, "")
        for resource in _list_workloads(plan)
        if (role := _get_role(resource)) not in running and resource["spec"].get("replicas", 1)
        for reason in [*_list_failures(resource), "no pod"][:1]
    ]
    return sorted([*rows, *empty], key=lambda row: (row.role, row.name))


def list_pending_roles(plan: DeploymentPlan) -> Iterator[str]:
    """Yield the roles whose pods are not all ready, with the cluster's reasons."""
    try:
        resources = _list_workloads(plan)
    except Unavailable as error:  # the cluster may answer the next time
        yield str(error)
        return
    for resource in resources:
        if plan.deployment.workload:
            yield from _describe_condition(resource, plan.deployment.workload.condition)
            continue
        status, desired = resource.get("status", {}), resource["spec"].get("replicas", 1)
        updated, ready = (status.get(key, 0) for key in ("updatedReplicas", "readyReplicas"))
        if not (_is_observed(resource) and updated == ready == status.get("replicas", 0) == desired):
            yield ": ".join([f"{_get_role(resource)} {min(updated, ready)} of {desired}", *_list_failures(resource)])


def _list_workloads(plan: DeploymentPlan) -> list[Manifest]:
    workload, api = plan.deployment.workload, pods.open_api(plan)
    spans_nodes = any(service.nodes > 1 for service in plan.deployment.services)
    kinds = pods.WORKLOADS if spans_nodes else pods.WORKLOADS[:1]
    if workload:
        kinds = (Kind(workload.api_version, workload.kind),)
    namespace, labels = pods.get_namespace(plan), pods.build_selector(plan)
    known = filter(api.has_kind, kinds)
    return [item for kind in known for item in api.list_objects(kind, namespace, labels=labels)]


def _get_role(resource: Manifest) -> str:
    return str(resource["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def _list_failures(resource: Manifest) -> list[str]:
    """List why a controller makes no pods, in its words."""
    conditions = resource.get("status", {}).get("conditions", [])
    return [condition["message"] for condition in conditions if condition["type"] == "ReplicaFailure"]


def _count_updated(plan: DeploymentPlan) -> int:
    """Count the pods of the last revision, ready or not; 0 where the cluster does not answer."""
    with contextlib.suppress(Unavailable):
        observed = filter(_is_observed, _list_workloads(plan))
        return sum(item.get("status", {}).get("updatedReplicas", 0) for item in observed)
    return 0


def _is_observed(resource: Manifest) -> bool:
    return bool(resource.get("status", {}).get("observedGeneration", 0) >= resource["metadata"]["generation"])


def _describe_condition(resource: Manifest, condition: str) -> Iterator[str]:
    """Yield why an object of an operator is not ready, by its conditions; nothing where it is."""
    status = resource.get("status", {})
    [ready] = [entry for entry in status.get("conditions", []) if entry["type"] == condition] or [{}]
    if not (_is_observed(resource) and ready.get("status") == "True"):
        yield f"{resource['kind']} {resource['metadata']['name']}: {ready.get('message') or 'not ready'}"


def _describe_failures(plan: DeploymentPlan) -> list[str]:
    """List the pods that are not ready, with the log of the one that restarted most."""
    try:
        unready = [pod for pod in pods.list_replicas(plan) if pod.state != READY]
    except Unavailable as error:
        return [f"pods cannot be listed: {error}"]
    lines = [
        f"  {pod.role}: {pod.name}: {pod.state}" + (f", {pod.restarts} restarts" if pod.restarts else "")
        for pod in unready
    ]
    scheduled = sorted((pod for pod in unready if pod.machine), key=lambda pod: -pod.restarts)
    return [*lines, *(pods.read_pod_log(plan, pod.name) for pod in scheduled[:1])]
