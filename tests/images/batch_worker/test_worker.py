"""A worker that stops, and one whose job fails: what it holds, what it saves, and how the job goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from batch import chunk as chunk_module
from batch import dispatcher as dispatcher_module
from batch import jobs as jobs_module
from batch import layout, rows
from batch import poller as poller_module
from batch.chunk import ALONE, MAX_FRUITLESS, MAX_LOST, ChunkState, Outcome, take_chunk
from batch.errors import Permanent
from batch.jobs import BadSubmission, Jobs
from batch.open_chunks import OpenChunk
from batch.queue import Message
from batch.steps import StepRunner, Steps
from batch.store import Store
from batch.worker import Worker
from botocore.exceptions import ClientError

from tests.images.batch_worker.conftest import StateMachine
from tests.images.batch_worker.test_chunk import KEYS, answer, build_rows, prepare, read_results

LIMIT_S = 60.0


class Queues:
    """Stands for SQS and Step Functions: one message, and what is done with it."""

    def __init__(self) -> None:
        self.visibility_s: list[int] = []
        self.answers: list[Any] = []

    def receive_message(self, **_: Any) -> Any:
        return {"Messages": [{"ReceiptHandle": "receipt", "Body": json.dumps({"task": "plan", "token": "t"})}]}

    def delete_message(self, **_: Any) -> None:
        pass

    def change_message_visibility(self, **request: Any) -> None:
        self.visibility_s.append(request["VisibilityTimeout"])

    def send_task_success(self, *, output: str, **_: Any) -> None:
        self.answers.append(json.loads(output))


@dataclass
class Opened:
    """A worker with a chunk of five rows, of which two are answered and not saved."""

    worker: Worker
    chunk: OpenChunk
    queues: Queues

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run in the worker's event loop, its parts open."""

        async def run() -> None:
            self.worker.open()
            await work()

        asyncio.run(run())

    def commit(self) -> None:
        self.run(lambda: self.worker.committer.commit(self.worker.chunks))

    def shut_down(self) -> None:
        self.run(lambda: self.worker.shut_down([]))


@pytest.fixture
def open_worker(
    embedded_client_env: None, store: Store, batch_settings: Any, write_input: Any
) -> Callable[..., Opened]:
    def open_chunk(**changes: Any) -> Opened:
        settings = replace(batch_settings, **{"drain_s": LIMIT_S, **changes})
        job = write_input(b"\n".join(build_rows(5)))
        prepare(Steps(store, settings, now=lambda: 100.0), job)
        state, _ = take_chunk(store, KEYS, job["id"], 0, "w", 1)
        answer(state, 2)
        worker, queues = Worker(settings), Queues()
        worker.mailbox._sqs = worker.mailbox._stepfunctions = queues
        message = Message("queue", "receipt", {"task": "run", "job": job["id"], "chunk": 0, "token": "t"})
        chunk = OpenChunk(state, message, job)
        worker.chunks.add(chunk)
        worker.mailbox.held.add(message)
        return Opened(worker, chunk, queues)

    return open_chunk


def read_head(store: Store, job: layout.Job) -> Any:
    stored = store.read_json(KEYS.build(layout.HEAD, job["id"], 0))
    assert stored is not None
    return stored.value


def test_a_worker_that_stops_keeps_its_chunk_and_saves_rows_until_the_last_in_flight_ends(
    open_worker: Any, store: Store
) -> None:
    """Rows in flight may take longer than the takeover time: no other worker may take the chunk meanwhile."""
    opened = open_worker(takeover_s=0.4)
    chunk, visibility_s = opened.chunk, opened.queues.visibility_s

    async def answer_late(*_: Any) -> Outcome:
        while len(visibility_s) < 3 or not read_head(store, chunk.job)["parts"]:
            await asyncio.sleep(0.05)
        return Outcome(b'{"custom_id": "row-2", "error": null}\n', "", 3, 2)

    async def stop() -> None:
        opened.worker.dispatcher._runner = SimpleNamespace(run=answer_late)
        opened.worker.dispatcher.send(chunk)
        await opened.worker.shut_down([])

    opened.run(stop)
    assert sum(part["completed"] for part in read_head(store, chunk.job)["parts"]) == 3
    assert (visibility_s[:3], visibility_s[-1], opened.queues.answers) == ([1, 1, 1], 0, [])


