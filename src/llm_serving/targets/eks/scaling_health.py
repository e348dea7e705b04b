"""Whether the autoscaler of each role has metrics: without Prometheus, KEDA keeps the replicas that there are."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.operations.kube_api import Kind, Manifest
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods

SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject")

_FAILING = "Failing"
"""KEDA's word for a trigger whose last query failed. Source: kedacore/keda, pkg/fallback/fallback.go."""


def list_notes(plan: DeploymentPlan) -> list[str]:
    """List the roles whose metrics cannot be read, with what that means."""
    api = pods.open_api(plan)
    if not api.has_kind(SCALED_OBJECT):
        return []
    namespace, labels = plan.deployment.environment.namespace, pods.build_selector(plan)
    return [note for item in api.list_objects(SCALED_OBJECT, namespace, labels=labels) for note in _describe(item)]


def _describe(scaled: Manifest) -> Iterator[str]:
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
