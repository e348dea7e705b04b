from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from llm_serving.catalog import instances
from llm_serving.fleet import karpenter_manifests, names
from llm_serving.fleet.groups import Group, groups
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


def by_pool(fleet: Fleet, pool: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Class and NodePool of the first group of a pool."""
    group = first(fleet, pool)
    return karpenter_manifests.node_class(fleet, group), karpenter_manifests.node_pool(group, instances.load())


def first(fleet: Fleet, pool: str) -> Group:
    return next(group for group in groups(fleet, instances.load()) if group.pool == pool)


def require_crds() -> None:
    if not CRDS.is_dir():
        pytest.skip(f"Karpenter's CRDs are not at {CRDS}: copy them there from its release")


def validator(kind: str) -> Any:
    require_crds()
    file = {"NodePool": "karpenter.sh_nodepools", "EC2NodeClass": "karpenter.k8s.aws_ec2nodeclasses"}[kind]
    [version] = yaml.safe_load((CRDS / f"{file}.yaml").read_text())["spec"]["versions"]
    return jsonschema.Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server drops them with a warning alone."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in made and isinstance(made["properties"], dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


@pytest.mark.parametrize("file", FLEETS, ids=lambda file: file.stem)
def test_the_manifests_of_every_example_agree_with_karpenters_own_schemas(file: Path) -> None:
    fleet = load(file, Fleet).value
    for manifest in karpenter_manifests.manifests(fleet, instances.load()):
        validator(manifest["kind"]).validate(manifest["spec"])


def test_every_field_agrees_with_karpenters_own_schemas(fleet: Fleet) -> None:
    made = karpenter_manifests.manifests(fleet, instances.load())
    assert [one["kind"] for one in made].count("NodePool") == len(made) / 2 == 10
    for manifest in made:
        validator(manifest["kind"]).validate(manifest["spec"])


def test_a_field_that_karpenter_does_not_know_is_caught(fleet: Fleet) -> None:
    wrong = copy.deepcopy(by_pool(fleet, "general")[0]["spec"])
    wrong["metadataOptions"]["httpToken"] = "required"
    with pytest.raises(jsonschema.ValidationError, match="httpToken"):
        validator("EC2NodeClass").validate(wrong)


@pytest.fixture
def karpenters(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with Karpenter's kinds, which stay: what asks for them comes last."""
    require_crds()
    add_kinds(control_plane, CRDS)
    return control_plane


def test_a_real_api_server_takes_the_manifests_of_every_example_and_holds_them_against_karpenters_rules(
    karpenters: ControlPlane, fleet: Fleet
) -> None:
    for one in [*(load(file, Fleet).value for file in FLEETS), fleet]:
        assert (made := karpenter_manifests.manifests(one, instances.load())) == [] or karpenters.against(made) == []
    wrong = copy.deepcopy(by_pool(fleet, "general")[0])
    wrong["spec"]["amiSelectorTerms"].append({"id": "ami-0123456789abcdef0"})
    [said] = karpenters.against([wrong])
    assert "'alias' is mutually exclusive" in said, "a rule between fields, which no schema alone would see"


def test_preferred_groups_weigh_more_and_each_is_bounded(fleet: Fleet) -> None:
    pools = [one for one in karpenter_manifests.manifests(fleet, instances.load()) if one["kind"] == "NodePool"]
    general = [one["spec"] for one in pools if one["metadata"]["name"].startswith("general-")]
    assert [one["weight"] for one in general] == [100, 99, 98, 97]
    assert [one["limits"] for one in general[:1]] == [{"nodes": "10", "nvidia.com/gpu": "40"}]
    assert all(int(one["spec"]["limits"]["nodes"]) > 0 for one in pools)


def test_reserved_capacity_is_asked_for_by_its_id_and_kept_to_its_end(fleet: Fleet) -> None:
    node_class, node_pool = by_pool(fleet, "block")
    assert node_class["spec"]["capacityReservationSelectorTerms"] == [{"id": "cr-0123456789abcdef0"}]
    template = node_pool["spec"]["template"]["spec"]
    wanted = {one["key"]: one["values"] for one in template["requirements"]}
    assert wanted["karpenter.sh/capacity-type"] == ["reserved"]
    assert wanted["topology.kubernetes.io/zone"] == ["us-west-2c"]
    assert template["expireAfter"] == "Never"


def test_a_reservation_of_the_fleets_own_is_found_by_its_tags_and_bounds_its_pool(fleet: Fleet) -> None:
    node_class, node_pool = by_pool(fleet, "held")
    assert node_class["spec"]["capacityReservationSelectorTerms"] == [
        {"tags": {"fleet": "demo", "Name": "reserved-demo-held-p5-a-cr"}}
    ]
    assert node_class["spec"]["placementGroupSelector"] == {"name": "demo-held-a"}
    assert node_pool["spec"]["limits"] == {"nodes": "2", "nvidia.com/gpu": "16"}
    assert node_pool["spec"]["template"]["spec"]["expireAfter"] == "Never"


def test_efa_nodes_ask_for_the_catalogues_interfaces_and_stand_in_efas_group(fleet: Fleet) -> None:
    spec = by_pool(fleet, "block")[0]["spec"]
    assert [(one["networkCardIndex"], one["deviceIndex"]) for one in spec["networkInterfaces"]] == [
        (one.card, one.device) for one in first(fleet, "block").interfaces
    ]
    assert sum(one["interfaceType"] == "efa-only" for one in spec["networkInterfaces"]) == 16
    assert {"tags": {"fleet": "demo", "Name": names.efa_group("demo", "eks")}} in spec["securityGroupSelectorTerms"]
    assert "networkInterfaces" not in by_pool(fleet, "general")[0]["spec"]


def test_metadata_is_for_the_machine_alone_and_volumes_are_encrypted(fleet: Fleet) -> None:
    for one in karpenter_manifests.manifests(fleet, instances.load()):
        if one["kind"] == "EC2NodeClass":
            assert one["spec"]["metadataOptions"]["httpTokens"] == "required"
            assert one["spec"]["metadataOptions"]["httpPutResponseHopLimit"] == 1
            assert all(volume["ebs"]["encrypted"] for volume in one["spec"]["blockDeviceMappings"])


def test_images_are_pinned_and_start_by_socis_parallel_pull(fleet: Fleet) -> None:
    general, rocket, own = (by_pool(fleet, pool)[0]["spec"] for pool in ("general", "rocket", "own"))
    assert general["amiSelectorTerms"] == [{"alias": "al2023@v20261107"}]
    assert "FastImagePull: true" in general["userData"] and general["instanceStorePolicy"] == "RAID0"
    assert rocket["amiSelectorTerms"] == [{"alias": "bottlerocket@v1.64.0"}]
    assert '"pull-mode" = "parallel-pull-unpack"' in rocket["userData"]
    assert own["amiSelectorTerms"] == [{"id": "ami-0123456789abcdef0"}] and own["amiFamily"] == "AL2023"
    assert own["blockDeviceMappings"][1]["ebs"]["snapshotID"] == "snap-0123456789abcdef0"


def test_a_placement_group_is_found_by_the_name_that_the_stack_gives_it(fleet: Fleet) -> None:
    assert by_pool(fleet, "close")[0]["spec"]["placementGroupSelector"] == {"name": "demo-close-a"}