def test_a_worker_that_stops_while_s3_refuses_hands_its_chunk_back(
    open_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_worker()

    def refuse(_: Any) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")

    monkeypatch.setattr(opened.chunk.state, "commit", refuse)
    opened.shut_down()
    assert opened.queues.visibility_s == [0]


def test_rows_that_outlast_a_stopping_worker_run_elsewhere(open_worker: Any, store: Store) -> None:
    """The last rows of a chunk are in flight for longer than a worker may take to stop: none of them is lost."""
    opened = open_worker(drain_s=0.05)
    chunk = opened.chunk

    async def hang(*_: Any) -> None:
        await asyncio.sleep(LIMIT_S)

    async def stop() -> None:
        opened.worker.dispatcher._runner = SimpleNamespace(run=hang)
        while chunk.state.pending:
            opened.worker.dispatcher.send(chunk)
        await asyncio.sleep(0)
        await opened.worker.shut_down([])

    opened.run(stop)
    assert (read_head(store, chunk.job)["done"], opened.queues.answers) == (False, [])
    assert opened.queues.visibility_s[-1] == 0
    state, _ = take_chunk(store, KEYS, chunk.job["id"], 0, "next", 1)
    assert len(state.pending) == 3


def test_workers_that_stop_before_a_row_is_saved_do_not_give_its_chunk_up(open_worker: Any, store: Store) -> None:
    """As spot instances do, while the endpoint is away or a team's tokens are spent for days."""
    opened = open_worker()
    opened.chunk.state.collect()
    opened.chunk.state._write_head({**opened.chunk.state.head, "fruitless": MAX_FRUITLESS - 1})
    opened.shut_down()
    assert read_head(store, opened.chunk.job)["fruitless"] == 0


@pytest.mark.parametrize(("hours", "counted"), [(0, [1, 2]), (11.5, [0, 0])])
def test_a_chunk_that_waits_in_a_worker_for_half_a_day_ended_none(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch, hours: float, counted: list[int]
) -> None:
    """SQS passes its message on then, and six such days would lose a row: the control is one that is taken at once."""
    job, now = open_worker().chunk.job, time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    taken = [take_chunk(store, KEYS, job["id"], 0, worker, 1)[0] for worker in ("next", "last")]
    assert [state.head["fruitless"] for state in taken] == counted


def test_a_chunk_whose_rows_cannot_be_read_for_a_while_ended_no_worker(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_worker().chunk.job

    def refuse(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "GetObject")

    with monkeypatch.context() as patched:
        patched.setattr(chunk_module, "read_chunk_lines", refuse)
        for _ in range(MAX_FRUITLESS):
            with pytest.raises(ClientError):
                take_chunk(store, KEYS, job["id"], 0, "next", 1)
    state, _ = take_chunk(store, KEYS, job["id"], 0, "last", 1)
    assert (len(state.pending), state.head["fruitless"]) == (5, 1)


class Ended(Exception):
    """A worker ran out of memory."""


def run_rows(state: ChunkState, job: layout.Job, in_flight: int, deadly: set[int]) -> None:
    """Run a chunk as a worker does: rows in flight, whose results are saved once all have one."""
    chunk = OpenChunk(state, Message("queue", "receipt", {}), job)
    while chunk.has_next:
        sent = []
        while chunk.has_next and chunk.in_flight < in_flight:
            sent.append(state.pending.popleft())
            chunk.in_flight += 1
        if deadly & {row.line for row in sent}:
            raise Ended
        for row in sent:
            chunk.in_flight -= 1
            state.add(Outcome(rows.format_output(f"row-{row.line - 1}", 200, b"{}"), ""))
        state.commit(state.collect())


@pytest.mark.parametrize(("in_flight", "deadly"), [(1, {1}), (4, {17, 20}), (3000, {13}), (256, {4, 5})])
def test_only_the_rows_that_end_workers_are_lost(
    store: Store, batch_settings: Any, write_input: Any, in_flight: int, deadly: set[int]
) -> None:
    job = write_input(b"\n".join(build_rows(20)))
    steps = Steps(store, batch_settings, now=lambda: 100.0)
    prepare(steps, job)
    ended = 0
    while True:
        state, _ = take_chunk(store, KEYS, job["id"], 0, "w", in_flight)
        try:
            run_rows(state, job, in_flight, deadly)
        except Ended:
            ended += 1
        else:
            break
    state.finish()
    assert steps.merge(job["id"])["failed"] == len(deadly)
    _, errors = read_results(store, job["id"])
    assert {line["error"]["line"] for line in errors} == deadly
    message = f"workers ended {MAX_FRUITLESS} times in a row, at last with this row alone in flight"
    assert {(line["error"]["code"], line["error"]["message"]) for line in errors} == {("worker_lost", message)}
    assert ended <= 2 * MAX_FRUITLESS * len(deadly)


@pytest.mark.parametrize("in_flight", [8, 256])
def test_a_chunk_of_many_such_rows_is_given_up(
    store: Store, batch_settings: Any, write_input: Any, in_flight: int
) -> None:
    job = write_input(b"\n".join(build_rows(20)))
    prepare(Steps(store, batch_settings, now=lambda: 100.0), job)
    with pytest.raises(Permanent, match=f"chunk 0 ended {MAX_FRUITLESS} workers in a row"):
        for _ in range(MAX_FRUITLESS + ALONE * MAX_LOST + 1):
            state, _ = take_chunk(store, KEYS, job["id"], 0, "w", in_flight)
            with pytest.raises(Ended):
                run_rows(state, job, in_flight, set(range(1, 21)))
    assert len(state.pending) + 1 == 20 - MAX_LOST


def test_a_row_that_may_have_ended_workers_runs_alone_in_its_worker(open_worker: Any, store: Store) -> None:
    """Else rows of other chunks, which have no result yet when it ends the worker, would be taken for what ends it."""
    opened = open_worker()
    suspect, worker = opened.chunk, opened.worker
    suspect.state.collect()
    other = OpenChunk(suspect.state, suspect.message, {**suspect.job, "priority": "high"})
    other.state = SimpleNamespace(pending=[1], suspects=0, unsaved_rows=0, runs_alone=False)
    worker.chunks.add(other)
    suspect.state.suspects = suspect.state.window = 1

    async def choose() -> None:
        dispatcher, poller = worker.dispatcher, worker.poller
        in_flight = asyncio.create_task(asyncio.sleep(0))
        dispatcher.requests.add(in_flight)
        assert dispatcher.choose() is None, "it waits for the rows in flight"
        dispatcher.requests.clear()
        assert dispatcher.choose() is suspect
        assert not poller.wants("default", "high")
        suspect.in_flight = 1
        assert dispatcher.choose() is None
        suspect.in_flight = 0
        answer(suspect.state, 1)
        assert dispatcher.choose() is None, "it waits until the result is saved"
        suspect.state.commit(suspect.state.collect())
        assert dispatcher.choose() is other
        assert poller.wants("default", "high")

    opened.run(choose)
    assert read_head(store, suspect.job)["fruitless"] == 0


def test_a_chunk_that_takes_long_to_end_holds_no_other_up(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 may take minutes to join its parts, in which a worker that is lost would lose as many."""
    opened, let_end = open_worker(), threading.Event()
    state = SimpleNamespace(pending=(), suspects=0, unsaved_rows=0, index=1, head={"parts": []})
    state.finish = lambda: let_end.wait(LIMIT_S)
    slow = OpenChunk(state, Message("queue", "other", {"token": "t"}), opened.chunk.job)
    opened.worker.chunks.add(slow)
    throttled = iter([ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")])
    commit = opened.chunk.state.commit

    def commit_second(results: Any) -> None:
        for error in throttled:
            raise error
        commit(results)

    monkeypatch.setattr(opened.chunk.state, "commit", commit_second)

    async def answer_on() -> None:
        committing = asyncio.create_task(opened.worker.committer.commit_in_time())
        async with asyncio.timeout(LIMIT_S):
            for parts in (1, 2):
                while len((await asyncio.to_thread(read_head, store, opened.chunk.job))["parts"]) < parts:
                    await asyncio.sleep(0.05)
                answer(opened.chunk.state, 1)
        assert slow in opened.worker.chunks
        let_end.set()
        while slow in opened.worker.chunks:
            await asyncio.sleep(0.01)
        committing.cancel()

    opened.run(answer_on)
    assert len(opened.queues.answers) == 1


def test_rows_of_many_bytes_do_not_fill_the_memory(open_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with pictures have megabytes each, and hundreds may be in flight."""
    opened = open_worker(min_concurrency=100, max_concurrency=100)
    chunk, row_bytes = opened.chunk, len(build_rows(1)[0])

    async def hang(*_: Any) -> None:
        await asyncio.sleep(LIMIT_S)

    async def send() -> None:
        dispatcher, poller = opened.worker.dispatcher, opened.worker.poller
        dispatcher._runner = SimpleNamespace(run=hang)
        monkeypatch.setattr(dispatcher_module, "MAX_BYTES_IN_FLIGHT", 2 * row_bytes)
        while dispatcher.has_room:
            dispatcher.send(chunk)
        assert (len(chunk.state.pending), chunk.in_flight) == (1, 2)
        await asyncio.sleep(0)
        assert poller.wants("default", "normal")
        monkeypatch.setattr(poller_module, "MAX_PENDING_BYTES", row_bytes)
        wanted = [poller.wants(*of) for of in (("default", "normal"), ("search", "normal"), ("default", "low"))]
        assert wanted == [False, True, False]
        for request in list(dispatcher.requests):
            request.cancel()
        await asyncio.gather(*dispatcher.requests, return_exceptions=True)
        assert dispatcher.has_room
        assert poller.wants("default", "high")

    opened.run(send)


def test_a_worker_without_rows_asks_no_engine_until_the_next(open_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_worker()
    steps: list[bool] = []
    monkeypatch.setattr(dispatcher_module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(dispatcher_module, "IDLE_INTERVAL_S", LIMIT_S)

    async def step() -> None:
        steps.append(bool(opened.worker.chunks))

    async def follow() -> None:
        opened.worker.chunks.remove(opened.chunk)
        opened.worker.chunks.changed.clear()
        dispatcher = opened.worker.dispatcher
        monkeypatch.setattr(dispatcher, "adapt", step)
        following = asyncio.create_task(dispatcher.follow_endpoint())
        await asyncio.sleep(0.3)
        assert steps == [False]
        opened.worker.chunks.add(opened.chunk)
        async with asyncio.timeout(LIMIT_S):
            while len(steps) < 5:
                await asyncio.sleep(0.01)
        following.cancel()

    opened.run(follow)
    assert steps[1:] == [True] * (len(steps) - 1)


@pytest.mark.parametrize(("task", "attempts"), [("merge", 0), ("run", 7)])
def test_a_worker_that_stops_during_a_merge_makes_it_no_attempt_that_failed(
    open_worker: Any, store: Store, task: str, attempts: int
) -> None:
    """As spot instances do, ten times in the hours of a large one; the control is a task without attempts."""
    opened = open_worker()
    key = KEYS.build(layout.ATTEMPTS, opened.chunk.job["id"], f"{task}-0")
    store.write_json(key, 7)
    body = {"task": task, "job": opened.chunk.job["id"], "token": "t"}
    opened.worker.mailbox.held.add(Message("queue", "of the merge", body))
    opened.shut_down()
    stored = store.read_json(key)
    assert stored is not None
    assert (stored.value, opened.queues.visibility_s) == (attempts, [0, 0])


def test_a_message_that_arrives_while_a_worker_stops_goes_back_to_the_queue(open_worker: Any) -> None:
    opened = open_worker()
    mailbox = opened.worker.mailbox
    mailbox.held.clear()
    assert mailbox.held == {mailbox.receive("queue")}
    mailbox.held.clear()
    mailbox.close()
    assert (mailbox.receive("queue"), mailbox.held) == (None, set())
    assert opened.queues.visibility_s == [0]


def test_a_job_that_fails_keeps_the_answers_and_gives_no_other_row_a_result(open_worker: Any, store: Store) -> None:
    opened = open_worker()
    chunk = opened.chunk
    chunk.apply_job({**chunk.job, "state": layout.FAILED}, 0.0)
    chunk.apply_job({**chunk.job, "state": layout.IN_PROGRESS}, 0.0)  # resumed: another message brings the rest
    opened.commit()
    head = read_head(store, chunk.job)
    assert ([(part["completed"], part["failed"]) for part in head["parts"]], head["done"]) == ([(2, 0)], False)
    held = opened.worker.mailbox.held
    assert (list(opened.worker.chunks), held, len(opened.queues.answers)) == ([], set(), 1)


def test_the_rows_of_a_cancelled_job_have_results(open_worker: Any, store: Store) -> None:
    """The control of the test above."""
    opened = open_worker()
    opened.chunk.apply_job({**opened.chunk.job, "state": layout.CANCELLING}, 0.0)
    opened.commit()
    head = read_head(store, opened.chunk.job)
    assert (head["parts"][-1]["failures"], head["done"]) == ({"batch_cancelled": 3}, True)


def test_a_failed_job_goes_on_from_its_saved_rows(
    store: Store, batch_settings: Any, write_input: Any, jobs: Jobs, state_machine: StateMachine
) -> None:
    steps = Steps(store, batch_settings, now=lambda: 100.0)
    job = write_input(b"\n".join(build_rows(5)))
    prepare(steps, job)
    state, _ = take_chunk(store, KEYS, job["id"], 0, "w", 1)
    answer(state, 2)
    state.commit(state.collect())
    key = KEYS.build(layout.HEAD, job["id"], 0)
    store.change_json(key, lambda head: {**head, "fruitless": MAX_FRUITLESS})
    cause = {"code": layout.GIVEN_UP_CODE, "message": "chunk 0 ended 10 workers in a row"}
    steps.fail(job["id"], {"Cause": json.dumps(cause)})
    failed = jobs.read(job["id"])
    assert failed is not None
    resumed = jobs.resume(failed)
    assert (resumed["state"], resumed["errors"], resumed["failed_at"]) == (layout.VALIDATING, [], None)
    assert state_machine.started == [f"{job['id']}-1"]
    prepare(steps, job)
    state, _ = take_chunk(store, KEYS, job["id"], 0, "w", 1)
    assert (len(state.pending), state.head["fruitless"]) == (3, 1)
    answer(state)
    state.commit(state.collect())
    state.finish()
    assert steps.merge(job["id"]) == {"state": layout.COMPLETED, "total": 5, "completed": 5, "failed": 0}
    output, errors = read_results(store, job["id"])
    assert sorted(line["custom_id"] for line in output) == [f"row-{number}" for number in range(5)]
    assert errors == []


def test_a_job_that_was_cancelled_before_it_failed_is_cancelled_after_all(write_input: Any) -> None:
    job = {**write_input(b"x"), "state": layout.FAILED, "cancelling_at": 5.0}
    reopened = layout.reopen(job)  # type: ignore[arg-type]
    assert reopened is not None
    assert reopened["state"] == layout.CANCELLING


def test_a_job_whose_executions_all_end_early_fails_with_the_reason(
    jobs: Jobs, store: Store, write_input: Any, state_machine: StateMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the state machine may not send to a queue: it does not wait for ever, and can be resumed."""
    monkeypatch.setattr(jobs_module, "MAX_EXECUTIONS", 3)
    job = write_input(b"\n".join(build_rows(1)))

    def read() -> layout.Job:
        current = jobs.read(job["id"])
        assert current is not None
        return current

    for count in (3, 6):
        for _ in range(5):
            jobs.ensure_execution(read())
        assert (len(read()["executions"]), read()["state"]) == (count, layout.FAILED)
        assert state_machine.started[-1] == f"{job['id']}-end-{count}", "which tells of the end"
        assert len(state_machine.started) == count + count // 3
        text = "3 executions ended before the job did; Step Functions shows why the last one did"
        assert read()["errors"] == [{"code": "workflow_failed", "message": text, "line": None}]
        if count == 3:
            jobs.resume(read())


def test_only_a_failed_job_is_resumed(jobs: Jobs, write_input: Any, state_machine: StateMachine) -> None:
    job = write_input(b"\n".join(build_rows(1)))
    with pytest.raises(BadSubmission, match=f"{job['id']} has not failed: it is validating"):
        jobs.resume(job)
    assert state_machine.started == []


def open_spent(open_worker: Any, batch_settings: Any, priority: str = "normal") -> Opened:
    """Open a worker with a chunk of a team that has used its tokens of today."""
    teams = {
        **batch_settings.teams,
        "default": replace(batch_settings.teams["default"], tokens_per_day=100),
    }
    opened: Opened = open_worker(teams=teams)
    opened.chunk.job = {**opened.chunk.job, "priority": priority}  # type: ignore[typeddict-item]

    async def use_up() -> None:
        opened.worker.usage.add("default", 99)
        assert opened.worker.dispatcher.choose() is opened.chunk
        opened.worker.usage.add("default", 1)

    opened.run(use_up)
    return opened


def test_a_team_without_tokens_left_gets_no_row_and_its_job_can_be_cancelled(
    open_worker: Any, batch_settings: Any, store: Store
) -> None:
    opened = open_spent(open_worker, batch_settings)
    assert opened.worker.dispatcher.choose() is None
    opened.chunk.apply_job({**opened.chunk.job, "state": layout.CANCELLING}, 0.0)
    assert opened.worker.poller.wants("default", "normal")  # the next chunk of the cancelled job
    opened.commit()
    assert read_head(store, opened.chunk.job)["parts"][-1]["failures"] == {"batch_cancelled": 3}


def test_rows_of_a_team_without_tokens_left_hold_nobody_up(open_worker: Any, batch_settings: Any) -> None:
    """Its rows of a higher priority wait for tomorrow, and other teams' rows run meanwhile."""
    opened = open_spent(open_worker, batch_settings, "high")
    wants, priorities = opened.worker.poller.wants, batch_settings.priorities
    assert len(opened.chunk.state.pending) > batch_settings.min_concurrency
    assert [wants("search", priority) for priority in priorities] == [True, True, True]
    opened.worker.usage._own.clear()  # the next day
    assert [wants("search", priority) for priority in priorities] == [True, False, False]


def test_a_long_step_does_not_delay_the_next_one(open_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge or an unpacking of a large job takes minutes, and an urgent job has to be planned meanwhile."""
    opened = open_worker()
    tasks = iter(["merge", "plan"])
    done: list[str] = []

    def receive(_: str) -> Message | None:
        task = next(tasks, None)
        if task is None:
            time.sleep(0.01)
        return Message("control", task, {"task": task}) if task else None

    def run_step(_: StepRunner, message: Message) -> None:
        end = time.monotonic() + LIMIT_S
        while message.task == "merge" and "plan" not in done and time.monotonic() < end:
            time.sleep(0.01)
        done.append(message.task)

    async def poll() -> None:
        polling = asyncio.create_task(opened.worker.poller.poll_control("control"))
        while len(done) < 2:
            await asyncio.sleep(0.01)
        polling.cancel()

    monkeypatch.setattr(opened.worker.mailbox, "receive", receive)
    monkeypatch.setattr(StepRunner, "run", run_step)
    opened.run(poll)
    assert done == ["plan", "merge"]
