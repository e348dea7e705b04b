"""Batch blueprints: what they resolve to, and what they refuse."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.catalog import instances
from llm_serving.fleet import cost, names
from llm_serving.fleet.loading import load_fleet
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.services import kinds
from llm_serving.services.environment import Environment
from llm_serving.services.service import Service
from llm_serving.services.traffic import Slo
from llm_serving.settings.errors import InputError
from llm_serving.targets import registry
from llm_serving.targets.local.environment import CONVENTIONS

MINIMAL = "kind: batch\npattern: offline-batch\nendpoint: {url: http://127.0.0.1:8000}\nsample: {model: m}\n"


def resolve(folder: Path, text: str, data_folder: str = "") -> BatchDeployment:
    folder.mkdir(exist_ok=True)
    (folder / "blueprint.yaml").write_text(text)
    workload = kinds.get("batch")
    document = workload.read(folder)
    ports = {name: 20000 + number for number, name in enumerate(workload.list_port_names(document.value))}
    environment = Environment(
        target="local",
        conventions=CONVENTIONS,
        region="us-west-2",
        bucket="models",
        ports=ports,
        cores=2,
        data_folder=data_folder,
    )
    deployment: BatchDeployment = workload.resolve(document, load_fleet(paths.ROOT / "fleet.yaml"), environment)
    return deployment


def read_document(process: Service) -> dict[str, Any]:
    """Read the settings of a worker or the Batch API."""
    document: dict[str, Any] = json.loads(process.env["BATCH_SETTINGS"])
    return document


def test_the_pattern_runs_its_own_replicas_beside_the_workers(tmp_path: Path) -> None:
    text = (paths.PATTERNS / "offline-batch" / "blueprint.yaml").read_text()
    deployment = resolve(tmp_path / "mine", text)
    assert [process.name for process in deployment.workers] == ["worker-0", "batch-worker-0", "batch-worker-1"]
    assert [process.name for process in deployment.entries] == ["router", "batch-api"]
    assert [loaded.model for loaded in deployment.loaded_models] == ["tiny"]
    assert deployment.serving is not None
    assert deployment.endpoint_url == deployment.serving.url
    document = read_document(deployment.batch_workers[0])
    assert document["endpoint"] == deployment.endpoint_url
    engine = deployment.serving.workers[0]
    assert document["metrics_urls"] == [f"http://{engine.host}:{engine.port}/metrics"]
    assert document["metrics"]["queue"] == ["vllm:num_requests_waiting"]
    assert kinds.load_deployment(deployment.model_dump_json()) == deployment


def test_any_endpoint_can_be_fed(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "mine", MINIMAL.replace("8000", "8000/v1"))
    assert deployment.endpoint_url == "http://127.0.0.1:8000"
    assert deployment.serving is None
    assert [process.name for process in deployment.all_services] == ["batch-worker-0", "batch-worker-1", "batch-api"]


def test_a_deployment_that_is_up_can_be_fed(tmp_path: Path) -> None:
    pattern = (paths.PATTERNS / "offline-batch" / "blueprint.yaml").read_text()
    serving = resolve(tmp_path / "talk", pattern).serving
    assert serving is not None
    folder = tmp_path / ".blueprint" / "talk"
    folder.mkdir(parents=True)
    (folder / "deployment.json").write_text(serving.model_dump_json())
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: talk")
    deployment = resolve(tmp_path / "mine", text, data_folder=str(tmp_path / ".blueprint" / "mine"))
    assert deployment.endpoint_url == serving.url
    assert len(deployment.metrics_urls) == 1
    assert read_document(deployment.batch_workers[0])["objectives"] == []
    assert "Rows give way only to a queue at talk: its metrics show no percentile of its SLO." in deployment.notes
    with pytest.raises(InputError) as refusal:
        resolve(tmp_path / "mine", text.replace("talk", "gone"), data_folder=str(tmp_path / ".blueprint" / "mine"))
    assert str(refusal.value) == (
        f'{tmp_path}/mine/blueprint.yaml:3:24: endpoint.deployment: "gone": no serving deployment of this name is up '
        "here. Fix: run blueprint deploy gone first, from this directory."
    )


@pytest.mark.parametrize(
    ("role", "objectives", "note"),
    [
        (
            "worker",
            [("vllm:time_to_first_token_seconds", 0.8, 0.05), ("vllm:inter_token_latency_seconds", 0.04, 0.01)],
            "Rows give way where talk misses ttft p95 < 800 ms, itl p99 < 40 ms.",
        ),
        # Apart from decode: no engine sees all of the time to a first token.
        (
            "prefill",
            [("vllm:inter_token_latency_seconds", 0.04, 0.01)],
            "Rows give way where talk misses itl p99 < 40 ms.",
        ),
    ],
)
def test_rows_give_way_to_the_slo_of_the_deployment_that_they_feed(
    tmp_path: Path, role: str, objectives: list[tuple[str, float, float]], note: str
) -> None:
    pattern = (paths.PATTERNS / "offline-batch" / "blueprint.yaml").read_text()
    serving = resolve(tmp_path / "talk", pattern).serving
    assert serving is not None
    slo = Slo.model_validate({"ttft_ms": {"p95": 800, "mean": 300}, "itl_ms": {"p99": 40}, "e2e_ms": {"p95": 9000}})
    roles = (serving.roles[0].model_copy(update={"name": role}), *serving.roles[1:])
    folder = tmp_path / ".blueprint" / "talk"
    folder.mkdir(parents=True)
    fed = serving.model_copy(update={"slo": slo, "roles": roles})
    (folder / "deployment.json").write_text(fed.model_dump_json())
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: talk")
    deployment = resolve(tmp_path / "mine", text, data_folder=str(tmp_path / ".blueprint" / "mine"))
    for worker in deployment.batch_workers:
        written = [tuple(objective.values()) for objective in read_document(worker)["objectives"]]
        assert written == [(metric, limit_s, pytest.approx(allowed)) for metric, limit_s, allowed in objectives]
    assert note in deployment.notes


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("{url: http://a:1, deployment: b}", "it must have exactly one of model, deployment and url"),
        ("{model: tiny}", "replicas of a model need a pool of the fleet. Fix: set pool: NAME"),
        (
            "{url: http://a:1, replicas: 2}",
            "it is for replicas of a model, and there is no `model`. Fix: remove replicas",
        ),
        ("{deployment: b, metrics: [http://a:1/metrics]}", "the metrics of its own replicas are known"),
        ("{model: tiny, pool: nowhere}", 'blueprint.yaml:3:31: endpoint.pool: "nowhere"'),
        ("{model: tiny, pool: general, accelerators: 3}", "blueprint.yaml:3:54: endpoint.accelerators: 3"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_at_its_line(tmp_path: Path, endpoint: str, message: str) -> None:
    text = f"kind: batch\npattern: offline-batch\nendpoint: {endpoint}\nsample: {{model: m}}\n"
    with pytest.raises(InputError) as refusal:
        resolve(tmp_path / "mine", text)
    assert message in str(refusal.value)


def test_the_sample_needs_a_model_and_a_team_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its rows must name a model"):
        resolve(tmp_path / "mine", MINIMAL.replace("sample: {model: m}\n", ""))
    with pytest.raises(InputError, match="there is no such team"):
        resolve(tmp_path / "mine", MINIMAL.replace("{model: m}", "{model: m, team: nobody}"))


def test_an_urgent_job_is_limited_among_several_teams_alone(tmp_path: Path) -> None:
    text = MINIMAL + "slo: {urgent_row: 5s}\n"
    with pytest.raises(InputError, match="an urgent job is measured among jobs of several teams, and there is one"):
        resolve(tmp_path / "mine", text)
    assert resolve(tmp_path / "mine", text + "teams: {ads: {}, search: {}}\n").slo.urgent_row == 5


def test_every_target_runs_it() -> None:
    for target in registry.list_targets():
        registry.load_target(target).check_kind("batch")


ECS_FLEET = """\
name: cotton
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools: {general: {types: g6e.2xlarge, size: 0..8}}
"""


EKS_FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  cores: {types: m7i.xlarge, size: 0..8, buy: [spot, on-demand], taints: [team=ads:NoSchedule]}
  general: {types: g6e.2xlarge, size: 0..8}
add_ons: {schedulers: on, gateway: on, operators: on}
"""


