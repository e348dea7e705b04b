"""What a gateway costs an hour on AWS: shown, and held against the fleet's spend limit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main

SERVERS = 0.129 + 20 * 0.000315 + 2 * 0.0256 + 0.00137
"""Of the pattern: database, its storage, cache nodes and a key, in us-east-1."""

TASKS = 3 * 0.04048 + 6 * 0.004445
"""Of its two replicas and its meter on Fargate."""

POOL = "types: g6e.2xlarge, size: 0, orchestrator:"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pattern; its parent is the working directory and has a fleet."""
    folder = Path(shutil.copytree(paths.PATTERNS / "gateway", tmp_path / "edge"))
    write_fleet(tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder


def write_fleet(folder: Path, more: str = "") -> None:
    """Write a fleet that has no instances."""
    head = "name: ads\nregion: us-east-1\nzones: [us-east-1a, us-east-1b]\norchestrator: both\n"
    (folder / "fleet.yaml").write_text(f"{head}pools: {{tasks: {{{POOL} ecs}}, pods: {{{POOL} eks}}}}\n{more}")


@pytest.mark.parametrize(("target", "usd_h"), [("ecs", SERVERS + TASKS), ("eks", SERVERS)])
def test_check_shows_what_the_stack_costs_and_of_when_the_prices_are(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, usd_h: float
) -> None:
    assert main.run(["check", "edge", "--target", target]) == 0
    shown = capsys.readouterr().out
    assert f"cost      {usd_h:,.2f} USD/h of 2026-10-02 and 2026-11, without traffic\n" in shown


def show_fleet(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, float], float]:
    """What `fleet show` says of each thing that costs without instances, and of the fleet at full size."""
    capsys.readouterr()
    assert main.run(["fleet", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    return {item["name"]: item["usd_h"] for item in shown["standing"]}, shown["most_usd_h"]


def test_the_fleet_costs_what_its_rendered_gateways_cost_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, before = show_fleet(capsys)
    assert main.run(["render", "edge", "--target", "ecs"]) == 0
    items, after = show_fleet(capsys)
    assert items["db.t4g.medium for ads-edge"] == pytest.approx(0.129)
    assert after - before == pytest.approx(SERVERS + TASKS)


def test_a_gateway_above_the_fleets_spend_limit_is_refused_and_so_is_a_type_without_a_price(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, fleet_usd_h = show_fleet(capsys)
    write_fleet(folder.parent, f"spend_limit: {fleet_usd_h + 0.1:.2f} USD/h\n")
    assert main.run(["check", "edge", "--target", "ecs"]) == 2
    usd_h = SERVERS + TASKS
    assert (
        f'aws.database_type: "db.t4g.medium": the gateway costs {usd_h:,.2f} USD/h, with the fleet at full size '
        f"{fleet_usd_h + usd_h:,.2f}. Fix: raise spend_limit of the fleet ads, " in capsys.readouterr().err
    )
    write_fleet(folder.parent, f"spend_limit: {fleet_usd_h + 1:.2f} USD/h\n")
    assert main.run(["check", "edge", "--target", "ecs"]) == 0
    file = folder / "blueprint.yaml"
    file.write_text(f"{file.read_text()}\naws: {{database_type: db.x9.large}}\n")
    assert main.run(["check", "edge", "--target", "ecs"]) == 2
    assert (
        'aws.database_type: "db.x9.large": its price is not known, so the fleet\'s spend limit cannot be checked. '
        "Fix: use another type, or remove spend_limit of the fleet ads." in capsys.readouterr().err
    )
