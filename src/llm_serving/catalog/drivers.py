"""NVIDIA's driver in AWS's AMIs: the branch that each release has."""

from __future__ import annotations

from typing import Literal

Ami = Literal["eks-al2023", "eks-bottlerocket", "ecs-al2023"]

BRANCHES: dict[Ami, tuple[tuple[str, int], ...]] = {
    # For Kubernetes 1.34; 1.35 and 1.36 came later. github.com/awslabs/amazon-eks-ami at 81fec2e, CHANGELOG.md,
    # kmod-nvidia-latest-dkms of each release: 580.159.03 in the last one that it has, v20260714.
    "eks-al2023": (("v20251023", 580), ("v20250915", 570)),
    # The variants for 1.34 and later had it from their first release on: github.com/bottlerocket-os/
    # bottlerocket-kernel-kit, issue 254, 2026-01-29.
    "eks-bottlerocket": (("", 580),),
    # github.com/aws/amazon-ecs-ami, NVIDIA_DRIVER_VERSION: 580.65.06 at 40879b3, 2025-10-07, the release after which is
    # this one; 570.133.20 before. 580.159.03 at a2532d3, 2026-08-19.
    "ecs-al2023": (("2023.0.20251015", 580), ("", 570)),
}
"""By AMI: the first release with a branch, and the branch, the newest first."""


def find_branch(ami: Ami, release: str) -> int:
    """Return the branch of the driver in a release, such as 580; 0 for a release older than all that are known."""
    return next((branch for first_release, branch in BRANCHES[ami] if release >= first_release), 0)


def find_first_release(ami: Ami, branch: int) -> str:
    """Return the first release with this branch or a newer one."""
    return min(first_release for first_release, known_branch in BRANCHES[ami] if known_branch >= branch)
