"""Jobs through the real state machine and the real workers, against a mock endpoint with set delays."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batch.layout import Submission

from llm_serving import processes
from tests import batch_kills
from tests.batch_kills import BUCKET, FINAL_STATES, BatchRun

LIMIT_S = 240.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchRun]:
    """Two workers, the Batch API, the embedded AWS and the endpoint.

    A worker that a busy machine holds up is not taken for a dead one.
    """
    folder = tmp_path_factory.mktemp("batch")
    with batch_kills.start_run(folder, slots=16, takeover_s=10) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(run: BatchRun) -> Any:
    return run.open_jobs()


@pytest.fixture
def submit(run: BatchRun, jobs: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Submit rows of this test's own."""

    def submit_rows(name: str, content: bytes, **options: Any) -> Any:
        key = f"{request.node.name[:40]}/{name}.jsonl"
        run.s3.put_object(Bucket=BUCKET, Key=key, Body=content)
        return jobs.submit(Submission(key, **{"team": "default", **options}))

    return submit_rows


def build(count: int, text: str = "answer", size: int = 1) -> dict[str, str]:
    return {f"{text}-{number}": f"{text} {number} " + "word " * size for number in range(count)}


def wait_for(jobs: Any, job: Any, is_reached: Callable[[Any], bool], limit_s: float = LIMIT_S) -> Any:
    """Wait until a job is where it should be; returns it."""
    seen: list[Any] = []

    def look() -> bool:
        seen.append(jobs.count(jobs.read(job["id"])))
        return is_reached(seen[-1])

    processes.wait_until(look, job["id"], limit_s, interval_s=0.25)
    return seen[-1]


def wait_for_end(jobs: Any, job: Any) -> Any:
    return wait_for(jobs, job, lambda current: current["state"] in FINAL_STATES)


@pytest.mark.timeout(900)
def test_every_row_has_one_result_while_parts_are_killed(run: BatchRun) -> None:
    chance, killed = random.Random(7), Counter[str]()
    while killed.total() < 3:  # a job may end before as many, where a busy machine holds up who kills
        rows = batch_kills.build_rows(400, chance)
        job, own = batch_kills.run_with_kills(run, rows, 6, chance, limit_s=LIMIT_S, pause_s=1.5)
        killed += own
        assert job["state"] == "completed"
        output, errors = run.read_lines(job["output_key"]), run.read_lines(job["error_key"])
        assert batch_kills.find_mistakes(rows, output, errors) == []
        assert (len(output), len(errors)) == (388, 12)
        assert job["request_counts"] == {"total": 400, "completed": 388, "failed": 12}


def test_lost_doubled_and_exchanged_rows_are_found() -> None:
    """The control of the test above: its comparison finds what it must never see."""
    rows = {"a": "answer 1", "b": "answer 2", "c": "refuse 3"}

    def line(custom_id: str, text: str) -> Any:
        body = {"choices": [{"message": {"content": text}}]}
        return {"custom_id": custom_id, "response": {"body": body}, "error": None}

    refused = {"custom_id": "c", "error": {"code": "request_refused"}}
    good = [line("a", "answer 1"), line("b", "answer 2")]
    assert batch_kills.find_mistakes(rows, good, [refused]) == []
    for output, errors in (
        (good[:1], [refused]),
        ([*good, good[0]], [refused]),
        ([good[0], line("b", "answer 1")], [refused]),
        ([*good, line("c", "refuse 3")], []),
        (good, [{"custom_id": "c", "error": {"code": "no_answer"}}]),
    ):
        assert batch_kills.find_mistakes(rows, output, errors)


