"""A batch on ECS planned, applied, unchanged and destroyed by the real Terraform on the embedded AWS; between the two,
the real programs run a job through the state machine and the queues that Terraform made.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from infra.constructs import task_checks
from infra.stacks import batch
from llm_serving import paths, processes
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document
from llm_serving.targets import planning
from llm_serving.targets.ecs import stack, tasks
from tests import batch_kills
from tests.infra.batch.conftest import FLEET, write_blueprint
from tests.targets.ecs.applied_fleet import REGION, AppliedFleet, apply_fleet

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]

IMAGE = paths.IMAGES / "batch-worker"
BUCKET = f"cotton-results-{emulator.ACCOUNT}-{REGION}"
ROWS = {f"row-{number}": f"answer {number}" for number in range(20)}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppliedFleet]:
    with apply_fleet(tmp_path, monkeypatch, FLEET) as (document, aws):
        s3 = emulator.create_client("s3", str(aws.emulator), REGION)
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"EventBridgeConfiguration": {}}
        )
        yield document, aws


def test_a_batch_is_created_runs_a_job_and_is_destroyed(
    fleet: AppliedFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The execution of a job that waits for a worker is stopped, once the Batch API is gone that would start it again."""
    document, aws = fleet
    endpoint = str(aws.emulator)
    plan = planning.plan(write_blueprint(tmp_path, "catalog"), document.path, target="ecs", aws=aws)
    messages: list[str] = []
    assert stack.deploy(plan, messages.append) is True
    assert "created: aws_sfn_state_machine.workflow" in messages[0]
    _run_jobs(endpoint, plan.rendered / tasks.FILE, document, tmp_path)
    _check_table(endpoint)
    assert stack.deploy(plan, messages.append) is False, f"a plan after the apply is empty: {messages[-1]}"
    stepfunctions = emulator.create_client("stepfunctions", endpoint, REGION)
    [machine] = stepfunctions.list_state_machines()["stateMachines"]
    job = {"job": "batch_unfinished", "team": "ads", "bucket": BUCKET, "chunks": "", "queue": ""}
    stepfunctions.start_execution(stateMachineArn=machine["stateMachineArn"], input=json.dumps(job))
    capsys.readouterr()
    assert stack.destroy(plan) is True
    steps = capsys.readouterr().err
    order = ["Remove the services of catalog: done", "Stop the executions of unfinished jobs:", "Remove catalog from"]
    assert sorted(order, key=steps.index) == order
    for service, call, key in (
        ("sqs", "list_queues", "QueueUrls"),
        ("stepfunctions", "list_state_machines", "stateMachines"),
        ("scheduler", "list_schedules", "Schedules"),
        ("sns", "list_topics", "Topics"),
        ("glue", "get_databases", "DatabaseList"),
    ):
        client = emulator.create_client(service, endpoint, REGION)
        assert not getattr(client, call)().get(key), service
    assert stack.destroy(plan) is False, "nothing is left to take away"


def _run_jobs(endpoint: str, file: Path, document: Document[Fleet], folder: Path) -> None:
    """Run the programs with the environment of their tasks: one job by the API, one by a file in an inbox."""
    value = task_checks.read(file, document, batch.Batch).value
    stepfunctions = emulator.create_client("stepfunctions", endpoint, REGION)
    [machine] = stepfunctions.list_state_machines()["stateMachines"]
    api_port, model_port = processes.claim_free_ports(2)
    worker = next(service for service in value.services if not service.port)
    model = f"http://127.0.0.1:{model_port}"
    shared = {
        "PYTHONPATH": str(paths.ROOT),
        **emulator.build_client_env(endpoint, REGION),
    }
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "endpoint": ([sys.executable, "-m", "tests.batch_endpoint", "--port", str(model_port)], {}),
        "batch-worker": (
            [sys.executable, str(IMAGE / "batch_worker.py")],
            {
                **worker.env,
                "BATCH_SETTINGS": json.dumps({**json.loads(worker.env["BATCH_SETTINGS"]), "endpoint": model}),
                "BATCH_READY_FILE": str(folder / "ready"),
            },
        ),
        "batch-api": (
            [sys.executable, str(IMAGE / "batch_api.py")],
            {
                **value.entry.env,
                "BATCH_API_PORT": str(api_port),
                "BATCH_API_HOST": "127.0.0.1",
                "BATCH_STATE_MACHINE": machine["stateMachineArn"],
            },
        ),
    }
    running = []
    try:
        for name, (command, env) in commands.items():
            with (folder / f"{name}.log").open("ab") as output:
                running.append(processes.spawn(command, environment={**env, **shared}, output=output))
        client = BatchClient(f"http://127.0.0.1:{api_port}")
        _wait_for_api(client)
        rows = folder / "rows.jsonl"
        rows.write_bytes(batch_kills.format_rows(ROWS))
        submitted = client.create(file_id=client.upload(rows), metadata={"team": "search"})
        s3 = emulator.create_client("s3", endpoint, REGION)
        s3.put_object(Bucket=BUCKET, Key="batch/catalog/inbox/ads/more.jsonl", Body=rows.read_bytes() + b"\n")
        processes.wait_until(lambda: len(list(client.list_batches())) == 2, "the inbox's job", 120)
        for job in client.list_batches():
            processes.wait_until(lambda job=job: client.read(job["id"])["status"] in FINAL_STATES, job["id"], 120)  # type: ignore[misc]
        jobs = {job["team"]: job for job in client.list_batches()}
        assert {team: (job["status"], job["request_counts"]["completed"]) for team, job in jobs.items()} == {
            "search": ("completed", len(ROWS)),
            "ads": ("completed", len(ROWS)),
        }
        assert jobs["search"]["id"] == submitted["id"]
        assert (folder / "ready").exists(), "the container's health check finds it"
    finally:
        processes.stop_all(running, grace_s=5)


def _check_table(endpoint: str) -> None:
    """The jobs' Parquet files lie where the table's location and partitions say, with its columns."""
    glue, s3 = (emulator.create_client(service, endpoint, REGION) for service in ("glue", "s3"))
    table = glue.get_table(DatabaseName="cotton_catalog", Name="results")["Table"]
    storage = table["StorageDescriptor"]
    prefix = storage["Location"].removeprefix(f"s3://{BUCKET}/")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
    assert {key.removeprefix(prefix).split("/")[0] for key in keys} == {"team=ads", "team=search"}
    for key in keys:
        written = pq.read_table(io.BytesIO(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()))
        assert [column["Name"] for column in storage["Columns"]] == written.schema.names
        assert f"batch={written['job'][0]}" in key
        assert sorted(written["custom_id"].to_pylist()) == sorted(ROWS)


def _wait_for_api(client: Any) -> None:
    from llm_serving.settings.errors import Unavailable

    def answers() -> bool:
        try:
            list(client.list_batches())
        except Unavailable:
            return False
        return True

    processes.wait_until(answers, "the Batch API", 120)
