"""The AMIs of a fleet's groups, by the SSM parameters that AWS publishes each pinned release under."""

from __future__ import annotations

from dataclasses import dataclass

from llm_serving.catalog import ecs, eks
from llm_serving.catalog.drivers import Ami
from llm_serving.fleet.groups import Group, resolve_all
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.fleet.system_group import build_system_group


@dataclass(frozen=True)
class Release:
    """The release of an AMI that a fleet pins, or takes by default."""

    ami: Ami

    name: str
    """As AWS names it: v20261107, 2023.0.20260918 or 1.64.0."""

    key_path: tuple[str, str]
    """The fleet's key that pins another one."""

    disk: str
    """Where it mounts the NVMe disks, as one: a folder that is on the root volume of a node without. Source of
    Bottlerocket's: bottlerocket-core-kit a10182f, sources/api/apiserver/src/server/ephemeral_storage.rs."""


def find_release(fleet: Fleet, orchestrator: Orchestrator, os: eks.Os) -> Release:
    """Return the release of the AMI with this operating system; on ECS there is Amazon Linux 2023 only."""
    if orchestrator == "ecs":
        return Release("ecs-al2023", fleet.ecs.al2023 or ecs.AL2023, ("ecs", "al2023"), "/mnt/instance-store")
    if os == "bottlerocket":
        name = fleet.eks.bottlerocket or eks.BOTTLEROCKET
        return Release("eks-bottlerocket", name, ("eks", "bottlerocket"), "/mnt/.ephemeral")
    return Release("eks-al2023", fleet.eks.al2023 or eks.AL2023, ("eks", "al2023"), "/mnt/k8s-disks/0")


def format_parameter(fleet: Fleet, group: Group) -> str:
    """Return the name of the SSM parameter of the group's pinned AMI."""
    release = find_release(fleet, group.orchestrator, group.os).name
    if group.orchestrator == "ecs":
        return ecs.format_image_parameter(release=release, variant=group.variant, arch=group.arch)
    return eks.format_image_parameter(
        os=group.os, release=release, version=fleet.eks.version, variant=group.variant, arch=group.arch
    )


def list_parameters(fleet: Fleet) -> dict[str, Group]:
    """Return the parameters of all AMIs that the fleet starts instances from, each with the first group that takes it.

    Groups with an AMI of the user's own have none.
    """
    groups = list(resolve_all(fleet))
    if fleet.creates_eks:
        groups.insert(0, build_system_group(fleet))
    parameters: dict[str, Group] = {}
    for group in groups:
        if not group.ami:
            parameters.setdefault(format_parameter(fleet, group), group)
    return parameters