def test_the_same_submission_is_the_same_job(jobs: Any, submit: Callable[..., Any]) -> None:
    content = batch_kills.format_rows(build(3, "same"))
    first = submit("same", content)
    assert submit("same", content)["id"] == first["id"]
    assert wait_for_end(jobs, first)["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    again = submit("same", content)
    assert (again["id"], again["state"]) == (first["id"], "completed")


def test_urgent_rows_run_before_the_rest_of_a_patient_job_and_none_is_lost(
    run: BatchRun, jobs: Any, submit: Callable[..., Any]
) -> None:
    rows = build(900, "patient", 20)
    with run.limit_slots(1):  # of which the patient job takes a minute and a half
        patient = submit("patient", batch_kills.format_rows(rows))
        wait_for(jobs, patient, lambda job: job["request_counts"]["completed"] > 20)
        with run.limit_slots(0):  # nor does it go on until the urgent one is prepared
            urgent = submit("urgent", batch_kills.format_rows(build(20, "urgent")), team="ads", priority="high")
            wait_for(jobs, urgent, lambda job: job["state"] == "in_progress")
        urgent = wait_for_end(jobs, urgent)
        assert jobs.read(patient["id"])["state"] not in FINAL_STATES
    ended = wait_for_end(jobs, patient)
    assert (urgent["state"], ended["state"]) == ("completed", "completed")
    assert batch_kills.find_mistakes(rows, run.read_lines(ended["output_key"]), []) == []
    least = json.loads(run.env["BATCH_SETTINGS"])["min_concurrency"]
    is_followed = lambda: max(worker["concurrency"] for worker in jobs.list_workers()) > least  # noqa: E731
    processes.wait_until(is_followed, "more requests in flight, since the endpoint takes them", LIMIT_S)


def test_a_cancelled_job_keeps_its_answers_and_names_every_other_row(
    run: BatchRun, jobs: Any, submit: Callable[..., Any]
) -> None:
    rows = build(600, "cancel", 20)
    with run.limit_slots(1):  # it has not ended before it is cancelled
        job = submit("cancel", batch_kills.format_rows(rows))
        wait_for(jobs, job, lambda current: current["request_counts"]["completed"] > 10)
        assert jobs.cancel(job)["state"] == "cancelling"
    ended = wait_for_end(jobs, job)
    assert ended["state"] == "cancelled"
    output, errors = run.read_lines(ended["output_key"]), run.read_lines(ended["error_key"])
    assert sorted(line["custom_id"] for line in (*output, *errors)) == sorted(rows)
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert len(output) > 10


def test_a_worker_that_is_stopped_hands_back_what_it_has(run: BatchRun, jobs: Any, submit: Callable[..., Any]) -> None:
    rows = build(400, "stop", 20)
    with run.limit_slots(1):  # it has rows left
        job = submit("stop", batch_kills.format_rows(rows))
        wait_for(jobs, job, lambda current: current["request_counts"]["completed"] > 10)
        worker = run.running["batch-worker-0"]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_S) == 0
    assert "everything is handed back" in (run.folder / "batch-worker-0.log").read_text()
    run.start("batch-worker-0")
    ended = wait_for_end(jobs, job)
    assert batch_kills.find_mistakes(rows, run.read_lines(ended["output_key"]), []) == []
    sent = {text: count for text, count in run.read_known().items() if text.startswith("stop")}
    assert set(sent.values()) == {1}  # nothing in flight was cut off


def test_a_job_that_cannot_run_fails_with_its_reason(jobs: Any, submit: Callable[..., Any]) -> None:
    content = batch_kills.format_rows(build(3, "bad")) + b"\n{broken\n"
    job = wait_for_end(jobs, submit("bad", content, bad_rows="refuse"))
    assert job["state"] == "failed"
    assert job["errors"][0]["code"] == "bad_rows"
    assert job["errors"][0]["message"] == "1 of 4 rows cannot run, and the job refuses bad rows"
    assert job["errors"][1]["line"] == 4


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_the_end_of_a_job_is_told_to_eventbridge(
    run: BatchRun, jobs: Any, submit: Callable[..., Any], state: str
) -> None:
    from llm_serving.rehearsal import emulator

    events = emulator.create_client("events", run.aws, batch_kills.REGION)
    sqs = emulator.create_client("sqs", run.aws, batch_kills.REGION)
    queue = sqs.create_queue(QueueName="ends")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name="ends", EventPattern=json.dumps({"source": ["llm-serving.batch"]}))
    events.put_targets(Rule="ends", Targets=[{"Id": "queue", "Arn": arn}])
    damage = b"\n{broken" if state == "failed" else b""
    job = wait_for_end(jobs, submit("told", batch_kills.format_rows(build(2, "told")) + damage, bad_rows="refuse"))
    received: list[Any] = []

    def has_event() -> bool:
        messages = sqs.receive_message(QueueUrl=queue).get("Messages", [])
        received.extend(json.loads(message["Body"])["detail"] for message in messages)
        return any(event["job"] == job["id"] for event in received)

    processes.wait_until(has_event, "the event", LIMIT_S)
    assert received[-1] == {"deployment": "mine", "job": job["id"], "team": "default", "state": state}
