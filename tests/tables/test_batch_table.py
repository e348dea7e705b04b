"""Jobs of a batch, as `blueprint batch status` shows them."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from llm_serving.tables import batch_table

JOB: dict[str, Any] = {
    "id": "batch_1", "state": "in_progress", "team": "ads", "priority": "normal", "ended_at": None, "errors": [],
    "request_counts": {"total": 10, "completed": 4, "failed": 0}, "tokens": {"input": 40, "output": 8},
    "endpoint_s": 2.0, "cost_usd": None, "rate": None, "eta_s": None, "failures": {}, "in_progress_at": None,
}  # fmt: skip
WORKER = {"worker": "batch-worker-0", "in_flight": 4, "concurrency": 7}


def show(worker: dict[str, Any]) -> str:
    console = Console(width=120, record=True)
    console.print(batch_table.render_job(JOB, [worker]))
    return console.export_text()


def test_a_worker_says_how_peoples_slo_burns_where_it_gives_way_to_one() -> None:
    assert "batch-worker-0: 4 in flight of at most 7; people's SLO burns at 0.66\n" in show({**WORKER, "burn": 0.66})
    for silent in (WORKER, {**WORKER, "burn": 0.0}):  # one of before, and one that shares no engines
        assert "batch-worker-0: 4 in flight of at most 7\n" in show(silent)
