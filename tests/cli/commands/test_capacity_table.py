"""The last part of `fleet show`: what a fleet meets, in words that fit a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from llm_serving.cli.commands import fleet_show
from llm_serving.fleet import capacity
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

ROOT = Path(__file__).parents[3]


def _render(name: str, width: int) -> list[str]:
    fleet = load(ROOT / f"infra/fleets/{name}.yaml", Fleet).value
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        machines = sum(pool.size.max for pool in fleet.pools.values())
        console.print(fleet_show.render_capacity(capacity.compute(fleet), machines))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_cuts_no_figure(width: int) -> None:
    lines = _render("ads-scale", width)
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= width for line in lines)
    assert "L-DB2E81BA 201,600 vCPUs 0" in text
    assert "89% capacity providers of the ECS cluster beside Fargate's two: 16 of 18" in text
    assert "35% us-east-1b, 10.0.32.0/19: 2,864 of 8,187" in text
    assert "up to 2,286 instances if all fallbacks fill at once (75,655 USD/h); pods and tasks request" in text
    assert "EC2 accepts all instances from zero within 2 min 48 s" in text
    assert "up to 32% of the accelerators, in us-east-1b pools in one zone only: large and spanning" in text


def test_a_small_fleet_shows_no_launch_time_and_no_zone_loss() -> None:
    text = "\n".join(_render("one-gpu", 80))
    assert "quota to request" in text, "a new account has no vCPU for accelerators at all"
    assert "launch" not in text
    assert "up to 4 instances if all fallbacks fill at once (4 USD/h)" in " ".join(text.split())
    assert "zone loss" not in text


def test_the_payload_has_the_same_facts() -> None:
    fleet = load(ROOT / "infra/fleets/p5-efa.yaml", Fleet).value
    response = fleet_show.build_capacity_payload(capacity.compute(fleet))
    assert response["pools_in_one_zone"] == ["h100"]
    assert {row["zone"] for row in response["subnets"]} == {"us-east-1a", "us-east-1b"}
    codes = {row["code"] for row in response["quotas"]}
    assert "L-417A185B" not in codes, "a Capacity Block counts against no vCPU quota"
    assert "L-1216C47A" in codes, "the routers do"
