"""What the platform adds to EKS's node monitoring agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from llm_serving.fleet import add_ons
from llm_serving.operations import kube_api
from llm_serving.operations.kube_api import Kind
from tests.charts import platform_charts
from tests.control_plane.control_plane import ControlPlane

FILE = add_ons.FILE.parent / "node-monitoring.yaml"
DAEMON_SET = Kind("apps/v1", "DaemonSet")
NAME, NAMESPACE = "eks-node-monitoring-agent", "kube-system"


def build_agent(image: str) -> dict[str, Any]:
    """The add-on's DaemonSet: its names and environment as in charts/eks-node-monitoring-agent/templates/daemonset.yaml."""
    labels = {"app.kubernetes.io/name": NAME}
    env = [
        {"name": "HOST_ROOT", "value": "/host"},
        {"name": "MY_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": NAME, "image": image, "env": env}]},
            },
        },
    }


@pytest.fixture
def eks(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What EKS does: it applies its DaemonSet as a field manager of its own, and takes over what others have of its fields."""

    def apply(image: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(kube_api, "_FIELD_MANAGER", "eks")
            control_plane.api.apply([build_agent(image)], force=True)

    apply("agent:1")
    yield apply
    control_plane.remove(build_agent("agent:1"))


def read_env(control_plane: ControlPlane) -> dict[str, str]:
    agent = control_plane.read(DAEMON_SET, NAME, NAMESPACE)
    [container] = agent["spec"]["template"]["spec"]["containers"]
    return {row["name"]: row.get("value", "") for row in container["env"]}


def test_dcgm_has_half_an_hour_also_after_eks_updates_its_agent(control_plane: ControlPlane, eks: Any) -> None:
    own = {"HOST_ROOT": "/host", "MY_NODE_NAME": ""}
    assert read_env(control_plane) == own
    control_plane.api.apply([yaml.safe_load(FILE.read_text())])
    longer = {"DCGM_BOOT_GRACE_PERIOD_DURATION": "30m", "DCGM_GRACE_PERIOD_DURATION": "30m"}
    assert read_env(control_plane) == own | longer
    eks("agent:2")
    agent = control_plane.read(DAEMON_SET, NAME, NAMESPACE)
    assert [row["image"] for row in agent["spec"]["template"]["spec"]["containers"]] == ["agent:2"]
    assert read_env(control_plane) == own | longer


def test_it_is_not_removed_with_the_charts() -> None:
    [row] = [row for row in add_ons.load_add_ons() if row.manifest == FILE.name]
    assert row.name in {selected.add_on.name for selected in add_ons.select_add_ons(platform_charts.FLEET)}
    assert [other.name for other in add_ons.load_add_ons() if not other.removed] == [row.name, "gpu-health"]
