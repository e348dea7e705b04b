from __future__ import annotations

import pytest

from llm_serving.catalog import ecs


@pytest.mark.parametrize(
    ("variant", "arch", "name"),
    [
        ("nvidia", "x86_64", "gpu/al2023-ami-ecs-gpu-hvm-2023.0.20260901-kernel-6.1-x86_64-ebs"),
        ("neuron", "x86_64", "neuron/al2023-ami-ecs-neuron-hvm-2023.0.20260901-kernel-6.1-x86_64"),
        ("standard", "x86_64", "al2023-ami-ecs-hvm-2023.0.20260901-kernel-6.1-x86_64"),
        ("standard", "arm64", "arm64/al2023-ami-ecs-hvm-2023.0.20260901-kernel-6.1-arm64"),
    ],
)
def test_a_pinned_image_has_awss_name(variant: ecs.Variant, arch: ecs.Arch, name: str) -> None:
    parameter = ecs.format_image_parameter(release="2023.0.20260901", variant=variant, arch=arch)
    assert parameter == f"/aws/service/ecs/optimized-ami/amazon-linux-2023/{name}/image_id"


def test_the_pin_is_a_release_that_a_fleet_file_could_name() -> None:
    from llm_serving.fleet.model import Ecs

    assert Ecs(al2023=ecs.AL2023).al2023 == ecs.AL2023
