"""`blueprint batch` on a target: it talks to the Batch API through what the target opens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llm_serving.kinds.batch import commands as batch
from llm_serving.kinds.batch.blueprint import Limits, Team
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import registry


class Target:
    """A target whose deployment is reached by a tunnel."""

    def __init__(self, deployment: Any) -> None:
        self.deployment = deployment
        self.asked: list[tuple[Path, Path, str | None]] = []
        self.is_open = False

    @contextlib.contextmanager
    def open_validation(self, folder: Path, fleet_file: Path, url: str | None) -> Iterator[Any]:
        self.asked.append((folder, fleet_file, url))
        self.is_open = True
        options = SimpleNamespace(url="http://127.0.0.1:1234")
        yield SimpleNamespace(deployment=self.deployment, options=options)
        self.is_open = False


def test_a_job_on_ecs_is_listed_through_a_tunnel_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url="http://mine-batch-api.cotton.internal:8080"))
    urls: list[str] = []

    def list_batches(client: Any) -> Iterator[Any]:
        assert target.is_open
        urls.append(client._url)
        return iter(())

    monkeypatch.setattr(registry, "load_target", {"ecs": target}.__getitem__)
    monkeypatch.setattr(batch.BatchClient, "list_batches", list_batches)
    result = CliRunner().invoke(batch.app, ["list", "mine", "--target", "ecs", "--fleet", "other.yaml", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == []
    assert urls == ["http://127.0.0.1:1234"]
    assert target.asked == [(Path("mine"), Path("other.yaml"), None)]
    assert not target.is_open


def test_a_deployment_of_another_kind_has_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(SimpleNamespace(kind="serving", url=""))
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    result = CliRunner().invoke(batch.app, ["list", "mine"])
    assert str(result.exception) == "mine: kind: serving: it has no jobs. Fix: name a batch blueprint."


def build_job(status: str, completed: int, **failures: int) -> dict[str, Any]:
    ended = {"completed_at": 1_795_000_020} if status == "completed" else {}
    counts = {"total": 40, "completed": completed, "failed": sum(failures.values())}
    return {
        "id": "batch_1", "status": status, "team": "ads", "priority": "high", "request_counts": counts,
        "failures": failures, "tokens": {"input": 900, "output": 600}, "endpoint_s": 12.0, "cost_usd": 0.5,
        "created_at": 1_795_000_000, "in_progress_at": 1_795_000_010, "expires_at": 1_795_090_000, "errors": None,
        **ended,
    }  # fmt: skip


def test_a_job_is_watched_until_it_ends_with_its_failures_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url=""))
    failures = {"no_answer": 1, "context_length_exceeded": 3, "batch_cancelled": 1}  # a line of more than 80 columns
    shown = [build_job("in_progress", 10), build_job("completed", 35, **failures)]
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch, "WATCH_INTERVAL_S", 0.0)
    monkeypatch.setattr(batch.BatchClient, "read", lambda *_: shown.pop(0))
    monkeypatch.setattr(batch.BatchClient, "list_workers", lambda _: [])
    result = CliRunner().invoke(batch.app, ["status", "mine", "batch_1", "--watch"])
    assert result.exit_code == 0, result.output
    assert not shown
    assert result.stdout.endswith("USD\n")
    assert result.stdout.splitlines() == [
        "batch_1  completed  team ads, priority high",
        "rows     40 of 40 (100%), 5 failed: 3 context_length_exceeded, 1 no_answer, 1 batch_cancelled",
        "tokens   900 in, 600 out",
        "rate     4.0 rows/s, 60 output tokens/s",
        "endpoint 12.0 s of its time, 0.50 USD",
    ]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("failed", "batch_1: failed: PutObject is denied. Fix: remove the cause, then blueprint batch resume"),
        ("expired", "batch_1: expired"),
        ("cancelled", "batch_1: cancelled"),
    ],
)
def test_a_script_that_watches_a_job_hears_by_the_exit_code_that_it_did_not_complete(
    monkeypatch: pytest.MonkeyPatch, status: str, message: str
) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url=""))
    errors = [{"code": "AccessDenied", "message": "PutObject is denied", "line": None}]
    ended = {**build_job(status, 10), f"{status}_at": 1_795_000_020, "errors": {"data": errors}}
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch.BatchClient, "read", lambda *_: ended)
    monkeypatch.setattr(batch.BatchClient, "list_workers", lambda _: [])
    result = CliRunner().invoke(batch.app, ["status", "mine", "batch_1", "--watch"])
    assert isinstance(result.exception, CheckFailed)
    assert str(result.exception) == message
    assert result.stdout.startswith(f"batch_1  {status}  team ads")
    assert CliRunner().invoke(batch.app, ["status", "mine", "batch_1"]).exit_code == 0


def watch_through_outage(monkeypatch: pytest.MonkeyPatch, answers: list[Any], outage_s: float) -> tuple[Target, Result]:
    """Watch a job whose reads have these answers, one after the other."""
    target = Target(BatchDeployment.model_construct(kind="batch", url=""))

    def read(*_: Any) -> dict[str, Any]:
        answer: dict[str, Any] | Exception = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch, "WATCH_INTERVAL_S", 0.0)
    monkeypatch.setattr(batch, "OUTAGE_S", outage_s)
    monkeypatch.setattr(batch.BatchClient, "read", read)
    monkeypatch.setattr(batch.BatchClient, "list_workers", lambda _: [])
    return target, CliRunner().invoke(batch.app, ["status", "mine", "batch_1", "--watch"])


AWAY = Unavailable("the Batch API is away")


def test_a_watch_outlives_an_api_that_starts_again_behind_another_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [build_job("in_progress", 10), AWAY, AWAY, build_job("completed", 40)]
    target, result = watch_through_outage(monkeypatch, answers, 60)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("batch_1  completed")
    assert len(target.asked) == 3


@pytest.mark.parametrize("answers", [[AWAY], [build_job("in_progress", 10), AWAY]], ids=["never", "no more"])
def test_a_watch_ends_where_no_api_answers_or_none_answers_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any]
) -> None:
    outage_s = 60 if len(answers) == 1 else -1
    _, result = watch_through_outage(monkeypatch, answers, outage_s)
    assert result.exception is AWAY
    assert not answers


def test_a_failed_job_without_results_says_how_to_go_on_and_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url=""))
    error = {"code": "AccessDenied", "message": "PutObject is denied", "line": None}
    failed = {**build_job("failed", 0), "output_file_id": None, "errors": {"data": [error]}}
    resumed: list[str] = []
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch.BatchClient, "read", lambda *_: failed)
    result = CliRunner().invoke(batch.app, ["results", "mine", "batch_1"])
    assert str(result.exception) == (
        "batch_1: failed, without results: PutObject is denied. Fix: remove the cause, then blueprint batch resume"
    )

    def resume(_: Any, batch_id: str) -> dict[str, Any]:
        resumed.append(batch_id)
        return build_job("validating", 0)

    monkeypatch.setattr(batch.BatchClient, "resume", resume)
    result = CliRunner().invoke(batch.app, ["resume", "mine", "batch_1", "--json"])
    assert (json.loads(result.stdout), resumed) == ({"id": "batch_1", "state": "validating"}, ["batch_1"])


@pytest.mark.parametrize("status", ["validating", "in_progress", "completed"])
def test_a_file_that_was_submitted_before_is_not_left_out_in_silence(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url=""))
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch.BatchClient, "create", lambda *_, **__: build_job(status, 0))
    result = CliRunner().invoke(batch.app, ["submit", "mine", "s3://rows/in.jsonl"])
    assert result.exit_code == 0, result.output
    note = "The same rows were submitted before, and that job stays as it is. --again WORD runs them once more."
    assert (note in " ".join(result.stdout.split())) == (status != "validating")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--team", "nobody", "there is no such team. Fix: choose ads."),
        ("--priority", "urgent", "there is no such priority. Fix: choose high or normal or low."),
        ("--template", "no.json", "[Errno 2] No such file or directory: 'no.json'. Fix: name a file with a row."),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_slip_is_refused_before_a_file_of_gigabytes_is_sent(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str, message: str, more: list[str]
) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url="", teams={"ads": Team()}, limits=Limits()))
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    monkeypatch.setattr(batch.BatchClient, "upload", lambda *_: pytest.fail("it is sent"))
    result = CliRunner().invoke(batch.app, ["submit", "mine", "in.jsonl", option, value, *more])
    assert str(result.exception) == f'{option}: "{value}": {message}'


@pytest.mark.parametrize("words", [["mine", "--watch"], ["mine", "batch_1", "--watch", "--json"]])
def test_what_cannot_be_watched_is_refused(words: list[str]) -> None:
    result = CliRunner().invoke(batch.app, ["status", *words])
    assert str(result.exception) == "--watch: it shows one job to a person. Fix: give an ID, and leave --json out."
