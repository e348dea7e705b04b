"""What tasks on Fargate cost counts for the fleet, whatever the kind of their deployment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.cli import main

FLEET = """\
name: ads
region: us-east-1
zones: [us-east-1a, us-east-1b]
orchestrator: both
pools:
  general: {types: g6e.2xlarge, size: 0..2, orchestrator: TARGET}
"""

NEW = {
    "router": ["--from", "aggregated"],
    "batch": ["--from", "offline-batch", "--preset", "beside-serving"],
}


@pytest.mark.parametrize(
    ("name", "target", "usd_h"),
    [
        ("router", "ecs", 2 * 0.04048 + 4 * 0.004445),
        ("batch", "ecs", 3 * 0.04048 + 6 * 0.004445),  # two workers and the Batch API
        ("router", "eks", 0),
        ("batch", "eks", 0),
    ],
)
def test_the_fleet_costs_what_rendered_tasks_cost_on_fargate_and_no_more_for_pods(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    target: str,
    usd_h: float,
) -> None:
    def read_cost() -> float:
        capsys.readouterr()
        assert main.run(["fleet", "show", "--json"]) == 0
        cost: float = json.loads(capsys.readouterr().out)["most_usd_h"]
        return cost

    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("TARGET", target))
    before = read_cost()
    assert main.run(["new", name, *NEW[name]]) == 0
    assert main.run(["render", name, "--target", target]) == 0, capsys.readouterr().err
    assert read_cost() - before == pytest.approx(usd_h)
