"""Waiting for a release.

Readiness is the chart's: a pod that has not answered a completion is not ready. Waiting for it is done here, for helm's
own wait is content with fewer pods (a rollout may have some unavailable), knows no LeaderWorkerSet, and takes the pods
away before anyone could ask why they failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from llm_serving import console
from llm_serving.operations.kube_api import POD, ApiError, Kind, Manifest
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods

_POLL_INTERVAL_S = 5.0
"""Interval between two readiness checks."""


def wait_until_ready(plan: DeploymentPlan) -> None:
    """Wait until all pods are of the last revision and ready."""
    timeout_s = planning.compute_start_s(plan.deployment.services)
    deadline = time.monotonic() + timeout_s
    with console.step(f"Wait until {plan.deployment.name} is ready (up to {timeout_s / 60:.0f} min)") as step:
        while pending := list(list_pending_roles(plan)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    "\n".join([f"{plan.deployment.name} is not ready: {'; '.join(pending)}", *_describe_failures(plan)])
                )
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


def list_pending_roles(plan: DeploymentPlan) -> Iterator[str]:
    """Yield the roles whose pods are not all ready, with the cluster's reasons."""
    try:
        api, resources = pods.open_api(plan), list[Manifest]()
        for kind in _list_workloads(plan):
            resources += api.list_objects(kind, pods.get_namespace(plan), labels=pods.build_selector(plan))
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
    workload = plan.deployment.workload
    if workload:
        return [Kind(workload.api_version, workload.kind)]
    return pods.WORKLOADS if any(service.nodes > 1 for service in plan.deployment.services) else pods.WORKLOADS[:1]


def _describe_condition(resource: Manifest, condition: str) -> Iterator[str]:
    """Yield why an object of an operator is not ready, by its conditions; nothing where it is."""
    status = resource.get("status", {})
    [ready] = [entry for entry in status.get("conditions", []) if entry["type"] == condition] or [{}]
    is_observed = status.get("observedGeneration", 0) >= resource["metadata"]["generation"]
    if not (is_observed and ready.get("status") == "True"):
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
