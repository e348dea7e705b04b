from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import Unavailable
from scripts.benchmarks import load_driver
from scripts.benchmarks.known_server import Behaviour
from scripts.benchmarks.load_driver import LoadSpec, ToolReport


def test_the_driver_is_measured_against_the_server_s_actual_times(tmp_path: Path) -> None:
    load = LoadSpec(Behaviour(0.1, 0.005), users=4, requests=24)
    measurement = load_driver.measure(load_driver.run_blueprint, load, tmp_path / "run")
    assert measurement.report.answered == 24
    assert measurement.true_p50_ms >= 100
    # The client can only see a token after the server has sent it.
    assert measurement.true_p50_ms - 1 <= measurement.report.ttft_p50_ms <= measurement.true_p50_ms + 100
    assert measurement.cpu_s > 0
    assert 0 < measurement.server_share < 1


def test_a_tool_that_omits_requests_is_not_compared(tmp_path: Path) -> None:
    def drive_lazily(url: str, load: LoadSpec, folder: Path) -> ToolReport:
        return ToolReport(answered=load.requests // 2, per_s=1.0, ttft_p50_ms=1.0, ttft_p99_ms=1.0)

    with pytest.raises(Unavailable, match="only 12 of 24 requests were answered"):
        load_driver.measure(drive_lazily, LoadSpec(Behaviour(), users=1, requests=24), tmp_path / "run")
