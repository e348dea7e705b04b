"""EKS's versions, AMIs and add-ons: what is pinned in `eks.yaml`, and until when it is looked after."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

_DATA = own_yaml.read(Path(__file__).with_name("eks.yaml"))

END_OF_STANDARD_SUPPORT: Mapping[str, date] = _DATA["end_of_standard_support"]
"""Day from which a version costs six times as much."""

SUPPORT_WARNING_DAYS = 90
"""An end of support that near is warned of: an upgrade of the control plane and its nodes takes planning."""

AL2023: str = _DATA["al2023"]
"""Release of the EKS AMI for Amazon Linux 2023."""

BOTTLEROCKET: str = _DATA["bottlerocket"]
REGISTRY_ACCOUNTS: Mapping[str, str] = {
    region: account for account, regions in _DATA["registries"].items() for region in regions
}
"""Accounts of EKS's own images by region; interface endpoints reach no other region's."""


def read_today() -> date:
    """Return the day that tells which versions are in standard support."""
    return date.today()


def is_extended(version: str) -> bool:
    """Return whether a version's standard support is over."""
    return read_today() >= END_OF_STANDARD_SUPPORT[version]


def describe_support(version: str) -> tuple[str, bool]:
    """Return until when EKS looks after a version at the usual price, in words; and whether that is over or soon."""
    end = END_OF_STANDARD_SUPPORT[version]
    days = (end - read_today()).days
    price = "the cluster costs 0.60 instead of 0.10 USD/h"
    if days <= 0:
        return f"Kubernetes {version}: standard support ended on {end}, and {price}", True
    time_left = "in 1 day" if days == 1 else f"in {days} days"
    return (
        f"Kubernetes {version}: standard support ends on {end}, {time_left}; then {price}",
        days <= SUPPORT_WARNING_DAYS,
    )


Os = Literal["al2023", "bottlerocket"]
Variant = Literal["nvidia", "neuron", "standard"]
Arch = Literal["x86_64", "arm64"]


def format_image_parameter(*, os: Os, release: str, version: str, variant: Variant, arch: Arch) -> str:
    """Return name of AWS's public SSM parameter that holds the id of one pinned AMI, in any region.

    Source: EKS user guide, "Retrieve recommended Amazon Linux AMI IDs" and "... Bottlerocket AMI IDs", 2026-11.
    """
    if os == "bottlerocket":
        # The standard variant carries the Neuron driver.
        flavour = f"aws-k8s-{version}{'-nvidia' if variant == 'nvidia' else ''}"
        return f"/aws/service/bottlerocket/{flavour}/{arch}/{release}/image_id"
    name = f"amazon-eks-node-al2023-{arch}-{variant}-{version}-{release}"
    return f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{arch}/{variant}/{name}/image_id"


CsiDriver = Literal["efs", "fsx", "s3"]
"""Drivers of volumes that not every cluster has: each runs on every node and has a role of its own."""


class AddOn(PlainData):
    """One EKS add-on."""

    name: str

    versions: Mapping[str, str]
    """By Kubernetes version."""

    before_nodes: bool = False
    """Whether nodes need it to join; the others need nodes to run on, and are made after the system's."""

    service_account: str | None = None
    """The one of its service accounts, in kube-system, that calls AWS."""

    configuration: Mapping[str, Any] | None = None
    """Values in place of the add-on's defaults; the string {tags} becomes the fleet's tags. EKS refuses a key that the
    version's own schema does not have."""

    csi_driver: CsiDriver | None = None
    """Where a fleet asks for it, its name in `eks.csi_drivers`; None is in every cluster."""


def _build_add_on(row: Mapping[str, Any]) -> AddOn:
    """Build an add-on of a row, which has one version for all of Kubernetes, or one for each."""
    versions = row["versions"]
    by_version = versions if isinstance(versions, dict) else dict.fromkeys(END_OF_STANDARD_SUPPORT, versions)
    return AddOn.model_validate({**row, "versions": by_version})


ADD_ONS = tuple(map(_build_add_on, _DATA["add_ons"]))
"""In the order to make them in."""
