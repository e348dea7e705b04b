"""The state machine's definition against asl-validator, and each step's message against its worker.

Step Functions itself ran nowhere here. The embedded AWS interprets the definition in tests/images/batch_worker and
tests/targets/ecs; what it leaves out (tolerated failures, jitter, redrive) is held by that linter alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.kinds.batch import worker_settings
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from tests import batch_kills
from tests.asl_validator.fixtures import FindErrors

DEFINITION = json.loads(STATE_MACHINE_FILE.read_text())

IMAGE = paths.IMAGES / "batch-worker"


def write_with_change(*keys: str, value: Any) -> str:
    """The definition with one value changed."""
    definition = json.loads(STATE_MACHINE_FILE.read_text())
    *parents, last = keys
    node = definition
    for key in parents:
        node = node[key]
    node[last] = value
    return json.dumps(definition)


MISTAKES = {
    "no such type": (write_with_change("States", "Plan", "Type", value="Job"), "/States/Plan/Type is invalid"),
    "a key misspelled": (write_with_change("States", "Plan", "Nxt", value="Scan"), "/States/Plan is invalid"),
    "no such state": (write_with_change("States", "Plan", "Next", value="Scann"), "State Scan is not reachable"),
    "no path": (write_with_change("States", "Plan", "ResultPath", value="plan"), "ResultPath is invalid"),
    "no number": (write_with_change("States", "Plan", "TimeoutSeconds", value="a day"), "must be integer"),
    "over the limit": (write_with_change("States", "Run", "ToleratedFailurePercentage", value=200), "must be <= 100"),
    "deep inside": (
        write_with_change("States", "Run", "ItemProcessor", "ProcessorConfig", "Mode", value="EVERYWHERE"),
        "/States/Run/ItemProcessor/ProcessorConfig/Mode is invalid",
    ),
}
"""Definitions with a mistake, and what asl-validator says of it."""


def test_the_definition_of_this_machine_passes_asl_validator_and_one_with_a_mistake_does_not(
    find_asl_errors: FindErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack's own is linted in tests/infra/batch."""
    monkeypatch.syspath_prepend(IMAGE)
    from batch import emulated

    rendered = emulated.render_definition(
        STATE_MACHINE_FILE.read_text(), build_settings(), "http://127.0.0.1:1/control"
    )
    assert "${" not in rendered
    errors = find_asl_errors({"rendered": rendered, **{name: text for name, (text, _) in MISTAKES.items()}})
    assert set(errors) == set(MISTAKES), errors
    assert [name for name, (_, message) in MISTAKES.items() if message not in errors[name]] == [], errors


