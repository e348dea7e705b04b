"""`blueprint shift-plan`: the numbers, the page, and the end of a plan that does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from tests.fleet.test_shift_plan import write_small

EXAMPLE = ["shift-plan", "--fleet", str(paths.EXAMPLE_FLEETS / "eks-multi-az.yaml")]
EXAMPLE += ["--traffic", str(paths.EXAMPLE_FLEETS / "curves" / "eks-multi-az.yaml")]


def test_json_has_the_hours_of_the_three_and_no_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*EXAMPLE, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    hours = payload["gpu_hours"]
    assert hours.keys() == payload["cost_usd"].keys() == {"static", "planned", "oracle"}
    assert hours["oracle"] < hours["planned"] < 0.7 * hours["static"]
    assert (payload["violations"], payload["violated"], payload["days"]) == (0, [], 7)


def test_the_page_shows_each_pool_over_the_week(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "week.html"
    assert main.run([*EXAMPLE, "--page", str(page)]) == 0
    text = page.read_text("utf-8")
    assert text.count("<svg") == 1
    assert all(f">{name}<" in text for name in ("all", "real time", "busy", "batch", "day 2"))
    assert "planned" in capsys.readouterr().out


def test_the_plan_of_a_pool_without_gpus_is_printed_also_where_its_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small(tmp_path, "")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(fleet.read_text("utf-8").replace("g6e.2xlarge", "c7i.4xlarge"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plan = ["shift-plan", "--fleet", "fleet.yaml", "--traffic", "week.yaml", "--page"]
    assert main.run([*plan, "week.html"]) == 0
    assert "needs 0% fewer GPU-hours" in Path("week.html").read_text("utf-8")
    assert main.run([*plan, "missing/week.html"]) == 3
    output = capsys.readouterr()
    assert output.out.count("USD, on demand") == 2
    assert output.err.startswith("missing/week.html: no such file or directory")


def test_a_plan_that_breaks_a_deadline_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small(tmp_path, "{at: 9h, within: 5h, instance_hours: 60}")
    monkeypatch.chdir(tmp_path)
    assert main.run(["shift-plan", "--fleet", "fleet.yaml", "--traffic", "week.yaml", "--json"]) == 1
    output = capsys.readouterr()
    payload = json.loads(output.out)
    assert payload["violations"] == 7
    left = payload["violated"][0]["missing"]
    assert output.err == (
        f"week.yaml: general, day 1, 14h: {left:.1f} instance-hours of a batch are left at its deadline, and 6 more. "
        "Fix: raise size of the pool in fleet.yaml, or move the batch.\n"
    )
