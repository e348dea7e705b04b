from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llm_serving.catalog import instances
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.tables import fleet_table
from tests.cli.commands.conftest import RunCommand

ROOT = Path(__file__).parents[3]

FLEET = """\
name: big
region: us-east-1
zones: [us-east-1a, us-east-1b, us-east-1c, us-east-1d, us-east-1e, us-east-1f]
orchestrator: ecs
spend_limit: 100000 USD/h
pools:
  general:
    types: [g6e.12xlarge, g6e.48xlarge]
    zones: [us-east-1a, us-east-1b, us-east-1c, us-east-1d]
    buy: [spot, on-demand]
    size: 100..1250
  h100:
    types: p5.48xlarge
    zones: us-east-1c
    size: 1..100
    efa: true
  b200:
    types: p6-b200.48xlarge
    zones: us-east-1c
    size: 10
    buy: {capacity-block: cr-0123456789abcdef0}
    efa: true
  neuron:
    types: trn1.32xlarge
    zones: [us-east-1b, us-east-1c, us-east-1f]
    size: 0..20
  routers:
    types: m8g.2xlarge
    zones: [us-east-1a, us-east-1b]
    size: 2..600
"""


def _load_fleet(tmp_path: Path, text: str = FLEET) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return load(file, Fleet).value


