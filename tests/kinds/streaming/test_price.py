"""What a stream costs an hour on AWS: shown, and held against the fleet's spend limit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main

USD_H = 3 * 0.204 + 3 * 100 * 0.000137 + 5 * 0.11 + 4 * 50 * 0.10 / 730 + 2 * 0.1264 + 0.00137
"""Of the pattern: brokers, their storage, KPUs, their storage, cache nodes and a key, in us-east-1."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pattern that calls a URL; its parent is the working directory and has a fleet."""
    folder = Path(shutil.copytree(paths.PATTERNS / "near-real-time", tmp_path / "shop"))
    change(folder, "mock: {latency: 0.1s}", "url: https://llm.example.com\n  model: tiny")
    write_fleet(tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder


def change(folder: Path, old: str, new: str) -> None:
    file = folder / "blueprint.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def write_fleet(folder: Path, more: str = "") -> None:
    """Write a fleet that has no instances."""
    pools = "orchestrator: ecs\npools: {general: {types: g6e.2xlarge, size: 0}}"
    zones = "us-east-1a, us-east-1b, us-east-1c"
    (folder / "fleet.yaml").write_text(f"name: ads\nregion: us-east-1\nzones: [{zones}]\n{pools}\n{more}")


def test_check_shows_what_the_stack_costs_and_of_when_the_prices_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["check", "shop", "--target", "ecs"]) == 0
    dates = "2026-08-11, 2026-10-02 and 2026-11"
    assert f"cost      {USD_H:,.2f} USD/h of {dates}, without traffic\n" in capsys.readouterr().out


def show_fleet(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """What `fleet show` says of each thing that costs without instances."""
    capsys.readouterr()
    assert main.run(["fleet", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    items = {item["name"]: item["usd_h"] for item in shown["standing"]}
    assert sum(items.values()) == pytest.approx(shown["standing_usd_h"]) == pytest.approx(shown["most_usd_h"])
    return items


def test_the_fleet_costs_what_its_rendered_streams_cost_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = show_fleet(capsys)
    assert main.run(["render", "shop", "--target", "ecs"]) == 0
    items = show_fleet(capsys)
    assert items["kafka.m7g.large for ads-shop"] == pytest.approx(3 * 0.204)
    assert items["flink-kpu for ads-shop"] == pytest.approx(5 * 0.11)
    assert sum(items.values()) - sum(before.values()) == pytest.approx(USD_H, abs=1e-5)


def test_a_stream_above_the_fleets_spend_limit_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet_usd_h = sum(show_fleet(capsys).values())
    write_fleet(folder.parent, f"spend_limit: {fleet_usd_h + USD_H + 0.01:.2f} USD/h\n")
    assert main.run(["check", "shop", "--target", "ecs"]) == 0
    write_fleet(folder.parent, "spend_limit: 1.5 USD/h\n")
    capsys.readouterr()
    assert main.run(["check", "shop", "--target", "ecs"]) == 2
    assert capsys.readouterr().err == (
        f"{folder.name}/blueprint.yaml:1:1: aws.brokers: 3: the stream costs {USD_H:,.2f} USD/h, with the fleet at full "
        f"size {fleet_usd_h + USD_H:,.2f}. Fix: raise spend_limit of the fleet ads, 1.5 USD/h, or use fewer or smaller "
        "parts.\n"
    )


def test_a_type_of_unknown_price_is_named_and_refused_where_a_limit_would_be_blind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, "partitions: 4", "partitions: 4\naws: {cache_type: cache.m9x.large}")
    assert main.run(["check", "shop", "--target", "ecs"]) == 0
    assert f"at least {USD_H - 2 * 0.1264:,.2f} USD/h" in (shown := capsys.readouterr().out)
    assert "; no price for cache.m9x.large\n" in shown
    write_fleet(folder.parent, "spend_limit: 99 USD/h\n")
    assert main.run(["check", "shop", "--target", "ecs"]) == 2
    assert capsys.readouterr().err.endswith(
        ': aws.cache_type: "cache.m9x.large": its price is not known, so the fleet\'s spend limit cannot be checked. '
        "Fix: use another type, or remove spend_limit of the fleet ads.\n"
    )
