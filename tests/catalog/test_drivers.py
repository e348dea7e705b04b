"""The driver of each AMI's release, and the one that the engine's image needs."""

from __future__ import annotations

import pytest

from llm_serving.catalog import drivers, ecs, eks, engines
from llm_serving.catalog.drivers import Ami


@pytest.mark.parametrize(
    ("ami", "release", "branch"),
    [
        ("eks-al2023", "v20260714", 580),
        ("eks-al2023", "v20251023", 580),
        ("eks-al2023", "v20251016", 570),
        ("eks-al2023", "v20250101", 0),
        ("eks-bottlerocket", "1.64.0", 580),
        ("ecs-al2023", "2023.0.20251006", 570),
        ("ecs-al2023", "2023.0.20251015", 580),
    ],
)
def test_a_release_has_the_branch_of_the_last_change_before_it(ami: Ami, release: str, branch: int) -> None:
    assert drivers.find_branch(ami, release) == branch


def test_the_pinned_amis_run_every_engines_image() -> None:
    pinned: dict[Ami, str] = {
        "eks-al2023": eks.AL2023,
        "eks-bottlerocket": eks.BOTTLEROCKET,
        "ecs-al2023": ecs.AL2023,
    }
    assert set(pinned) == set(drivers.BRANCHES)
    platforms = [platform for row in engines.load_engines().values() for platform in row.platforms.values()]
    required = max(platform.nvidia_driver for platform in platforms)
    assert required == 580
    for ami, release in pinned.items():
        assert drivers.find_branch(ami, release) >= required
        assert drivers.find_first_release(ami, required) <= release
