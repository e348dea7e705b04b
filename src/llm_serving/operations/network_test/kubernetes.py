"""The network test on EKS: run the job, and bring rank 0's output."""

from __future__ import annotations

import time

import yaml

from llm_serving import console
from llm_serving.fleet.network_test import NAME, NAMESPACE, Manifest
from llm_serving.operations.cluster import ClusterContext
from llm_serving.settings.errors import CheckFailed

_POLL_S = 5.0


def run(cluster: ClusterContext, manifests: list[Manifest], *, limit_s: int) -> str:
    """Run the job, return rank 0's output, and delete everything again, also if it fails.

    Raises:
        CheckFailed: the pods did not finish in time; the message has their state.
        CommandFailed: kubectl failed.
    """
    file = cluster.data / "network-test.yaml"
    file.write_text(yaml.safe_dump_all(manifests, sort_keys=False), encoding="utf-8")
    # Of a run that was interrupted.
    _delete(cluster)
    try:
        cluster.run_kubectl("apply", "--filename", str(file))
        with console.step("Run nccl-tests") as step:
            _wait_until_finished(cluster, step, limit_s)
        leader = cluster.run_kubectl(
            *("get", "pods", "--namespace", NAMESPACE, "--output=name"),
            *("--selector", f"job-name={NAME},batch.kubernetes.io/job-completion-index=0"),
        ).strip()
        return cluster.run_kubectl("logs", "--namespace", NAMESPACE, "--tail=-1", leader)
    finally:
        _delete(cluster)


def _delete(cluster: ClusterContext) -> None:
    cluster.run_kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout_s=180)


def _wait_until_finished(cluster: ClusterContext, step: console.Step, limit_s: int) -> None:
    """Wait until the job has succeeded or failed; a failed run has an output worth reading."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        conditions = cluster.run_kubectl(
            *("get", "job", NAME, "--namespace", NAMESPACE),
            "--output=jsonpath={.status.conditions[?(@.status=='True')].type}",
        ).split()
        if {"Complete", "Failed"} & set(conditions):
            return
        step.note = _describe_pods(cluster)
        time.sleep(_POLL_S)
    raise CheckFailed(f"nccl-tests did not finish within {limit_s // 60} minutes: {_describe_pods(cluster)}")


def _describe_pods(cluster: ClusterContext) -> str:
    """Return how far the pods are, for example `2 pods Pending`."""
    phases = cluster.run_kubectl(
        *("get", "pods", "--namespace", NAMESPACE, "--output=jsonpath={.items[*].status.phase}")
    ).split()
    return ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases))) or "no pods yet"
