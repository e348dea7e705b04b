"""Time and cost of a job before it starts: by an ended job or by arithmetic, and never invented."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from llm_serving.kinds.batch import estimate
from llm_serving.kinds.batch import table as batch_table
from llm_serving.kinds.batch.estimate import Rate

COUNTS = {
    "rows": {"value": 1000, "error": 0},
    "bad_rows": {"value": 0, "error": 0},
    "open_rows": {"value": 0, "error": 0},
    "input_tokens": {"value": 200_000, "error": 900},
    "output_tokens": {"value": 20_000, "error": 0},
    "is_whole": True,
    "bytes_read": 1_000_000,
    "rows_asked": 256,
}


def build_job(**changes: Any) -> dict[str, Any]:
    return {
        "id": "batch_1", "status": "completed", "priority": "normal", "created_at": 1_795_000_000, "endpoint_s": 100.0,
        "tokens": {"input": 100_000, "output": 10_000},
        "request_counts": {"total": 500, "completed": 500, "failed": 0}, **changes,
    }  # fmt: skip


def build(jobs: list[Any], usd_h: float | None = None, deadline_s: float = 3600.0, **counts: Any) -> dict[str, Any]:
    deployment: Any = SimpleNamespace(serving=None, usd_h=usd_h)
    return estimate.build(deployment, {**COUNTS, **counts}, jobs, team="a", priority="normal", deadline_s=deadline_s)


def test_an_ended_job_says_how_long_its_like_takes() -> None:
    payload = build([build_job()], usd_h=36.0, input_tokens={"value": 200_000, "error": 0})
    assert payload["rate"]["source"] == "measured"
    assert payload["rate"]["basis"] == "batch_1, 2026-11-18"
    assert payload["seconds"] == {"least": 200.0, "most": 200.0}
    assert payload["usd"] == {"least": 2.0, "most": 2.0}
    assert payload["deadline_holds"] is True


def test_the_error_of_a_count_widens_time_and_cost_and_leaves_a_close_deadline_open() -> None:
    counted = {"value": 200_000, "error": 20_000}
    payload = build([build_job()], usd_h=36.0, deadline_s=210.0, input_tokens=counted)
    assert payload["seconds"] == {"least": 180.0, "most": 220.0}
    assert payload["usd"] == {"least": 1.8, "most": 2.2}
    assert payload["deadline_holds"] is None
    exact = build([build_job()], deadline_s=210.0, input_tokens={"value": 200_000, "error": 0})
    assert exact["deadline_holds"] is True


@pytest.mark.parametrize(("input_s", "output_s"), [(1e-3, 0.0), (0.0, 1e-2), (4e-4, 6e-3)])
def test_bounds_hold_however_time_divides_between_prompts_and_answers(input_s: float, output_s: float) -> None:
    rate = Rate("measured", "", 100_000, 10_000, 100_000 * input_s + 10_000 * output_s)
    least, most = estimate.estimate_seconds(rate, 50_000, 40_000)
    truth = 50_000 * input_s + 40_000 * output_s
    assert most is not None
    assert least - 1e-6 <= truth <= most + 1e-6


def test_the_job_with_the_most_similar_rows_is_taken() -> None:
    other = build_job(id="batch_2", tokens={"input": 10_000, "output": 100_000})
    assert build([other, build_job()])["rate"]["basis"].startswith("batch_1")


def test_nothing_is_invented_before_a_job_ended() -> None:
    payload = build([build_job(status="in_progress"), build_job(endpoint_s=0.0)])
    assert (payload["rate"], payload["seconds"], payload["usd"], payload["deadline_holds"]) == (None,) * 4
    assert build([build_job()], input_tokens=None)["seconds"] is None
    assert build([], open_rows={"value": 10, "error": 0})["output_tokens"] is None


def test_rows_without_max_tokens_count_as_earlier_answers() -> None:
    payload = build([build_job()], open_rows={"value": 10, "error": 0})
    assert payload["output_tokens"]["value"] == 20_000 + 10 * 20
    assert "20 for each of 10 rows" in payload["output_tokens"]["by"]
    cancelled = build_job(status="cancelled", request_counts={"total": 3, "completed": 0, "failed": 3})
    assert build([cancelled], open_rows={"value": 10, "error": 0})["output_tokens"] is None, (
        "pieces of rows that failed"
    )


def test_rows_of_other_jobs_wait_before_it_unless_their_priority_is_lower() -> None:
    counts = {"total": 1000, "completed": 500, "failed": 0}
    running = build_job(id="batch_2", status="in_progress", request_counts=counts, endpoint_s=50.0)
    assert build([running, build_job()])["waiting_s"] == 50.0
    assert build([{**running, "priority": "low"}, build_job()])["waiting_s"] == 0.0


@pytest.mark.parametrize(("deadline_s", "holds"), [(100.0, False), (220.0, None), (260.0, True)])
def test_a_deadline_holds_only_with_all_that_waits_before(deadline_s: float, holds: bool | None) -> None:
    counts = {"total": 1000, "completed": 500, "failed": 0}
    running = build_job(id="batch_2", status="in_progress", request_counts=counts, endpoint_s=50.0)
    assert build([running, build_job()], deadline_s=deadline_s)["deadline_holds"] is holds


def test_by_arithmetic_there_is_no_longest_time() -> None:
    rate = Rate("planned", "", 200.0, 20.0, 0.1)
    assert estimate.estimate_seconds(rate, 200_000, 20_000) == (100.0, None)
    assert estimate._judge(100.0, None, 0.0, 99.0) is False
    assert estimate._judge(100.0, None, 0.0, 1e9) is None


def render(payload: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(batch_table.render_estimate(payload))
    return console.export_text()


def test_the_table_says_why_a_time_is_unknown() -> None:
    reason = "time     unknown: no job took 2 s of the endpoint's time yet. Fix: submit some rows first"
    assert reason in render(build([build_job(endpoint_s=1.9)]))
    text = render(build([build_job()], input_tokens=None))
    assert "input    unknown: the endpoint counts none" in text
    assert "time     unknown: it follows from the tokens" in text


def test_the_table_says_how_each_number_was_had() -> None:
    text = render(build([build_job()]))
    assert "input    200,000 ± 900 tokens" in text
    assert "output   20,000 tokens at most, by max_tokens of the rows" in text
    assert "time     3.3 min" in text
    assert "measured: batch_1, 2026-11-18" in text
    assert "cost     unknown: endpoint.usd_per_hour is not set" in text
