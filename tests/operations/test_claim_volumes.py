from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import claim_volumes
from llm_serving.operations.claim_volumes import ClaimVolume
from llm_serving.operations.context import FleetContext
from llm_serving.settings.document import load
from llm_serving.tables import fleet_plan_table
from tests.operations.test_destroy import FLEET, NON_EMPTY, build_plan, context

REGION = "us-west-2"
DRIVER = {"ebs.csi.aws.com/cluster": "true", "kubernetes.io/created-for/pvc/namespace": "serving"}

__all__ = ["context"]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "small.yaml"
    file.write_text(FLEET)
    return load(file, Fleet).value


def _create_volume(**tags: str) -> str:
    ec2 = AwsSession(REGION).client("ec2")
    specification = {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    volume = ec2.create_volume(AvailabilityZone="us-west-2a", Size=80, TagSpecifications=[specification])
    return str(volume["VolumeId"])


@pytest.fixture
def others(aws: str) -> Iterator[list[str]]:
    """A node's own disk, and a claim's volume of another fleet."""
    ids = [_create_volume(fleet="small"), _create_volume(fleet="large", **DRIVER)]
    yield ids
    for volume in ids:
        AwsSession(REGION).client("ec2").delete_volume(VolumeId=volume)


def test_volumes_of_claims_are_found_by_the_tags_that_the_driver_gives_them_and_no_other(
    others: list[str], fleet: Fleet
) -> None:
    volume = _create_volume(fleet="small", **DRIVER, **{"kubernetes.io/created-for/pvc/name": "cache"})
    assert volume not in others
    volumes = claim_volumes.find(AwsSession(REGION), fleet)
    assert volumes == [ClaimVolume(volume, 80, "serving/cache")]
    claim_volumes.delete(AwsSession(REGION), volumes)
    assert claim_volumes.find(AwsSession(REGION), fleet) == []


def _render(context: FleetContext, *, with_data: bool, stores: bool = True) -> str:
    volumes = (ClaimVolume("vol-1", 80, "serving/cache"),)
    plan = build_plan(context, non_empty=NON_EMPTY if stores else [], volumes=volumes, with_data=with_data)
    output = Console(width=200, record=True)
    output.print(fleet_plan_table.render_destroy_plan(plan), fleet_plan_table.render_destroy_summary(plan))
    return output.export_text()


def test_a_destroy_names_the_volumes_that_it_keeps_and_how_to_delete_them(context: FleetContext) -> None:
    rendered = _render(context, with_data=False)
    assert "kept  volume vol-1: 80 GiB of the claim serving/cache" in rendered
    kept = "Kept: the stack storage with small-models and 1 volume of claims, which cost. To delete it too: blueprint"
    assert rendered.count(kept) == 2
    assert "Kept: 1 volume of claims, which cost." in _render(context, with_data=False, stores=False)


def test_a_destroy_with_data_deletes_the_volumes(context: FleetContext) -> None:
    rendered = _render(context, with_data=True)
    assert "permanently deleted  volume vol-1: 80 GiB of the claim serving/cache" in rendered
    assert "volumes 1; no instances are running." in rendered and "Kept" not in rendered


def test_volumes_that_an_earlier_destroy_kept_are_no_empty_plan_with_data(context: FleetContext) -> None:
    volumes = (ClaimVolume("vol-1", 80, "serving/cache"),)
    for with_data, is_empty in ((True, False), (False, True)):
        plan = build_plan(context, volumes=volumes, with_data=with_data)
        assert type(plan)(**{**vars(plan), "states": {}}).is_empty is is_empty
