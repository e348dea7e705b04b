"""A worker that stops, and one whose job fails: what it holds, what it saves, and how the job goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from batch import jobs as jobs_module
from batch import layout, worker
from batch.chunk import ChunkState
from batch.jobs import BadSubmission, Jobs
from batch.queue import Message
from batch.settings import TeamSettings
from batch.steps import Steps
from batch.store import Store
from batch.worker import OpenChunk, Worker

from tests.images.batch_worker.conftest import StateMachine
from tests.images.batch_worker.test_chunk import KEYS, answer, build_rows, prepare, read_results
from tests.images.batch_worker.test_faults import OWN

LIMIT_S = 20.0
MESSAGE = Message("queue", "receipt", {"task": "run", "job": "batch_1", "chunk": 0})


class Mailbox:
    """Notes what is kept, handed back and answered."""

    def __init__(self) -> None:
        self.kept: list[Message] = []
        self.handed_back: list[Message] = []
        self.answers: list[Any] = []

    def receive(self, *_: Any) -> Message:
        return MESSAGE

    def keep(self, message: Message) -> None:
        self.kept.append(message)

    def hand_back(self, message: Message) -> None:
        self.handed_back.append(message)

    def succeed(self, _: Message, output: Any) -> None:
        self.answers.append(output)


@pytest.fixture
def open_worker(embedded_client_env: None, store: Store, batch_settings: Any, write_input: Any) -> Callable[..., Any]:
    """Open a worker with a chunk of five rows, of which two are answered and not saved."""

    def open_chunk(**changes: Any) -> tuple[Worker, OpenChunk, Mailbox]:
        settings = replace(batch_settings, **changes)
        job = write_input(b"\n".join(build_rows(5)))
        (chunk,) = prepare(Steps(store, settings, now=lambda: 100.0), job)
        state = ChunkState.open(store, KEYS, job, chunk, "w")
        answer(state, 2)
        own, mailbox = Worker(settings, OWN), Mailbox()
        own._mailbox = mailbox  # type: ignore[assignment]
        opened = OpenChunk(state, MESSAGE, job)
        own._chunks.append(opened)
        own._held.add(MESSAGE)
        return own, opened, mailbox

    return open_chunk


def read_head(store: Store, job: layout.Job) -> Any:
    stored = store.read_json(KEYS.get_head_key(job["id"], 0))
    assert stored is not None
    return stored.value


def test_a_worker_that_stops_keeps_its_chunk_and_saves_rows_until_the_last_in_flight_ends(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in flight may take longer than the takeover time: no other worker may take the chunk meanwhile."""
    own, chunk, mailbox = open_worker(takeover_s=0.4)
    monkeypatch.setattr(worker, "DRAIN_S", LIMIT_S)

    async def finish_late() -> None:
        while len(mailbox.kept) < 3 or not read_head(store, chunk.job)["parts"]:
            await asyncio.sleep(0.05)
        answer(chunk.state, 1)
        chunk.in_flight -= 1

    async def close() -> None:
        pass

    async def stop() -> None:
        own._endpoint = SimpleNamespace(close=close)  # type: ignore[assignment]
        chunk.in_flight = 1
        request = asyncio.create_task(finish_late())
        own._requests.add(request)
        request.add_done_callback(own._forget)
        own._stop()
        await own._shut_down([])
        assert not request.cancelled()

    asyncio.run(stop())
    assert sum(part["completed"] for part in read_head(store, chunk.job)["parts"]) == 3
    assert (mailbox.handed_back, mailbox.answers) == ([MESSAGE], [])


