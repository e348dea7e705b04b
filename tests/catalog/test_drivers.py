"""The driver of each AMI's release, and the one that the engine's image needs."""

from __future__ import annotations

import pytest

from llm_serving.catalog import drivers, ecs, eks, engines
from llm_serving.catalog.drivers import Ami, Maker

PINNED: dict[Ami, str] = {
    "eks-al2023": eks.AL2023,
    "eks-bottlerocket": eks.BOTTLEROCKET,
    "ecs-al2023": ecs.AL2023,
}


@pytest.mark.parametrize(
    ("maker", "ami", "release", "driver"),
    [
        ("NVIDIA", "eks-al2023", "v20260714", 580),
        ("NVIDIA", "eks-al2023", "v20251023", 580),
        ("NVIDIA", "eks-al2023", "v20251016", 570),
        ("NVIDIA", "eks-al2023", "v20250101", 0),
        ("NVIDIA", "eks-bottlerocket", "1.64.0", 580),
        ("NVIDIA", "ecs-al2023", "2023.0.20251006", 570),
        ("NVIDIA", "ecs-al2023", "2023.0.20251015", 580),
        ("Neuron", "eks-al2023", "v20260403", 0),
        ("Neuron", "eks-al2023", "v20260409", 27),
        ("Neuron", "eks-al2023", "v20260610", 28),
        ("Neuron", "eks-bottlerocket", "1.64.0", 0),
        ("Neuron", "eks-bottlerocket", "1.65.0", 29),
        ("Neuron", "eks-bottlerocket", "1.100.0", 29),
        ("Neuron", "ecs-al2023", "2023.0.20260408", 0),
        ("Neuron", "ecs-al2023", "2023.0.20260414", 27),
    ],
)
def test_a_release_has_the_driver_of_the_last_change_before_it(
    maker: Maker, ami: Ami, release: str, driver: int
) -> None:
    assert drivers.find_driver(maker, ami, release) == driver


@pytest.mark.parametrize(("maker", "newest"), [("NVIDIA", 580), ("Neuron", 27)])
def test_the_pinned_amis_run_every_engines_image(maker: Maker, newest: int) -> None:
    assert all(set(PINNED) == set(rows) for rows in drivers.RELEASES.values())
    platforms = [platform for row in engines.load_engines().values() for platform in row.platforms.values()]
    required = max(getattr(platform, f"{maker.lower()}_driver") for platform in platforms)
    assert required == newest
    lacking = {ami for ami, release in PINNED.items() if drivers.find_driver(maker, ami, release) < required}
    # Where a fleet has Neuron on Bottlerocket, it names a newer release itself.
    assert lacking == ({"eks-bottlerocket"} if maker == "Neuron" else set())
    for ami in set(PINNED) - lacking:
        assert drivers.find_first_release(maker, ami, required) <= PINNED[ami]
