"""The verdict on a batch's sample job: what it counts, and what it misses."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.batch.blueprint import BatchSlo
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.validation import page as batch_page
from llm_serving.kinds.batch.validation import validate as batch
from llm_serving.kinds.batch.validation.report import BatchReport, Moment, Reference
from llm_serving.kinds.batch.validation.validate import Measurement
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.validation.reports import run_folder
from tests.kinds.batch.test_blueprint import MINIMAL, resolve
from tests.kinds.batch.validation.test_shares import build_fair_share
from tests.validation.conftest import build_options


@pytest.fixture
def deployment(tmp_path: Path) -> BatchDeployment:
    return resolve(tmp_path / "mine", MINIMAL)


def answer(custom_id: str) -> Any:
    return {"custom_id": custom_id, "error": None}


def fail(custom_id: str | None, code: str) -> Any:
    return {"custom_id": custom_id, "error": {"code": code}}


EXPECTED = ["a", "b", "c", None, None]
GOOD = [answer("a"), answer("b"), answer("c")]
BAD = [fail(None, "invalid_json_line"), fail("a", "duplicate_custom_id")]


def build_moments(*rows: tuple[float, bool, int]) -> list[Moment]:
    return [
        Moment(seconds=seconds, is_running=is_running, completed=0, failed=0, output_tokens=tokens, in_flight=0)
        for seconds, is_running, tokens in rows
    ]


@pytest.mark.parametrize(
    ("moments", "rate"),
    [
        ([(0, False, 0), (1, True, 0), (2, True, 0), (3, True, 200), (5, True, 400), (9, True, 400)], 100),
        ([(0, False, 0), (1, False, 0), (3, True, 400)], 200),
        ([(0, False, 0), (1, True, 0)], 0),
        ([(2, True, 400)], 0),
        ([], 0),
    ],
    ids=["from the start of its rows, not from the first result", "short", "no tokens", "one moment", "none"],
)
def test_the_rate_of_a_job(moments: list[tuple[float, bool, int]], rate: float) -> None:
    assert batch.compute_rate(build_moments(*moments)) == rate


@pytest.mark.parametrize(
    ("output", "errors", "lost", "duplicated", "misplaced"),
    [
        (GOOD, BAD, 0, 0, 0),
        (GOOD[:2], BAD, 1, 0, 0),
        (GOOD[:2], [*BAD, fail("c", "server_error")], 0, 0, 1),
        ([*GOOD, answer("a")], BAD, 0, 1, 0),
        (GOOD, [*BAD, fail("b", "server_error")], 0, 1, 1),
        (GOOD, BAD[:1], 1, 0, 0),
        (GOOD, [*BAD, BAD[0]], 0, 1, 0),
        ([*GOOD, answer("bad-1")], BAD[:1], 1, 0, 1),
    ],
)
def test_rows_that_are_lost_doubled_or_misplaced_are_counted(
    output: list[Any], errors: list[Any], lost: int, duplicated: int, misplaced: int
) -> None:
    counts = batch.count_rows(EXPECTED, output, errors)
    assert (counts.lost, counts.duplicated, counts.misplaced) == (lost, duplicated, misplaced)
    assert (counts.total, counts.completed, counts.failed) == (5, len(output), len(errors))


JOB = {"id": "batch_1", "status": "completed", "tokens": {"input": 30, "output": 300}, "endpoint_s": 3.0,
       "cost_usd": None}  # fmt: skip


def build_report(deployment: BatchDeployment, **changes: Any) -> BatchReport:
    team = {"team": "ads", "jobs": 2, "tokens": {"input": 60, "output": 600}, "endpoint_s": 6.0, "cost_usd": None}
    moments = [
        Moment(seconds=seconds, is_running=seconds > 0, completed=done, failed=0, output_tokens=tokens, in_flight=4)
        for seconds, done, tokens in ((0, 0, 0), (1, 0, 0), (2, 1, 100), (4, 3, 300), (9, 3, 300))
    ]
    arguments: dict[str, Any] = {
        "started": datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC),
        "job": JOB, "rows": [(custom_id, b"") for custom_id in EXPECTED], "output": GOOD, "errors": BAD,
        "moments": moments, "seconds": 9.0, "references": (), "fair_share": None, "teams": [team], **changes,
    }  # fmt: skip
    return batch.build_report(deployment, Measurement(**arguments))


def test_a_second_validation_is_refused_and_leaves_the_files_of_the_first(
    deployment: BatchDeployment, tmp_path: Path
) -> None:
    with run_folder.lock_work(tmp_path / "logs", "mine") as work:
        (work / "input.jsonl").touch()
        with pytest.raises(Unavailable, match=r"another validation of mine is running\. Fix: wait until it ends\."):
            batch.validate(deployment, build_options(tmp_path))
        assert (work / "input.jsonl").is_file()


def test_a_job_within_its_limits_passes(deployment: BatchDeployment) -> None:
    report = build_report(deployment)
    batch.require_slo(report)
    assert report.verdict == "pass"
    assert report.rows.model_dump(include={"total", "completed", "failed", "lost", "duplicated"}) == {
        "total": 5, "completed": 3, "failed": 2, "lost": 0, "duplicated": 0,
    }  # fmt: skip
    assert report.output_tokens_per_s == 100  # 300 tokens between the seconds 1 and 4
    page = batch_page.render(report)
    assert "PASS" in page
    assert "<td>ads</td><td>2</td><td>60</td><td>600</td><td>6.0</td><td>-</td>" in page
    assert "there is no cost without endpoint.usd_per_hour, or a deployment on AWS with a known price" in page
    assert "http" not in page.replace("http://127.0.0.1:8000", "")  # nothing is loaded


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"output": GOOD[:2]}, "rows.lost"),
        ({"output": [*GOOD, answer("a")]}, "rows.duplicated"),
        ({"output": GOOD[:2], "errors": [*BAD, fail("c", "server_error")]}, "failed_rows"),
        ({"seconds": 700.0}, "deadline"),
        ({"job": {**JOB, "status": "expired"}}, "state"),
    ],
)
def test_a_job_outside_its_limits_fails_by_name(deployment: BatchDeployment, changes: Any, metric: str) -> None:
    report = build_report(deployment, **changes)
    assert (report.verdict, [miss.metric for miss in report.missed]) == ("fail", [metric])
    with pytest.raises(CheckFailed, match=f"mine misses its SLO:\n  {metric}: "):
        batch.require_slo(report)
    assert "Missed objectives" in batch_page.render(report)


def test_an_endpoint_with_a_price_shows_the_cost_of_each_team(deployment: BatchDeployment) -> None:
    job = {**JOB, "cost_usd": 0.5}
    team = {"team": "ads", "jobs": 1, "tokens": {"input": 1, "output": 1}, "endpoint_s": 6.0, "cost_usd": 1.25}
    report = build_report(deployment, job=job, teams=[team])
    assert (report.cost_usd, report.teams[0].cost_usd) == (0.5, 1.25)
    assert "<td>1.25</td>" in batch_page.render(report)


@pytest.mark.parametrize(("best", "verdict"), [(110.0, "pass"), (150.0, "fail")])
def test_the_endpoints_use_is_held_against_its_best_rate(
    deployment: BatchDeployment, best: float, verdict: str
) -> None:
    strict = deployment.model_copy(update={"slo": BatchSlo(endpoint_use=0.8)})
    references = [Reference(concurrency=8, output_tokens_per_s=50), Reference(concurrency=32, output_tokens_per_s=best)]
    report = build_report(strict, references=references)
    assert (report.verdict, report.endpoint_use) == (verdict, round(100 / best, 4))
    assert f"{100 / best:.0%}" in batch_page.render(report)
    unmeasured = build_report(strict)
    assert [miss.metric for miss in unmeasured.missed] == ["endpoint_use"]


@pytest.mark.parametrize(("limit_s", "missed"), [(None, []), (3.0, []), (2.5, ["urgent_row"])])
def test_the_page_shows_how_teams_share_and_a_late_urgent_job_is_missed(
    deployment: BatchDeployment, limit_s: float | None, missed: list[str]
) -> None:
    limited = deployment.model_copy(update={"slo": BatchSlo(urgent_row=limit_s)})
    report = build_report(limited, fair_share=build_fair_share())
    assert [miss.metric for miss in report.missed] == missed
    page = batch_page.render(report)
    assert "its first row had a result after 2.6 s" in page
    assert "<td>b</td><td>30.0%</td><td>30.0%</td><td>3</td>" in page
    assert ">urgent job submitted</text>" in page
    assert "Fair share" not in batch_page.render(build_report(deployment))
