"""The real engine: its answers, the source of its weights, and its failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.services.traffic import Images
from llm_serving.settings.units import Bounds
from llm_serving.targets import planning, render
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_env, readiness, status, supervisor, weights
from llm_serving.targets.local.readiness import RoleFailed
from llm_serving.targets.local.supervisor import Supervisor
from llm_serving.validation.load import pictures
from tests import serving
from tests.engines_own import EngineProbe
from tests.serving import Load

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]


def _get_supervisord(plan: DeploymentPlan) -> Supervisor:
    supervisord = supervisor.find_running(plan.directory)
    assert supervisord is not None
    return supervisord


def test_both_replicas_and_the_router_give_the_same_answer(running_plan: DeploymentPlan) -> None:
    urls = [serving.get_url(process) for process in running_plan.deployment.workers]
    texts = {serving.complete(url) for url in [*urls, running_plan.deployment.url]}
    assert len(texts) == 1
    assert len(texts.pop()) > 8


@pytest.fixture
def client(running_plan: DeploymentPlan) -> openai.OpenAI:
    """Through the router, as clients come."""
    return openai.OpenAI(base_url=f"{running_plan.deployment.url}/v1", api_key="none", timeout=60, max_retries=0)


def test_an_untouched_copy_takes_tools_and_shapes_of_answers(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Where?"}]
    tool: Any = {"type": "function", "function": {"name": "find_city", "parameters": {"type": "object"}}}
    assert client.chat.completions.create(model="tiny", messages=messages, tools=[tool], max_tokens=4).choices
    shape: Any = {"type": "json_object"}
    assert client.chat.completions.create(model="tiny", messages=messages, response_format=shape, max_tokens=4).choices


def test_a_picture_for_a_text_model_is_refused_in_the_engines_words(client: openai.OpenAI) -> None:
    parts: Any = pictures.build_content("What is it?", Images(count=Bounds(1, 1), width=64, height=48), 1, "seed")
    with pytest.raises(openai.BadRequestError, match="is not a multimodal model"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])


def test_each_replica_streamed_its_weights_from_the_bucket_and_stored_none(running_plan: DeploymentPlan) -> None:
    for process in running_plan.deployment.workers:
        log = running_plan.directory.get_log_path(process.name).read_text()
        assert f"'model': '{running_plan.deployment.served_models[0].weights.uri}'" in log
        match = re.search(r"Overall time to stream ([\d.]+) MiB of all files to cpu: [\d.]+s", log)
        assert match is not None
        assert abs(float(match[1]) * 2**20 - running_plan.deployment.served_models[0].weights.bytes) < 0.1 * 2**20
    stored_files = [
        path
        for path in running_plan.directory.data.rglob("*.safetensors")
        if "model" not in path.relative_to(running_plan.directory.data).parts[0]
    ]
    assert stored_files == []


def test_the_engine_says_how_long_its_start_took(running_plan: DeploymentPlan) -> None:
    for start in status.list_starts(running_plan.directory):
        assert start.load_s and start.compile_s and start.first_answer_s
        assert start.load_s + start.compile_s < start.first_answer_s


def test_the_cache_has_the_size_that_the_resolver_decided(running_plan: DeploymentPlan) -> None:
    for process in running_plan.deployment.workers:
        match = re.search(
            r"KV cache size: ([\d,]+) tokens", running_plan.directory.get_log_path(process.name).read_text()
        )
        assert match is not None
        cache_bytes = int(process.command[process.command.index("--kv-cache-memory-bytes") + 1])
        assert int(match[1].replace(",", "")) >= 0.95 * cache_bytes // (2 * 4 * 2 * 64 * 2), (
            "layers, heads, size, bytes of tiny"
        )


def test_nothing_is_written_outside_the_deployments_directory(running_plan: DeploymentPlan) -> None:
    assert list((running_plan.directory.root / "home").rglob("*")) == []


def test_a_replica_takes_no_more_memory_than_the_resolver_assumes(running_plan: DeploymentPlan) -> None:
    supervisord = _get_supervisord(running_plan)
    for process in running_plan.deployment.workers:
        family = psutil.Process(supervisord.read_state(process.name).pid).children(recursive=True)
        used_bytes = sum(child.memory_full_info().pss for child in family)
        assert used_bytes < process.resources.memory_bytes


def test_a_replica_killed_under_load_restarts_while_the_other_serves(running_plan: DeploymentPlan) -> None:
    supervisord = _get_supervisord(running_plan)
    victim, other = running_plan.deployment.workers
    parent = psutil.Process(supervisord.read_state(victim.name).pid)
    family = parent.children(recursive=True)
    restarts = supervisord.read_state(victim.name).restarts
    with Load(running_plan.deployment.url, running_plan.deployment.traffic.deadline) as load:
        processes.wait_until(lambda: len(load.start_times) > 20, "answers", 60)
        family[0].kill()
        _, alive = psutil.wait_procs([parent, *family], timeout=60)
        assert alive == [], "the engine's own processes are gone with the server"
        served = serving.read_counter(other, "vllm:request_success_total")
        processes.wait_until(
            lambda: serving.read_counter(other, "vllm:request_success_total") > served + 8, "the other's answers", 60
        )
    assert len(load.failed) <= 8, "no more than were under way"
    assert not [failure for failure in load.failed if "timed out" in failure], "nothing hangs"
    processes.wait_until(lambda: not supervisord.read_state(victim.name).failed, "the restart", 60)
    readiness.wait(supervisord, [victim])
    assert supervisord.read_state(victim.name).restarts == restarts + 1
    before = serving.read_counter(victim, "vllm:request_success_total")
    with Load(running_plan.deployment.url, running_plan.deployment.traffic.deadline) as load:
        processes.wait_until(
            lambda: serving.read_counter(victim, "vllm:request_success_total") > before, "its share of the requests", 90
        )
    assert load.failed == []


@pytest.fixture
def broken_plan(tmp_path: Path) -> DeploymentPlan:
    """A plan of four replicas, each of which will read its weights from another source."""
    folder = tmp_path / "broken"
    folder.mkdir()
    text = (ROOT / "blueprints/aggregated/blueprint.yaml").read_text()
    (folder / "blueprint.yaml").write_text(text.replace("replicas: 2", "replicas: 4"))
    (folder / "local.conf.j2").write_text((ROOT / "blueprints/aggregated/local.conf.j2").read_text())
    return planning.plan(folder, ROOT / "fleet.yaml", root=tmp_path, target="local")


def _redirect_weights(plan: DeploymentPlan, sources: list[tuple[str, str]]) -> DeploymentPlan:
    """Return the plan with a (URI, endpoint) for each worker."""
    default_uri = plan.deployment.served_models[0].weights.uri
    workers = [
        process.model_copy(
            update={
                "command": tuple(uri if word == default_uri else word for word in process.command),
                "env": {**process.env, "AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint},
            }
        )
        for process, (uri, endpoint) in zip(plan.deployment.workers, sources, strict=True)
    ]
    deployment = plan.deployment.model_copy(update={"services": (*workers, *plan.deployment.entries)})
    text = render.render_text(deployment, plan.folder / "local.conf.j2")
    return replace(plan, deployment=deployment, text=text)


def test_a_replica_that_cannot_read_its_weights_names_the_cause_in_one_line(
    broken_plan: DeploymentPlan, make_bucket: Callable[[DeploymentPlan], str], engine_probe: EngineProbe
) -> None:
    environment = broken_plan.deployment.environment
    bucket, endpoint = environment.bucket, environment.s3_endpoint or ""
    unreachable_url = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    truncated_uri, denied = f"s3://{bucket}/models/cut/", "s3://demo-denied/models/tiny/"
    sources = [
        (broken_plan.deployment.served_models[0].weights.uri, unreachable_url),
        (truncated_uri, endpoint),
        ("s3://demo-nowhere/models/tiny/", endpoint),
        (denied, endpoint),
    ]
    plan = _redirect_weights(broken_plan, sources)
    deploy.prepare_start(plan)
    with supervisor.start_attached(plan.directory) as supervisord:
        deploy.start_emulator(plan, supervisord)
        make_bucket(plan)
        weights.upload_models(plan.directory, plan.deployment)
        _break_weights(plan, "cut", "demo-denied")
        engine_env.VllmEnv().prepare(plan.directory.get_cache_path(process.name) for process in plan.deployment.workers)
        unreachable, truncated, nowhere, refused = plan.deployment.workers
        failures = [_get_failure(supervisord, unreachable)]
        # The same at the same place of the engine's code: it is not imported for each.
        failures += [_run_alone(plan, worker, engine_probe) for worker in (truncated, nowhere, refused)]
        assert supervisord.read_state("aws").pid
    assert failures[0].startswith("worker-0 ended with exit status 1: botocore.exceptions.EndpointConnectionError")
    assert unreachable_url in failures[0].splitlines()[0]
    # The streamer reports either a truncated response or a failed access.
    assert failures[1].splitlines()[0].endswith(f"(reading {truncated_uri}model-00002-of-00004.safetensors)")
    assert "NoSuchBucket" in failures[2].splitlines()[0]
    assert "Forbidden" in failures[3].splitlines()[0]
    for worker, text in zip(plan.deployment.workers, failures, strict=True):
        assert f"last lines of {deploy.console.shorten_path(plan.directory.get_log_path(worker.name))}" in text
        assert len(text.splitlines()) > 5


def _run_alone(plan: DeploymentPlan, worker: Service, engine_probe: EngineProbe) -> str:
    """Run a worker that fails without the supervisor, and return the error."""
    words = ["vllm", *worker.command[worker.command.index("serve") :]]
    log = plan.directory.get_log_path(worker.name)
    [answer] = engine_probe("run", [{"words": words, "environment": dict(worker.env), "log": str(log)}])
    return str(RoleFailed(plan.directory, worker.name, f"ended with exit status {answer['result']}"))


def _break_weights(plan: DeploymentPlan, prefix: str, denied: str) -> None:
    """Create a copy of the model with a truncated file, and a bucket that denies all reads."""
    environment = plan.deployment.environment
    client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    client.create_bucket(Bucket=denied, CreateBucketConfiguration={"LocationConstraint": environment.region})
    for path in sorted((plan.directory.data / "model" / "tiny").iterdir()):
        body = path.read_bytes()
        is_truncated = path.name.endswith("00002-of-00004.safetensors")
        content = body[: len(body) * 2 // 3] if is_truncated else body
        client.put_object(Bucket=environment.bucket, Key=f"models/{prefix}/{path.name}", Body=content)
        client.put_object(Bucket=denied, Key=f"models/tiny/{path.name}", Body=body)
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{denied}", f"arn:aws:s3:::{denied}/*"],
    }
    client.put_bucket_policy(Bucket=denied, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))


def _get_failure(supervisord: Supervisor, worker: Service) -> str:
    """Start a worker that fails, stop it before it restarts, and return the error."""
    supervisord.start(worker.name)
    with pytest.raises(RoleFailed) as failed:
        readiness.wait(supervisord, [worker])
    supervisord.stop(worker.name)
    return str(failed.value)


def test_generated_models_name_their_random_weights(running_plan: DeploymentPlan) -> None:
    assert models.RANDOM_NOTICE in running_plan.deployment.emulated
