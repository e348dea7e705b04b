"""A stream on this machine, with the real Kafka, Flink and Redis: deployed, killed, validated and destroyed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from llm_serving import paths, processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.kinds.streaming import programs
from llm_serving.kinds.streaming.cloud import SETTINGS_VARIABLE
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.validation import outcomes
from llm_serving.kinds.streaming.validation import validate as validation
from llm_serving.kinds.streaming.validation.report import EventCounts
from llm_serving.rehearsal import emulator
from llm_serving.services import kinds
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import load_tasks
from llm_serving.targets.local import readiness, supervisor
from llm_serving.targets.on_aws import load_drivers
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.reports import run_folder
from tests import maven
from tests.infra.streaming.conftest import FLEET
from tests.kinds.streaming.test_managed import BLUEPRINT
from tests.targets.ecs import networks
from tests.targets.ecs.test_load_tasks import describe_tasks, read_variables
from tests.validation.remote.containers import ProcessContainers

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("stream"),
    maven.REQUIRED,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Deploy a copy of the pattern whose sample is short; its directory is the working one."""
    programs.install(lambda _: None)
    root = tmp_path_factory.mktemp("stream")
    folder = Path(shutil.copytree(paths.PATTERNS / "near-real-time", root / "shop"))
    shutil.copy(paths.ROOT / "fleet.yaml", root)
    file = folder / "blueprint.yaml"
    text = file.read_text().replace("rate: 2,", "rate: 0,").replace("  events: 600", "  events: 300")
    # Neighbours and kills may slow it down.
    text = text.replace("in_flight: 64", "in_flight: 128")  # all of it at once
    file.write_text(text.replace("answer_p99: 3s", "answer_p99: 60s").replace("deadline: 2s", "deadline: 20s"))
    before = Path.cwd()
    os.chdir(root)
    try:
        assert main.run(["deploy", "shop", "--yes"]) == 0
        yield folder
        assert main.run(["destroy", "shop", "--yes"]) == 0
        assert not (root / ".blueprint" / "shop").exists()
    finally:
        main.run(["destroy", "shop", "--yes"])
        os.chdir(before)


def validate(folder: Path) -> dict[str, Any]:
    """Validate, and return the report."""
    assert main.run(["validate", "shop"]) == 0
    file = folder.parent / "runs" / "latest" / "report.json"
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def load_local() -> StreamingDeployment:
    """What runs here, whose Kafka has neither TLS nor logins."""
    deployment = DeploymentDir("shop", Path.cwd()).load_deployment()
    assert isinstance(deployment, StreamingDeployment)
    return deployment


def send_patiently(folder: Path) -> EventCounts:
    """Send the sample, and wait for what becomes of it as long as a busy machine takes to start programs again."""
    deployment = load_local()
    validation.wait_running(deployment.url)
    with run_folder.lock_work(DeploymentDir("shop", folder.parent).logs, "shop") as work:
        validation.send(deployment, deployment.sample.events, work, drain_s=240)
        return outcomes.count(outcomes.read(work))


def find_program(name: str, program: str = "java") -> psutil.Process:
    """Find the process of a service that runs a program."""
    running = supervisor.find_running(DeploymentDir("shop", Path.cwd()))
    assert running
    process = psutil.Process(running.read_state(name).pid)
    return next(child for child in [process, *process.children(recursive=True)] if child.name() == program)


def test_each_event_is_answered_once_and_each_that_is_not_valid_is_a_dead_letter_with_its_reason(folder: Path) -> None:
    report = validate(folder)
    assert report["events"] == {
        "sent": 310, "answered": 300, "lost": 0, "duplicated": 0, "dead": 10, "misjudged": 0,
    }  # fmt: skip
    assert report["dead_reasons"] == {"schema": 2, "not_json": 2, "oversized": 2, "clock_skew": 2, "late": 2}
    assert report["metrics"]["answer_ms"]["count"] == 300
    assert (report["verdict"], report["missed"]) == ("pass", [])