def resolve_on_ecs(folder: Path, text: str, fleet_name: str = "cotton") -> BatchDeployment:
    return resolve_on("ecs", folder, text, fleet_name)


def resolve_on(target: str, folder: Path, text: str, fleet_name: str = "cotton") -> BatchDeployment:
    folder.mkdir(exist_ok=True)
    (folder / "blueprint.yaml").write_text(text)
    fleet_text = {"ecs": ECS_FLEET, "eks": EKS_FLEET}[target]
    (folder / "fleet.yaml").write_text(fleet_text.replace("cotton", fleet_name))
    document, fleet = kinds.get("batch").read(folder), load_fleet(folder / "fleet.yaml")
    environment = registry.load_target(target).assume_environment(document.value, fleet.value, cores=2)
    deployment: BatchDeployment = kinds.get("batch").resolve(document, fleet, environment)
    return deployment


def test_workers_on_fargate_count_in_the_fleets_spend_limit(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(ECS_FLEET)
    limit = math.ceil(cost.estimate(load_fleet(tmp_path / "fleet.yaml").value).max_usd_h) + 1
    outside, name = MINIMAL.replace("127.0.0.1", "llm.example.com"), f"cotton\nspend_limit: {limit} USD/h"
    resolve_on_ecs(tmp_path / "mine", outside, name)
    message = r"workers\.count: 900: the batch costs 44\.\d\d USD/h, with the fleet at full size "
    with pytest.raises(InputError, match=message):
        resolve_on_ecs(tmp_path / "mine", f"{outside}workers: {{count: 900}}\n", name)


def test_on_ecs_it_feeds_a_deployment_by_its_name_in_the_network(tmp_path: Path) -> None:
    preset = (paths.PATTERNS / "offline-batch" / "presets" / "beside-serving.yaml").read_text()
    deployment = resolve_on_ecs(tmp_path / "mine", preset)
    assert deployment.stack is not None
    assert deployment.endpoint_url == "http://chat-router.cotton.internal:8080"
    assert deployment.url == "http://mine-batch-api.cotton.internal:8080"
    assert deployment.bucket == "cotton-results-123456789012-us-west-2"
    assert deployment.stack.workflow == "cotton-mine"
    assert (deployment.stack.schedules["nightly"].team, deployment.stack.schedules["nightly"].priority) == (
        "search",
        "normal",
    )
    note = "S3 deletes a schedule's file 90 days after it was written: write it again before. See storage.results_kept."
    assert note in deployment.notes
    [worker] = deployment.batch_workers
    assert worker.replicas.max == deployment.worker_count == 2, "containers alike"
    assert kinds.load_deployment(deployment.model_dump_json()) == deployment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MINIMAL,
            'mine/blueprint.yaml:3:17: endpoint.url: "http://127.0.0.1:8000": workers on ECS do not reach this machine. '
            "Fix: use an address in the fleet's network.",
        ),
        (
            MINIMAL.replace("url: http://127.0.0.1:8000", "model: tiny, pool: general"),
            'mine/blueprint.yaml:3:19: endpoint.model: "tiny": on ECS a batch starts no replicas: it feeds a serving '
            "deployment, or a URL. Fix: run blueprint deploy NAME --target ecs of a serving blueprint with this model, then "
            "endpoint: {deployment: NAME}.",
        ),
        (
            f"{MINIMAL.replace('url: http://127.0.0.1:8000', 'deployment: chat')}"
            "results: {cache: {url: rediss://localhost:6379}}\n",
            'mine/blueprint.yaml:5:24: results.cache.url: "rediss://localhost:6379": workers on ECS do not reach this '
            "machine. Fix: use an address in the fleet's network.",
        ),
        (
            f"{MINIMAL.replace('url: http://127.0.0.1:8000', 'deployment: chat')}api: {{clients: [10.0.1.0/24, ads]}}\n",
            'mine/blueprint.yaml:5:16: api.clients: "ads": on ECS it names nobody. Fix: name a security group, sg-ID, or a '
            "range of addresses.",
        ),
        (
            f"{MINIMAL.replace('url: http://127.0.0.1:8000', 'deployment: chat')}api: {{clients: 0.0.0.0/0}}\n",
            'mine/blueprint.yaml:5:16: api.clients: "0.0.0.0/0": it is every address, and the stack of tasks has no open '
            "security group. Fix: name the ranges of your clients.",
        ),
        (
            f"{MINIMAL.replace('url: http://127.0.0.1:8000', 'deployment: chat')}teams: {{ads: {{deadline: 91d}}}}\n",
            'mine/blueprint.yaml:5:25: teams.ads.deadline: "91d": S3 deletes what a job has saved 90 days after it was written: '
            "storage.results_kept of the fleet. Fix: use 90d or less, or keep results for longer.",
        ),
    ],
)
def test_what_aws_would_refuse_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        resolve_on_ecs(tmp_path / "mine", text)
    assert str(refusal.value) == f"{tmp_path}/{message}"


