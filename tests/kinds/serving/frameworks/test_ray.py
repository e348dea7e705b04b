"""Ray Serve LLM: its application from the engine's command line, its nodes on this machine, and what it does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import engine_options, frameworks
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests import matrix_cells
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
pools:
  gpus: {types: g6e.12xlarge, size: 0..8, orchestrator: eks}
  wide: {types: p5en.48xlarge, zones: us-west-2a, size: 0..8, orchestrator: eks}
  trainium: {types: trn2.48xlarge, zones: us-west-2b, size: 0..2, orchestrator: eks}
  on-ecs: {types: g6e.12xlarge, size: 0..2, orchestrator: ecs}
add_ons: {operators: on}
"""
WORKER = "{pool: gpus, accelerators: 2, replicas: 1..4, scale: {queue: 6, cool_down: 2min}}"


def format_blueprint(worker: str = WORKER, *, lines: str = "", pattern: str = "aggregated", roles: str = "") -> str:
    return (
        f"pattern: {pattern}\nframework: ray\nmodel: Qwen/Qwen3-32B\ncontext: 8k\n"
        f"roles:\n{roles or f'  worker: {worker}'}\n{lines}"
        "traffic: {users: 2, input_tokens: 3000, output_tokens: 1000}\nslo: {}\n"
    )


def resolve(folder: Path, text: str, target: str = "eks", fleet: str = FLEET) -> ServingDeployment:
    return resolving.resolve_files(folder, f"name: mine\n{text}", fleet, target)


def get_args(deployment: ServingDeployment) -> dict[str, Any]:
    config: Any = deployment.framework_config
    [application] = config["serve"]["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    return dict(application["args"])


def test_the_application_has_the_options_of_the_engines_command_line(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }} $$")
    lines = "chat_template: own.jinja\nengine_arguments: {stream_interval: 2}\n"
    deployment = resolve(tmp_path, format_blueprint(lines=lines))
    args = get_args(deployment)
    [worker, head] = deployment.services
    assert worker.command == head.command == (), "KubeRay starts Ray"
    assert worker.image == head.image == "rayproject/ray-llm:2.60.0-py312-cu130"
    assert worker.prefetch and list(worker.prefetch.uris) == ["weights"]
    assert args["ingress_deployment_config"] == {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}}
    [llm_config] = args["llm_configs"]
    running = llm_config["deployment_config"]["autoscaling_config"].pop("target_ongoing_requests") - 6
    assert llm_config == {
        "model_loading_config": {"model_id": "Qwen/Qwen3-32B", "model_source": "/scratch/fetched/weights"},
        "engine_kwargs": {
            "max_model_len": 8000,
            "tensor_parallel_size": 2,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            "reasoning_parser": "qwen3",
            "allowed_media_domains": ["none.invalid"],
            "stream_interval": 2,
            "chat_template": "{{ messages }} $$",
        },
        "placement_group_config": {"bundle_per_worker": {"GPU": 1, "worker": 0.001}, "strategy": "STRICT_PACK"},
        "deployment_config": {
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "downscale_delay_s": 120},
            "graceful_shutdown_timeout_s": 120,
            "request_router_config": {
                "request_router_class": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter"
            },
        },
    }
    # Of two L40S with 33 GB of weights each, the cache holds few requests of 4,000 tokens: far below a step's 256.
    assert 2 <= running <= 30


def test_the_most_requests_of_a_replica_are_rays_own_limit(tmp_path: Path) -> None:
    """With 4 at one replica on this machine, 10 of 20 at once were answered, and 10 got 429 with Retry-After: 1."""
    deployment = resolve(tmp_path, format_blueprint("{pool: gpus, accelerators: 2, replicas: 2, max_requests: 64}"))
    [llm_config] = get_args(deployment)["llm_configs"]
    limited = llm_config["deployment_config"]
    assert (limited["num_replicas"], limited["max_ongoing_requests"], limited["max_queued_requests"]) == (2, 64, 64)
    assert limited["backpressure_config"] == {"status_code": 429, "retry_after_s": 1}
    assert not {"middleware", "max_num_queued_reqs"} & llm_config["engine_kwargs"].keys()
    assert "PYTHONPATH" not in deployment.services[0].env, "of images/vllm"
    [unlimited] = get_args(resolve(tmp_path, format_blueprint()))["llm_configs"]
    assert not {"max_ongoing_requests", "backpressure_config"} & unlimited["deployment_config"].keys()


def test_a_model_of_embeddings_runs_by_the_engines_own_runner(tmp_path: Path) -> None:
    text = format_blueprint(RELAXED, lines="task: embed\n").replace("Qwen/Qwen3-32B", "Qwen/Qwen3-Embedding-0.6B")
    text = text.replace("input_tokens: 3000, output_tokens: 1000", "input_tokens: 300")
    [llm_config] = get_args(resolve(tmp_path, text))["llm_configs"]
    assert llm_config["engine_kwargs"]["runner"] == "pooling"


