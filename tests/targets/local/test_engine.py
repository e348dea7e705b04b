"""The real engine: what it serves, where its weights come from, and how it fails."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.rehearsal import emulator
from llm_serving.targets.local import deploy, readiness, supervisor, weights
from llm_serving.targets.local.deploy import Plan
from llm_serving.targets.local.readiness import RoleFailed
from llm_serving.targets.local.supervisor import Supervisor
from llm_serving.workloads.serving.deployment import Process
from tests import serving
from tests.serving import Load

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]


def _up(plan: Plan) -> Supervisor:
    up = supervisor.running(plan.run)
    assert up is not None
    return up


def test_both_replicas_and_the_router_give_the_same_answer(served: Plan) -> None:
    urls = [serving.url(process) for process in served.deployment.replicas]
    texts = {serving.text(url) for url in [*urls, served.deployment.url]}
    assert len(texts) == 1
    assert len(texts.pop()) > 8


def test_each_replica_streamed_its_weights_from_the_bucket_and_stored_none(served: Plan) -> None:
    for process in served.deployment.replicas:
        log = served.run.log(process.name).read_text()
        assert f"'model': '{served.deployment.models[0].weights.uri}'" in log
        streamed = re.search(r"Overall time to stream ([\d.]+) MiB of all files to cpu: [\d.]+s", log)
        assert streamed is not None
        assert abs(float(streamed[1]) * 2**20 - served.deployment.models[0].weights.bytes) < 0.1 * 2**20
    stored = [
        path
        for path in served.run.data.rglob("*.safetensors")
        if "model" not in path.relative_to(served.run.data).parts[0]
    ]
    assert stored == []


def test_the_cache_has_the_room_that_the_resolver_asked_for(served: Plan) -> None:
    for process in served.deployment.replicas:
        told = re.search(r"KV cache size: ([\d,]+) tokens", served.run.log(process.name).read_text())
        assert told is not None
        asked = int(process.command[process.command.index("--kv-cache-memory-bytes") + 1])
        assert int(told[1].replace(",", "")) >= 0.95 * asked // (2 * 4 * 2 * 64 * 2), (
            "layers, heads, size, bytes of tiny"
        )


def test_nothing_is_written_outside_the_runs_folder(served: Plan) -> None:
    assert list((served.run.root / "home").rglob("*")) == []


def test_a_replica_takes_no_more_memory_than_the_resolver_counts_on(served: Plan) -> None:
    up = _up(served)
    for process in served.deployment.replicas:
        family = psutil.Process(up.state(process.name).pid).children(recursive=True)
        taken = sum(member.memory_full_info().pss for member in family)
        assert taken < process.memory_bytes


def test_a_replica_killed_under_load_comes_back_while_the_other_serves(served: Plan) -> None:
    up, victim = _up(served), served.deployment.replicas[0]
    keeper = psutil.Process(up.state(victim.name).pid)
    family = keeper.children(recursive=True)
    restarts = up.state(victim.name).restarts
    with Load(served.deployment.url, served.deployment.traffic.deadline) as load:
        processes.wait_until(lambda: len(load.done) > 20, "answers", 60)
        family[0].kill()
        killed = time.monotonic()
        _, alive = psutil.wait_procs([keeper, *family], timeout=10)
        assert alive == [], "the engine's own processes are gone with the server"
        time.sleep(8)
        meanwhile = [start for start in load.done if start > killed + 2]
        assert not readiness.answers(victim), "the other replica alone has served meanwhile"
        assert len(meanwhile) > 8
    assert len(load.failed) <= 8, "no more than were under way"
    assert load.longest_s < load.deadline_s
    readiness.wait(up, [victim])
    assert up.state(victim.name).restarts == restarts + 1
    before = serving.counter(victim, "vllm:request_success_total")
    with Load(served.deployment.url, served.deployment.traffic.deadline) as load:
        processes.wait_until(
            lambda: serving.counter(victim, "vllm:request_success_total") > before, "its share of the requests", 25
        )
    assert load.failed == []


@pytest.fixture
def broken(tmp_path: Path) -> Plan:
    """Four replicas, each of which is to read its weights from somewhere else."""
    folder = tmp_path / "broken"
    folder.mkdir()
    text = (ROOT / "blueprints/aggregated/blueprint.yaml").read_text()
    (folder / "blueprint.yaml").write_text(text.replace("replicas: 2", "replicas: 4"))
    (folder / "local.conf.j2").write_text((ROOT / "blueprints/aggregated/local.conf.j2").read_text())
    return deploy.plan(folder, ROOT / "fleet.yaml", root=tmp_path)


def _reading(plan: Plan, places: list[tuple[str, str]]) -> Plan:
    """The plan with each worker reading from its own (URI, endpoint)."""
    own = plan.deployment.models[0].weights.uri
    workers = [
        process.model_copy(
            update={
                "command": tuple(uri if word == own else word for word in process.command),
                "environment": {**process.environment, "AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint},
            }
        )
        for process, (uri, endpoint) in zip(plan.deployment.replicas, places, strict=True)
    ]
    role = plan.deployment.engines[0].model_copy(update={"processes": tuple(workers)})
    deployment = plan.deployment.model_copy(update={"roles": (role, plan.deployment.router)})
    text = deploy.render.text(deployment, plan.folder / "local.conf.j2")
    return replace(plan, deployment=deployment, text=text)


def test_a_replica_that_cannot_read_its_weights_ends_with_a_clear_line(
    broken: Plan, make_bucket: Callable[[Plan], str]
) -> None:
    place = broken.deployment.place
    bucket, endpoint = place.bucket, place.s3_endpoint or ""
    nobody = f"http://127.0.0.1:{processes.free_ports(1)[0]}"
    cut, denied = f"s3://{bucket}/models/cut/", "s3://demo-denied/models/tiny/"
    places = [
        (broken.deployment.models[0].weights.uri, nobody),
        ("s3://demo-nowhere/models/tiny/", endpoint),
        (cut, endpoint),
        (denied, endpoint),
    ]
    plan = _reading(broken, places)
    deploy.start_afresh(plan)
    with supervisor.supervised(plan.run) as up:
        deploy.start_aws(plan, up)
        make_bucket(plan)
        weights.put(plan.run, plan.deployment)
        _break(plan, "cut", "demo-denied")
        deploy.engine_env.lend_descriptions(plan.run.cache(process.name) for process in plan.deployment.replicas)
        said = {worker.name: _failure(up, worker) for worker in plan.deployment.replicas}
        assert up.state("aws").pid
    assert said["worker-0"].startswith("worker-0 ended with exit status 1: botocore.exceptions.EndpointConnectionError")
    assert nobody in said["worker-0"].splitlines()[0]
    assert "NoSuchBucket" in said["worker-1"].splitlines()[0]
    # The streamer says either that the answer was truncated or that the file could not be accessed.
    assert said["worker-2"].splitlines()[0].endswith(f"(reading {cut}model-00002-of-00004.safetensors)")
    assert "Forbidden" in said["worker-3"].splitlines()[0]
    for name, text in said.items():
        assert f"its last lines, all of them in {deploy.console.near(plan.run.log(name))}" in text
        assert len(text.splitlines()) > 5


def _break(plan: Plan, prefix: str, denied: str) -> None:
    """A copy of the model with one file cut short, and a bucket that lets nobody read."""
    place = plan.deployment.place
    client = emulator.client("s3", place.s3_endpoint or "", place.region)
    client.create_bucket(Bucket=denied, CreateBucketConfiguration={"LocationConstraint": place.region})
    for path in sorted((plan.run.data / "model" / "tiny").iterdir()):
        body = path.read_bytes()
        cut = path.name.endswith("00002-of-00004.safetensors")
        short = body[: len(body) * 2 // 3] if cut else body
        client.put_object(Bucket=place.bucket, Key=f"models/{prefix}/{path.name}", Body=short)
        client.put_object(Bucket=denied, Key=f"models/tiny/{path.name}", Body=body)
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{denied}", f"arn:aws:s3:::{denied}/*"],
    }
    client.put_bucket_policy(Bucket=denied, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))


def _failure(up: Supervisor, worker: Process) -> str:
    """What is said of a worker that fails; it is then stopped, so that it does not try again."""
    up.start(worker.name)
    with pytest.raises(RoleFailed) as failed:
        readiness.wait(up, [worker])
    up.stop(worker.name)
    return str(failed.value)


def test_models_that_are_made_say_that_their_weights_are_random(served: Plan) -> None:
    assert models.RANDOM_NOTICE in served.deployment.emulated
