from __future__ import annotations

import pytest

from llm_serving.settings.errors import CheckFailed
from scripts.benchmarks import fleets


@pytest.mark.terraform
def test_a_run_counts_planned_resources_and_seconds() -> None:
    run = fleets.measure("one-gpu", "--fleet", str(fleets.FLEETS / "one-gpu.yaml"), "--mocked")
    assert (run.what, run.applied) == ("one-gpu", 0)
    assert run.planned > 70
    assert run.user_s > 0
    assert run.wall_s > 0
    assert run.peak_mib > 100  # Terraform holds the provider's schemas


def test_a_failed_rehearsal_is_not_measured() -> None:
    with pytest.raises(
        CheckFailed, match=r"^blueprint rehearse --fleet none\.yaml --json exited with 2\. Run it to see why\.$"
    ):
        fleets.measure("none", "--fleet", "none.yaml")
