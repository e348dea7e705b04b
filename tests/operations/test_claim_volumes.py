from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import claim_volumes
from llm_serving.operations.claim_volumes import ClaimVolume
from llm_serving.settings.document import load
from tests.operations.conftest import SMALL_FLEET

REGION = "us-west-2"
DRIVER = {"ebs.csi.aws.com/cluster": "true", "kubernetes.io/created-for/pvc/namespace": "serving"}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL_FLEET)
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