def test_a_killed_task_manager_and_a_killed_broker_lose_and_double_nothing(folder: Path) -> None:
    sent = folder.parent / ".blueprint" / "shop" / "logs" / "validation" / "sent.jsonl"
    sent.unlink(missing_ok=True)
    killed = []

    def kill() -> None:
        """Kill both once the load is under way."""
        deadline = time.monotonic() + 120
        while not (sent.exists() and sent.stat().st_size):
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        for name in ("taskmanager", "kafka"):
            process = find_program(name)
            os.kill(process.pid, signal.SIGKILL)
            killed.append(name)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        events = send_patiently(folder)
    finally:
        killer.join()
    assert killed == ["taskmanager", "kafka"]
    # All may be answered before the broker was killed: the next test needs it again.
    [kafka] = [service for service in load_local().environment.services if service.name == "kafka"]
    processes.wait_until(lambda: readiness.is_listening(kafka), "the broker", 240)
    assert (events.answered, events.lost, events.duplicated) == (300, 0, 0)


def send(folder: Path) -> dict[str, Any]:
    """Send the sample, whatever becomes of it, and return the report."""
    assert main.run(["validate", "shop"]) in (0, 1), "no report of this run"
    report: dict[str, Any] = json.loads((folder.parent / "runs" / "latest" / "report.json").read_text())
    return report


def send_while_suspended(folder: Path, process: psutil.Process) -> dict[str, Any]:
    """Send the sample while a process hangs, and return the report."""
    process.suspend()
    try:
        return send(folder)
    finally:
        process.resume()


def test_an_endpoint_that_hangs_makes_dead_letters_at_the_deadline_and_nothing_else(folder: Path) -> None:
    report = send_while_suspended(folder, find_program("endpoint"))
    assert report["dead_reasons"].pop("deadline") == report["events"]["misjudged"] == 300
    assert sum(report["dead_reasons"].values()) == 10
    assert (report["events"]["lost"], report["events"]["duplicated"]) == (0, 0)


def test_a_cache_that_hangs_loses_no_event(folder: Path) -> None:
    """The next test fails if the cache has no answers once it is back."""
    report = send_while_suspended(folder, find_program("cache", "redis-server"))
    assert report["metrics"]["answer_ms"]["count"] == 0, "an answer is in the cache"
    assert (report["events"]["answered"], report["events"]["lost"], report["events"]["misjudged"]) == (300, 0, 0)


def read_checkpoints(folder: Path) -> dict[str, int]:
    """Counts of the job's checkpoints."""
    url = load_local().url
    with urllib.request.urlopen(f"{url}/jobs/overview", timeout=60) as answer:
        [job] = json.load(answer)["jobs"]
    with urllib.request.urlopen(f"{url}/jobs/{job['jid']}/checkpoints", timeout=60) as answer:
        counts: dict[str, int] = json.load(answer)["counts"]
    return counts


def test_events_are_answered_once_where_the_store_of_checkpoints_was_away(folder: Path) -> None:
    deployment = load_local()
    store = Path(deployment.environment.data_folder, "checkpoints")
    away = store.with_name("away")
    validation.wait_running(deployment.url)
    failed = read_checkpoints(folder)["failed"]
    store.rename(away)
    store.write_text("no folder")

    def return_store() -> None:
        """Bring it back once checkpoints have failed."""
        deadline = time.monotonic() + 120
        while read_checkpoints(folder)["failed"] < failed + 3 and time.monotonic() < deadline:
            time.sleep(0.5)
        store.unlink()
        away.rename(store)

    returner = threading.Thread(target=return_store)
    returner.start()
    try:
        events = send_patiently(folder)
    finally:
        returner.join()
    assert read_checkpoints(folder)["failed"] >= failed + 3
    assert (events.answered, events.lost, events.duplicated) == (300, 0, 0)


