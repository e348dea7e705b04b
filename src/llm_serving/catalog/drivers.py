"""Drivers in the releases of AWS's AMIs: rows of `drivers.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from llm_serving.settings import own_yaml

Ami = Literal["eks-al2023", "eks-bottlerocket", "ecs-al2023"]
Maker = Literal["NVIDIA", "Neuron"]

RELEASES: Mapping[Maker, Mapping[Ami, Mapping[str, int]]] = own_yaml.read(Path(__file__).with_suffix(".yaml"))


def find_driver(maker: Maker, ami: Ami, release: str) -> int:
    """Return the driver in a release, such as NVIDIA's branch 580; 0 for a release older than all that are known."""
    numbers, releases = _split_release(release), RELEASES[maker][ami]
    return next((driver for first, driver in releases.items() if numbers >= _split_release(first)), 0)


def find_first_release(maker: Maker, ami: Ami, driver: int) -> str:
    """Return the first release with this driver or a newer one."""
    releases = RELEASES[maker][ami]
    return min((first for first, known_driver in releases.items() if known_driver >= driver), key=_split_release)


def _split_release(release: str) -> list[int]:
    """Return the numbers of a release, for 1.100.0 comes after 1.65.0."""
    return [int(number) for number in re.findall(r"\d+", release)]
