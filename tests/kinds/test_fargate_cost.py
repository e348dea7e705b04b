"""What tasks on Fargate cost counts for the fleet, whatever the kind of their deployment."""

from __future__ import annotations

import json
import re
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

CERTIFICATE = "arn:aws:acm:us-east-1:123456789012:certificate/12345678-1234-1234-1234-123456789012"

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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("TARGET", target))
    before = read_cost(capsys)
    assert main.run(["new", name, *NEW[name]]) == 0
    assert main.run(["render", name, "--target", target]) == 0, capsys.readouterr().err
    assert read_cost(capsys) - before == pytest.approx(usd_h)


def test_the_load_balancer_of_a_service_counts_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("TARGET", "ecs"))
    assert main.run(["new", "router", *NEW["router"]]) == 0
    blueprint = tmp_path / "router" / "blueprint.yaml"
    text = re.sub(r"(?m)^  router: .*$", "  router: {replicas: 2}", blueprint.read_text())
    blueprint.write_text(f"{text}load_balancer: {{certificate: {CERTIFICATE}}}\n")
    assert main.run(["render", "router", "--target", "ecs"]) == 0, capsys.readouterr().err
    with_balancer = read_cost(capsys)
    rendered = tmp_path / "rendered" / "router" / "ecs" / "ecs.yaml"
    rendered.write_text(re.sub(r"(?m)^  load_balancer:.*\n(?:    .*\n)*", "", rendered.read_text()))
    assert with_balancer - read_cost(capsys) == pytest.approx(0.0225)


def read_cost(capsys: pytest.CaptureFixture[str]) -> float:
    """What the fleet costs an hour at most."""
    capsys.readouterr()
    assert main.run(["fleet", "show", "--json"]) == 0
    cost: float = json.loads(capsys.readouterr().out)["most_usd_h"]
    return cost