def deploy_with_files(folder: Path) -> None:
    """Deploy the blueprint with files of answers and one more partition; nothing starts again where that runs."""
    file = folder / "blueprint.yaml"
    file.write_text(
        file.read_text().replace("parquet: false", "parquet: true").replace("partitions: 4", "partitions: 5")
    )
    assert main.run(["deploy", "shop", "--yes"]) == 0


def test_newer_events_overtake_and_events_that_waited_are_shed_where_the_blueprint_says_so(folder: Path) -> None:
    file = folder / "blueprint.yaml"
    plain = file.read_text()
    # Every event waits for longer than that; only purchases may not.
    shed = "shed: {after: 0.001s, keep: [view, click, cart]}\ncache:"
    file.write_text(plain.replace("overtake: false", "overtake: true").replace("\ncache:", f"\n{shed}"))
    assert main.run(["deploy", "shop", "--yes"]) == 0
    try:
        report = send_while_suspended(folder, find_program("endpoint"))
    finally:
        file.write_text(plain)
    reasons = report["dead_reasons"]
    assert sum(reasons[reason] for reason in ("shed", "overtaken", "deadline")) == 300
    assert 0 < reasons["shed"] < 100, "one type of four, a seventh of the events"
    assert reasons["overtaken"] > 0
    events = report["events"]
    assert (events["answered"], events["lost"], events["duplicated"]) == (0, 0, 0)
    assert events["misjudged"] == reasons["shed"] + reasons["deadline"], "an event that is overtaken needs no answer"
    assert report["metrics"]["answer_ms"]["count"] == 0
    deploy_with_files(folder)


def read_files(folder: Path) -> list[dict[str, Any]]:
    """Rows of all Parquet files of the answers."""
    deployment = load_local()
    environment = deployment.environment
    bucket, _, prefix = deployment.answer_files.removeprefix("s3://").partition("/")
    s3 = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    files = [key for key in keys if re.fullmatch(rf"{prefix}date=\d{{4}}-\d\d-\d\d/[^/_][^/]*\.parquet", key)]
    bodies = (s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in files)
    return [row for body in bodies for row in pq.read_table(io.BytesIO(body)).to_pylist()]


def test_files_in_s3_have_each_answer_once_from_the_deploy_on_that_adds_them(folder: Path) -> None:
    deploy_with_files(folder)
    sent = folder.parent / ".blueprint" / "shop" / "logs" / "validation" / "sent.jsonl"
    validate(folder)
    expected = {event["id"] for event in map(json.loads, sent.read_text().splitlines()) if not event["bad"]}
    deadline = time.monotonic() + 120
    while missing := expected - {row["id"] for row in read_files(folder)}:
        assert time.monotonic() < deadline, missing
        time.sleep(1)
    rows = read_files(folder)
    counts = Counter(row["id"] for row in rows)
    assert set(counts.values()) == {1}
    columns = json.loads((programs.JOB / "src" / "main" / "resources" / "answer_columns.json").read_text())
    assert [column["name"] for column in columns] == list(rows[0])
    assert rows[0]["answer"] == "mock answer"


