"""`status` on EKS says whose autoscaler has no metrics, as KEDA writes it where Prometheus is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.cli.commands import status
from llm_serving.targets.base import DeploymentStatus
from llm_serving.targets.eks import pods

PROMETHEUS = "http://prometheus.monitoring.svc:9090"


def build_scaled(role: str, health: dict[str, Any] | None) -> dict[str, Any]:
    triggers = [{"type": "prometheus", "metadata": {"serverAddress": PROMETHEUS}}]
    labels = {"app.kubernetes.io/component": role}
    return {"metadata": {"labels": labels}, "spec": {"triggers": triggers}, "status": health and {"health": health}}


def list_notes(monkeypatch: pytest.MonkeyPatch, objects: list[dict[str, Any]] | None) -> list[str]:
    """The notes where the cluster has these objects; None is one without KEDA."""
    asked: list[tuple[Any, ...]] = []

    def list_objects(*arguments: Any, labels: str) -> list[dict[str, Any]]:
        asked.append((*arguments, labels))
        return objects or []

    api = SimpleNamespace(has_kind=lambda _: objects is not None, list_objects=list_objects)
    monkeypatch.setattr(pods, "open_api", lambda _: api)
    deployment = SimpleNamespace(name="mine", environment=SimpleNamespace(namespace="serving"))
    plan: Any = SimpleNamespace(deployment=deployment)
    notes = pods.list_notes(plan)
    assert asked in ([], [(pods.SCALED_OBJECT, "serving", "app.kubernetes.io/instance=mine")])
    return notes


def test_a_role_whose_metrics_fail_is_named_with_what_that_means(monkeypatch: pytest.MonkeyPatch) -> None:
    happy = {"s0-prometheus": {"numberOfFailures": 0, "status": "Happy"}}
    failing = {**happy, "s1-prometheus": {"numberOfFailures": 7, "status": "Failing"}}
    roles = [build_scaled("prefill", happy), build_scaled("decode", failing), build_scaled("new", None)]
    [note] = list_notes(monkeypatch, roles)
    assert note == (
        f"decode: does not scale: KEDA reads no metrics from {PROMETHEUS}, 7 times in a row; its replicas stay as many as "
        "they are. Fix: look at the pods of Prometheus, by default `kubectl get pods --namespace monitoring`."
    )
    assert list_notes(monkeypatch, roles[:1]) == []
    assert list_notes(monkeypatch, None) == []


def test_notes_stand_in_both_forms_of_status_and_change_no_state() -> None:
    rows = [{"role": "decode", "name": "mine-decode-0", "state": "ready"}]
    shown = DeploymentStatus("mine", "http://mine", "members", rows, "", ["decode: does not scale"])
    assert shown.build_payload()["notes"] == ["decode: does not scale"]
    assert shown.unready == []
    *_, note = status.render(shown).renderables  # type: ignore[union-attr]
    assert str(note) == "• decode: does not scale"
