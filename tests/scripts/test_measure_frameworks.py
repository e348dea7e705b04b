"""The comparison of frameworks: what it deploys, that each is removed before the next, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving.settings.errors import CheckFailed
from scripts import measure_frameworks

REPORT = {
    "versions": {"vllm": "0.29.0"},
    "metrics": {"ttft_ms": {"p50": 40.4, "p99": 90.6}},
    "throughput": {"requests_per_s": 17.25},
    "requests": {"failed": 1},
}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command line was called with, and each blueprint that it deployed."""
    called: list[Any] = []

    def run(words: list[str]) -> int:
        called.append(" ".join(words[:2]))
        if words[0] == "deploy":
            called.append(yaml.safe_load(Path(words[1], "blueprint.yaml").read_text()))
        if words[0] == "validate":
            folder = Path("runs", words[1], "2026-11-26T12-00-00Z")
            folder.mkdir(parents=True)
            (folder / "report.json").write_text(json.dumps(REPORT))
        return int(words[1] == "on-dynamo")

    monkeypatch.setattr(measure_frameworks.blueprint, "run", run)
    monkeypatch.setattr(measure_frameworks, "add_up", lambda *_: 2.4e9)
    monkeypatch.setattr(measure_frameworks, "measure_others", lambda: 12.4)
    monkeypatch.setattr(measure_frameworks.engine_setups, "main", lambda *words: called.append(words))
    monkeypatch.chdir(tmp_path)
    return called


def test_each_framework_gets_the_same_load_and_is_removed_before_the_next(
    commands: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_frameworks.main(["ray", "plain", "--requests", "40", "--users", "3"])
    blueprints = [each for each in commands if isinstance(each, dict)]
    assert [each for each in commands if not isinstance(each, dict)] == [
        *(("vllm", "plain"), ("vllm", "ray")),
        *("deploy on-plain", "validate on-plain", "destroy on-plain"),
        *("deploy on-ray", "validate on-ray", "destroy on-ray"),
    ]
    assert [each.pop("framework") for each in blueprints] == ["plain", "ray"]
    assert [each.pop("name") for each in blueprints] == ["on-plain", "on-ray"]
    assert blueprints[0] == blueprints[1]
    assert blueprints[0]["traffic"].items() >= {"users": 3, "requests": 40}.items()
    assert "arrivals" not in blueprints[0]["traffic"]
    plain, ray = json.loads((tmp_path / "measured" / "frameworks.json").read_text())
    assert (plain["framework"], plain["engine"], ray["ttft_p99_ms"]) == ("plain", "vllm 0.29.0", 90.6)
    cells = ("plain", "vllm 0.29.0", "0 s", "2400000000 s", "17.2", "40 ms", "91 ms", "1", "2.4 GB", "12% of a core")
    assert f"| {' | '.join(cells)} |" in capsys.readouterr().out


def test_what_does_not_deploy_is_removed(commands: list[Any]) -> None:
    with pytest.raises(CheckFailed, match="on-dynamo: it does not deploy"):
        measure_frameworks.main(["dynamo"])
    assert commands[-1] == "destroy on-dynamo"


def test_one_that_does_not_run_here_is_refused(commands: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        measure_frameworks.main(["triton"])
    assert "FRAMEWORK: triton: it does not run on this machine" in capsys.readouterr().err
    assert commands == []
