"""The page that holds each workload on one engine against its own SLO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.settings.errors import CheckFailed
from scripts import measure_workloads
from scripts.measure_workloads import BATCH, NEAR_REAL_TIME, REAL_TIME, Phase, Workload

REPORTS: dict[str, dict[str, Any]] = {
    REAL_TIME: {
        "metrics": {"e2e_ms": {"p50": 100.4, "p99": 400.0}},
        "settings": {"slo": {"e2e_ms": {"p99": 10000.0}, "errors": 0.0}},
        "requests": {"failed": 1, "total": 20},
        "duration_s": 20.0,
    },
    NEAR_REAL_TIME: {
        "kind": "streaming",
        "metrics": {"answer_ms": {"p50": 300.0, "p99": 900.0}},
        "settings": {"slo": {"answer_p99": 10.0, "dead_events": 0.0}},
        "events": {"sent": 12, "lost": 0, "duplicated": 0, "misjudged": 2},
        "events_per_s": 0.6,
    },
    BATCH: {
        "kind": "batch",
        "settings": {"slo": {"deadline": 600.0}},
        "rows": {"total": 65, "lost": 0, "duplicated": 0},
        "seconds": 10.0,
        "output_tokens_per_s": 99.6,
    },
}
"""Of each report what is shown of it."""


def read_workload(folder: Path, name: str, verdict: str, second: int = 0) -> Workload:
    common = {"name": name, "verdict": verdict, "started_at": f"2026-11-26T12:00:{second:02}+00:00"}
    folder = folder / f"{name}-{second}"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({**REPORTS[name], **common}))
    return measure_workloads.read_workload(folder)


def test_each_workload_is_shown_with_its_own_limits(tmp_path: Path) -> None:
    workloads = tuple(read_workload(tmp_path, name, "pass") for name in REPORTS)
    assert {entry.name: [(number.value, number.limit) for number in entry.numbers] for entry in workloads} == {
        REAL_TIME: [("100 ms", ""), ("400 ms", "10000 ms"), ("1 of 20", "0%")],
        NEAR_REAL_TIME: [("300 ms", ""), ("900 ms", "10000 ms"), ("0 of 12", "0"), ("2", "0%")],
        BATCH: [("10 s", "600 s"), ("0 of 65", "0"), ("100", "")],
    }
    page = measure_workloads.render([Phase("all", 0.5, workloads)])
    assert all(f">{name}</a>" in page for name in REPORTS)
    assert "1 jobs of the batch, of which the slowest is shown, ran in 50% of the real-time load's time" in page
    assert "<title>Workloads on one engine: pass</title>" in page


def test_a_missed_slo_fails_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    phase = Phase(
        "beside-batch", 0.5, (read_workload(tmp_path, REAL_TIME, "fail"), read_workload(tmp_path, BATCH, "pass"))
    )
    with pytest.raises(CheckFailed, match=r"^an SLO is missed: beside-batch: real-time$"):
        measure_workloads.save([phase])
    assert 'class="card fail"' in (tmp_path / measure_workloads.PAGE).read_text()


def test_jobs_count_only_while_the_load_lasts(tmp_path: Path) -> None:
    load = read_workload(tmp_path, REAL_TIME, "pass", second=5)
    jobs = (read_workload(tmp_path, BATCH, "pass", second=second) for second in (0, 20))
    assert Phase("beside-batch", 0.5, (load, *jobs)).batch_share == 0.5


def test_of_many_jobs_the_slowest_and_those_that_failed_are_shown(tmp_path: Path) -> None:
    load = read_workload(tmp_path, REAL_TIME, "pass")
    jobs = [read_workload(tmp_path, BATCH, verdict, second) for second, verdict in enumerate(("pass", "fail", "pass"))]
    slow = jobs[2]._replace(ended=jobs[2].ended + 5)
    assert Phase("all", 0.5, (load, *jobs[:2], slow)).shown == [load, jobs[1], slow]
