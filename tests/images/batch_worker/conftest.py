"""The programs of images/batch-worker on the path, and an embedded AWS for the module that asks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from llm_serving import paths
from llm_serving.kinds.batch import worker_settings
from llm_serving.rehearsal import emulator
from tests import batch_kills

IMAGE = paths.IMAGES / "batch-worker"
BUCKET = "rows-and-results"
REGION = "us-west-2"

if str(IMAGE) not in sys.path:
    sys.path.insert(0, str(IMAGE))


class StateMachine:
    """Notes the executions that are started, and those that are described; all but the listed ones have ended."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.described: list[str] = []
        self.listed: list[str] = []

    def start_execution(self, *, name: str, **_: Any) -> None:
        self.started.append(name)

    def get_paginator(self, _: str) -> Any:
        pages = [{"executions": [{"name": name}]} for name in self.listed]
        return SimpleNamespace(paginate=lambda **_: pages)

    def describe_execution(self, *, executionArn: str) -> dict[str, str]:  # noqa: N803 - boto3's name
        self.described.append(executionArn.rpartition(":")[2])
        return {"status": "FAILED"}


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an embedded AWS with an empty bucket."""
    with emulator.start(tmp_path_factory.mktemp("batch-aws"), bare=True) as endpoint:
        client = emulator.create_client("s3", endpoint, REGION)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield endpoint


@pytest.fixture
def embedded_client_env(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the programs' own clients call the embedded AWS."""
    for name, value in emulator.build_client_env(aws, REGION).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


@pytest.fixture
def store(aws: str) -> Any:
    """The bucket."""
    from batch.store import Store

    return Store(BUCKET, emulator.create_client("s3", aws, REGION))


@pytest.fixture
def write_input(store: Any, request: pytest.FixtureRequest) -> Any:
    """Write an input of this test's own, and build its job."""
    from batch import layout

    def write(content: bytes, **options: Any) -> Any:
        key = f"inputs/{request.node.name[:60]}"
        store.write(key, content)
        head = store.read_head(key)
        job_id = layout.build_job_id("default", key, head["etag"], {"test": request.node.name})
        submission = layout.Submission(key, team="default", priority="normal", deadline_s=1e12, **options)
        source = {"bucket": BUCKET, "key": key, **head}
        job = layout.build_job(job_id, submission, name="mine", source=source, now=0.0)
        store.write_json(layout.Layout("batch/mine").build(layout.JOB, job_id), job)
        return job

    return write


def read_settings(**changes: Any) -> Any:
    """Read the settings of both programs from the document that the tool writes, with changes."""
    from batch import settings

    document = {**batch_kills.build_document("http://127.0.0.1:1"), "chunk_bytes": 64 * 2**10, **changes}
    variables = worker_settings.format_variables(document)
    return settings.read({**variables, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "BATCH_WORKER": "w"})


@pytest.fixture
def batch_settings() -> Any:
    """What the programs are told."""
    return read_settings(attempts=3, min_concurrency=1, max_concurrency=1)


@pytest.fixture
def state_machine() -> StateMachine:
    return StateMachine()


@pytest.fixture
def jobs(store: Any, batch_settings: Any, state_machine: StateMachine) -> Any:
    """The jobs of a deployment whose executions run nowhere."""
    from batch.jobs import Jobs
    from batch.resources import Queues

    queues = Queues("control", {("default", "normal"): "run"})
    return Jobs(store, batch_settings, state_machine, "arn:aws:states:us-west-2:1:stateMachine:mine", queues)


ROOT = Path(__file__).resolve().parents[3]
