"""Dashboards: Grafana's own model reads them, Prometheus their queries, and each name is one of the catalog."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.catalog import signals
from llm_serving.cli import main
from llm_serving.kinds.serving import dashboards
from tests.kinds.serving.test_alerts import BLUEPRINT, DISAGGREGATED, FLEET, needs_promtool, resolve

LLAMA = """\
pattern: aggregated
engine: llama.cpp
model: tiny
roles: {worker: {pool: cpu}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {}
"""


def list_expressions(files: dict[str, dict[str, Any]]) -> list[str]:
    panels = [panel for dashboard in files.values() for panel in dashboard["panels"]]
    return [target["expr"] for panel in panels for target in panel["targets"] if "expr" in target]


def test_grafanas_own_model_reads_each_file_and_keeps_its_queries(tmp_path: Path) -> None:
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard").Dashboard
    for dashboard in dashboards.build(resolve(tmp_path, BLUEPRINT)).files.values():
        read = model.from_json(dashboard)
        assert (read.title, read.uid, len(read.panels)) == (
            dashboard["title"],
            dashboard["uid"],
            len(dashboard["panels"]),
        )
        assert read.schema_version == model().schema_version
        assert [panel.grid_pos.y for panel in read.panels] == [8 * (index // 2) for index in range(len(read.panels))]


@needs_promtool
def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    files = dashboards.build(resolve(tmp_path, DISAGGREGATED)).files
    expressions = [text.replace("$__rate_interval", "5m") for text in list_expressions(files)]
    assert len(expressions) >= 25
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(tmp_path / "rules.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_queries_read_signals_of_the_table_alone(tmp_path: Path) -> None:
    names = {row.name for row in signals.list_program_names()}
    allowed = names | {f"{name}{part}" for name in names for part in ("_bucket", "_count")}
    files = dashboards.build(resolve(tmp_path, BLUEPRINT)).files
    text = " ".join(list_expressions(files))
    read = {
        *re.findall(r"([\w:]+)\{", text),
        *"|".join(re.findall(r'__name__=~"([^"]+)"', text)).split("|"),
        *re.findall(r"\b(?:DCGM|kube)_\w+", text),
    }
    assert len(read) >= 20
    assert read <= allowed
    searched = re.findall(r'MetricName=\\"(\w+)', json.dumps(files))
    assert set(searched) == {"provisioning", "ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"}


def test_prefill_and_decode_are_side_by_side_and_each_panel_says_what_to_do(tmp_path: Path) -> None:
    panels = {
        panel["title"]: panel
        for panel in dashboards.build(resolve(tmp_path, DISAGGREGATED)).files["deployment"]["panels"]
    }
    assert [target["legendFormat"] for target in panels["KV cache in use"]["targets"]] == ["prefill", "decode"]
    assert panels["KV cache in use"]["description"] == (
        "kv-usage: share of the KV cache in use, 0 to 1. Action: add replicas, store the cache in 8 bits, or shorten the context."
    )


def test_the_cost_of_a_million_tokens_counts_all_engines_and_the_answers_of_decode(tmp_path: Path) -> None:
    files = dashboards.build(resolve(tmp_path, DISAGGREGATED)).files
    [target] = files["cost"]["panels"][1]["targets"]
    assert target["expr"].count("* sum(up{") == 2
    assert re.findall(r'generation_tokens_total\{[^}]*component="(\w+)"', target["expr"]) == ["decode"]


def test_the_command_writes_a_file_each_and_says_what_an_engine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve(tmp_path, BLUEPRINT)
    (tmp_path / "mine" / "blueprint.yaml").write_text(LLAMA)
    pools = "pools: {cpu: {types: c8i.4xlarge, size: 0..4}, "
    (tmp_path / "mine" / "fleet.yaml").write_text(FLEET.replace("pools: {", pools))
    shutil.copy(paths.PATTERNS / "aggregated" / "eks.yaml.j2", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert main.run(["dashboards", "mine", "--to", "out", "--fleet", "mine/fleet.yaml"]) == 0, capsys.readouterr().err
    output = capsys.readouterr()
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "batch.json",
        "cost.json",
        "deployment.json",
        "fleet.json",
    ]
    assert (
        "Deployment: Time to first token, p95: left out: llama.cpp or the fleet has no metric or price for it"
        in output.err
    )
    titles = [panel["title"] for panel in json.loads((tmp_path / "out" / "deployment.json").read_text())["panels"]]
    assert "Requests that wait" in titles and "KV cache in use" not in titles
