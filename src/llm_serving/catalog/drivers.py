"""Drivers in AWS's AMIs: of each release NVIDIA's branch, and the minor of Neuron's driver 2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

Ami = Literal["eks-al2023", "eks-bottlerocket", "ecs-al2023"]
Maker = Literal["NVIDIA", "Neuron"]

_NVIDIA: dict[Ami, tuple[tuple[str, int], ...]] = {
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
_NEURON: dict[Ami, tuple[tuple[str, int], ...]] = {
    # The same CHANGELOG.md, aws-neuronx-dkms: 2.27.4.0 here, 2.26.10.0 in v20260403.
    "eks-al2023": (("v20260714", 29), ("v20260610", 28), ("v20260409", 27)),
    # bottlerocket-kernel-kit 9.1.0 (github.com/bottlerocket-os/bottlerocket, pull request 4928), which has had 2.29.0.0
    # since 7.3.0 (its pull request 519). 1.64.0 has 7.2.1, and so 2.26.10.0, of 5.1.0 (pull request 389).
    "eks-bottlerocket": (("1.65.0", 29),),
    # Each has the newest of its day: scripts/enable-ecs-agent-inferentia-support.sh at a2532d3. 2.27.4.0 is of
    # 2026-04-09, and this the first release after it.
    "ecs-al2023": (("2023.0.20260414", 27),),
}
RELEASES: Mapping[Maker, Mapping[Ami, tuple[tuple[str, int], ...]]] = {"NVIDIA": _NVIDIA, "Neuron": _NEURON}
"""By maker and AMI: the first release with a driver, and that driver, the newest first."""


def find_driver(maker: Maker, ami: Ami, release: str) -> int:
    """Return the driver in a release, such as NVIDIA's branch 580; 0 for a release older than all that are known."""
    releases = RELEASES[maker][ami]
    return next(
        (driver for first_release, driver in releases if _split_release(release) >= _split_release(first_release)), 0
    )


def find_first_release(maker: Maker, ami: Ami, driver: int) -> str:
    """Return the first release with this driver or a newer one."""
    releases = RELEASES[maker][ami]
    return min(
        (first_release for first_release, known_driver in releases if known_driver >= driver), key=_split_release
    )


def _split_release(release: str) -> list[int]:
    """Return the numbers of a release, for 1.100.0 comes after 1.65.0."""
    return [int(number) for number in re.findall(r"\d+", release)]