def test_its_metrics_are_called_as_on_rays_page(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, format_blueprint())
    [worker, head] = deployment.services
    assert worker.metrics["queue"] == "ray_vllm_num_requests_waiting"
    assert worker.ports["metrics"] == head.ports["metrics"] == 9090
    assert {objective.metric for objective in deployment.latency_objectives} <= {*worker.metrics.values()}


def test_each_model_has_nodes_of_its_own(tmp_path: Path) -> None:
    roles = """\
  models:
    small: {pool: gpus, model: Qwen/Qwen3-8B, context: 8k, max_requests: 32}
    large: {pool: wide, model: Qwen/Qwen3-32B, context: 8k, replicas: 2}
"""
    text = format_blueprint(pattern="multi-model", roles=roles.rstrip()).replace(
        "model: Qwen/Qwen3-32B\ncontext: 8k\n", "", 1
    )
    configs = get_args(resolve(tmp_path, text))["llm_configs"]
    assert [row["model_loading_config"]["model_id"] for row in configs] == ["small", "large"]
    assert [row["placement_group_config"]["bundle_per_worker"] for row in configs] == [
        {"GPU": 1, "small": 0.001},
        {"GPU": 1, "large": 0.001},
    ]
    assert [row["deployment_config"]["num_replicas"] for row in configs] == [1, 2]
    limits = ("max_ongoing_requests", "max_queued_requests", "backpressure_config")
    assert [[row["deployment_config"].get(name) for name in limits] for row in configs] == [
        [32, 32, {"status_code": 429, "retry_after_s": 1}],
        [None, None, None],
    ]
    assert not {"max_num_queued_reqs", "middleware"} & configs[0]["engine_kwargs"].keys(), "of the engine's own server"


def test_the_version_under_ray_has_every_argument_that_is_rendered(tmp_path: Path) -> None:
    known = engine_options.load_arguments(frameworks.load_frameworks()["ray"].engines["vllm"].arguments).arguments
    deployments = [
        cell.deployment
        for cell in matrix_cells.build_all()
        if cell.framework == "ray" and isinstance(cell.deployment, ServingDeployment)
    ]
    deployments.append(resolve(tmp_path, format_blueprint(lines="engine_arguments: {max_num_seqs: 64}\n")))
    names = {name for item in deployments for row in get_args(item)["llm_configs"] for name in row["engine_kwargs"]}
    assert names <= known
    assert {"max_model_len", "max_num_seqs", "tensor_parallel_size", "tool_call_parser"} <= names
    assert "headless" not in known, "the engine's own row is of a later version"


LOCAL = """\
pattern: aggregated
framework: ray
model: tiny
context: 2k
roles: {worker: {pool: gpus, accelerators: 1, replicas: 2}}
traffic: {users: 2}
slo: {}
"""


def test_on_this_machine_each_replica_has_a_node_and_the_head_starts_the_application(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, LOCAL, "local")
    *workers, head = deployment.services
    assert [worker.name for worker in workers] == ["worker-0", "worker-1"]
    address = f"127.0.0.1:{deployment.environment.ports['router-admin']}"
    for worker in workers:
        program = worker.command[worker.command.index("--") + 1 :]
        assert "fetch_weights" in " ".join(worker.command), "no reader of S3 is in its environment"
        assert program[0] == "python3" and program[1].endswith("/ray_node.py")
        assert program[2:4] == ("worker", address)
        assert {'--resources={"worker": 1}', f"--metrics-export-port={worker.port}"} <= set(program)
        assert deployment.metrics_urls[worker.name] == f"http://{worker.host}:{worker.port}/metrics"
    assert head.command[2:5] == ("head", address, "2")
    serve = json.loads(head.command[5])
    assert serve["proxy_location"] == "HeadOnly", "a port of this machine is one process's"
    assert serve["http_options"] == {"host": "127.0.0.1", "port": head.port, "request_timeout_s": 1800}
    [application] = serve["applications"]
    assert application["args"]["ingress_deployment_config"]["ray_actor_options"] == {"resources": {"router": 1}}
    [llm_config] = application["args"]["llm_configs"]
    assert llm_config["model_loading_config"] == {"model_id": "tiny", "model_source": "/fetched/weights"}
    assert llm_config["deployment_config"]["num_replicas"] == 2
    assert llm_config["placement_group_config"]["bundle_per_worker"] == {"CPU": 1, "worker": 1}
    assert llm_config["engine_kwargs"]["kv_cache_memory_bytes"] > 0
    assert llm_config["callback_config"] == {"callback_class": "ray_replica.LeanStart"}
    assert llm_config["runtime_env"] == {"env_vars": {"BLUEPRINT_RAY_REPLICA": "1"}}


def test_its_processes_on_this_machine_share_an_address_and_a_secret(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, LOCAL, "local")
    for service in deployment.services:
        assert (service.host, service.env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]) == ("127.0.0.1", "0")
        assert service.env["RAY_AUTH_MODE"] == "token"
        assert service.env["RAY_AUTH_TOKEN_PATH"] == "/ray-token"
        assert (Path(service.env["PYTHONPATH"]) / "sitecustomize.py").is_file()


