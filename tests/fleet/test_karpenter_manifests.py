from __future__ import annotations

import copy
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from llm_serving.fleet import add_ons, karpenter_manifests, names
from llm_serving.fleet.groups import Group, resolve_all
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from tests.control_plane.control_plane import ControlPlane, add_kinds

CRDS = Path(__file__).parents[3] / "shared" / "crds" / "karpenter-aws"
FLEETS = sorted((Path(__file__).parents[2] / "infra" / "fleets").glob("*.yaml"))

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2c]
pools:
  general: {types: [g6e.2xlarge, g6e.12xlarge, g6.2xlarge], buy: [spot, on-demand], size: 0..10, taints: [team=ads:NoSchedule]}
  block: {types: p5en.48xlarge, zones: us-west-2c, buy: {capacity-block: cr-0123456789abcdef0}, by: karpenter, efa: on, size: 0..2}
  held: {types: p5.48xlarge, zones: us-west-2a, buy: [{reserve: 2}, on-demand], by: karpenter, placement_group: cluster, size: 0..4}
  close: {types: g6e.12xlarge, zones: us-west-2a, by: karpenter, placement_group: cluster, size: 0..2}
  rocket: {types: g6e.2xlarge, os: bottlerocket, size: 0..4}
  own: {types: g6e.2xlarge, ami: ami-0123456789abcdef0, images: {snapshot: snap-0123456789abcdef0}, size: 0..4}
tags: {team: serving}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return load(file, Fleet).value