@pytest.mark.parametrize("target", ["eks", "ecs"])
@pytest.mark.parametrize(
    ("named", "at", "circle"),
    [
        ({"mine": "mine"}, "mine", "mine -> mine"),
        ({"other": "mine", "mine": "other"}, "mine", "other -> mine -> other"),
        ({"other": "third", "third": "other", "mine": "other"}, "third", "other -> third -> other"),
    ],
    ids=["itself", "each other", "beside the circle"],
)
def test_batches_that_name_each_other_are_refused_with_their_circle(
    tmp_path: Path, target: str, named: dict[str, str], at: str, circle: str
) -> None:
    texts = {
        name: MINIMAL.replace("url: http://127.0.0.1:8000", f"deployment: {other}") for name, other in named.items()
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "blueprint.yaml").write_text(text)
    with pytest.raises(InputError) as refusal:
        resolve_on(target, tmp_path / "mine", texts["mine"])
    assert str(refusal.value) == (
        f'{tmp_path}/{at}/blueprint.yaml:3:24: endpoint.deployment: "{named[at]}": '
        f"the deployments name each other in a circle: {circle}. Fix: name a serving deployment."
    )


@pytest.mark.parametrize(
    ("target", "pool", "message"),
    [
        ("ecs", "general", "workers on ECS run on Fargate, which has no pools. Fix: leave pool out."),
        ("eks", "nodes", "the fleet cotton has no such pool on EKS. Fix: use one of cores, general, or no pool."),
    ],
)
def test_a_pool_that_workers_cannot_run_on_is_refused(tmp_path: Path, target: str, pool: str, message: str) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat") + f"workers: {{pool: {pool}}}\n"
    with pytest.raises(InputError) as refusal:
        resolve_on(target, tmp_path / "mine", text)
    assert str(refusal.value) == f'{tmp_path}/mine/blueprint.yaml:5:17: workers.pool: "{pool}": {message}'


