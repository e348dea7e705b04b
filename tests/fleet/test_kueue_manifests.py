from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet import add_ons, kueue_manifests, names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as installer
from llm_serving.operations import cluster_check
from llm_serving.settings.document import load
from tests.control_plane.control_plane import ControlPlane, add_kinds

CRDS = Path(__file__).parents[3] / "shared" / "crds" / "kueue"
EXAMPLES = sorted((Path(__file__).parents[2] / "infra" / "fleets").glob("*.yaml"))

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2c]
pools:
  general: {types: [g6e.2xlarge, g6e.12xlarge], size: 0..10, taints: [team=ads:NoSchedule]}
  fixed: {types: p5en.48xlarge, zones: us-west-2c, buy: {capacity-block: cr-0123456789abcdef0}, efa: on, size: 2}
  growing: {types: p5en.48xlarge, zones: us-west-2c, efa: on, size: 1..2}
  unlayered: {types: g6e.12xlarge, zones: us-west-2a, size: 2}
  zonal: {types: g6e.12xlarge, buy: [spot, on-demand], size: 2..5}
  neuron: {types: inf2.48xlarge, zones: us-west-2a, size: 0..1}
add_ons: {schedulers: on}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return load(file, Fleet).value


def get_specs(fleet: Fleet, kind: str) -> dict[str, Any]:
    manifests = kueue_manifests.build(fleet)
    return {item["metadata"]["name"]: item["spec"] for item in manifests if item["kind"] == kind}


def test_each_pool_has_a_flavor_a_cluster_queue_and_a_queue_of_its_name(fleet: Fleet) -> None:
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
        assert list(get_specs(fleet, kind)) == list(fleet.pools)
    assert get_specs(fleet, "LocalQueue")["general"] == {"clusterQueue": "general"}


def test_a_flavor_is_the_pools_nodes_with_their_taints_tolerated(fleet: Fleet) -> None:
    flavor = get_specs(fleet, "ResourceFlavor")["general"]
    assert flavor["nodeLabels"] == {"fleet/pool": "general"}
    assert [toleration["key"] for toleration in flavor["tolerations"]] == ["nvidia.com/gpu", "team"]


def test_the_network_decides_only_where_its_labels_and_all_nodes_are(fleet: Fleet) -> None:
    flavors = get_specs(fleet, "ResourceFlavor")
    assert [name for name, flavor in flavors.items() if "topologyName" in flavor] == ["fixed"]
    [(name, topology)] = get_specs(fleet, "Topology").items()
    assert flavors["fixed"]["topologyName"] == name
    assert topology["levels"][-1] == {"nodeLabel": "kubernetes.io/hostname"}


def get_quotas(fleet: Fleet, pool: str) -> dict[str, str]:
    [resources] = get_specs(fleet, "ClusterQueue")[pool]["resourceGroups"]
    [flavor] = resources["flavors"]
    quotas = {resource["name"]: resource["nominalQuota"] for resource in flavor["resources"]}
    assert resources["coveredResources"] == list(quotas), "Kueue takes the same names in the same order only"
    return quotas


def test_a_quota_is_what_the_pool_holds_at_full_size(fleet: Fleet) -> None:
    general, fixed = get_quotas(fleet, "general"), get_quotas(fleet, "fixed")
    assert (general["nvidia.com/gpu"], general["cpu"]) == ("40", "480"), "ten g6e.12xlarge"
    assert (fixed["nvidia.com/gpu"], fixed["vpc.amazonaws.com/efa"]) == ("16", "32"), "two p5en.48xlarge"
    assert get_quotas(fleet, "neuron")["aws.amazon.com/neuron"] == "12"
    assert get_quotas(fleet, "zonal")["nvidia.com/gpu"] == "20", "five g6e.12xlarge in two zones, however bought"
    assert "vpc.amazonaws.com/efa" not in general


def test_queues_come_after_kueue_and_a_removal_leaves_the_namespace(fleet: Fleet, tmp_path: Path) -> None:
    rows = [selected.add_on.name for selected in add_ons.select_add_ons(fleet)]
    assert rows.index("kueue") < rows.index("queues")
    folder = tmp_path / "platform"
    installer.build_install_commands(fleet, folder, folder / "fleet.yaml")
    assert "kind: Namespace" in (folder / "queues.yaml").read_text()
    installer.build_remove_commands(fleet, folder, folder / "fleet.yaml")
    assert "kind: Namespace" not in (folder / "queues.yaml").read_text()
    assert (folder / "queues.yaml").read_text().count("kind: LocalQueue") == len(fleet.pools)


@pytest.fixture
def kueue_cluster(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with Kueue's kinds, which stay: what asks for them comes last."""
    if not CRDS.is_dir():
        pytest.skip(f"Kueue's CRDs are not at {CRDS}: copy them there from its release")
    add_kinds(control_plane, CRDS)
    control_plane.api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SERVING_NAMESPACE}}])
    return control_plane


def test_a_real_api_server_accepts_the_queues_of_every_example(kueue_cluster: ControlPlane, fleet: Fleet) -> None:
    for example in [*(load(file, Fleet).value for file in EXAMPLES), fleet]:
        manifests = kueue_manifests.build(example)
        assert kueue_cluster.find_errors([item for item in manifests if item["kind"] != "Namespace"]) == []
    queue = next(item for item in manifests if item["kind"] == "ClusterQueue")
    invalid = copy.deepcopy(queue)
    invalid["spec"]["resourceGroups"][0]["flavors"][0]["resources"].pop()
    [error] = kueue_cluster.find_errors([invalid])
    assert "same number of resources" in error, "a rule between fields, which no schema alone would see"


@pytest.mark.parametrize("is_active", [True, False])
def test_a_queue_to_which_nothing_can_be_sent_is_no_queue(
    kueue_cluster: ControlPlane, fleet: Fleet, is_active: bool
) -> None:
    """As one whose ClusterQueue is not there: Kueue says so in the queue's status."""
    queue = next(item for item in kueue_manifests.build(fleet) if item["kind"] == "LocalQueue")
    name, message = queue["metadata"]["name"], "Can't submit new workloads to clusterQueue"
    condition = {"type": "Active", "status": str(is_active), "reason": "Tested", "message": message}
    condition["lastTransitionTime"] = "2026-11-30T12:00:00Z"
    kueue_cluster.api.apply([queue])
    path = f"/apis/{queue['apiVersion']}/namespaces/{names.SERVING_NAMESPACE}/localqueues/{name}/status"
    kueue_cluster.patch(path, status={"conditions": [condition]})
    _, controllers = cluster_check.check(fleet, kueue_cluster.api)
    kueue_cluster.remove(queue)
    [found] = [result for result in controllers.results if result.name == f"queue {name}"]
    if is_active:
        assert (found.status, found.message) == ("pass", f"LocalQueue {name} in serving")
    else:
        assert (found.status, found.fix) == ("fail", f"create or start the ClusterQueue {name}")
        assert found.message == f"LocalQueue {name} in serving admits nothing: {message}"
