"""The recorded outcomes are those of the engine that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.hub import make_tiny
from tests.engines_own import EngineProbe
from tests.prediction import loads

FOLDER = Path(__file__).parent
NAMES = ("busy", "preemption with shared beginnings")


@pytest.mark.engine
def test_vllms_scheduler_does_what_was_recorded(tmp_path: Path, engine_probe: EngineProbe) -> None:
    make_tiny.make("tiny", tmp_path / "tiny")
    job = {"model": str(tmp_path / "tiny"), "loads": {name: loads.LOADS[name].to_json() for name in NAMES}}
    (tmp_path / "loads.json").write_text(json.dumps(job), encoding="utf-8")
    words, log = [str(FOLDER / "vllm_schedule.py"), str(tmp_path / "loads.json")], tmp_path / "log"
    [ended] = engine_probe("run", [{"words": words, "environment": {}, "log": str(log)}])
    assert ended == {"result": 0}, log.read_text()
    printed = json.loads(log.read_text().splitlines()[-1])
    recorded = json.loads((FOLDER / "data/vllm-schedule.json").read_text("utf-8"))["outcomes"]
    for name in NAMES:
        assert printed[name]["preemptions"] == recorded[name]["preemptions"]
        assert printed[name]["e2e_s"]["p95"] == pytest.approx(recorded[name]["e2e_s"]["p95"], rel=1e-4)
