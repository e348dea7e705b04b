"""EBS volumes of Kubernetes' claims. Nothing in Terraform's state has them, and they outlive the cluster.

The driver's add-on gives them the fleet's tags. Source: aws-ebs-csi-driver v1.63.1, docs/tagging.md and
pkg/driver/constants.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.settings.units import format_count

_DRIVER_TAG = "ebs.csi.aws.com/cluster"
"""The driver's own, on all volumes that it creates; nodes' own disks lack it."""

_CLAIM_TAGS = ("kubernetes.io/created-for/pvc/namespace", "kubernetes.io/created-for/pvc/name")


@dataclass(frozen=True)
class ClaimVolume:
    id: str
    gib: int
    claim: str
    """NAMESPACE/NAME of the claim that it was created for."""

    @property
    def summary(self) -> str:
        return f"{self.gib:,} GiB of the claim {self.claim}"


def find(aws: AwsSession, fleet: Fleet) -> list[ClaimVolume]:
    """Return the fleet's volumes of claims."""
    filters = [{"Name": "tag:fleet", "Values": [fleet.name]}, {"Name": "tag-key", "Values": [_DRIVER_TAG]}]
    with session.translate_errors():
        return list(
            map(_parse_volume, session.list_all(aws.client("ec2"), "describe_volumes", "Volumes", Filters=filters))
        )


def _parse_volume(volume: Mapping[str, Any]) -> ClaimVolume:
    tags = {tag["Key"]: tag["Value"] for tag in volume.get("Tags", ())}
    return ClaimVolume(volume["VolumeId"], volume["Size"], "/".join(tags.get(key, "?") for key in _CLAIM_TAGS))


def delete(aws: AwsSession, volumes: Sequence[ClaimVolume]) -> None:
    """Delete the volumes, once the instances that they were attached to are gone."""
    if not volumes:
        return
    with console.step(f"Delete {format_count(len(volumes), 'volume')} of claims"), session.translate_errors():
        ec2 = aws.client("ec2")
        ec2.get_waiter("volume_available").wait(VolumeIds=[volume.id for volume in volumes])
        for volume in volumes:
            ec2.delete_volume(VolumeId=volume.id)
