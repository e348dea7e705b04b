"""The state machine as the embedded AWS interprets it: this test answers each step in the workers' place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from batch import emulated, layout
from batch.jobs import build_execution_input
from batch.layout import Layout
from batch.resources import Queues, find_queues
from batch.store import Store

from llm_serving import processes
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from tests import batch_kills
from tests.images.batch_worker.conftest import REGION, read_settings

LIMIT_S = 60.0
JOB = "batch_flow"
DEFINITION: Path = STATE_MACHINE_FILE


class Flow:
    """An execution, and the queues of its steps."""

    def __init__(self, aws: str, store: Store, settings: Any, chunks: int, **given: Any) -> None:
        self._sqs, self._stepfunctions = (
            emulator.create_client(service, aws, REGION) for service in ("sqs", "stepfunctions")
        )
        keys = Layout(settings.prefix)
        store.write_json(keys.build(layout.CHUNKS, JOB), [{"index": index, "key": "k"} for index in range(chunks)])
        machine = emulated.create_resources(self._sqs, self._stepfunctions, store.client, settings, DEFINITION)
        queues = find_queues(self._sqs, settings)
        assert isinstance(queues, Queues)
        self._queues = {"scan": queues.runs["default", "normal"], "run": queues.runs["default", "normal"]}
        self._control = queues.control
        submission = layout.Submission("k", team="default", priority="normal", deadline_s=60.0)
        job = layout.build_job(JOB, submission, name="flow", source={}, now=0.0)
        payload = json.dumps({**build_execution_input(job, keys, settings, queues), **given})
        started = self._stepfunctions.start_execution(stateMachineArn=machine, input=payload)
        self._execution = started["executionArn"]

    def receive(self, task: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for the message of a step; returns its body."""
        queue, bodies = self._queues.get(task, self._control), list[Any]()

        def has_message() -> bool:
            for message in self._sqs.receive_message(QueueUrl=queue).get("Messages", ()):
                self._sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                bodies.append(json.loads(message["Body"]))
            return bool(bodies)

        processes.wait_until(has_message, task, limit_s, 0.1)
        assert (bodies[0]["task"], bodies[0]["job"]) == (task, JOB)
        return dict(bodies[0])

    def succeed(self, task: str, output: dict[str, Any]) -> dict[str, Any]:
        """Answer a step; returns its message."""
        message = self.receive(task)
        self.answer(message, output)
        return message

    def answer(self, message: dict[str, Any], output: dict[str, Any]) -> None:
        """Answer a step whose message was received."""
        self._stepfunctions.send_task_success(taskToken=message["token"], output=json.dumps(output))

    def fail(self, task: str, error: str) -> None:
        """Answer a step with an error."""
        cause = json.dumps({"code": error, "message": f"{task} failed"})
        token = self.receive(task)["token"]
        self._stepfunctions.send_task_failure(taskToken=token, error=error, cause=cause)

    def stop(self) -> None:
        """End the execution here."""
        self._stepfunctions.stop_execution(executionArn=self._execution)

    def wait_for_end(self) -> dict[str, Any]:
        """Wait for the end of the execution; returns its description."""

        def describe() -> dict[str, Any]:
            return dict(self._stepfunctions.describe_execution(executionArn=self._execution))

        processes.wait_until(lambda: describe()["status"] != "RUNNING", "the execution", LIMIT_S, 0.1)
        return describe()


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Any:
    """Settings of a deployment of this test's own."""
    name = f"flow-{abs(hash(request.node.name)) % 10**8}"
    return read_settings(**batch_kills.build_document("http://127.0.0.1:1", name=name))


STEPS = ["plan", "scan", "check", "run", "merge"]


def test_each_step_gets_its_chunk_and_its_answer_is_in_the_output(aws: str, store: Store, settings: Any) -> None:
    flow = Flow(aws, store, settings, chunks=2)
    flow.succeed("plan", {"chunks": 2})
    assert sorted(flow.succeed("scan", {"rows": 1, "faults": 0})["chunk"] for _ in range(2)) == [0, 1]
    flow.succeed("check", {"rows": 2, "faults": 0, "chunks_at_once": 2})
    assert sorted(flow.succeed("run", {"completed": 1})["chunk"] for _ in range(2)) == [0, 1]
    flow.succeed("merge", {"state": "completed"})
    ended = flow.wait_for_end()
    assert ended["status"] == "SUCCEEDED"
    output = json.loads(ended["output"])
    assert (output["plan"], output["check"]["rows"], output["result"]) == ({"chunks": 2}, 2, {"state": "completed"})
    # What became of the chunks is below the name of their list, where the stack lets the state machine write.
    listed = store.client.list_objects_v2(Bucket=store.bucket, Prefix=Layout(settings.prefix).build(layout.CHUNKS, JOB))
    assert [row["Key"].rpartition("/")[2] for row in listed["Contents"]] == ["chunks.json", "manifest.json"]


def test_no_more_chunks_run_at_once_than_the_check_says(aws: str, store: Store, settings: Any) -> None:
    flow = Flow(aws, store, settings, chunks=3)
    flow.succeed("plan", {"chunks": 3})
    for _ in range(3):
        flow.succeed("scan", {})
    flow.succeed("check", {"rows": 3, "faults": 0, "chunks_at_once": 2})
    messages = [flow.receive("run") for _ in range(2)]
    with pytest.raises(Unavailable):
        flow.receive("run", limit_s=3)
    flow.answer(messages[0], {})
    flow.succeed("run", {})
    flow.answer(messages[1], {})
    flow.succeed("merge", {"state": "completed"})
    assert flow.wait_for_end()["status"] == "SUCCEEDED"


def test_what_is_transient_is_repeated(aws: str, store: Store, settings: Any) -> None:
    """One step alone: the embedded AWS sends messages of a repeated step more often than once."""
    flow = Flow(aws, store, settings, chunks=1)
    flow.fail("plan", "Transient")
    flow.succeed("plan", {"chunks": 1})
    assert flow.receive("scan")["chunk"] == 0
    flow.stop()


def test_of_a_job_that_the_batch_api_failed_only_the_end_is_told(aws: str, store: Store, settings: Any) -> None:
    ended = Flow(aws, store, settings, chunks=1, result={"state": "failed"}).wait_for_end()
    assert (ended["status"], ended.get("error")) == ("FAILED", "JobFailed")


@pytest.mark.parametrize("failing", ["plan", "check", "merge"])
def test_a_step_that_fails_for_good_ends_in_the_job(aws: str, store: Store, settings: Any, failing: str) -> None:
    """Without those of a Map, of which the embedded AWS tolerates every failure; and it leaves out the cause."""
    flow = Flow(aws, store, settings, chunks=1)
    for task in STEPS[: STEPS.index(failing)]:
        flow.succeed(task, {"chunks_at_once": 1})
    flow.fail(failing, "AccessDenied")
    assert flow.succeed("fail", {"state": "failed"})["error"]["Error"] == "AccessDenied"
    ended = flow.wait_for_end()
    assert (ended["status"], ended.get("error")) == ("FAILED", "JobFailed")