def _render(fleet: Fleet, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(fleet_table.render(fleet, width))
    return console.export_text().splitlines()


def _find_line(lines: list[str], start: str) -> list[str]:
    """The words of the first line that starts so."""
    return next(line for line in lines if line.strip().startswith(start)).split()


def test_the_table_shows_each_pool_with_its_zones_instances_accelerators_and_cost(tmp_path: Path) -> None:
    lines = _render(_load_fleet(tmp_path), 96)
    assert lines[0] == "big  us-east-1, 6 zones, ECS"
    assert _find_line(lines, "zones of")[3:9] == list("abcdef")
    assert _find_line(lines, "general") == ["general", *"━━━━", "100..1,250", "400..10,000", "1,049", "37,664"]
    assert _find_line(lines, "g6e.48xlarge") == ["g6e.48xlarge", *"●●●●", "8", "×", "L40S", "@", "30.13"]
    assert _find_line(lines, "neuron") == ["neuron", *"━━━", "0..20", "0..320", "0.00", "430.00"]
    assert _find_line(lines, "b200") == ["b200", "━", "10", "80", "prepaid", "prepaid"]
    assert _find_line(lines, "m8g.2xlarge") == ["m8g.2xlarge", *"●●", "8", "vCPUs", "@", "0.36"]
    assert _find_line(lines, "root volumes") == ["root", "volumes", "1.24", "21.70"]
    assert _find_line(lines, "in all") == ["in", "all", "113..1,980", "488..11,200", "1,107", "43,836"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(tmp_path: Path, width: int) -> None:
    lines = _render(_load_fleet(tmp_path), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not [line for line in lines if "…" in line]
    assert _find_line(lines, "in all")[-4:] == ["113..1,980", "488..11,200", "1,107", "43,836"]


def test_a_long_name_is_wrapped_and_never_cut(tmp_path: Path) -> None:
    name = "serving-of-the-largest-models-01"
    lines = _render(_load_fleet(tmp_path, FLEET.replace("general:", f"{name}:")), 80)
    line_index = next(index for index, line in enumerate(lines) if line.startswith("serving"))
    assert lines[line_index].split()[0] + lines[line_index + 1].strip() == name


def test_bars_are_under_the_zones_of_a_pool(tmp_path: Path) -> None:
    lines = _render(_load_fleet(tmp_path), 96)
    head = next(line for line in lines if line.startswith("zones of"))
    pool = next(line for line in lines if line.startswith("neuron"))
    assert [head[column] for column, char in enumerate(pool) if char == "━"] == ["b", "c", "f"]


def test_prices_and_zone_offers_name_their_source_and_date(tmp_path: Path) -> None:
    text = " ".join(" ".join(_render(_load_fleet(tmp_path), 100)).split())
    assert "on-demand prices: AWS Price List, as generated into aws/karpenter-provider-aws" in text
    assert "zz_generated.pricing_aws.go, 2026-07-20" in text
    source = instances.load_regions()["us-east-1"]
    assert f"● offered, ✗ not offered: {source.name}, {source.date}; zone names differ between accounts" in text
    assert "spot: costs less than shown" in text
    assert "in no total: S3, ECR, logs, metrics and traffic" in text


def test_efa_is_shown_with_its_interfaces(tmp_path: Path) -> None:
    text = " ".join(" ".join(_render(_load_fleet(tmp_path), 100)).split())
    assert "EFA on p5.48xlarge: 32 interfaces per instance; up to 800 of the 3200 Gbps can carry IP" in text
    assert "EFA on p6-b200.48xlarge: 8 interfaces per instance" in text


def test_the_gauge_shows_how_much_of_the_limit_the_greatest_size_takes(tmp_path: Path) -> None:
    lines = _render(_load_fleet(tmp_path), 100)
    gauge = next(line for line in lines if line.startswith("spend limit"))
    assert gauge == f"spend limit {'█' * 13}{'░' * 17} 43,836 of 100,000 USD/h (44%)"


def test_an_unknown_price_is_shown_as_unknown_and_sums_as_at_least(tmp_path: Path) -> None:
    text = "name: demo\nregion: us-west-2\nzones: us-west-2c\npools:\n"
    text += "  some:\n    types: [p5.48xlarge, p5e.48xlarge]\n    size: 1..2\n"
    text += "  none:\n    types: p5e.48xlarge\n    size: 0..1\n"
    lines = _render(_load_fleet(tmp_path, text), 100)
    assert _find_line(lines, "some")[-4:] == ["≥", "55.04", "≥", "110.08"]
    assert _find_line(lines, "p5e.48xlarge")[-1] == "unknown"
    assert _find_line(lines, "none")[-2:] == ["0.00", "unknown"]
    assert _find_line(lines, "in all")[-4:] == ["≥", "55.70", "≥", "110.76"]
    assert "no price for p5e.48xlarge: AWS's price list has no on-demand price for it" in " ".join(lines)


def test_a_zone_that_does_not_offer_the_type_is_marked_and_refused(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2c]\n"
        "pools:\n  big:\n    types: p5e.48xlarge\n    size: 1\n"
    )
    result = run_command("fleet", "show", "--fleet", str(file), COLUMNS="100")
    assert result.code == 2
    assert _find_line(result.out.splitlines(), "p5e.48xlarge")[1:3] == ["✗", "●"]
    assert result.err.startswith(f"{file}:6:12: pools.big.types: [p5e.48xlarge]: ")


def test_an_unknown_type_is_marked_and_refused(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("types: p5.48xlarge", "types: p5.47xlarge"))
    result = run_command("fleet", "show", "--fleet", str(file), COLUMNS="100")
    assert result.code == 2
    assert "not in the catalog" in result.out
    assert f'{file}:13:12: pools.h100.types: "p5.47xlarge": the catalog has no such instance type' in result.err


def test_json_has_the_same_facts(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    result = run_command("fleet", "show", "--fleet", str(file), "--json")
    assert result.code == 0, result.err
    response: dict[str, Any] = json.loads(result.out)
    assert response["region"] == "us-east-1" and response["mistakes"] == []
    assert response["end_of_standard_support"] is None  # of ECS there is none
    assert response["most_usd_h"] == pytest.approx(43836.0, abs=1)
    assert response["volumes_usd_h"] == pytest.approx(22.0, abs=0.5)
    pool = response["pools"][1]
    assert pool["machines"] == {"least": 1, "most": 100}
    assert pool["accelerators"] == {"least": 8, "most": 800}
    assert pool["types"][0]["zones"] == {"us-east-1c": True}
    assert pool["types"][0]["price_source"]["date"] == "2026-07-20"
    assert response["pools"][2]["buy"] == [{"capacity-block": "cr-0123456789abcdef0"}]
    assert response["pools"][2]["prepaid"] is True


def test_json_names_the_mistakes_and_exits_2(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("100000 USD/h", "10 USD/h"))
    result = run_command("fleet", "show", "--fleet", str(file), "--json")
    assert result.code == 2
    response = json.loads(result.out)
    assert not response["ok"] and [mistake["field"] for mistake in response["mistakes"]] == ["spend_limit"]
    assert result.err == response["mistakes"][0]["message"] + "\n"


def test_the_default_is_the_fleet_file_of_this_folder(run_command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run_command("fleet", "show")
    assert result.code == 0, result.err
    assert result.out.startswith("demo  us-west-2, 3 zones, EKS\n")
    assert "Kubernetes 1.35: standard support ends on 2027-03-27, in 126 days" in " ".join(result.out.split())


def test_a_fleet_of_both_shows_each_pools_orchestrator_and_warm_instances_and_what_charts_cost(tmp_path: Path) -> None:
    text = "name: two\nregion: us-east-1\nzones: us-east-1a\norchestrator: both\npools:\n"
    text += "  aa: {types: g6e.xlarge, size: 1}\n  bb: {types: g6e.xlarge, size: 3, orchestrator: ecs, warm: 2}\n"
    lines = [" ".join(line.split()) for line in _render(_load_fleet(tmp_path, text), 100)]
    assert lines[0] == "two us-east-1, 1 zone, EKS and ECS"
    assert "on-demand, on EKS" in lines
    assert "on-demand, 2 warm, on ECS" in lines
    charts = "load balancers of Gateways, volumes of charts"
    assert f"in no total: {charts}, S3, ECR, logs, metrics and traffic" in " ".join(lines)


def test_a_spend_limit_that_cannot_be_checked_says_which_types_it_is_blind_for(tmp_path: Path) -> None:
    text = "name: demo\nregion: us-west-2\nzones: us-west-2c\nspend_limit: 500 USD/h\norchestrator: ecs\n"
    text += "pools:\n  some:\n    types: p5e.48xlarge\n    size: 1..2\n"
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    rendered = " ".join(_render(load(file, Fleet).value, 100))
    assert "spend limit: blind for p5e.48xlarge, whose price is not known" in rendered
