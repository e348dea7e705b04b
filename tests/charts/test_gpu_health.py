"""What the platform adds to NVIDIA's device plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from infra.functions.gpu_repair import XIDS
from llm_serving.fleet import add_ons
from llm_serving.operations import kube_api
from llm_serving.operations.kube_api import Kind
from tests.charts import platform_charts
from tests.control_plane.control_plane import ControlPlane

ROW, CHART = "gpu-health", "nvidia-device-plugin"
ADDED = yaml.safe_load((add_ons.FILE.parent / "gpu-health.yaml").read_text("utf-8"))
[CONTAINER] = ADDED["spec"]["template"]["spec"]["containers"]
[VARIABLE] = CONTAINER["env"]

IGNORED_ANYWAY = {13, 31, 43, 45, 68, 109}
"""NVIDIA/k8s-device-plugin at v0.19.2, internal/rm/health.go, ignoredXids."""


def build_plugin(image: str) -> dict[str, Any]:
    """The chart's DaemonSet: its names and environment as in its templates/daemonset-device-plugin.yml."""
    labels = {"app.kubernetes.io/name": CHART}
    container = {"name": CONTAINER["name"], "image": image, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": ADDED["metadata"],
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


@pytest.fixture
def helm(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What Helm 4 does: it applies the chart's DaemonSet as a field manager of its own."""

    def apply(image: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(kube_api, "_FIELD_MANAGER", "helm")
            control_plane.api.apply([build_plugin(image)], force=True)

    apply("plugin:1")
    yield apply
    control_plane.remove(build_plugin("plugin:1"))


def test_a_fault_that_asks_for_no_more_than_another_start_takes_no_gpu_out_of_use() -> None:
    left_out = [int(xid) for xid in VARIABLE["value"].split(",")]
    assert (VARIABLE["name"], left_out) == ("DP_DISABLE_HEALTHCHECKS", sorted(set(left_out)))
    assert 94 in left_out, "a contained memory error"
    assert not set(left_out) & XIDS.keys(), "what node repair acts on takes the GPU out of use until then"
    assert set(left_out) | XIDS.keys() >= IGNORED_ANYWAY


def test_it_stays_also_after_the_chart_is_upgraded(control_plane: ControlPlane, helm: Any) -> None:
    control_plane.api.apply([ADDED])
    helm("plugin:2")
    plugin = control_plane.read(Kind("apps/v1", "DaemonSet"), ADDED["metadata"]["name"], ADDED["metadata"]["namespace"])
    [container] = plugin["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "plugin:2"
    assert {row["name"] for row in container["env"]} == {"NVIDIA_VISIBLE_DEVICES", VARIABLE["name"]}


def test_it_adds_to_what_the_chart_makes_and_comes_after_it() -> None:
    rows = [selected.add_on.name for selected in add_ons.select_add_ons(platform_charts.FLEET)]
    assert rows.index(ROW) == rows.index(CHART) + 1
    facts = platform_charts.load_facts()[CHART]
    assert (facts["version"], ADDED["metadata"]["name"]) == ("0.19.2", facts["pods"][0]["name"])