def test_a_record_that_was_taken_back_is_no_event_one_of_another_version_is_kept_whole_and_a_long_key_fails_no_job(
    folder: Path, build_program: Callable[..., list[str]]
) -> None:
    deploy_with_files(folder)
    deployment = load_local()
    validation.wait_running(deployment.url)  # it makes the topics, if this test runs alone
    send = build_program("SendPoison", deployment.brokers, deployment.topics.events, deployment.topics.dead_letters)
    done = subprocess.run(send, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines() == ["5 partitions", "whole event", "long key"]


def test_a_deployment_is_described_and_every_process_is_ready(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_local()
    assert main.run(["status", "shop", "--json"]) == 0
    processes = json.loads(capsys.readouterr().out)["processes"]
    assert {row["name"] for row in processes} == {"aws", "kafka", "cache", "endpoint", "taskmanager", "jobmanager"}
    assert {row["state"] for row in processes} == {"ready"}


@pytest.fixture(scope="module")
def remote(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentPlan]:
    """The plan of the same stream on ECS, and the embedded AWS with what its stack and the fleet's have."""
    assert folder.name == "shop", "the topics are those of the stream on this machine"
    programs.build_archive()
    root = tmp_path_factory.mktemp("remote")
    blueprint = Path(shutil.copytree(paths.PATTERNS / "near-real-time", root / "shop"))
    (blueprint / "blueprint.yaml").write_text(BLUEPRINT)
    (root / "fleet.yaml").write_text(FLEET)
    with emulator.start(root / "aws", bare=True) as endpoint:
        session = emulator.open_session(endpoint, "us-west-2")
        networks.create(session, "cotton", ("us-west-2a",), ["cotton-shop-driver", "cotton-shop-clients"])
        plan = planning.plan(
            blueprint, root / "fleet.yaml", target="ecs", root=root, aws=session, account=emulator.ACCOUNT
        )
        location = {"LocationConstraint": "us-west-2"}
        for bucket in (plan.deployment.environment.bucket, plan.deployment.environment.results_bucket):
            session.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=location)
        yield plan


def upload_archive(plan: DeploymentPlan) -> None:
    """Do what the stack does."""
    stack = plan.deployment.stack
    plan.aws.client("s3").upload_file(stack.archive, stack.bucket, stack.archive_key)


@contextlib.contextmanager
def run_task(plan: DeploymentPlan, folder: Path, urls: Sequence[str]) -> Iterator[ProcessContainers]:
    """Start the task, and run what its container would run, with its /tmp in `folder`."""
    program = kinds.get("streaming").build_load_program(plan.deployment)
    with load_tasks.run(plan, urls, program):
        [task] = [task for task in describe_tasks(plan.aws, "cotton") if task["desiredStatus"] == "RUNNING"]
        definition = plan.aws.client("ecs").describe_task_definition(taskDefinition=task["taskDefinitionArn"])
        [container] = definition["taskDefinition"]["containerDefinitions"]
        variables = read_variables(plan.aws, container)
        assert not [url for url in variables.values() if url in json.dumps([task, definition], default=str)]
        command = task["overrides"]["containerOverrides"][0]["command"]
        *entry, last = [word.replace("/tmp/", f"{folder}/") for word in (*container["entryPoint"], *command)]
        variables |= {"PATH": os.environ["PATH"], "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder}"}
        with ProcessContainers(folder, folder / "driver.log", entry).launch([last], variables) as started:
            yield started


def build_options(plan: DeploymentPlan, folder: Path) -> ValidationOptions:
    """Options by which the events come from the task."""
    source = load_drivers.build_program_source(plan, lambda urls, _: run_task(plan, folder, urls))
    return ValidationOptions(logs=folder / "logs", runs=folder / "runs", load_source=source)


def list_left(aws: AwsSession, plan: DeploymentPlan) -> dict[str, list[Any]]:
    """What a load has left in AWS."""
    s3 = aws.client("s3").list_object_versions(Bucket=plan.deployment.environment.results_bucket)
    secrets = aws.client("secretsmanager").list_secrets(IncludePlannedDeletion=True)
    definitions = aws.client("ecs").list_task_definitions(status="ACTIVE")
    running = [task for task in describe_tasks(aws, "cotton") if task["desiredStatus"] == "RUNNING"]
    return {
        "objects": s3.get("Versions", []),
        "secrets": secrets["SecretList"],
        "definitions": definitions["taskDefinitionArns"],
        "tasks": running,
    }


NOTHING: dict[str, list[Any]] = {"objects": [], "secrets": [], "definitions": [], "tasks": []}


def test_a_task_inside_the_network_without_the_jobs_jar_is_refused(remote: DeploymentPlan, tmp_path: Path) -> None:
    """The first of these tests: the next one uploads it."""
    with pytest.raises(Unavailable, match=r"-?\w+\.jar is not there: .* Fix: run blueprint deploy\.$"):
        validation.validate(load_local(), build_options(remote, tmp_path))
    assert list_left(remote.aws, remote) == NOTHING


def test_a_task_inside_the_network_sends_the_sample_and_leaves_nothing(remote: DeploymentPlan, tmp_path: Path) -> None:
    """The containers of ECS and the signatures of URLs are emulated; Kafka, Flink, the driver and its jar are not."""
    upload_archive(remote)
    deployment = load_local()
    validation.wait_running(deployment.url)
    report, _ = validation.validate(deployment, build_options(remote, tmp_path))
    assert report.events.model_dump() == {
        "sent": 310, "answered": 300, "lost": 0, "duplicated": 0, "dead": 10, "misjudged": 0,
    }  # fmt: skip
    assert (report.verdict, report.metrics.pipeline_ms.count) == ("pass", 300)
    assert report.settings["sent_from"].startswith("The load came from a container in the fleet's network")
    assert list_left(remote.aws, remote) == NOTHING


def test_a_driver_whose_login_kafka_does_not_know_fails_with_its_reason(
    remote: DeploymentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_archive(remote)
    monkeypatch.setattr(validation, "list_kafka_properties", lambda _: {"security.protocol": "unknown"})
    with pytest.raises(CheckFailed, match=r"(?s)load driver 0 failed with exit code 1.*security\.protocol"):
        validation.validate(load_local(), build_options(remote, tmp_path))
    assert list_left(remote.aws, remote) == NOTHING


def test_a_driver_whose_load_is_gone_ends_by_itself(remote: DeploymentPlan, tmp_path: Path) -> None:
    place = {"Bucket": remote.deployment.environment.results_bucket, "Key": "load-tests/gone"}
    (tmp_path / "input").write_text(remote.aws.client("s3").generate_presigned_url("get_object", Params=place))
    command = ["java", "-cp", remote.deployment.stack.archive, "stream.load.RemoteDriver", str(tmp_path / "input")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    assert "the load's input is gone: the load was cancelled" in run.stderr


def read_failures(url: str) -> str:
    """What made the job fail; empty while its JobManager starts."""
    try:
        with urllib.request.urlopen(f"{url}/jobs/overview", timeout=60) as answer:
            [job] = json.load(answer)["jobs"]
        with urllib.request.urlopen(f"{url}/jobs/{job['jid']}/exceptions", timeout=60) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return ""


def test_a_job_starts_again_after_kafka_forgot_the_transactions_of_its_checkpoint(
    folder: Path, build_program: Callable[..., list[str]]
) -> None:
    """Kafka knows as little of a transaction that never was as of one that it forgot."""
    assert folder.name == "shop"
    [settings] = {service.env.get(SETTINGS_VARIABLE) for service in load_local().services} - {None}
    assert settings
    commit = build_program("stream.CommitForgotten")
    environment = {**os.environ, SETTINGS_VARIABLE: settings}
    done = subprocess.run(commit, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("known: org.apache.kafka.common.errors.InvalidPidMappingException"), done


def test_a_deleted_topic_of_events_fails_the_job_with_the_reason(
    folder: Path, build_program: Callable[..., list[str]]
) -> None:
    """The last test: the topic that the job makes when it starts again lacks the other tests' events."""
    deployment = load_local()
    assert "UnknownTopicOrPartitionException" not in read_failures(deployment.url)
    subprocess.run(build_program("DeleteTopic", deployment.brokers, deployment.topics.events), timeout=120, check=True)
    processes.wait_until(
        lambda: "UnknownTopicOrPartitionException" in read_failures(deployment.url), "the job's failure", 120
    )
