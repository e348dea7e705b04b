"""What a release's pods say of themselves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.eks import pods, readiness


def test_a_pod_that_drains_or_was_evicted_is_no_replica_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = None
    ending = {"deletionTimestamp": "2026-11-27T00:00:00Z"}
    listed = [
        {"metadata": {"name": "new", "labels": {}}},
        {"metadata": {"name": "old", "labels": {}, **ending}},
        {"metadata": {"name": "evicted", "labels": {}}, "status": {"phase": "Failed", "reason": "Evicted"}},
    ]
    monkeypatch.setattr(pods, "_list_all_pods", lambda *_: listed)
    assert [replica.name for replica in pods.list_replicas(plan)] == ["new"]


def test_the_status_has_a_row_for_what_should_have_pods_and_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_workload(role: str, replicas: int, **status: Any) -> dict[str, Any]:
        labels = {"app.kubernetes.io/component": role}
        return {
            "metadata": {"name": f"mine-{role}", "labels": labels},
            "spec": {"replicas": replicas},
            "status": status,
        }

    plan: Any = None
    pod = {"metadata": {"name": "mine-router-0", "labels": {"app.kubernetes.io/component": "router"}}}
    workloads = [
        build_workload("router", 2),
        build_workload("asleep", 0),
        build_workload("new", 1),
        build_workload("worker", 1, conditions=[{"type": "ReplicaFailure", "message": "exceeded quota"}]),
    ]
    monkeypatch.setattr(pods, "_list_all_pods", lambda *_: [pod])
    monkeypatch.setattr(readiness, "_list_workloads", lambda _: workloads)
    rows = [(row.name, row.state) for row in readiness.list_replicas(plan)]
    assert rows == [("mine-new", "no pod"), ("mine-router-0", "unknown"), ("mine-worker", "exceeded quota")]


def test_nothing_that_has_a_log_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine", target="eks", services=[]))
    monkeypatch.setattr(pods, "_list_all_pods", lambda *_: [])
    with pytest.raises(CheckFailed, match=r"mine: no logs on eks\. Fix: run blueprint deploy\."):
        pods.show_logs(plan, None, lines=1, follow=False)


def test_logs_begin_with_those_of_what_ends_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("check-node", "fetch-weights", "engine")
    spec = {
        "initContainers": [*({"name": name} for name in names[:2]), {"name": "shipper", "restartPolicy": "Always"}],
        "containers": [{"name": names[2]}],
    }
    api = SimpleNamespace(stream_log=lambda *_, container, **__: iter([f"of {container}\n"]))
    monkeypatch.setattr(pods, "_list_all_pods", lambda *_: [{"metadata": {"name": "mine-worker-1"}, "spec": spec}])
    monkeypatch.setattr(pods, "open_api", lambda _: api)
    monkeypatch.setattr(pods, "get_namespace", lambda _: "serving")
    plan: Any = None
    pods.show_logs(plan, None, lines=1, follow=False)
    assert capsys.readouterr().out == "".join(f"[pod/mine-worker-1/{name}] of {name}\n" for name in names)


def test_who_follows_logs_can_end_it_while_no_pod_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def stream_log(*_: str, **__: Any) -> Iterator[str]:
        yield "a line\n"
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.wait(60)

    pod = {"metadata": {"name": "mine-worker-1"}, "spec": {"containers": [{"name": "engine"}]}}
    monkeypatch.setattr(pods, "_list_all_pods", lambda *_: [pod])
    monkeypatch.setattr(pods, "open_api", lambda _: SimpleNamespace(stream_log=stream_log))
    monkeypatch.setattr(pods, "get_namespace", lambda _: "serving")
    plan: Any = None
    with pytest.raises(KeyboardInterrupt):
        pods.show_logs(plan, None, lines=1, follow=True)
    assert not ended.is_set()
    ended.set()


_LACKS = (
    "GPUs: 7 of 8 (nvidia-smi)",  # a line without a fix is no reason
    "CUDA: it does not initialize, error 802. Fix: start nvidia-fabricmanager on the node",
    "EFA: /dev/infiniband has 0 of 32 interfaces. Fix: run on an instance with EFA",
)


@pytest.mark.parametrize(
    ("state", "last", "shown"),
    [
        ({"terminated": {"exitCode": 1, "message": "\n".join(_LACKS)}}, {}, " ".join(_LACKS[1:])),
        (
            {"waiting": {"reason": "CrashLoopBackOff"}},
            {"terminated": {"exitCode": 1, "message": _LACKS[1]}},
            _LACKS[1],
        ),
        ({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, {}, "check-node: OOMKilled"),
        ({"terminated": {"exitCode": 0, "message": "GPUs: 8. Fix: none"}}, {}, "PodInitializing"),
        ({"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1, "message": _LACKS[1]}}, "PodInitializing"),
    ],
)
def test_the_status_says_what_a_refused_node_lacks(state: dict[str, Any], last: dict[str, Any], shown: str) -> None:
    assert read_state({"name": "check-node", "state": state, "lastState": last}) == shown


@pytest.mark.parametrize(
    ("state", "last", "shown"),
    [
        (
            {"waiting": {"reason": "CrashLoopBackOff"}},
            {"terminated": {"exitCode": 1, "message": "fatal error: AccessDenied\n", "reason": "Error"}},
            "fetch-weights: fatal error: AccessDenied",
        ),
        ({"waiting": {"reason": "ImagePullBackOff"}}, {}, "ImagePullBackOff"),
        ({"running": {}}, {}, "PodInitializing"),
    ],
)
def test_the_status_says_why_a_copy_of_weights_does_not_end(
    state: dict[str, Any], last: dict[str, Any], shown: str
) -> None:
    passed = {"name": "check-node", "state": {"terminated": {"exitCode": 0}}}
    assert read_state(passed, {"name": "fetch-weights", "state": state, "lastState": last}) == shown


def read_state(*started: dict[str, Any]) -> str:
    """The state of a pod whose engine waits for these init containers."""
    status = {
        "phase": "Pending",
        "initContainerStatuses": started,
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}, "restartCount": 0}],
    }
    metadata = {"name": "mine-worker-1", "labels": {"app.kubernetes.io/component": "worker"}}
    return pods.parse_pod({"metadata": metadata, "status": status}).state
