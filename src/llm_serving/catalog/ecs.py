"""ECS's pinned AMIs, and its limits. A newer AMI is a change of this file."""

from __future__ import annotations

from llm_serving.catalog.eks import Arch, Variant

AL2023 = "2023.0.20260918"
"""Release of the ECS AMI for Amazon Linux 2023, of all its variants.

Source: github.com/aws/amazon-ecs-ami, CHANGELOG.md, 2026-09-18.
"""

MAX_STOP_S = 120
"""Longest that Fargate waits between asking a container to stop and killing it.

Source: ECS API reference, ContainerDefinition, stopTimeout, 2026-11.
"""

MAX_TASKS = 1000
"""Most tasks that register with one discovery service, which a role's choices share.

Source: ECS developer guide, "Use service discovery to connect Amazon ECS services with DNS names", considerations,
2026-11.
"""

_KERNEL = "kernel-6.1"


def format_image_parameter(*, release: str, variant: Variant, arch: Arch) -> str:
    """Return the name of AWS's public SSM parameter that holds the id of one pinned AMI, in any region.

    The variants with accelerators are there for x86_64 only.

    Source: ECS developer guide, "Retrieving Amazon ECS-optimized Linux AMI metadata"; the AMIs' names from
    github.com/aws/amazon-ecs-ami, al2023*.pkr.hcl; 2026-11.
    """
    folder, name = {
        "nvidia": ("gpu/", f"al2023-ami-ecs-gpu-hvm-{release}-{_KERNEL}-{arch}-ebs"),
        "neuron": ("neuron/", f"al2023-ami-ecs-neuron-hvm-{release}-{_KERNEL}-{arch}"),
        "standard": ("arm64/" if arch == "arm64" else "", f"al2023-ami-ecs-hvm-{release}-{_KERNEL}-{arch}"),
    }[variant]
    return f"/aws/service/ecs/optimized-ami/amazon-linux-2023/{folder}{name}/image_id"
