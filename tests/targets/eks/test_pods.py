"""What a release's pods say of themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.eks import pods


def test_a_pod_that_drains_after_a_rollout_is_no_replica_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = None
    ending = {"deletionTimestamp": "2026-11-27T00:00:00Z"}
    listed = [{"metadata": {"name": "new", "labels": {}}}, {"metadata": {"name": "old", "labels": {}, **ending}}]
    monkeypatch.setattr(pods, "list_pods", lambda *_: listed)
    assert [replica.name for replica in pods.list_replicas(plan)] == ["new"]


def test_nothing_that_has_a_log_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine", target="eks", services=[]))
    monkeypatch.setattr(pods, "list_pods", lambda *_: [])
    with pytest.raises(CheckFailed, match=r"mine: no logs on eks\. Fix: run blueprint deploy\."):
        pods.show_logs(plan, None, lines=1, follow=False)


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
    ],
)
def test_the_status_says_what_a_refused_node_lacks(state: dict[str, Any], last: dict[str, Any], shown: str) -> None:
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "check-node", "state": state, "lastState": last}],
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}, "restartCount": 0}],
    }
    metadata = {"name": "mine-worker-1", "labels": {"app.kubernetes.io/component": "worker"}}
    assert pods.parse_pod({"metadata": metadata, "status": status}).state == shown
