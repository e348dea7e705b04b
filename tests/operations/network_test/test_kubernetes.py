from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.catalog import images
from llm_serving.fleet import groups, network_test
from llm_serving.fleet.model import Fleet
from llm_serving.operations.kube_api import NAMESPACE, KubeApi
from llm_serving.operations.network_test import kubernetes
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

PUBLISHED = Path(__file__).with_name("published") / "p5-2-nodes.txt"
FLEET = """\
name: demo
region: us-east-1
zones: [us-east-1a, us-east-1b]
orchestrator: eks
pools:
  large: {types: p5.48xlarge, zones: us-east-1b, size: 2, efa: on}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return load(file, Fleet).value


def _build(fleet: Fleet, limit_s: int = 240) -> list[dict[str, Any]]:
    group = groups.resolve_pool(fleet, "large")[0]
    return network_test.build_manifests(group, image=images.pin(images.NCCL_TESTS), nodes=2, limit_s=limit_s)


def test_the_job_runs_on_two_instances_and_leaves_nothing(control_plane: ControlPlane, fleet: Fleet) -> None:
    nodes = machines.build_for_pool(fleet, "large", 2)
    control_plane.pods_log.write_text(
        "".join(f"2026-11-22T00:00:00.000000000Z stdout F {line}\n" for line in PUBLISHED.read_text().splitlines())
    )
    control_plane.api.apply(nodes)
    try:
        text = kubernetes.run(control_plane.api, _build(fleet), limit_s=240)
    finally:
        control_plane.api.delete_objects(nodes, timeout_s=60)
    assert text.strip() == PUBLISHED.read_text().strip()
    assert control_plane.api.find(NAMESPACE, network_test.NAMESPACE) is None


def test_without_instances_the_wait_ends_with_the_state_of_the_pods(
    control_plane: ControlPlane, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, describe_pods = SimpleNamespace(now=0.0), kubernetes._describe_pods

    def describe_late(api: KubeApi) -> str:
        """An hour passes once both pods are there, which takes its time on a busy machine."""
        if (text := describe_pods(api)) == "2 Pending":
            clock.now = 3600.0
        return text

    monkeypatch.setattr(kubernetes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(kubernetes, "_describe_pods", describe_late)
    monkeypatch.setattr(kubernetes, "_POLL_S", 0.2)
    with pytest.raises(CheckFailed, match="did not finish within 10 minutes: 2 Pending"):
        kubernetes.run(control_plane.api, _build(fleet), limit_s=600)
    assert control_plane.api.find(NAMESPACE, network_test.NAMESPACE) is None
