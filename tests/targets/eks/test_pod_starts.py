"""How long a pod took to start is read from Kubernetes' own words."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.operations.kube_api import Kind
from llm_serving.targets.eks import pod_starts, pods
from llm_serving.targets.starts import Start

IMAGE = '"registry/vllm:0.32.0"'


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        (
            [f"Successfully pulled image {IMAGE} in 47.3s (47.3s including waiting). Image size: 9123456789 bytes."],
            47.3,
        ),
        (
            [f"Successfully pulled image {IMAGE} in 3m0.5s (3m2s including waiting). Image size: 9123456789 bytes."],
            180.5,
        ),
        ([f"Successfully pulled image {IMAGE} in 1h0m2s (1h0m2s including waiting). Image size: 1 bytes."], 3602),
        (
            [
                f"Successfully pulled image {IMAGE} in 850ms (850ms including waiting). Image size: 1 bytes.",
                f"Container image {IMAGE} already present on machine and can be accessed by the pod",
            ],
            0.85,
        ),
        ([f"Container image {IMAGE} already present on machine"], 0),
        ([], None),
        (["something new"], None),
    ],
)
def test_pulls_of_all_images_are_summed(messages: list[str], seconds: float | None) -> None:
    assert pod_starts.sum_pulls(messages) == seconds


def build_pod(status: str, restarts: int = 0) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-26T11:12:58Z"}
    return {
        "metadata": {"name": "mine-worker-1", "creationTimestamp": "2026-11-26T11:10:00Z"},
        "status": {"conditions": [condition], "containerStatuses": [{"restartCount": restarts}]},
    }


def test_the_first_answer_is_when_a_pod_that_never_restarted_became_ready() -> None:
    assert pod_starts.compute_answer_s(build_pod("True")) == 178
    assert pod_starts.compute_answer_s(build_pod("False")) is None
    assert pod_starts.compute_answer_s(build_pod("True", restarts=1)) is None, "it was ready again"


def test_copies_of_weights_and_adapters_are_summed() -> None:
    def build_status(name: str, ended: str) -> dict[str, Any]:
        terminated = {"startedAt": "2026-11-26T11:10:05Z", "finishedAt": f"2026-11-26T11:{ended}Z"}
        return {"name": name, "state": {"terminated": terminated}}

    pod = build_pod("True")
    assert pod_starts.sum_copies(pod) is None, "streamed"
    statuses = [("fetch-weights", "11:59"), ("fetch-adapter-sql", "10:08"), ("check-node", "10:09")]
    pod["status"]["initContainerStatuses"] = [build_status(*status) for status in statuses]
    assert pod_starts.sum_copies(pod) == 114 + 3
    pod["status"]["initContainerStatuses"] = [{"name": "fetch-weights", "state": {"running": {}}}]
    assert pod_starts.sum_copies(pod) is None


def test_a_pods_start_is_read_from_its_events_its_log_and_its_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def list_objects(self, _kind: Kind, _namespace: str, *, fields: str) -> list[dict[str, Any]]:
            assert fields == "involvedObject.name=mine-worker-1,reason=Pulled"
            return [
                {
                    "message": f"Successfully pulled image {IMAGE} in 47.3s (47.3s including waiting). Image size: 1 bytes."
                }
            ]

        def stream_log(self, pod: str, _namespace: str, *, container: str) -> Iterator[str]:
            assert (pod, container) == ("mine-worker-1", "worker")
            yield "INFO Loading weights took 11.52 seconds\n"
            yield "INFO init engine (profile, create kv cache, warmup model) took 18.30 s\n"

    pod = build_pod("True")
    pod["metadata"] |= {"namespace": "serving", "labels": {"app.kubernetes.io/component": "worker"}}
    pod["spec"] = {"containers": [{"name": "worker"}]}
    monkeypatch.setattr(pods, "open_api", lambda _: Api())
    monkeypatch.setattr(pods, "list_pods", lambda _: [pod])
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(engine="vllm"))
    assert pod_starts.read(plan) == [Start("mine-worker-1", "worker", 47.3, 11.52, 18.3, 178)]
