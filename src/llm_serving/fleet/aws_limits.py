"""Limits of AWS, checked before anything is created: each mistake has its line in the fleet file and a fix."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.fleet import addresses
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings.document import Conflict, Document
from llm_serving.settings.errors import Mistake

MAX_BUCKET_NAME_LENGTH = 63
"""Most characters of a bucket's name. Source: S3 user guide, "Bucket naming rules", 2026-11."""

MIN_EKS_ZONES = 2
"""Zones with a subnet of the cluster's. Source: EKS API reference, VpcConfigRequest, subnetIds, 2026-11."""

HEALTH_START_S, HEALTH_RETRIES, HEALTH_INTERVAL_S = 300, 10, 300
"""Most of a container's health check on ECS. Source: ECS API reference, HealthCheck, 2026-11."""

TASK_START_S = HEALTH_START_S + HEALTH_RETRIES * HEALTH_INTERVAL_S
"""Longest start of a container on ECS: one that has not answered by then is ended."""

INSTANCE_START_S = 900
"""Longest time until a new instance runs a container: it boots, joins its cluster and pulls an image of several GB."""

_DAY_S = 86400.0
_ACCOUNT_DIGITS = 12


def convert_to_days(seconds: float) -> int:
    """Return a length of time in days; the fleet file takes whole days only."""
    return round(seconds / _DAY_S)


def build_bucket_name(fleet: str, purpose: str, account: str, region: str) -> str:
    """Return a name that no other account's bucket has, and the same every time."""
    return f"{fleet}-{purpose}-{account}-{region}"


def find_mistakes(document: Document[Fleet]) -> list[Mistake]:
    """Return every field of the fleet that AWS would refuse."""
    fleet = document.value
    return document.locate((*_check_names(fleet), *_check_cluster_zones(fleet), *_check_network(fleet)))


def _check_names(fleet: Fleet) -> Iterator[Conflict]:
    if fleet.name.startswith("sg-"):  # source: EC2 API reference, CreateSecurityGroup, GroupName, 2026-11
        reason = "security groups would have names that begin with it, and EC2 takes none that begins with sg-"
        yield Conflict(("name",), reason, "use another name", fleet.name)
    length = len(build_bucket_name(fleet.name, "results", "0" * _ACCOUNT_DIGITS, fleet.region))
    if length > MAX_BUCKET_NAME_LENGTH:
        reason = f"in {fleet.region} the results bucket's name would have {length} characters, "
        reason += f"and S3 takes {MAX_BUCKET_NAME_LENGTH}"
        fix = f"use a name of at most {len(fleet.name) - (length - MAX_BUCKET_NAME_LENGTH)} characters"
        yield Conflict(("name",), reason, fix, fleet.name)


def _check_cluster_zones(fleet: Fleet) -> Iterator[Conflict]:
    if fleet.creates_eks and len(fleet.zones) < MIN_EKS_ZONES:
        zone = fleet.zones[0]
        neighbour = f"{fleet.region}{'b' if zone[-1] == 'a' else 'a'}"
        reason = f"EKS takes subnets in {MIN_EKS_ZONES} zones or more for a cluster; a pool may be in one of them"
        fix = f"set zones: [{', '.join(sorted((zone, neighbour)))}], and zones: {zone} in the pools that stay in it"
        yield Conflict(("zones",), reason, fix, list(fleet.zones))


def _check_network(fleet: Fleet) -> Iterator[Conflict]:
    for index, zone in enumerate(fleet.zones if isinstance(fleet.network, NewNetwork) else ()):
        if zone[-1] not in addresses.LETTERS:
            reason = f"the address plan covers the zones {addresses.LETTERS[0]} to {addresses.LETTERS[-1]}"
            fix = "use another zone of the region, or a network of your own: {vpc: vpc-..., private_subnets: [...]}"
            yield Conflict(("zones", index), reason, fix, zone)