def test_on_eks_workers_read_the_metrics_of_all_engines_behind_one_name(tmp_path: Path) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    deployment = resolve_on("eks", tmp_path / "mine", text)
    metrics = "http://chat-engines.serving.svc:8000/metrics"
    documents = [read_document(worker) for worker in deployment.batch_workers]
    assert [document["metrics_urls"] for document in documents] == [[metrics]]
    queues = documents[0]["metrics"]["queue"]
    assert {"vllm:num_requests_waiting", "llamacpp:requests_deferred"} <= set(queues), "its engine is not known here"
    assert "Rows give way only to a queue at chat: no blueprint here tells its SLO." in deployment.notes
    on_ecs = resolve_on_ecs(tmp_path / "other", text)
    assert [read_document(worker)["metrics_urls"] for worker in on_ecs.batch_workers] == [[]]


CHAT = """\
pattern: aggregated
framework: llm-d
model: Qwen/Qwen3-0.6B
context: 2k
roles: {worker: {pool: general}}
tuning: {priority: on}
traffic: {users: 2, input_tokens: 100, output_tokens: 8}
slo: {}
"""


@pytest.mark.parametrize(
    ("framework", "page", "queue"),
    [
        ("plain", "8000/metrics", "vllm:num_requests_waiting"),
        ("ray", "9090/metrics", "ray_vllm_num_requests_waiting"),
        ("dynamo", "9090/metrics", "vllm:num_requests_waiting"),
        ("plain\nengine: tensorrt-llm", "8000/prometheus/metrics", "trtllm_num_requests_waiting"),
    ],
)
def test_on_eks_workers_read_metrics_where_the_engine_and_the_framework_have_them(
    tmp_path: Path, framework: str, page: str, queue: str
) -> None:
    (tmp_path / "chat").mkdir()
    served = CHAT.replace("llm-d", framework).replace("tuning: {priority: on}\n", "")
    (tmp_path / "chat/blueprint.yaml").write_text(served)
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    (worker,) = resolve_on("eks", tmp_path / "mine", text).batch_workers
    document = read_document(worker)
    assert document["metrics_urls"] == [f"http://chat-engines.serving.svc:{page}"]
    assert document["metrics"]["queue"] == [queue]
    assert worker.calls["metrics"].port == int(page.partition("/")[0])


