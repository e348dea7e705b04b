from __future__ import annotations

from datetime import date
from typing import get_args

import botocore.session
import pytest

from llm_serving.catalog import eks
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet.model import Eks

VERSIONS = get_args(Eks.model_fields["version"].annotation)


def test_every_version_that_a_fleet_may_name_has_an_end_of_support_and_every_add_on() -> None:
    assert tuple(eks.END_OF_STANDARD_SUPPORT) == VERSIONS
    for row in eks.ADD_ONS:
        assert tuple(row.versions) == VERSIONS, row.name
        assert all(version.startswith("v") and "-eksbuild." in version for version in row.versions.values())


def test_a_later_version_is_supported_longer() -> None:
    dates = list(eks.END_OF_STANDARD_SUPPORT.values())
    assert dates == sorted(dates)
    assert dates[0] > date(2025, 1, 1)


@pytest.mark.parametrize(
    ("day", "message", "soon"),
    [
        (date(2026, 11, 21), "standard support ends on 2027-03-27, in 126 days; then the cluster", False),
        (date(2027, 3, 26), "standard support ends on 2027-03-27, in 1 day; then the cluster", True),
        (date(2027, 3, 27), "standard support ended on 2027-03-27, and the cluster", True),
    ],
)
def test_the_end_of_support_has_the_days_left_and_the_cost(
    monkeypatch: pytest.MonkeyPatch, day: date, message: str, soon: bool
) -> None:
    monkeypatch.setattr(eks, "read_today", lambda: day)
    expected = f"Kubernetes 1.35: {message} costs 0.60 instead of 0.10 USD/h"
    assert eks.describe_support("1.35") == (expected, soon)


def test_nodes_join_only_with_the_network_the_proxy_and_the_identity_agent() -> None:
    assert [row.name for row in eks.ADD_ONS if row.before_nodes] == ["vpc-cni", "kube-proxy", "eks-pod-identity-agent"]


@pytest.mark.parametrize(
    ("os", "variant", "arch", "name"),
    [
        (
            "al2023",
            "nvidia",
            "x86_64",
            "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/nvidia/amazon-eks-node-al2023-x86_64-nvidia-1.35-v1/image_id",
        ),
        (
            "al2023",
            "standard",
            "arm64",
            "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/arm64/standard/amazon-eks-node-al2023-arm64-standard-1.35-v1/image_id",
        ),
        ("bottlerocket", "nvidia", "x86_64", "/aws/service/bottlerocket/aws-k8s-1.35-nvidia/x86_64/v1/image_id"),
        ("bottlerocket", "neuron", "x86_64", "/aws/service/bottlerocket/aws-k8s-1.35/x86_64/v1/image_id"),
    ],
)
def test_an_images_parameter_has_the_name_that_aws_publishes(
    os: eks.Os, variant: eks.Variant, arch: eks.Arch, name: str
) -> None:
    assert eks.format_image_parameter(os=os, release="v1", version="1.35", variant=variant, arch=arch) == name


PARTITIONS = ("aws", "aws-cn", "aws-us-gov")
"""Those that have AWS's provider of Terraform, and this project's other services; the rest are closed to the public."""


def test_every_region_with_eks_has_the_registry_of_its_images() -> None:
    session = botocore.session.get_session()
    regions = {region for partition in PARTITIONS for region in session.get_available_regions("eks", partition)}
    assert len(regions) > 35
    assert set(eks.REGISTRY_ACCOUNTS) == regions


@pytest.mark.parametrize("partition", PARTITIONS)
def test_registries_have_the_domain_of_their_partition(partition: str) -> None:
    session = botocore.session.get_session()
    region = next(region for region in eks.REGISTRY_ACCOUNTS if session.get_partition_for_region(region) == partition)
    suffix = session.create_client("ecr", region).meta.endpoint_url.partition(f"{region}.")[2]
    assert format_registry("123456789012", region) == f"123456789012.dkr.ecr.{region}.{suffix}"
