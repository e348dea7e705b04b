"""What the platform adds to DaemonSets that are others': EKS's node monitoring agent and NVIDIA's device plugin."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from infra.functions.gpu_repair import XIDS
from llm_serving.fleet import add_ons
from llm_serving.operations import kube_api
from llm_serving.operations.kube_api import Kind
from tests.charts import platform_charts
from tests.control_plane.control_plane import ControlPlane

AGENT, PLUGIN = "node-monitoring", "gpu-health"
OWN_ENV: dict[str, list[dict[str, Any]]] = {
    AGENT: [
        {"name": "HOST_ROOT", "value": "/host"},
        {"name": "MY_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    PLUGIN: [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
}
"""Of charts/eks-node-monitoring-agent/templates/daemonset.yaml, and the chart's templates/daemonset-device-plugin.yml."""

OWNERS = {AGENT: "eks", PLUGIN: "helm"}
"""Who applies the DaemonSet as a field manager of its own, and takes over what others have of its fields: EKS, Helm 4."""

IGNORED_ANYWAY = {13, 31, 43, 45, 68, 109}
"""NVIDIA/k8s-device-plugin at v0.19.2, internal/rm/health.go, ignoredXids."""


def read_added(row: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((add_ons.FILE.parent / f"{row}.yaml").read_text("utf-8"))
    return manifest


def list_added_variables(row: str) -> dict[str, str]:
    [container] = read_added(row)["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def build_daemon_set(row: str, image: str) -> dict[str, Any]:
    """Build the owner's DaemonSet, with its names and its environment."""
    added, labels = read_added(row), {"app.kubernetes.io/name": row}
    [container] = added["spec"]["template"]["spec"]["containers"]
    containers = [{"name": container["name"], "image": image, "env": OWN_ENV[row]}]
    return {
        **{key: added[key] for key in ("apiVersion", "kind", "metadata")},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def read_container(control_plane: ControlPlane, row: str) -> tuple[str, dict[str, str]]:
    """Return the image of the DaemonSet in the cluster, and its variables."""
    metadata = read_added(row)["metadata"]
    found = control_plane.read(Kind("apps/v1", "DaemonSet"), metadata["name"], metadata["namespace"])
    [container] = found["spec"]["template"]["spec"]["containers"]
    return container["image"], {variable["name"]: variable.get("value", "") for variable in container["env"]}


@pytest.mark.parametrize("row", OWNERS)
def test_it_stays_also_after_the_owner_updates_its_daemon_set(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, row: str
) -> None:
    def update(image: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(kube_api, "_FIELD_MANAGER", OWNERS[row])
            control_plane.api.apply([build_daemon_set(row, image)], force=True)

    request.addfinalizer(lambda: control_plane.remove(build_daemon_set(row, "")))
    own = {variable["name"]: variable.get("value", "") for variable in OWN_ENV[row]}
    update("image:1")
    assert read_container(control_plane, row) == ("image:1", own)
    control_plane.api.apply([read_added(row)])
    update("image:2")
    assert read_container(control_plane, row) == ("image:2", own | list_added_variables(row))


def test_none_is_removed_with_the_charts() -> None:
    selected = {row.add_on.name for row in add_ons.select_add_ons(platform_charts.FLEET)}
    kept = [row for row in add_ons.load_add_ons() if not row.removed]
    assert {row.name: row.manifest for row in kept} == {row: f"{row}.yaml" for row in OWNERS}
    assert selected >= OWNERS.keys()


def test_dcgm_has_half_an_hour() -> None:
    assert list_added_variables(AGENT) == {
        "DCGM_BOOT_GRACE_PERIOD_DURATION": "30m",
        "DCGM_GRACE_PERIOD_DURATION": "30m",
    }


def test_a_fault_that_asks_for_no_more_than_another_start_takes_no_gpu_out_of_use() -> None:
    [(name, value)] = list_added_variables(PLUGIN).items()
    left_out = [int(xid) for xid in value.split(",")]
    assert (name, left_out) == ("DP_DISABLE_HEALTHCHECKS", sorted(set(left_out)))
    assert 94 in left_out, "a contained memory error"
    assert not set(left_out) & XIDS.keys(), "what node repair acts on takes the GPU out of use until then"
    assert set(left_out) | XIDS.keys() >= IGNORED_ANYWAY


def test_what_adds_to_a_chart_comes_after_it() -> None:
    chart, rows = "nvidia-device-plugin", [row.add_on.name for row in add_ons.select_add_ons(platform_charts.FLEET)]
    assert rows.index(PLUGIN) == rows.index(chart) + 1
    facts = platform_charts.load_facts()[chart]
    assert (facts["version"], read_added(PLUGIN)["metadata"]["name"]) == ("0.19.2", facts["pods"][0]["name"])
