"""The network test on EKS: run the job, and bring rank 0's output."""

from __future__ import annotations

import time

from llm_serving import console
from llm_serving.fleet.network_test import NAME, NAMESPACE, Manifest
from llm_serving.operations.kube_api import POD, Kind, KubeApi
from llm_serving.settings.errors import CheckFailed

_JOB = Kind("batch/v1", "Job")
_POLL_S = 5.0
_DELETE_S = 120.0


def run(api: KubeApi, manifests: list[Manifest], *, limit_s: int) -> str:
    """Run the job, return rank 0's output, and delete everything again, also if it fails.

    Raises:
        CheckFailed: the pods did not finish in time; the message has their state.
        ApiError: the cluster refused something.
    """
    # Of a run that was interrupted.
    _delete(api)
    try:
        api.apply(manifests)
        with console.step("Run nccl-tests") as step:
            _wait_until_finished(api, step, limit_s)
        labels = f"job-name={NAME},batch.kubernetes.io/job-completion-index=0"
        [leader] = api.list_objects(POD, NAMESPACE, labels=labels)
        return api.read_log(leader["metadata"]["name"], NAMESPACE)
    finally:
        _delete(api)


def _delete(api: KubeApi) -> None:
    api.delete_objects([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}], _DELETE_S)


def _wait_until_finished(api: KubeApi, step: console.Step, limit_s: int) -> None:
    """Wait until the job has succeeded or failed; a failed run has an output worth reading."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        job = api.find(_JOB, NAME, NAMESPACE) or {}
        conditions = job.get("status", {}).get("conditions", ())
        if any(entry["status"] == "True" and entry["type"] in ("Complete", "Failed") for entry in conditions):
            return
        step.note = _describe_pods(api)
        api.wait_for_change(POD, NAMESPACE, limit_s=_POLL_S)
    raise CheckFailed(f"nccl-tests did not finish within {limit_s // 60} minutes: {_describe_pods(api)}")


def _describe_pods(api: KubeApi) -> str:
    phases = [pod.get("status", {}).get("phase", "Unknown") for pod in api.list_objects(POD, NAMESPACE)]
    return ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases))) or "no pods yet"