def test_rows_that_outlast_a_stopping_worker_run_elsewhere(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rows of a chunk are in flight for longer than a worker may take to stop: none of them is lost."""
    own, chunk, mailbox = open_worker()
    monkeypatch.setattr(worker, "DRAIN_S", 0.05)

    async def hang(*_: Any) -> None:
        await asyncio.sleep(LIMIT_S)

    async def close() -> None:
        pass

    async def stop() -> None:
        own._endpoint = SimpleNamespace(close=close)  # type: ignore[assignment]
        own._runner = SimpleNamespace(run=hang, is_suspect=False)  # type: ignore[assignment]
        while chunk.state.pending:
            chunk.in_flight += 1
            own._requests.add(asyncio.create_task(own._run_row(chunk, chunk.state.pending.popleft(), 1.0)))
        await asyncio.sleep(0)
        own._stop()
        await own._shut_down([])

    asyncio.run(stop())
    head = read_head(store, chunk.job)
    assert (head["done"], mailbox.handed_back, mailbox.answers) == (False, [MESSAGE], [])
    (entry,) = Steps(store, own._settings)._read_chunks(chunk.job["id"])
    assert len(ChunkState.open(store, KEYS, chunk.job, entry, "next").pending) == 3


def test_workers_that_stop_before_a_row_is_saved_do_not_give_its_chunk_up(
    open_worker: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As spot instances do, while the endpoint is away or a team's tokens are spent for days."""
    own, chunk, _ = open_worker()
    chunk.state.collect()
    chunk.state._write_head({**chunk.state.head, "fruitless": worker.MAX_FRUITLESS - 1})

    async def close() -> None:
        pass

    own._endpoint = SimpleNamespace(close=close)  # type: ignore[assignment]
    asyncio.run(own._shut_down([]))
    assert read_head(store, chunk.job)["fruitless"] == 0


def test_a_message_that_arrives_while_a_worker_stops_goes_back_to_the_queue(open_worker: Any) -> None:
    own, _, mailbox = open_worker()
    own._held.clear()
    assert (own._take("queue"), own._held) == (MESSAGE, {MESSAGE})
    own._held.clear()
    own._stop()
    assert (own._take("queue"), own._held) == (None, set())
    assert mailbox.handed_back == [MESSAGE]


def test_a_job_that_fails_keeps_the_answers_and_gives_no_other_row_a_result(open_worker: Any, store: Store) -> None:
    own, chunk, mailbox = open_worker()
    own._apply_job(chunk, {**chunk.job, "state": layout.FAILED})
    own._apply_job(chunk, {**chunk.job, "state": layout.IN_PROGRESS})  # resumed: another message brings the rest
    asyncio.run(own._commit_all())
    head = read_head(store, chunk.job)
    assert ([(part["completed"], part["failed"]) for part in head["parts"]], head["done"]) == ([(2, 0)], False)
    assert (own._chunks, own._held, len(mailbox.answers)) == ([], set(), 1)


def test_the_rows_of_a_cancelled_job_have_results(open_worker: Any, store: Store) -> None:
    """The control of the test above."""
    own, chunk, _ = open_worker()
    own._apply_job(chunk, {**chunk.job, "state": layout.CANCELLING})
    asyncio.run(own._commit_all())
    head = read_head(store, chunk.job)
    assert (head["parts"][-1]["failures"], head["done"]) == ({"batch_cancelled": 3}, True)


def test_a_failed_job_goes_on_from_its_saved_rows(
    store: Store, batch_settings: Any, write_input: Any, jobs: Jobs, state_machine: StateMachine
) -> None:
    steps = Steps(store, batch_settings, now=lambda: 100.0)
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "w")
    answer(state, 2)
    state.commit(state.collect())
    key = KEYS.get_head_key(job["id"], 0)
    store.change_json(key, lambda head: {**head, "fruitless": worker.MAX_FRUITLESS})
    cause = {"code": layout.GIVEN_UP_CODE, "message": "chunk 0 ended 10 workers in a row"}
    steps.fail(job["id"], {"Cause": json.dumps(cause)})
    resumed = jobs.resume(job["id"])
    assert resumed is not None
    assert (resumed["state"], resumed["errors"], resumed["failed_at"]) == (layout.VALIDATING, [], None)
    assert state_machine.started == [f"{job['id']}-1"]
    (again,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, again, "w")
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
        assert (len(state_machine.started), read()["state"]) == (count, layout.FAILED)
        text = "3 executions ended before the job did; Step Functions shows why the last one did"
        assert read()["errors"] == [{"code": "workflow_failed", "message": text, "line": None}]
        if count == 3:
            jobs.resume(job["id"])


def test_only_a_failed_job_is_resumed(jobs: Jobs, write_input: Any, state_machine: StateMachine) -> None:
    job = write_input(b"\n".join(build_rows(1)))
    with pytest.raises(BadSubmission, match=f"{job['id']} has not failed: it is validating"):
        jobs.resume(job["id"])
    assert jobs.resume("batch_0") is None
    assert state_machine.started == []


def open_spent(open_worker: Any, priority: str = "normal") -> tuple[Worker, OpenChunk, Mailbox]:
    """Open a worker with a chunk of a team that has used its tokens of today."""
    own, chunk, mailbox = open_worker(
        teams={"default": TeamSettings(1, "normal", 100), "search": TeamSettings(1, "normal", 0)}
    )
    chunk.job = {**chunk.job, "priority": priority}
    own._usage.add("default", 99)
    assert own._choose() is chunk
    own._usage.add("default", 1)
    return own, chunk, mailbox


def test_a_team_without_tokens_left_gets_no_row_and_its_job_can_be_cancelled(open_worker: Any, store: Store) -> None:
    own, chunk, _ = open_spent(open_worker)
    assert own._choose() is None
    own._apply_job(chunk, {**chunk.job, "state": layout.CANCELLING})
    assert own._wants(("default", "normal"))  # the next chunk of the cancelled job
    asyncio.run(own._commit_all())
    assert read_head(store, chunk.job)["parts"][-1]["failures"] == {"batch_cancelled": 3}


def test_rows_of_a_team_without_tokens_left_hold_nobody_up(open_worker: Any) -> None:
    """Its rows of a higher priority wait for tomorrow, and other teams' rows run meanwhile."""
    own, chunk, _ = open_spent(open_worker, "high")
    assert len(chunk.state.pending) > own._limit.value
    assert [own._wants(("search", priority)) for priority in layout.PRIORITIES] == [True, True, True]
    own._usage._own.clear()  # the next day
    assert [own._wants(("search", priority)) for priority in layout.PRIORITIES] == [True, False, False]


def test_a_long_step_does_not_delay_the_next_one(open_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge or an unpacking of a large job takes minutes, and an urgent job has to be planned meanwhile."""
    own, _, _ = open_worker()
    tasks = iter(["merge", "plan"])
    done: list[str] = []

    async def receive(_: str) -> Message | None:
        task = next(tasks, None)
        if task is None:
            await asyncio.sleep(0.01)
            return None
        return Message("control", task, {"task": task})

    async def do_step(message: Message) -> None:
        if message.task == "merge":
            await asyncio.wait_for(is_planned.wait(), LIMIT_S)
        else:
            is_planned.set()
        done.append(message.task)
        if message.task == "merge":
            own._stopping.set()

    async def poll() -> None:
        await asyncio.wait_for(own._poll_control("control"), 2 * LIMIT_S)

    is_planned = asyncio.Event()
    monkeypatch.setattr(own, "_receive", receive)
    monkeypatch.setattr(own, "_do_step", do_step)
    asyncio.run(poll())
    assert done == ["plan", "merge"]