def get_manifests(fleet: Fleet, pool: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Class and NodePool of the first group of a pool."""
    group = get_first_group(fleet, pool)
    return karpenter_manifests.build_node_class(fleet, group), karpenter_manifests.build_node_pool(group)


def get_first_group(fleet: Fleet, pool: str) -> Group:
    return next(group for group in resolve_all(fleet) if group.pool == pool)


def require_crds() -> None:
    if not CRDS.is_dir():
        pytest.skip(f"Karpenter's CRDs are not at {CRDS}: copy them there from its release")


@functools.cache
def build_validator(kind: str) -> Any:
    require_crds()
    group = "karpenter.k8s.aws" if kind == "EC2NodeClass" else "karpenter.sh"
    file = f"{group}_{kind.lower()}{'es' if kind.endswith('s') else 's'}"
    [version] = yaml.load((CRDS / f"{file}.yaml").read_text(), yaml.CSafeLoader)["spec"]["versions"]
    return jsonschema.Draft202012Validator(close_schema(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def close_schema(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server drops them with a warning alone."""
    if isinstance(schema, list):
        return [close_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {key: close_schema(value) for key, value in schema.items()}
    if (
        "properties" in closed_schema
        and isinstance(closed_schema["properties"], dict)
        and "additionalProperties" not in closed_schema
    ):
        closed_schema["additionalProperties"] = False
    return closed_schema


@pytest.mark.parametrize("file", FLEETS, ids=lambda file: file.stem)
def test_the_manifests_of_every_example_match_karpenters_schemas(file: Path) -> None:
    fleet = load(file, Fleet).value
    for manifest in karpenter_manifests.build(fleet):
        build_validator(manifest["kind"]).validate(manifest["spec"])


def test_every_field_matches_karpenters_schemas(fleet: Fleet) -> None:
    manifests = karpenter_manifests.build(fleet)
    assert Counter(entry["kind"] for entry in manifests) == {"EC2NodeClass": 10, "NodePool": 10, "NodeOverlay": 1}
    for manifest in manifests:
        build_validator(manifest["kind"]).validate(manifest["spec"])


def test_a_field_unknown_to_karpenter_is_reported(fleet: Fleet) -> None:
    invalid = copy.deepcopy(get_manifests(fleet, "general")[0]["spec"])
    invalid["metadataOptions"]["httpToken"] = "required"
    with pytest.raises(jsonschema.ValidationError, match="httpToken"):
        build_validator("EC2NodeClass").validate(invalid)


@pytest.fixture
def karpenter_cluster(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with Karpenter's kinds, which stay: what asks for them comes last."""
    require_crds()
    add_kinds(control_plane, CRDS)
    return control_plane


def test_a_real_api_server_validates_the_manifests_of_every_example_by_karpenters_rules(
    karpenter_cluster: ControlPlane, fleet: Fleet
) -> None:
    for example in [*(load(file, Fleet).value for file in FLEETS), fleet]:
        assert (manifests := karpenter_manifests.build(example)) == [] or karpenter_cluster.find_errors(manifests) == []
    invalid = copy.deepcopy(get_manifests(fleet, "general")[0])
    invalid["spec"]["amiSelectorTerms"].append({"id": "ami-0123456789abcdef0"})
    [error] = karpenter_cluster.find_errors([invalid])
    assert "'alias' is mutually exclusive" in error, "a rule between fields, which no schema alone would see"


def test_preferred_groups_weigh_more_and_each_is_bounded(fleet: Fleet) -> None:
    pools = [manifest for manifest in karpenter_manifests.build(fleet) if manifest["kind"] == "NodePool"]
    general = [manifest["spec"] for manifest in pools if manifest["metadata"]["name"].startswith("general-")]
    assert [manifest["weight"] for manifest in general] == [100, 99, 98, 97]
    assert [manifest["limits"] for manifest in general[:1]] == [{"nodes": "10", "nvidia.com/gpu": "40"}]
    assert all(int(manifest["spec"]["limits"]["nodes"]) > 0 for manifest in pools)


def test_reserved_capacity_is_selected_by_id(fleet: Fleet) -> None:
    node_class, node_pool = get_manifests(fleet, "block")
    assert node_class["spec"]["capacityReservationSelectorTerms"] == [{"id": "cr-0123456789abcdef0"}]
    template = node_pool["spec"]["template"]["spec"]
    requirements = {requirement["key"]: requirement["values"] for requirement in template["requirements"]}
    assert requirements["karpenter.sh/capacity-type"] == ["reserved"]
    assert requirements["topology.kubernetes.io/zone"] == ["us-west-2c"]


def test_the_fleets_own_reservation_is_selected_by_tags_and_limits_its_pool(fleet: Fleet) -> None:
    node_class, node_pool = get_manifests(fleet, "held")
    assert node_class["spec"]["capacityReservationSelectorTerms"] == [
        {"tags": {"fleet": "demo", "Name": "reserved-demo-held-p5-a-cr"}}
    ]
    assert node_class["spec"]["placementGroupSelector"] == {"name": "demo-held-a"}
    assert node_pool["spec"]["limits"] == {"nodes": "2", "nvidia.com/gpu": "16"}


def test_no_node_ends_by_its_age_since_all_of_one_age_would_end_at_once(fleet: Fleet) -> None:
    pools = [manifest["spec"] for manifest in karpenter_manifests.build(fleet) if manifest["kind"] == "NodePool"]
    # Left out, the schema's default is 720h.
    assert {pool["template"]["spec"].get("expireAfter") for pool in pools} == {"Never"}
    # What replaces nodes has a budget.
    drifted = [
        budget["nodes"] for pool in pools for budget in pool["disruption"]["budgets"] if "Drifted" in budget["reasons"]
    ]
    assert drifted == ["1"] * len(pools)


def test_efa_nodes_request_the_catalogs_interfaces_and_efas_security_group(fleet: Fleet) -> None:
    spec = get_manifests(fleet, "block")[0]["spec"]
    assert [(interface["networkCardIndex"], interface["deviceIndex"]) for interface in spec["networkInterfaces"]] == [
        (interface.card, interface.device) for interface in get_first_group(fleet, "block").interfaces
    ]
    assert sum(interface["interfaceType"] == "efa-only" for interface in spec["networkInterfaces"]) == 16
    assert {"tags": {"fleet": "demo", "Name": names.format_efa_group_name("demo", "eks")}} in spec[
        "securityGroupSelectorTerms"
    ]
    assert "networkInterfaces" not in get_manifests(fleet, "general")[0]["spec"]


def test_karpenter_starts_nodes_for_pods_that_ask_for_the_huge_pages_of_efa(fleet: Fleet) -> None:
    """It knows no type's: kubernetes-sigs/karpenter v1.14.1 reads them of overlays alone, behind a feature gate."""
    [overlay] = [manifest for manifest in karpenter_manifests.build(fleet) if manifest["kind"] == "NodeOverlay"]
    [requirement] = overlay["spec"]["requirements"]
    assert requirement["values"] == [get_first_group(fleet, "block").name]
    assert overlay["spec"]["capacity"] == {"hugepages-2Mi": "10256Mi"}
    without = fleet.model_copy(update={"pools": {name: pool for name, pool in fleet.pools.items() if name != "block"}})
    gates = [
        step.values["settings"]["featureGates"]["nodeOverlay"]
        for entry in (fleet, without)
        for step in add_ons.select_add_ons(entry)
        if step.add_on.name == "karpenter"
    ]
    assert gates == [True, False]


def test_only_the_machine_reads_its_metadata_and_volumes_are_encrypted(fleet: Fleet) -> None:
    for manifest in karpenter_manifests.build(fleet):
        if manifest["kind"] == "EC2NodeClass":
            assert manifest["spec"]["metadataOptions"]["httpTokens"] == "required"
            assert manifest["spec"]["metadataOptions"]["httpPutResponseHopLimit"] == 1
            assert all(volume["ebs"]["encrypted"] for volume in manifest["spec"]["blockDeviceMappings"])


def test_images_are_pinned_and_pulled_in_parallel_by_soci(fleet: Fleet) -> None:
    general, rocket, custom = (get_manifests(fleet, pool)[0]["spec"] for pool in ("general", "rocket", "own"))
    assert general["amiSelectorTerms"] == [{"alias": "al2023@v20261107"}]
    assert "FastImagePull: true" in general["userData"] and general["instanceStorePolicy"] == "RAID0"
    assert rocket["amiSelectorTerms"] == [{"alias": "bottlerocket@v1.64.0"}]
    assert '"pull-mode" = "parallel-pull-unpack"' in rocket["userData"]
    assert custom["amiSelectorTerms"] == [{"id": "ami-0123456789abcdef0"}] and custom["amiFamily"] == "AL2023"
    assert custom["blockDeviceMappings"][1]["ebs"]["snapshotID"] == "snap-0123456789abcdef0"


def test_a_placement_group_is_selected_by_its_name_in_the_stack(fleet: Fleet) -> None:
    assert get_manifests(fleet, "close")[0]["spec"]["placementGroupSelector"] == {"name": "demo-close-a"}
