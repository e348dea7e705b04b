"""A worker where S3 throttles or denies it, and where its machine's clock jumps."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import boto3
import pytest
from batch import layout, rows, worker
from batch.chunk import Outcome, take_chunk
from batch.committer import Committer
from batch.jobs import BadSubmission, Jobs
from batch.layout import Submission
from batch.open_chunks import OpenChunk, OpenChunks
from batch.queue import Message
from batch.resources import Queues
from batch.steps import StepRunner, Steps
from batch.store import Store, create_client
from botocore.awsrequest import AWSResponse
from botocore.config import Config

KEYS = layout.Layout("batch/mine")
DENIED = "User: worker is not authorized to perform: {} because no identity-based policy allows it"


class Refusing:
    """Answers calls of a client as S3 would: of an operation, so many, with a status and a code."""

    def __init__(self, client: Any, operation: str, status: int, code: str, message: str, times: int) -> None:
        self.left, self.refused = times, 0
        self._answer = (status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())
        client.meta.events.register(f"before-send.s3.{operation}", self._refuse)

    def _refuse(self, request: Any, **_: Any) -> AWSResponse | None:
        if self.left <= 0:
            return None
        self.left -= 1
        self.refused += 1
        status, body = self._answer
        raw = SimpleNamespace(stream=lambda *_args, **_more: iter(()))
        response = AWSResponse(request.url, status, {}, raw)
        response._content = b"" if request.method == "HEAD" else body
        return response


@pytest.fixture
def client(embedded_client_env: None, request: pytest.FixtureRequest) -> Any:
    """The programs' own client of S3; with a parameter it tries each call so often, as if it had waited in vain."""
    client = create_client("s3")
    if attempts := getattr(request, "param", None):
        config = Config(retries={"mode": "standard", "total_max_attempts": attempts})
        client = boto3.client("s3", config=client.meta.config.merge(config))
    return client


class Opened(NamedTuple):
    """A chunk of four answered rows that are not saved, what saves it, and its answers to the state machine."""

    committer: Committer
    chunks: OpenChunks
    chunk: OpenChunk
    steps: Steps
    answers: list[Any]

    def commit(self) -> None:
        asyncio.run(self.committer.commit(self.chunks))


class Mailbox:
    """Notes the answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def succeed(self, _: Message, output: Any) -> None:
        self.answers.append(output)

    def fail(self, _: Message, code: str, cause: Any) -> None:
        self.answers.append((code, cause))


@pytest.fixture
def opened(client: Any, batch_settings: Any, write_input: Any) -> Opened:
    lines = [
        {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
        for number in range(4)
    ]
    job = write_input("\n".join(map(json.dumps, lines)).encode())
    store = Store(batch_settings.bucket, client)
    steps = Steps(store, batch_settings, now=lambda: 100.0)
    steps.plan(job["id"])
    steps.scan(job["id"], 0)
    steps.check(job["id"])
    state, _ = take_chunk(store, KEYS, job["id"], 0, "w", 1)
    while state.pending:
        row = rows.parse(state.pending.popleft().content)
        state.add(Outcome(rows.format_output(row.custom_id, 200, b'{"choices": []}'), "", 1, 1))
    chunk = OpenChunk(state, Message("queue", "receipt", {"task": "run", "job": job["id"], "chunk": 0}), job)
    chunks, mailbox = OpenChunks(), Mailbox()
    chunks.add(chunk)
    committer = Committer(chunks, mailbox, StepRunner(steps, mailbox), None)  # type: ignore[arg-type]
    return Opened(committer, chunks, chunk, steps, mailbox.answers)


def test_a_throttled_save_is_repeated(opened: Opened, client: Any) -> None:
    s3 = Refusing(client, "PutObject", 503, "SlowDown", "Please reduce your request rate.", times=2)
    opened.commit()
    assert s3.refused == 2
    assert (opened.answers[0]["completed"], list(opened.chunks)) == (4, [])


@pytest.mark.parametrize("client", [1], indirect=True)
def test_rows_wait_for_s3_as_long_as_it_throttles_and_count_once(
    opened: Opened, client: Any, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    Refusing(client, "PutObject", 503, "SlowDown", "Please reduce your request rate.", times=2)
    for _ in range(2):
        opened.commit()
        assert (opened.answers, list(opened.chunks)) == ([], [opened.chunk])
    assert caplog.text.count("SlowDown") == 2
    opened.commit()
    assert (opened.answers[0]["completed"], list(opened.chunks)) == (4, [])
    head = store.read_json(KEYS.build(layout.HEAD, opened.chunk.job["id"], 0))
    assert head is not None
    assert [part["completed"] for part in head.value["parts"]] == [4]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AccessDenied", DENIED.format("s3:PutObject")),
        (403, "AccessDenied", DENIED.format("kms:GenerateDataKey")),
        (400, "KMS.DisabledException", "The key is disabled."),
    ],
    ids=["bucket", "KMS", "key disabled"],
)
@pytest.mark.parametrize("times", [1, 99], ids=["results alone", "job.json too"])
def test_a_denied_save_fails_the_chunk_with_its_reason(
    opened: Opened, client: Any, store: Store, status: int, code: str, message: str, times: int
) -> None:
    Refusing(client, "PutObject", status, code, message, times=times)
    opened.commit()
    ((name, cause),) = opened.answers
    assert (name, cause["code"], list(opened.chunks)) == (code, code, [])
    assert message in cause["message"]
    if times == 1:
        job = store.read_json(KEYS.build(layout.JOB, opened.chunk.job["id"]))
        assert job is not None
        assert job.value["errors"][0]["message"] == cause["message"]


def test_an_input_that_may_not_be_read_is_refused(client: Any, batch_settings: Any) -> None:
    Refusing(client, "HeadObject", 403, "403", "Forbidden", times=99)
    jobs = Jobs(Store(batch_settings.bucket, client), batch_settings, None, "", Queues("", {}))
    with pytest.raises(BadSubmission, match=r"s3://other/rows.jsonl may not be read; the blueprint's `inputs` names"):
        jobs.submit(Submission("rows.jsonl", bucket="other", team="search"))


def test_an_unfinished_job_of_a_team_that_is_gone_fails_and_stops_no_other(
    jobs: Any, state_machine: Any, store: Store, write_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a batch is deployed again without the team: its queues are gone too."""
    job = write_input(b"{}")
    other = {**job, "id": "batch_" + "f" * 24, "team": "gone"}
    first = {**other, "id": "batch_" + "0" * 24}
    newer = {**other, "id": "batch_" + "1" * 24, "created_at": time.time() + 60}
    for lost in (first, {**other, "executions": ["one"]}, newer):
        store.write_json(KEYS.build(layout.JOB, lost["id"]), lost)
    monkeypatch.setattr(state_machine, "describe_execution", lambda **_: {"status": "RUNNING"})
    started = jobs.reconcile()
    assert job["id"] in started and first["id"] not in started, "the first of the list is of no team"
    assert f"{job['id']}-1" in state_machine.started
    for lost in (first, other):
        failed = jobs.read(lost["id"])
        assert (failed["state"], failed["errors"][0]["message"]) == ("failed", "there is no team gone any more")
    assert jobs.read(newer["id"])["state"] == layout.VALIDATING, "a Batch API of a newer deploy may know the team"
    with pytest.raises(BadSubmission, match="there is no team gone: "):
        jobs.resume(jobs.read(first["id"]))