LOW = {"x-llm-d-inference-objective": "chat-low"}


@pytest.mark.parametrize(("priority", "headers"), [("on", LOW), ("off", {})], ids=["classes", "none"])
def test_rows_are_of_the_low_class_where_llm_d_holds_requests_back(
    tmp_path: Path, priority: str, headers: dict[str, str]
) -> None:
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat/blueprint.yaml").write_text(CHAT.replace("priority: on", f"priority: {priority}"))
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    deployment = resolve_on("eks", tmp_path / "mine", text)
    assert [read_document(worker)["headers"] for worker in deployment.batch_workers] == [headers]
    assert read_document(deployment.api)["headers"] == headers
    note = "chat holds rows back while people's requests wait: they are of its class low."
    assert (note in deployment.notes) == bool(headers)


@pytest.mark.parametrize(("target", "objectives"), [("ecs", []), ("eks", [("vllm:time_to_first_token_seconds", 0.8)])])
def test_rows_go_by_the_priority_and_slo_of_the_deployment_beside_the_batch(
    tmp_path: Path, target: str, objectives: list[tuple[str, float]]
) -> None:
    (tmp_path / "chat").mkdir()
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    for tuning, has_priority in (("tuning: {priority: on}\n", True), ("", False)):
        (tmp_path / "chat/blueprint.yaml").write_text(FED + tuning)
        deployment = resolve_on(target, tmp_path / "mine", text)
        documents = [read_document(worker) for worker in deployment.batch_workers]
        assert [document["has_priority"] for document in documents] == [has_priority]
        limits = [(each["metric"], each["limit_s"]) for each in documents[0]["objectives"]]
        assert limits == objectives, "no metrics are seen on ECS"
        assert ("Rows give way where chat misses ttft p95 < 800 ms." in deployment.notes) == bool(objectives)


def test_rows_name_the_low_class_of_a_deployment_whose_blueprint_is_elsewhere(tmp_path: Path) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    deployment = resolve_on("eks", tmp_path / "mine", text)
    assert [read_document(worker)["headers"] for worker in deployment.batch_workers] == [LOW]
    assert (
        "chat holds rows back while people's requests wait: they are of its class low, if it has classes."
        in deployment.notes
    )
    on_ecs = resolve_on_ecs(tmp_path / "other", text)
    assert [read_document(worker)["headers"] for worker in on_ecs.batch_workers] == [{}], (
        "no framework there has classes"
    )


def test_on_eks_workers_bear_the_taints_of_their_pool_and_wait_in_its_queue(tmp_path: Path) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    nodes = resolve_on("eks", tmp_path / "mine", text).services[0].placement
    assert (nodes.labels, nodes.tolerations, nodes.queue) == ({}, (), "")
    nodes = resolve_on("eks", tmp_path / "mine", f"{text}workers: {{pool: cores}}\n").services[0].placement
    assert (nodes.labels, nodes.queue) == ({"fleet/pool": "cores"}, "cores")
    assert [(taint.key, taint.value, taint.effect) for taint in nodes.tolerations] == [("team", "ads", "NoSchedule")]


