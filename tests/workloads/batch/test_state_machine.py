"""The state machine's definition against the schemas of asl-validator, and each step's message against its worker.

Step Functions itself ran nowhere here. The embedded AWS interprets the definition in tests/images/batch_worker and
tests/targets/ecs; what it leaves out (tolerated failures, jitter, redrive) is held by these schemas alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from llm_serving import paths
from llm_serving.workloads.batch.resolve import STATE_MACHINE_FILE

SCHEMAS = json.loads(Path(__file__).with_name("asl_schemas.json").read_text())["schemas"]
"""Of npm's asl-validator 4.0.0; its source and date stand in the file."""

DEFINITION = json.loads(STATE_MACHINE_FILE.read_text())

IMAGE = paths.IMAGES / "batch-worker"


def find_errors(definition: Mapping[str, Any]) -> list[str]:
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"].rstrip("#"), Resource.from_contents(schema)) for schema in SCHEMAS
    )
    [root] = [schema for schema in SCHEMAS if schema["$id"].endswith("/state-machine.json#")]
    validator = jsonschema.Draft7Validator(root, registry=registry)
    return [error.message for error in validator.iter_errors(name_query_language(definition))]


def name_query_language(node: Any) -> Any:
    """The definition with the language that states have where they name none, as asl-validator completes it."""
    if isinstance(node, list):
        return [name_query_language(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    language = {"QueryLanguage": "JSONPath"} if isinstance(node.get("Type"), str) else {}
    return {**language, **{key: name_query_language(value) for key, value in node.items()}}


def test_the_definition_follows_the_published_schemas() -> None:
    assert find_errors(DEFINITION) == []


def set_value(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(definition: dict[str, Any]) -> None:
        node: Any = definition
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_value("States", "Plan", "Type", value="Job"),
        set_value("States", "Plan", "TimeoutSeconds", value="a day"),
        set_value("States", "Run", "ToleratedFailurePercentage", value=200),
        set_value("States", "Run", "ItemProcessor", "ProcessorConfig", "Mode", value="EVERYWHERE"),
        set_value("States", "Plan", "Retry", value={"ErrorEquals": ["Transient"]}),
    ],
)
def test_a_mistake_in_the_definition_is_found(change: Callable[[dict[str, Any]], None]) -> None:
    broken = copy.deepcopy(DEFINITION)
    change(broken)
    assert find_errors(broken)


def list_messages(states: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The message of each step, those of the maps' own states among them."""
    for state in states.values():
        if "MessageBody" in state.get("Parameters", {}):
            yield state["Parameters"]["MessageBody"]
        yield from list_messages(state.get("ItemProcessor", {}).get("States", {}))


def test_every_steps_message_has_what_its_worker_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message's task is one that `Steps.run` or the worker knows, with a token to answer to."""
    monkeypatch.syspath_prepend(IMAGE)
    code = (IMAGE / "batch" / "steps.py").read_text() + (IMAGE / "batch" / "worker.py").read_text()
    messages = {message["task"]: message for message in list_messages(DEFINITION["States"])}
    assert set(messages) == {"plan", "scan", "check", "run", "merge", "fail"}
    for task, message in messages.items():
        assert f'"{task}"' in code or task == "fail", task
        assert message["token.$"] == "$$.Task.Token"
        assert message["job.$"] == "$.job"
        assert ("chunk.$" in message) == (task in ("scan", "run"))


def test_an_executions_input_has_every_path_that_the_states_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import layout
    from batch import settings as batch_settings
    from batch.resources import Queues, build_execution_input

    settings = batch_settings.read(
        {
            "BATCH_NAME": "mine",
            "BATCH_BUCKET": "rows",
            "BATCH_PREFIX": "batch/mine",
            "BATCH_TEAMS": "search:1:normal:0",
            "BATCH_WORKERS": "1",
            "BATCH_DEADLINE_S": "60",
            "BATCH_BAD_ROWS": "skip",
            "BATCH_CHUNK_BYTES": "1048576",
            "BATCH_FAILED_CHUNKS": "0.01",
            "BATCH_TAKEOVER_S": "30",
            "BATCH_ENDPOINT": "http://chat:8080",
            "AWS_REGION": "us-west-2",
        }
    )
    source = {"bucket": "rows", "key": "in.jsonl", "file": None, "bytes": 1, "etag": "e"}
    job = layout.build_job(
        "batch_1", name="mine", team="search", priority="high", source=source, now=0.0, deadline_s=60.0
    )
    queues = Queues("control", {("search", "high"): "https://sqs/search-high"})
    payload = build_execution_input(job, layout.Layout("batch/mine"), settings, queues)
    text = json.dumps(DEFINITION)
    read = {part.split('"')[0].split(".")[0] for part in text.split('"$.')[1:]}
    # What the states add on the way: their results, by ResultPath; a map's items have `chunk`.
    added = {"plan", "check", "result", "error", "chunk"}
    assert read - added == set(payload) & read
    assert read - added <= set(payload)
    assert payload["failed_chunks_percent"] == 1.0
    assert payload["queue"] == "https://sqs/search-high"
