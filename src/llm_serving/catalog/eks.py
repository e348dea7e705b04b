"""EKS's versions, AMIs and add-ons: what is pinned, and until when it is looked after.

A pin is a promise that the same fleet file makes the same cluster tomorrow. A newer one is a change of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

END_OF_STANDARD_SUPPORT: Mapping[str, date] = {
    "1.34": date(2026, 12, 2),
    "1.35": date(2027, 3, 27),
    "1.36": date(2027, 8, 2),
}
"""Day from which a version costs six times as much: 0.60 instead of 0.10 USD an hour and cluster.

Source: EKS user guide, "Amazon EKS Kubernetes release calendar", as read for 1.34 itself, and as quoted by
endoflife.date/amazon-eks (1.35, 2026-02) and by public upgrade runbooks (1.36, 2026-08).
"""

SUPPORT_WARNING_DAYS = 90
"""An end of support that near is warned of: an upgrade of the control plane and its nodes takes planning."""


def describe_support(version: str, today: date) -> tuple[str, bool]:
    """Return until when EKS looks after a version at the usual price, in words; and whether that is over or soon."""
    end = END_OF_STANDARD_SUPPORT[version]
    days = (end - today).days
    price = "the cluster costs 0.60 instead of 0.10 USD/h"
    if days <= 0:
        return f"Kubernetes {version}: standard support ended on {end}, and {price}", True
    remaining = "in 1 day" if days == 1 else f"in {days} days"
    return (
        f"Kubernetes {version}: standard support ends on {end}, {remaining}; then {price}",
        days <= SUPPORT_WARNING_DAYS,
    )


AL2023 = "v20261107"
"""Release of the EKS AMI for Amazon Linux 2023. v20260505 leaves nodes without their pause image
(awslabs/amazon-eks-ami#2710), v20260930 and v20261003 panic in their kernel (#2845).

Source: github.com/awslabs/amazon-eks-ami/releases/tag/v20261107, 2026-11-07.
"""

BOTTLEROCKET = "1.64.0"
"""Release of Bottlerocket; its variants are there for Kubernetes 1.33 to 1.36.

Source: github.com/aws/eks-anywhere/releases/tag/v0.26.1, 2026-08-13.
"""

_FIRST_REGISTRY = "602401143452"
REGISTRY_ACCOUNTS: Mapping[str, str] = {
    "ap-northeast-1": _FIRST_REGISTRY,
    "ap-northeast-2": _FIRST_REGISTRY,
    "ap-northeast-3": _FIRST_REGISTRY,
    "ap-south-1": _FIRST_REGISTRY,
    "ap-southeast-1": _FIRST_REGISTRY,
    "ap-southeast-2": _FIRST_REGISTRY,
    "ca-central-1": _FIRST_REGISTRY,
    "eu-central-1": _FIRST_REGISTRY,
    "eu-north-1": _FIRST_REGISTRY,
    "eu-west-1": _FIRST_REGISTRY,
    "eu-west-2": _FIRST_REGISTRY,
    "eu-west-3": _FIRST_REGISTRY,
    "sa-east-1": _FIRST_REGISTRY,
    "us-east-1": _FIRST_REGISTRY,
    "us-east-2": _FIRST_REGISTRY,
    "us-west-1": _FIRST_REGISTRY,
    "us-west-2": _FIRST_REGISTRY,
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-east-2": "533267051163",
    "ap-south-2": "900889452093",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-6": "333609536671",
    "ap-southeast-7": "121268973566",
    "ca-west-1": "761377655185",
    "cn-north-1": "918309763551",
    "cn-northwest-1": "961992271922",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "mx-central-1": "730335286997",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}
"""Accounts of EKS's own images by region; interface endpoints reach no other region's.

Sources, read 2026-11: awslabs/amazon-eks-ami, nodeadm/internal/aws/ecr/ecr.go, commit 167ff78; EKS user guide, "View
Amazon container image registries for Amazon EKS add-ons", for ap-east-2, ap-southeast-6, ap-southeast-7, mx-central-1.
"""


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

_SPREAD_OVER_ZONES = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


@dataclass(frozen=True)
class AddOn:
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


def _pin_all_versions(version: str) -> dict[str, str]:
    return dict.fromkeys(END_OF_STANDARD_SUPPORT, version)


ADD_ONS = (
    # zalando-incubator/kubernetes-on-aws#11667, 2026-07-15.
    AddOn(
        "vpc-cni",
        _pin_all_versions("v1.23.0-eksbuild.1"),
        before_nodes=True,
        service_account="aws-node",
        configuration={
            # Off by default, and then Kubernetes accepts every NetworkPolicy and nothing obeys it.
            "enableNetworkPolicy": "true",
            # A /28 at a time: pods start without waiting for EC2, and a node's cards take as many pods as its kubelet.
            "env": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
        },
    ),
    # Pinned in public clusters of each version: 1.34 with the CoreDNS below, as `describe-addon-versions` gave them on
    # 2026-09-20; 1.35 beside vpc-cni v1.23.0 and the CoreDNS below.
    AddOn(
        "kube-proxy",
        {"1.34": "v1.34.6-eksbuild.29", "1.35": "v1.35.3-eksbuild.21", "1.36": "v1.36.0-eksbuild.25"},
        before_nodes=True,
    ),
    # Seen pinned in public clusters of every version from 2026-04 on.
    AddOn("eks-pod-identity-agent", _pin_all_versions("v1.3.10-eksbuild.3"), before_nodes=True),
    # As kube-proxy; that of 1.36 beside kube-proxy v1.36.0-eksbuild.25, 2026-10.
    AddOn(
        "coredns",
        {"1.34": "v1.12.4-eksbuild.38", "1.35": "v1.14.3-eksbuild.14", "1.36": "v1.14.6-eksbuild.4"},
        # One replica a zone: a zone that is lost does not take the names along.
        configuration={"topologySpreadConstraints": [_SPREAD_OVER_ZONES]},
    ),
    # Seen pinned in public clusters of 1.34 and 1.35, 2026-07.
    AddOn(
        "aws-ebs-csi-driver",
        _pin_all_versions("v1.63.1-eksbuild.1"),
        service_account="ebs-csi-controller-sa",
        # Volumes of claims outlive the cluster: by the tag the budget counts them, and a destroy finds them.
        configuration={"controller": {"extraVolumeTags": "{tags}"}},
    ),
    # zalando-incubator/kubernetes-on-aws#11666, 2026-07-15.
    AddOn(
        "aws-efs-csi-driver",
        _pin_all_versions("v3.3.0-eksbuild.1"),
        service_account="efs-csi-controller-sa",
        csi_driver="efs",
    ),
    # Pinned in a public cluster of 1.35 in us-east-2, 2026. v1.7.0-eksbuild.1 is the least that AWS names for 2026:
    # awsdocs/amazon-eks-user-guide#1215.
    AddOn(
        "aws-fsx-csi-driver",
        _pin_all_versions("v1.9.0-eksbuild.1"),
        service_account="fsx-csi-controller-sa",
        csi_driver="fsx",
    ),
    # Pinned in three public configurations, beside eks-pod-identity-agent v1.3.10-eksbuild.3 and kube-proxy 1.34, 2026.
    # Of v2.6.0 no add-on was seen anywhere.
    AddOn(
        "aws-mountpoint-s3-csi-driver",
        _pin_all_versions("v2.5.0-eksbuild.1"),
        service_account="s3-csi-driver-sa",
        csi_driver="s3",
    ),
    # The default of 1.35 as a public cluster's notes have it, and pinned in others of 1.34 and 1.35, 2026-08.
    AddOn("metrics-server", _pin_all_versions("v0.9.0-eksbuild.7")),
    # zalando-incubator/kubernetes-on-aws#11470, 2026-06-22. It tells EKS which nodes to repair.
    AddOn(
        "eks-node-monitoring-agent",
        _pin_all_versions("v1.6.6-eksbuild.1"),
        # The agent tolerates every taint by itself, its DCGM server none. On a tainted GPU node without DCGM the agent
        # reports a broken GPU, and EKS replaces a healthy node. Source: aws/containers-roadmap#2567.
        configuration={"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}},
    ),
)
"""In the order to make them in. Public sources show where a version was seen; what EKS offers for a Kubernetes version
in a region, preflight asks (`llm_serving.aws.preflight.pins`)."""