def list_messages(states: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The message of each step, those of the maps' own states among them."""
    for state in states.values():
        if "MessageBody" in state.get("Parameters", {}):
            yield state["Parameters"]["MessageBody"]
        yield from list_messages(state.get("ItemProcessor", {}).get("States", {}))


def build_settings() -> Any:
    """What the programs of a batch are told."""
    from batch import settings

    document = {**batch_kills.build_document("http://chat:8080"), "failed_chunks": 0.01}
    return settings.read(worker_settings.format_variables(document))


def test_every_steps_message_has_what_its_worker_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message's task is one that `Steps.run` or the worker knows, with a token to answer to."""
    monkeypatch.syspath_prepend(IMAGE)
    code = (IMAGE / "batch" / "steps.py").read_text() + (IMAGE / "batch" / "poller.py").read_text()
    messages = {message["task"]: message for message in list_messages(DEFINITION["States"])}
    assert set(messages) == {"plan", "scan", "check", "run", "merge", "fail"}
    for task, message in messages.items():
        assert f'"{task}"' in code or task == "fail", task
        assert message["token.$"] == "$$.Task.Token"
        assert message["job.$"] == "$.job"
        assert ("chunk.$" in message) == (task in ("scan", "run"))


OUTPUTS = {
    "Plan": {"chunks"},
    "Check": {"rows", "faults", "chunks_at_once"},
    "Merge": {"state"},
    "Fail the job": {"state"},
}
"""Fields of each step's answer; tests/images/batch_worker/test_chunk.py holds the steps to them."""

READING_KEYS = (
    "Parameters", "ItemSelector", "ItemReader", "MaxConcurrencyPath", "ToleratedFailurePercentagePath",
)  # fmt: skip
"""Keys of a state that name paths of its input."""

PATH = re.compile(r'"(\$\.[a-z_.]+)"')


def find_unknown_paths(definition: Mapping[str, Any], known: frozenset[str]) -> set[tuple[str, str]]:
    """Follow every transition from the start, and find the paths that a state reads and its input lacks."""
    unknown: set[tuple[str, str]] = set()
    pending, seen = [(definition["StartAt"], known)], set()
    while pending:
        name, paths = pending.pop()
        if (name, paths) in seen:
            continue
        seen.add((name, paths))
        state = definition["States"][name]
        own = {key: state[key] for key in READING_KEYS if key in state}
        unknown |= {(name, path) for path in PATH.findall(json.dumps(own)) if path not in paths}
        if "ItemProcessor" in state:
            items = frozenset(f"$.{key.removesuffix('.$')}" for key in state["ItemSelector"])
            unknown |= find_unknown_paths(state["ItemProcessor"], items)
        for caught in state.get("Catch", ()):
            pending.append((caught["Next"], paths | {caught["ResultPath"]}))
        for choice in state.get("Choices", ()):
            pending += [(choice["Next"], paths | {choice["Variable"]}), (state["Default"], paths)]
        if "Next" in state:
            result = state["ResultPath"]
            added = {f"{result}.{field}" for field in OUTPUTS[name]} if result else set()
            pending.append((state["Next"], paths | added))
    return unknown


def test_each_state_gets_what_it_reads_on_every_way_that_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = frozenset(f"$.{name}" for name in build_input(monkeypatch))
    assert find_unknown_paths(DEFINITION, known) == set()
    written = DEFINITION["States"]["Run"]["ResultWriter"]["Parameters"].values()
    assert {path.replace("$.Execution.Input", "") for path in written} <= known
    lost = json.loads(write_with_change("States", "Merge", "ResultPath", value=None))
    assert find_unknown_paths(lost, known) == {("Notify", "$.result.state")}  # the control
    assert find_unknown_paths(DEFINITION, known - {"$.queue"}) == {("Scan", "$.queue"), ("Run", "$.queue")}


def test_each_step_is_repeated_alike_and_ends_in_the_job_where_it_fails_for_good() -> None:
    steps = [state for state in list_states(DEFINITION["States"]) if "waitForTaskToken" in state.get("Resource", "")]
    assert len(steps) == 6, "with the one that fails the job: where SQS refused it once, the execution was lost"
    retried = [state["Retry"] for state in steps]
    assert all(retry == retried[0] for retry in retried)
    # What the worker calls final is not repeated. A message that SQS did not take is: thousands are sent for a large job.
    # Names of SQS's errors: as LocalStack recorded them of AWS (test_task_service_sqs.snapshot.json, 2026-11).
    assert [rule["ErrorEquals"] for rule in retried[0]] == [
        ["Transient", "SQS.SdkClientException", "SQS.AmazonSQSException"]
    ]
    waits_s = {state["TimeoutSeconds"] for state in steps}
    assert waits_s == {14 * 86400}, "as long as a queue keeps its message: days without a worker fail no job"


MAX_PAYLOAD_BYTES = 262_144
"""Source: Step Functions developer guide, "Step Functions service quotas", 2026-11."""


FAILED_CHILD_BYTES = 1200
"""Of a child that failed, a map's output holds the whole execution: its ARNs, times, input, error and cause. Source: Step
Functions developer guide, "ResultWriter (Map)", note on Transformation, 2026-11; the bytes are an estimate."""


def compute_map_output(map_state: Mapping[str, Any], answer: Mapping[str, Any], chunks: int, failed: int) -> int:
    """The bytes of a Distributed Map's output: an array of what each child's last state gives, or where it was written.

    `ResultPath: null` of the map drops it only afterwards. Source: aws/aws-cdk#24799, read 2026-11.
    """
    if "ResultWriter" in map_state:
        return FAILED_CHILD_BYTES
    [chunk_state] = map_state["ItemProcessor"]["States"].values()
    output = {} if chunk_state.get("OutputPath", "$") is None else answer
    return len(json.dumps([output] * (chunks - failed), separators=(",", ":"))) + failed * FAILED_CHILD_BYTES


def test_what_becomes_of_the_most_chunks_fits_into_the_output_of_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import layout

    scan, run, most = DEFINITION["States"]["Scan"], DEFINITION["States"]["Run"], layout.MAX_CHUNKS
    found = {"rows": 10_000, "faults": 12}
    assert "ToleratedFailurePercentagePath" not in scan, "it ends with the first that fails"
    assert compute_map_output(scan, found, most, failed=0) < MAX_PAYLOAD_BYTES
    assert compute_map_output(run, layout.add_counts([]), most, failed=most) < MAX_PAYLOAD_BYTES
    # The controls: answers that are not dropped, and failed chunks that are not written elsewhere.
    answering = json.loads(
        write_with_change("States", "Scan", "ItemProcessor", "States", "Scan the chunk", "OutputPath", value="$")
    )
    assert compute_map_output(answering["States"]["Scan"], found, most, failed=0) > MAX_PAYLOAD_BYTES
    holding = {key: value for key, value in run.items() if key != "ResultWriter"}
    assert compute_map_output(holding, {}, most, failed=most // 40) > MAX_PAYLOAD_BYTES


def list_states(states: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All states, those of the maps' own among them."""
    for state in states.values():
        yield state
        yield from list_states(state.get("ItemProcessor", {}).get("States", {}))


def build_input(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The input of an execution, as the Batch API builds it."""
    monkeypatch.syspath_prepend(IMAGE)
    from batch import layout
    from batch.jobs import build_execution_input
    from batch.resources import Queues

    source = {"bucket": "rows", "key": "in.jsonl", "bytes": 1, "etag": "e"}
    submission = layout.Submission("in.jsonl", team="search", priority="high", deadline_s=60.0)
    job = layout.build_job("batch_1", submission, name="mine", source=source, now=0.0)
    queues = Queues("control", {("search", "high"): "https://sqs/search-high"})
    return build_execution_input(job, layout.Layout("batch/mine"), build_settings(), queues)


def test_an_executions_input_has_every_path_that_the_states_read(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = build_input(monkeypatch)
    text = json.dumps(DEFINITION)
    read = {part.split('"')[0].split(".")[0] for part in text.split('"$.')[1:]}
    # What the states add on the way: their results, by ResultPath; a map's items have `chunk`.
    added = {"plan", "check", "result", "error", "chunk"}
    assert read - added == set(payload) & read
    assert read - added <= set(payload)
    assert payload["failed_chunks_percent"] == 1.0
    assert payload["queue"] == "https://sqs/search-high"
