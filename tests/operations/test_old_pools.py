"""Pools that the fleet file has no more, on a real control plane. Kinds of Karpenter's names stand for its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.fleet import karpenter_manifests, spare_manifests
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons, old_pools
from llm_serving.operations.kube_api import NAMESPACE, Kind, KubeApi
from llm_serving.settings.document import load
from tests.control_plane.control_plane import ControlPlane

FLEET = """\
name: changed
region: us-west-2
zones: [us-west-2a, us-west-2c]
pools:
  general: {types: TYPE, size: 0..4, spare: 1}
"""
KINDS = {"nodepools.karpenter.sh": "NodePool", "nodeclaims.karpenter.sh": "NodeClaim"} | {
    "ec2nodeclasses.karpenter.k8s.aws": "EC2NodeClass"
}
NODE_POOL, NODE_CLAIM = Kind("karpenter.sh/v1", "NodePool"), Kind("karpenter.sh/v1", "NodeClaim")
NODE_CLASS, DEPLOYMENT = Kind("karpenter.k8s.aws/v1", "EC2NodeClass"), Kind("apps/v1", "Deployment")
OLD, NEW = "general-g6e-ac-od", "general-g6-ac-od"


def build_kind(name: str, kind: str) -> dict[str, Any]:
    plural, _, group = name.partition(".")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    kinds = [build_kind(name, kind) for name, kind in KINDS.items()]
    control_plane.api.apply_crds(kinds)
    yield control_plane.api
    control_plane.remove(*kinds)
    control_plane.api.delete(NAMESPACE, "spare")
    control_plane.api.delete(Kind("scheduling.k8s.io/v1", "PriorityClass"), "spare")


def read_fleet(tmp_path: Path, instance_type: str, pool: str = "general") -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("TYPE", instance_type).replace("general", pool))
    return load(file, Fleet).value


def install(api: KubeApi, tmp_path: Path, fleet: Fleet) -> None:
    """What `platform install` does with the manifests that are made from the fleet."""
    for name, build in (("node-pools", karpenter_manifests.build), ("spare", spare_manifests.build)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(build(fleet)))
        add_ons._apply_manifest(file, api, end_old=add_ons._ENDERS[name])


def list_names(api: KubeApi, kind: Kind, namespace: str | None = None) -> set[str]:
    return {item["metadata"]["name"] for item in api.list_objects(kind, namespace)}


def wait_for_names(api: KubeApi, kind: Kind, names: set[str], namespace: str | None = None) -> None:
    """Wait until what was deleted is gone, after what it owns."""
    processes.wait_until(lambda: list_names(api, kind, namespace) == names, f"{kind.kind}: {names}", 90)


def test_a_node_pool_that_the_file_has_no_more_starts_no_node_and_goes_when_it_is_empty(
    api: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "mine"}}
    api.apply([{**own, "spec": {"limits": {"nodes": "5"}, "template": {"metadata": {"labels": {"team": "ads"}}}}}])
    install(api, tmp_path, read_fleet(tmp_path, "g6e.2xlarge"))
    assert list_names(api, NODE_POOL) == {"mine", OLD}
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim"}
    api.apply([{**claim, "metadata": {"name": "first", "labels": {"karpenter.sh/nodepool": OLD}}}])

    install(api, tmp_path, read_fleet(tmp_path, "g6.2xlarge"))
    limits = {pool["metadata"]["name"]: pool["spec"]["limits"] for pool in api.list_objects(NODE_POOL)}
    assert limits == {"mine": {"nodes": "5"}, OLD: {"nodes": "0"}, NEW: {"nodes": "4", "nvidia.com/gpu": "4"}}
    assert (api.find(NODE_POOL, OLD) or {})["spec"]["template"]["spec"]["nodeClassRef"]["name"] == OLD
    assert "1 node ends when it is empty; to drain now: kubectl delete nodepool" in " ".join(
        capsys.readouterr().err.split()
    )

    api.delete(NODE_CLAIM, "first")
    wait_for_names(api, NODE_CLAIM, set())
    install(api, tmp_path, read_fleet(tmp_path, "g6.2xlarge"))
    wait_for_names(api, NODE_POOL, {"mine", NEW})
    wait_for_names(api, NODE_CLASS, {NEW})
    install(api, tmp_path, read_fleet(tmp_path, "g6e.2xlarge"))
    limits = {pool["metadata"]["name"]: pool["spec"]["limits"] for pool in api.list_objects(NODE_POOL)}
    assert limits[OLD] == {"nodes": "4", "nvidia.com/gpu": "4"}, "as before where the file has it again"


def test_spare_pods_of_a_pool_that_the_file_has_no_more_go(api: KubeApi, tmp_path: Path) -> None:
    install(api, tmp_path, read_fleet(tmp_path, "g6e.2xlarge"))
    assert list_names(api, DEPLOYMENT, "spare") == {"general"}
    install(api, tmp_path, read_fleet(tmp_path, "g6e.2xlarge", pool="other"))
    wait_for_names(api, DEPLOYMENT, {"other"}, "spare")


def test_nothing_ends_in_a_cluster_without_pools(api: KubeApi) -> None:
    old_pools.retire_node_pools(api, [])
    old_pools.delete_spare(api, [])