def test_an_input_that_s3_deletes_before_its_job_may_end_is_copied(
    store: Store, batch_settings: Any, jobs: Jobs, state_machine: Any
) -> None:
    """As that of a file which was uploaded months ago, and again today: the same content keeps its first object."""
    store.write("batch/mine/files/old", b"{}")
    head = store.read_head("batch/mine/files/old")
    assert head is not None
    jobs._settings = replace(batch_settings, max_deadline_s=90.0)
    jobs.now = lambda: head["modified"] + 80
    fresh = jobs.submit(Submission("batch/mine/files/old", team="default", deadline_s=10, again="fresh"))
    assert fresh["input"]["key"] == "batch/mine/files/old"
    job = jobs.submit(Submission("batch/mine/files/old", team="default", deadline_s=11))
    copy = job["input"]["key"]
    assert (copy, store.read(copy)) == (KEYS.build(layout.COPIED, job["id"]), b"{}")
    store.delete(copy)
    assert jobs.submit(Submission("batch/mine/files/old", team="default", deadline_s=11))["input"] == job["input"]
    assert store.read_head(copy) is None, "of a job that exists nothing is copied"


def test_an_execution_that_is_listed_as_running_is_not_asked_about(
    jobs: Any, state_machine: Any, store: Store, write_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_input(b"{}")
    for name in ("listed", "lost", "ended"):
        state = layout.COMPLETED if name == "ended" else job["state"]
        own = {**job, "id": f"batch_{name}", "executions": [name], "state": state}
        store.write_json(KEYS.build(layout.JOB, own["id"]), own)
    state_machine.listed = ["of many", "listed"]  # a page each
    assert "batch_lost" in jobs.reconcile()
    assert "lost" in state_machine.described
    assert "listed" not in state_machine.described
    assert "batch_listed-2" not in state_machine.started
    reads, lists, read, list_folders = list[str](), list[str](), jobs.read, store.list_folders
    monkeypatch.setattr(jobs, "read", lambda job_id: reads.append(job_id) or read(job_id))
    monkeypatch.setattr(store, "list_folders", lambda prefix: lists.append(prefix) or list_folders(prefix))
    newer = jobs.submit(Submission(job["input"]["key"], team="default", again="newer"))["id"]
    jobs.reconcile()
    assert ({"batch_listed", newer} <= set(reads), "batch_ended" in reads, lists) == (True, False, [])
    now = jobs.now()
    jobs.now = lambda: now + 60
    jobs.reconcile()
    assert len(lists) == 1


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_moves_no_deadline(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Callable[[], float] = worker.start_clock()
    before, real = clock(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert abs(worker.start_clock()() - before) > 86_000  # the control: a worker that starts now
    assert 0 <= clock() - before < 60