@pytest.mark.parametrize(
    ("region", "partition"), [("us-west-2", "aws"), ("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")]
)
def test_the_batch_api_is_told_the_state_machine_of_the_regions_partition(region: str, partition: str) -> None:
    assert names.find_partition(region) == partition


KEYED = """\
kind: batch
pattern: offline-batch
endpoint: {url: https://llm.example.com, api_key: {secret: llm/key}}
sample: {model: m}
results:
  cache:
    url: rediss://cache.example.com:6380
    login: {secret: cache/login}
"""


def test_on_aws_programs_are_told_of_the_secrets_that_they_read(tmp_path: Path) -> None:
    deployment = resolve_on_ecs(tmp_path / "mine", KEYED)
    worker, api = deployment.services
    assert [row.secret for row in api.secrets] == ["llm/key"]
    assert [row.secret for row in worker.secrets] == ["llm/key", "cache/login"]
    api_key = {"secret": "llm/key", "field": ""}
    assert read_secrets(deployment.api) == (api_key, None)
    assert read_secrets(deployment.batch_workers[0]) == (api_key, "cache/login")
    assert worker.calls["cache"].port == 6380
    assert kinds.load_deployment(deployment.model_dump_json()) == deployment


def read_secrets(process: Service) -> tuple[Any, Any]:
    """Read where a program finds the endpoint's key, and the login of the cache."""
    document = read_document(process)
    return document["api_key"], document["cache"] and document["cache"]["login_secret"]


def test_on_this_machine_the_environment_takes_the_place_of_secrets(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "mine", KEYED)
    assert (read_secrets(deployment.api), read_secrets(deployment.batch_workers[0])) == ((None, None), (None, ""))
    [note] = deployment.emulated
    assert note == (
        "The embedded AWS has no secrets of yours: here environment variables take the place of endpoint.api_key and "
        "results.cache.login."
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rediss:", "redis:", "blueprint.yaml:8:12: results.cache.login"),
        (
            "rediss:",
            "redis:",
            "without TLS the password could be read on its way. Fix: set url: rediss://cache.example.com:6380",
        ),
        (
            "{url: https://llm.example.com,",
            "{deployment: chat,",
            "only the endpoint of a `url` takes one. Fix: remove api_key",
        ),
        ("cache/login}", "'my password!'}", "the name of a Secrets Manager secret, or its whole ARN"),
        (
            "cache/login}",
            "arn:aws:secretsmanager:us-west-2:123456789012:secret:cache/login}",
            "the name of a Secrets Manager secret, or its whole ARN, which ends in a dash and six characters",
        ),
        (
            "cache/login}",
            "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cache/login-AbCdEf}",
            "a batch on ECS reads secrets of its own region, us-west-2. Fix: use a secret of us-west-2, such as a replica of this one",
        ),
    ],
)
def test_a_secret_that_cannot_be_is_refused_at_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in KEYED
    with pytest.raises(InputError) as refusal:
        resolve_on_ecs(tmp_path / "mine", KEYED.replace(old, new))
    assert message in str(refusal.value)


def test_names_of_queues_that_sqs_refuses_are_refused_at_their_team(tmp_path: Path) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat") + f"name: {'n' * 32}\n"
    text += f"teams:\n  search: {{}}\n  {'t' * 32}: {{}}\n"
    longest = resolve_on_ecs(tmp_path / "mine", text, "cottons").stack
    assert longest is not None
    assert max(map(len, longest.run_queues)) == 80
    with pytest.raises(InputError) as refusal:
        resolve_on_ecs(tmp_path / "mine", text, "cottonss")
    name = f"cottonss-{'n' * 32}-{'t' * 32}-normal"
    assert str(refusal.value) == (
        f'{tmp_path}/mine/blueprint.yaml:6:1: teams: "{"t" * 32}": the queue {name} would have 81 characters, and SQS takes '
        "80. Fix: choose a shorter name of the team, the blueprint or the fleet."
    )


