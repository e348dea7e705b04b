"""Jobs of a batch, as `blueprint batch status` shows them."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from llm_serving.kinds.batch import table as batch_table

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


def print_narrow(table: Any) -> list[str]:
    console = Console(width=80, record=True)
    console.print(table)
    return console.export_text().splitlines()


def test_a_list_of_jobs_fits_80_columns_one_line_each() -> None:
    job = {
        **JOB, "id": f"batch_{'0' * 24}", "team": "ten-letter",
        "request_counts": {"total": 100_000_000, "completed": 36_900_000, "failed": 123_456},
    }  # fmt: skip
    small = {**job, "team": "ads", "request_counts": {"total": 9_999, "completed": 9_999, "failed": 0}}
    empty = {**job, "state": "validating", "request_counts": {"total": 0, "completed": 0, "failed": 0}}
    assert [line.rstrip() for line in print_narrow(batch_table.render_jobs([job, small, empty]))] == [
        "job                            team       priority state        rows done failed",
        "batch_000000000000000000000000 ten-letter normal   in_progress  100M  37%   123k",
        "batch_000000000000000000000000 ads        normal   in_progress 9,999 100%      0",
        "batch_000000000000000000000000 ten-letter normal   validating      0           0",
    ]


def test_a_long_name_of_a_team_is_folded_and_no_id_is_cut() -> None:
    job = {**JOB, "id": f"batch_{'0' * 24}", "team": "product-understanding"}
    lines = print_narrow(batch_table.render_jobs([job]))
    assert len(lines) > 2
    assert lines[1].startswith(f"{job['id']} product-un")


def test_what_teams_took_fits_80_columns() -> None:
    tokens = {"input": 123_456_789_012, "output": 9_876_543_210}
    team = {
        "team": "search", "jobs": 1_234, "rows": 100_000_000, "tokens": tokens, "endpoint_s": 1e7, "cost_usd": 41_234.5,
        "tokens_today": 987_654_321, "tokens_per_day": 10**9,
    }  # fmt: skip
    header, line = print_narrow(batch_table.render_teams([team]))
    assert line.split() == ["search", "1,234", "100M", "123B", "9.88B", "2,777.8", "h", "41,234.50", "988M", "1B"]
    assert header.split()[0] == "team"


def test_a_worker_says_how_peoples_slo_burns_where_it_gives_way_to_one() -> None:
    assert "batch-worker-0: 4 in flight of at most 7; people's SLO burns at 0.66\n" in show({**WORKER, "burn": 0.66})
    assert "of at most 7; the cache takes no answers: it is full\n" in show({**WORKER, "cache": "it is full"})
    for silent in (WORKER, {**WORKER, "burn": 0.0, "cache": ""}):  # one of before, and one that shares no engines
        assert "batch-worker-0: 4 in flight of at most 7\n" in show(silent)