RELAXED = "{pool: gpus, accelerators: 2}"
REFUSED = {
    "an engine that it does not run": (
        format_blueprint(RELAXED, lines="engine: sglang\n"),
        "eks",
        'blueprint.yaml:3:12: framework: "ray": ray 2.60.0 runs vllm 0.29.0, and not sglang. Fix: set engine: vllm, or '
        "another framework.",
    ),
    "a target": (
        format_blueprint("{pool: on-ecs, accelerators: 2}"),
        "ecs",
        'blueprint.yaml:3:12: framework: "ray": the framework does not run on the target ecs. Fix: use --target local or '
        "eks, or another framework.",
    ),
    "a policy": (
        format_blueprint(roles=f"  worker: {RELAXED}\n  router: {{policy: kv-aware}}"),
        "eks",
        'blueprint.yaml:8:20: roles.router.policy: "kv-aware": the router of vllm under ray in the pattern '
        "aggregated has no such policy. Fix: use one of cache-aware, load-aware, round-robin.",
    ),
    "a limit on requests in flight": (
        format_blueprint(roles=f"  worker: {RELAXED}\n  router: {{max_requests: 64}}"),
        "eks",
        "blueprint.yaml:8:26: roles.router.max_requests: 64: the router of vllm under ray in the pattern aggregated has no "
        "limit on requests in flight. Fix: remove it, or use framework: plain.",
    ),
    "prefill and decode": (
        format_blueprint(
            pattern="disaggregated",
            roles="  prefill: {pool: gpus, accelerators: 2}\n  decode: {pool: gpus, accelerators: 2}",
        ),
        "eks",
        'blueprint.yaml:2:10: pattern: "disaggregated": Ray\'s prefill and decode are another application '
        "(build_pd_openai_app), which is not rendered. Fix: set pattern: aggregated, or choose pools of GPUs.",
    ),
    "data parallelism": (
        format_blueprint("{pool: gpus, accelerators: 4, data: 2}", pattern="distributed"),
        "eks",
        "blueprint.yaml:7:47: roles.worker.data: 2: Ray runs each data-parallel rank as a replica of another application "
        "(build_dp_openai_app), which is not rendered. Fix: set data: 1.",
    ),
    "scaling by the cache": (
        format_blueprint("{pool: gpus, accelerators: 2, replicas: 1..4, scale: {kv_usage: 80%}}"),
        "eks",
        "blueprint.yaml:7:75: roles.worker.scale.kv_usage: 0.8: ray does not scale by it. Fix: set scale: {queue: 4}.",
    ),
    "an option of a later version": (
        format_blueprint(RELAXED, lines="engine_arguments: {engram_config: {}}\n"),
        "eks",
        'blueprint.yaml:8:35: engine_arguments.engram_config: "{}": ray 2.60.0 runs vllm 0.29.0, which has no such '
        "option. Fix: remove engram_config, or use another framework.",
    ),
    "a limit below what it scales at": (
        format_blueprint("{pool: gpus, accelerators: 2, replicas: 1..4, max_requests: 1}"),
        "eks",
        "blueprint.yaml:7:71: roles.worker.max_requests: 1: Ray starts another replica at 15 requests for each, which it "
        "would refuse. Fix: set max_requests: 15 or more.",
    ),
    "several ranks on this machine": (
        LOCAL.replace("accelerators: 1", "accelerators: 2"),
        "local",
        "blueprint.yaml:6:44: roles.worker.accelerators: 2: a replica of several ranks under Ray was not compared on this "
        "machine. Fix: set accelerators: 1, or use framework: plain.",
    ),
    "a prompt before the first request": (
        LOCAL.replace("model: tiny", "model: tiny\nwarm_prompt: system.txt"),
        "local",
        'blueprint.yaml:5:14: warm_prompt: "system.txt": Ray\'s replicas take no requests but those of its endpoint. Fix: '
        "remove it, or use framework: plain.",
    ),
    "Trainium": (
        format_blueprint("{pool: trainium, accelerators: 64}"),
        "eks",
        'blueprint.yaml:7:18: roles.worker.pool: "trainium": trn2.48xlarge has Trainium2, on which the engine vllm does '
        "not run under ray. Fix: use a pool of types with gpu, or another engine.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_run_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    text, target, message = REFUSED[case]
    (tmp_path / "system.txt").write_text("Answer in one word.")
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, target)
    assert str(error.value).replace(f"{tmp_path}/", "").splitlines() == [message]


def test_a_fleet_without_its_operator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolve(tmp_path, format_blueprint(), fleet=FLEET.replace("add_ons: {operators: on}\n", ""))
    assert str(error.value).replace(f"{tmp_path}/", "") == (
        'blueprint.yaml:3:12: framework: "ray": KubeRay runs it, which the fleet installs with operators. Fix: set '
        "add_ons: {operators: on} in the fleet and apply it, or use another framework."
    )