def test_names_of_rules_that_eventbridge_refuses_are_refused(tmp_path: Path) -> None:
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat") + f"name: {'n' * 32}\n"
    fleet_name = "c" * 25
    assert len(resolve_on_ecs(tmp_path / "mine", text, fleet_name).stack.workflow) == 58  # type: ignore[union-attr]
    with pytest.raises(InputError, match="-inbox would have 65 characters, and EventBridge takes 64"):
        resolve_on_ecs(tmp_path / "mine", text, fleet_name + "c")
    schedule = "schedules:\n  weekly:\n    at: rate(7 days)\n    file: all.jsonl\n"
    with pytest.raises(InputError, match="-weekly would have 65 characters, and EventBridge takes 64"):
        resolve_on_ecs(tmp_path / "mine", text + schedule, fleet_name)


def test_a_schedule_needs_a_team_that_is_there_and_runs_on_aws_alone(tmp_path: Path) -> None:
    schedule = "schedules:\n  nightly:\n    at: cron(0 2 * * ? *)\n    file: all.jsonl\n"
    with pytest.raises(InputError, match="there is no such team"):
        resolve(tmp_path / "mine", f"{MINIMAL}{schedule}    team: nobody\n")
    for time in ("at 2 o'clock", "cron(0 2 * * * *)", "cron(0 2 * * ?)"):
        with pytest.raises(InputError, match="a time of EventBridge Scheduler"):
            resolve(tmp_path / "mine", MINIMAL + schedule.replace("cron(0 2 * * ? *)", time))
    [note] = resolve(tmp_path / "mine", MINIMAL + schedule).emulated
    assert note == "The embedded AWS fires no schedules: no jobs here by nightly."


def test_every_state_of_the_workflow_is_reached_and_fails_into_the_job() -> None:
    """What `asl-validator` checks of transitions, and that a failed step ends in job.json."""
    machine = json.loads(STATE_MACHINE_FILE.read_text())
    states = machine["States"]
    followers = {machine["StartAt"]}
    for name, state in states.items():
        followers |= {state[key] for key in ("Next", "Default") if key in state}
        followers |= {rule["Next"] for rule in (*state.get("Catch", ()), *state.get("Choices", ()))}
        if state["Type"] == "Map" or "waitForTaskToken" in state.get("Resource", ""):
            assert name == "Fail the job" or state["Catch"][0]["Next"] == "Fail the job"
    assert followers == set(states)
    retries = re.findall(r'"JitterStrategy": "FULL"', STATE_MACHINE_FILE.read_text())
    assert len(retries) == len(re.findall(r'"Retry"', STATE_MACHINE_FILE.read_text()))


def test_a_copy_of_the_pattern_needs_nothing_of_this_repository(tmp_path: Path) -> None:
    shutil.copytree(paths.PATTERNS / "offline-batch", tmp_path / "mine")
    document = kinds.get("batch").read(tmp_path / "mine")
    assert document.value.pattern == "offline-batch"


def test_a_team_may_have_a_deadline_and_the_endpoint_a_price(tmp_path: Path) -> None:
    plain = resolve(tmp_path / "plain", MINIMAL)
    assert (plain.usd_h, read_document(plain.api)["usd_h"]) == (None, None)
    assert read_document(plain.api)["teams"]["default"] == {
        "weight": 1,
        "priority": "normal",
        "deadline_s": 86_400.0,  # of `limits`
        "tokens_per_day": None,
        "queues": {priority: f"plain-default-{priority}" for priority in ("high", "normal", "low")},
    }
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat, usd_per_hour: 41.96")
    deployment = resolve_on_ecs(tmp_path / "priced", text + "teams: {ads: {deadline: 8h}, search: {}}\n")
    document = read_document(deployment.api)
    assert (deployment.usd_h, document["usd_h"]) == (41.96, 41.96)
    assert {name: team["deadline_s"] for name, team in document["teams"].items()} == {"ads": 28_800, "search": 86_400}


