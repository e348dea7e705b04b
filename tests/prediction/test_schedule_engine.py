"""The recorded outcomes are those of the engine that is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from llm_serving.hub import make_tiny
from llm_serving.targets.local import engine_env
from tests.prediction import loads

FOLDER = Path(__file__).parent
NAMES = ("busy", "preemption with shared beginnings")


@pytest.mark.engine
def test_vllms_scheduler_does_what_was_recorded(tmp_path: Path) -> None:
    make_tiny.make("tiny", tmp_path / "tiny")
    job = {"model": str(tmp_path / "tiny"), "loads": {name: loads.LOADS[name].to_json() for name in NAMES}}
    (tmp_path / "loads.json").write_text(json.dumps(job), encoding="utf-8")
    command = [
        str(engine_env.find_executables() / "python"),
        str(FOLDER / "vllm_schedule.py"),
        str(tmp_path / "loads.json"),
    ]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=900, text=True).stdout)
    recorded = json.loads((FOLDER / "data/vllm-schedule.json").read_text("utf-8"))["outcomes"]
    for name in NAMES:
        assert printed[name]["preemptions"] == recorded[name]["preemptions"]
        assert printed[name]["e2e_s"]["p95"] == pytest.approx(recorded[name]["e2e_s"]["p95"], rel=1e-4)
