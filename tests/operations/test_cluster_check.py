"""What `blueprint platform check` says of a real API server's nodes, kinds and queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.cli import main
from llm_serving.fleet import add_ons
from llm_serving.fleet.model import Fleet
from llm_serving.operations import cluster_check
from llm_serving.operations.kube_api import Kind
from llm_serving.settings.document import load
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

NODE = Kind("v1", "Node")
FLEET = """\
name: small
region: us-west-2
zones: [us-west-2a, us-west-2b]
network: {vpc: vpc-01234567, private_subnets: [subnet-01234567, subnet-01234568]}
eks: {cluster: platform}
add_ons: {operators: on}
pools:
  gpus: {types: g6e.12xlarge, size: 2..8, taints: ["team=ads:NoSchedule"]}
  wide: {types: p5.48xlarge, size: 0..4, zones: us-west-2a, efa: on}
  tasks: {types: g6e.12xlarge, size: 2, orchestrator: ecs}
orchestrator: both
"""
Line = tuple[str, str, str]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return load(tmp_path / "fleet.yaml", Fleet).value


@pytest.fixture
def nodes(control_plane: ControlPlane, fleet: Fleet) -> Iterator[list[dict[str, Any]]]:
    """Two nodes of one pool, as they should be; those that a test adds go with them."""
    pool_nodes = machines.build_for_pool(fleet, "gpus", 2)
    yield pool_nodes
    control_plane.api.delete_all(NODE, timeout_s=60)


def check_nodes(control_plane: ControlPlane, fleet: Fleet, nodes: list[dict[str, Any]]) -> dict[str, Line]:
    control_plane.api.apply(nodes)
    [group, _] = cluster_check.check(fleet, control_plane.api)
    return {result.name: (result.status, result.message, result.fix) for result in group.results}


def test_nodes_as_the_file_describes_them_pass(
    control_plane: ControlPlane, fleet: Fleet, nodes: list[dict[str, Any]]
) -> None:
    nodes[0]["spec"]["taints"] = [
        {"key": "team", "value": "ads", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},  # EKS's admission tolerates it
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "team", "value": "batch", "effect": "PreferNoSchedule"},
    ]
    assert check_nodes(control_plane, fleet, [*nodes, *machines.build_for_pool(fleet, "wide", 1)]) == {
        "gpus": ("pass", "2 x g6e.12xlarge in us-west-2a", ""),
        "wide": ("pass", "1 x p5.48xlarge in us-west-2a", ""),
    }


def test_a_pool_without_a_node_fails_only_where_some_must_be_there(control_plane: ControlPlane, fleet: Fleet) -> None:
    lines = check_nodes(control_plane, fleet, [])
    assert {name: line[0] for name, line in lines.items()} == {"gpus": "fail", "wide": "warn"}
    assert lines["wide"][1:] == (
        "no node has the label fleet/pool=wide",
        "add the label fleet/pool=wide to its nodes, or to what an autoscaler starts them from",
    )


@pytest.mark.parametrize(
    ("pool", "change", "message", "fix"),
    [
        (
            "gpus",
            lambda node: node["metadata"]["labels"].update({"node.kubernetes.io/instance-type": "g5.12xlarge"}),
            "the type is g5.12xlarge",
            "use another label, or add it to types of the pool, which has g6e.12xlarge",
        ),
        (
            "wide",
            lambda node: node["metadata"]["labels"].update({"topology.kubernetes.io/zone": "us-west-2b"}),
            "the zone is us-west-2b",
            "add it to zones in the fleet file",
        ),
        (
            "gpus",
            lambda node: node["status"]["allocatable"].pop("nvidia.com/gpu"),
            "0 nvidia.com/gpu, and g6e.12xlarge should have 4",
            "install its device plugin, one for each device",
        ),
        (
            "gpus",
            lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "16"}),
            "16 nvidia.com/gpu, and g6e.12xlarge should have 4",
            "install its device plugin, one for each device",
        ),
        (
            "wide",
            lambda node: node["status"]["allocatable"].update({"hugepages-2Mi": "1Gi"}),
            "1Gi hugepages-2Mi, and p5.48xlarge should have 10256Mi",
            "reserve them at boot",
        ),
        (
            "gpus",
            lambda node: node["spec"]["taints"].append({"key": "workload", "value": "chat", "effect": "NoSchedule"}),
            "the taint workload=chat:NoSchedule keeps pods away",
            "add it to taints in the pool",
        ),
    ],
)
def test_a_node_that_pods_of_its_pool_cannot_use_is_named_with_the_fix(
    control_plane: ControlPlane,
    fleet: Fleet,
    nodes: list[dict[str, Any]],
    pool: str,
    change: Any,
    message: str,
    fix: str,
) -> None:
    pool_nodes = nodes if pool == "gpus" else machines.build_for_pool(fleet, "wide", 2)
    change(pool_nodes[1])
    assert check_nodes(control_plane, fleet, pool_nodes)[pool] == ("fail", f"1 of 2 nodes: {message}", fix)


def test_controllers_are_known_by_the_kinds_that_they_add(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("orchestrator: both\n", "").replace(", orchestrator: ecs", ""))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    assert main.run(["platform", "check", "--fleet", str(tmp_path / "fleet.yaml"), "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    [_, controllers] = output["groups"]
    known = {line["about"]: (line["status"], line["remedy"]) for line in controllers["lines"]}
    has_keda = control_plane.api.has_kind(Kind("keda.sh/v1alpha1", "ScaledObject"))
    assert (output["cluster"], has_keda) == ("platform", True)
    assert known["keda"] == ("pass", "")
    assert known["aws-load-balancer-controller"] == ("warn", "install it")
    assert known["eks-pod-identity-agent"] == ("warn", "install EKS's add-on of this name")
    assert "lws" not in known, "the file does not say that it is there"


def test_a_controller_of_another_version_is_not_called_missing(
    control_plane: ControlPlane, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row.model_copy(update={"adds": "keda.sh/v9 ScaledObject"}) if row.name == "keda" else row
        for row in add_ons.load_add_ons()
    ]
    monkeypatch.setattr(add_ons, "load_add_ons", lambda: rows)
    [_, controllers] = cluster_check.check(fleet, control_plane.api)
    [keda] = [result for result in controllers.results if result.name == "keda"]
    message = "the cluster does not know keda.sh/v9 ScaledObject, only keda.sh/v1alpha1"
    fix = "install the version of charts/platform.yaml, or set operators: off in add_ons"
    assert (keda.status, keda.message.partition(":")[0], keda.fix) == ("fail", message, fix)