FED = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
context: 2k
roles: {worker: {pool: general, replicas: 3, accelerators: 1}}
traffic: {users: 8, requests: 100, input_tokens: 64, output_tokens: 8}
slo: {ttft_ms: {p95: 800}}
"""


@pytest.mark.parametrize("target", ["ecs", "eks"])
def test_a_job_costs_what_the_deployment_beside_it_costs(tmp_path: Path, target: str) -> None:
    """The price follows from that blueprint, the fleet and the catalog; a typed one counts before it."""
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    chat = tmp_path / "chat"
    assert resolve_on(target, tmp_path / "mine", text).usd_h is None
    chat.mkdir()
    (chat / "blueprint.yaml").write_text(FED)
    deployment = resolve_on(target, tmp_path / "mine", text)
    instance = instances.find("g6e.2xlarge")
    assert deployment.usd_h == pytest.approx(3 * instance.prices["us-west-2"].usd_h)
    assert read_document(deployment.api)["usd_h"] == deployment.usd_h
    note = f"Jobs cost their share of chat, {deployment.usd_h:.2f} USD/h on demand: worker: 3 x 1 of g6e.2xlarge at "
    assert [text for text in deployment.notes if text.startswith(note)] != []
    typed = resolve_on(target, tmp_path / "mine", text.replace("chat}", "chat, usd_per_hour: 7}"))
    assert (typed.usd_h, [text for text in typed.notes if "Jobs cost" in text]) == (7, [])


@pytest.mark.parametrize(
    "fed",
    [
        FED.replace("replicas: 3", "replicas: 1..3"),
        FED.replace("pool: general", "pool: nowhere"),
        FED + "name: other\n",
        MINIMAL,
        "{broken",
    ],
    ids=["follows the load", "does not fit", "another name", "another kind", "no blueprint"],
)
def test_a_deployment_whose_price_is_not_certain_gives_none(tmp_path: Path, fed: str) -> None:
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "blueprint.yaml").write_text(fed)
    text = MINIMAL.replace("url: http://127.0.0.1:8000", "deployment: chat")
    assert resolve_on_ecs(tmp_path / "mine", text).usd_h is None


def test_results_go_where_the_blueprint_says(tmp_path: Path) -> None:
    plain = resolve(tmp_path / "plain", MINIMAL)
    assert read_document(plain.api)["has_parquet"] is False
    assert read_document(plain.batch_workers[0])["cache"] is None
    results = 'results: {parquet: on, cache: {url: "rediss://cache.example.com:6379", ttl: 1h}}\n'
    deployment = resolve(tmp_path / "more", MINIMAL + results)
    document = read_document(deployment.batch_workers[0])
    assert document["has_parquet"] is True
    cache = {"url": "rediss://cache.example.com:6379", "ttl_s": 3600.0, "is_cluster": False, "queue": "",
             "login_secret": ""}  # fmt: skip
    assert document["cache"] == cache
    cluster = resolve(tmp_path / "cluster", MINIMAL + results.replace("ttl: 1h", "cluster: on"))
    assert read_document(cluster.batch_workers[0])["cache"]["is_cluster"] is True
    assert "cache.example.com" not in json.dumps(deployment.api.env)


def test_no_job_may_take_longer_than_its_results_are_kept(tmp_path: Path) -> None:
    on_aws = MINIMAL.replace("http://127.0.0.1:8000", "https://llm.example.com")
    deployments = resolve(tmp_path / "here", MINIMAL), resolve_on_ecs(tmp_path / "mine", on_aws)
    assert [read_document(each.api)["max_deadline_s"] for each in deployments] == [365 * 86_400, 90 * 86_400]


def test_rows_go_after_peoples_requests_where_the_engines_schedule_by_priority(tmp_path: Path) -> None:
    plain = read_document(resolve(tmp_path / "plain", MINIMAL).batch_workers[0])
    assert (plain["has_priority"], plain["is_shared"]) == (False, False)
    text = MINIMAL.replace("8000}", "8000, priority: on}")
    document = read_document(resolve(tmp_path / "after", text).batch_workers[0])
    assert (document["has_priority"], document["is_shared"]) == (True, True)
