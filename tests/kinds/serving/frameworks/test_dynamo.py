"""Dynamo: its workers' and its frontend's command lines here and on EKS, and what it does not run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from llm_serving.catalog import engine_options, engines, frameworks
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import list_port_names
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from tests import matrix_cells
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools: {general: {types: g6e.2xlarge, size: 0..8}}
"""
BLUEPRINT = """\
pattern: aggregated
framework: dynamo
model: tiny
context: 2k
roles:
  worker: {pool: general, replicas: 2}
  router: {policy: cache-aware}
traffic: {users: 2, shared_prefix: 80%}
slo: {}
"""


ON_EKS = """\
pattern: aggregated
framework: dynamo
model: Qwen/Qwen3-32B
context: 8k
roles:
  worker: {pool: gpus, accelerators: 2, replicas: 1..4, scale: {queue: 6, cool_down: 2min}}
  router: {policy: cache-aware}
traffic: {users: 2, input_tokens: 3000, output_tokens: 1000, shared_prefix: 80%}
slo: {}
"""
EKS_FLEET = f"""\
{FLEET.replace("general: {types: g6e.2xlarge, size: 0..8}", "gpus: {types: g6e.12xlarge, size: 0..8}")}\
add_ons: {{operators: on, observability: on}}
"""


DYNAMO_OPTIONS = frozenset(
    {"dyn_tool_call_parser", "dyn_reasoning_parser", "custom_jinja_template", "disaggregation_mode"}
)
"""Of its workers, beside the engine's own. Source: Dynamo 1.6.1, dynamo/common/configuration and vllm/backend_args.py."""


def resolve(folder: Path, text: str = BLUEPRINT, target: str = "local", fleet: str = FLEET) -> ServingDeployment:
    return resolving.resolve_files(folder, f"name: mine\n{text}", fleet, target)


def test_the_frontend_takes_the_routers_place_and_workers_the_engines(tmp_path: Path) -> None:
    *workers, frontend = resolve(tmp_path).services
    assert [worker.name for worker in workers] == ["worker-0", "worker-1"]
    command = workers[0].command[workers[0].command.index("--") + 1 :]
    assert command == (
        *("python3", "-m", "dynamo.vllm", "--model", "/fetched/weights", "--served-model-name", "tiny"),
        *("--max-model-len", "2000", "--enforce-eager", "--kv-cache-memory-bytes", "67108864"),
        *("--distributed-executor-backend", "uni", "--dyn-tool-call-parser", "hermes"),
        *("--allowed-media-domains", "none.invalid"),
    )
    assert "fetch_weights" in " ".join(workers[0].command), "no reader of S3 is in its environment"
    assert frontend.command[1].endswith("/dynamo_events.py") and frontend.command[2].endswith("/events-in")
    assert frontend.command[4:] == (
        *("python3", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(frontend.port)),
        *("--router-mode", "kv", "--no-router-kv-events", "--migration-limit", "3"),
    )


def test_its_processes_listen_on_loopback_addresses_and_meet_in_a_folder(tmp_path: Path) -> None:
    deployment = resolve(tmp_path)
    for service in deployment.services:
        hosts = {value for name, value in service.env.items() if name.startswith("DYN_") and name.endswith("_HOST")}
        assert hosts == {deployment.environment.hidden_host}
        assert {"DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"} <= set(service.env)
        assert service.env["DYN_ZMQ_BROKER_URL"] == "xsub=ipc:///events-in , xpub=ipc:///events-out"
        assert service.env["DYN_DISCOVERY_BACKEND"] == "file"
        assert service.env["DYN_FILE_KV"] == "/discovery"


def test_a_worker_is_ready_by_its_page_of_health_which_is_beside_its_metrics(tmp_path: Path) -> None:
    deployment = resolve(tmp_path)
    worker = deployment.services[0]
    assert worker.probe and (worker.probe.path, worker.probe.body) == ("/health", {})
    assert worker.env["DYN_SYSTEM_PORT"] == str(worker.port)
    assert deployment.metrics_urls["worker-0"] == f"http://{worker.host}:{worker.port}/metrics"
    assert deployment.router.metrics["requests"] == "dynamo_frontend_requests_total"


def test_on_eks_the_operator_says_how_they_find_one_another(tmp_path: Path) -> None:
    worker, frontend = resolve(tmp_path, ON_EKS, "eks", EKS_FLEET).services
    assert worker.command[:5] == ("python3", "-m", "dynamo.vllm", "--model", "/scratch/fetched/weights")
    assert frontend.command[:3] == ("python3", "-m", "dynamo.frontend")
    assert frontend.command[3:7] == ("--http-host", "0.0.0.0", "--http-port", str(frontend.port))
    own = {name: value for item in (worker, frontend) for name, value in item.env.items() if name.startswith("DYN_")}
    assert own == {"DYN_HTTP_OVERLOAD_STATUS_CODE": "429", "DYN_NAMESPACE_PREFIX_STRICT": "true"}
    assert worker.port == 9090, "where the operator looks for health and metrics"
    assert worker.probe and frontend.probe
    assert (worker.probe.path, worker.probe.health, worker.probe.alive) == ("/health", "/health", "/live")
    assert (frontend.probe.path, frontend.probe.alive) == ("/health", "/live")
    assert worker.image == frontend.image == "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"


def test_on_eks_the_frontend_has_the_models_files_but_its_weights_where_the_workers_have_them(tmp_path: Path) -> None:
    """The worker tells the frontend paths of its own files, which must be there."""
    worker, frontend = resolve(tmp_path, ON_EKS, "eks", EKS_FLEET).services
    assert worker.prefetch and frontend.prefetch
    assert worker.prefetch.skip == ()
    assert frontend.prefetch.uris == worker.prefetch.uris and list(worker.prefetch.uris) == ["weights"]
    assert "*.safetensors" in frontend.prefetch.skip
    assert frontend.prefetch.disk_bytes < 2**31 < worker.prefetch.disk_bytes
    assert frontend.env["AWS_REGION"] == "us-west-2"


@pytest.mark.parametrize(("text", "target", "fleet"), [(BLUEPRINT, "local", FLEET), (ON_EKS, "eks", EKS_FLEET)])
def test_a_workers_limit_and_json_lines_are_settings_of_dynamo(
    tmp_path: Path, text: str, target: str, fleet: str
) -> None:
    limited = text.replace("pool: g", "max_requests: 8, pool: g").replace("slo:", "logs: json\nslo:")
    *workers, frontend = resolve(tmp_path, limited, target, fleet).services
    for worker in workers:
        assert (worker.env["DYN_TCP_WORKER_POOL_SIZE"], worker.env["DYN_TCP_WORK_QUEUE_SIZE"]) == ("8", "1")
        assert not {"--max-num-queued-reqs", "--middleware", "--logging-config"} & {*worker.command}
    assert "DYN_TCP_WORKER_POOL_SIZE" not in frontend.env
    assert {service.env["DYN_LOGGING_JSONL"] for service in (*workers, frontend)} == {"1"}


def test_a_worker_of_several_data_parallel_ranks_has_no_servers_of_the_engine(tmp_path: Path) -> None:
    text = BLUEPRINT.replace("aggregated", "distributed").replace("replicas: 2", "accelerators: 2, data: 2")
    worker, _ = resolve(tmp_path, text, fleet=FLEET.replace("g6e.2xlarge", "g6e.12xlarge")).services
    assert worker.command[worker.command.index("--data-parallel-size") + 1] == "2"
    assert "--api-server-count" not in worker.command


@pytest.mark.parametrize(
    ("policy", "mode"), [("load-aware", "power-of-two"), ("round-robin", "round-robin"), ("random", "random")]
)
def test_each_policy_is_a_mode_of_its_router(tmp_path: Path, policy: str, mode: str) -> None:
    frontend = resolve(tmp_path, BLUEPRINT.replace("cache-aware", policy)).services[-1]
    assert frontend.command[frontend.command.index("--router-mode") + 1] == mode


def test_the_user_reads_what_the_first_deploy_downloads(tmp_path: Path) -> None:
    assert (
        "Dynamo runs from .venv-dynamo with vLLM 0.31.0, the version that it pins. The first deploy downloads up to "
        "0.7 GB for it." in resolve(tmp_path).notes
    )
    plain = resolve(tmp_path, BLUEPRINT.replace("framework: dynamo", "framework: plain"))
    assert not any("Dynamo" in note for note in plain.notes)


REFUSED = {
    "an engine that it does not run": (
        BLUEPRINT.replace("model: tiny", "model: tiny\nengine: llama.cpp"),
        'blueprint.yaml:3:12: framework: "dynamo": dynamo 1.6.1 runs vllm 0.31.0 and tensorrt-llm 1.3.0rc29 and sglang 0.5.21, '
        "and not llama.cpp. Fix: set engine: vllm or tensorrt-llm or sglang, or another framework.",
    ),
    "a policy": (
        BLUEPRINT.replace("cache-aware", "consistent-hash"),
        'blueprint.yaml:8:20: roles.router.policy: "consistent-hash": the router of vllm under dynamo in the pattern '
        "aggregated has no such policy. Fix: use one of cache-aware, kv-aware, load-aware, round-robin, random.",
    ),
    "a parser that Dynamo does not have": (
        BLUEPRINT.replace("model: tiny", "model: ibm-granite/granite-3.3-8b-instruct\ntools: granite"),
        'blueprint.yaml:5:8: tools: "granite": dynamo reads answers itself, and has no parser granite. Fix: set tools: '
        "off, or use another framework.",
    ),
    "a limit on requests in flight": (
        BLUEPRINT.replace("cache-aware", "cache-aware, max_requests: 64"),
        "blueprint.yaml:8:47: roles.router.max_requests: 64: the router of vllm under dynamo in the pattern aggregated has "
        "no limit on requests in flight. Fix: remove it, or use framework: plain.",
    ),
    "a limit on a request's time": (
        BLUEPRINT.replace("cache-aware", "cache-aware, request_timeout: 10min"),
        "blueprint.yaml:8:50: roles.router.request_timeout: \"600s\": Dynamo's frontend has no limit on a request's time. "
        "Fix: remove it, or use framework: plain.",
    ),
    "a prompt before the first request": (
        BLUEPRINT.replace("model: tiny", "model: tiny\nwarm_prompt: system.txt"),
        'blueprint.yaml:5:14: warm_prompt: "system.txt": Dynamo\'s workers take no requests but those of its frontend. '
        "Fix: remove it, or use framework: plain.",
    ),
    "priorities": (
        BLUEPRINT.replace("slo:", "tuning: {priority: on}\nslo:"),
        "blueprint.yaml:10:20: tuning.priority: true: Dynamo refuses a request with `priority`, which gateways and batches "
        "write: it reads nvext.agent_hints.priority, whose highest goes first. Fix: set priority: off in a copy to try here.",
    ),
    "an option of the engine's server": (
        BLUEPRINT.replace("slo:", "engine_arguments: {uvicorn_log_level: debug}\nslo:"),
        'blueprint.yaml:10:39: engine_arguments.uvicorn_log_level: "debug": dynamo 1.6.1 runs vllm 0.31.0, where there is '
        "no such option. Fix: remove uvicorn_log_level, or use another framework.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_run_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    (tmp_path / "system.txt").write_text("Answer in one word.")
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text)
    assert str(error.value).replace(f"{tmp_path}/", "").splitlines() == [message]


LOCAL_PAIR = BLUEPRINT.replace("aggregated", "disaggregated").replace(
    "worker: {pool: general, replicas: 2}", "prefill: {pool: general, replicas: 2}\n  decode: {pool: general}"
)


def test_prefill_and_decode_meet_in_one_namespace_on_this_machine(tmp_path: Path) -> None:
    *workers, _ = resolve(tmp_path, LOCAL_PAIR).services
    assert {(worker.role, worker.env["DYN_NAMESPACE"]) for worker in workers} == {
        ("prefill", "pair"),
        ("decode", "pair"),
    }
    for worker in workers:
        assert worker.command[worker.command.index("--disaggregation-mode") + 1] == worker.role
        assert (worker.env["UCX_NET_DEVICES"], worker.env["VLLM_NIXL_SIDE_CHANNEL_HOST"]) == ("lo", worker.host)
    assert {service.env["DYN_NAMESPACE"] for service in resolve(tmp_path).services[:-1]} == {"worker"}


EVENTS = {
    "vllm": (
        "--kv-events-config",
        '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "ipc:///tmp/inproc-PROCESS"}',
    ),
    "tensorrt-llm": ("--publish-kv-events",),
    "sglang": ("--kv-events-config", '{"publisher": "zmq", "endpoint": "tcp://*:5557"}'),
}
"""How each engine's worker reads the engine's events."""


@pytest.mark.parametrize("pattern", ["ON_EKS", "APART"])
@pytest.mark.parametrize("engine", EVENTS)
def test_by_events_each_worker_reads_its_engine_and_the_frontend_follows(
    tmp_path: Path, engine: str, pattern: str
) -> None:
    text = choose(engine, globals()[pattern])
    *workers, frontend = resolve(tmp_path, text.replace("cache-aware", "kv-aware"), "eks", EKS_FLEET).services
    *silent, remembering = resolve(tmp_path, text, "eks", EKS_FLEET).services
    for worker, other in zip(workers, silent, strict=True):
        words = tuple(word.replace("PROCESS", worker.name) for word in EVENTS[engine])
        added = [word for word in worker.command if word not in other.command]
        assert (*added,) == words
        assert set(worker.ports) - set(other.ports) == ({"events"} if engine == "sglang" else set())
    assert "--no-router-kv-events" in remembering.command
    assert [word for word in remembering.command if word != "--no-router-kv-events"] == [*frontend.command]


def test_by_events_a_worker_of_several_ranks_is_followed_too(tmp_path: Path) -> None:
    text = BLUEPRINT.replace("aggregated", "distributed").replace("replicas: 2", "accelerators: 2, data: 2")
    worker, frontend = resolve(
        tmp_path, text.replace("cache-aware", "kv-aware"), fleet=FLEET.replace("g6e.2xlarge", "g6e.12xlarge")
    ).services
    assert "/inproc-worker-0" in worker.command[worker.command.index("--kv-events-config") + 1]
    assert "--no-router-kv-events" not in frontend.command


APART = ON_EKS.replace("pattern: aggregated", "pattern: disaggregated").replace(
    "  worker: {pool: gpus, accelerators: 2, replicas: 1..4, scale: {queue: 6, cool_down: 2min}}\n",
    "  prefill: {pool: gpus, accelerators: 2, replicas: 2}\n  decode: {pool: gpus, accelerators: 2}\n",
)


def test_prefill_and_decode_are_told_their_part_and_hand_over_by_nixl(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, APART, "eks", EKS_FLEET)
    prefill, decode, frontend = deployment.services
    for worker, kv_role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        words = dict(itertools.pairwise(worker.command))
        assert words["--disaggregation-mode"] == worker.role
        transfer = json.loads(words["--kv-transfer-config"])
        assert (transfer["kv_connector"], transfer["kv_role"]) == ("NixlConnector", kv_role)
        assert worker.address_variables == ("VLLM_NIXL_SIDE_CHANNEL_HOST",) and worker.ports["side"]
    assert frontend.command[frontend.command.index("--router-mode") + 1] == "kv"
    assert deployment.framework_config["types"] == {"prefill": "prefill", "decode": "decode"}
    assert "--disaggregation-mode" not in resolve(tmp_path, ON_EKS, "eks", EKS_FLEET).services[0].command


@pytest.mark.parametrize(("framework", "events"), [("dynamo", False), ("plain", True)])
def test_its_workers_say_what_they_cached_through_sockets_and_claim_no_ports_for_it(
    tmp_path: Path, framework: str, events: bool
) -> None:
    text = BLUEPRINT.replace("cache-aware", "kv-aware").replace("framework: dynamo", f"framework: {framework}")
    (tmp_path / "blueprint.yaml").write_text(text)
    names = list_port_names(load(tmp_path / "blueprint.yaml", Blueprint).value)
    assert ("worker-0" in names, "worker-0-events" in names, "worker-0-replay" in names) == (True, events, events)


LIMITS = "slo: {ttft_ms: {p50: 700, p95: 1500}, itl_ms: {p95: 40}}"
PLANNED = ON_EKS.replace("{queue: 6, cool_down: 2min}", "{planner: on}").replace("slo: {}", LIMITS)
PLANNED_APART = (
    APART.replace("replicas: 2}", "replicas: 2..3, scale: {planner: on}}")
    .replace(
        "decode: {pool: gpus, accelerators: 2}",
        "decode: {pool: gpus, accelerators: 2, replicas: 1..4, scale: {planner: on}}",
    )
    .replace("slo: {}", LIMITS)
)


def test_each_role_has_a_planner_that_keeps_its_limit_within_its_bounds(tmp_path: Path) -> None:
    config = resolve(tmp_path, PLANNED, "eks", EKS_FLEET).framework_config
    assert config["plannerImage"] == "nvcr.io/nvidia/ai-dynamo/dynamo-planner:1.6.1"
    note = (
        f"{config['plannerImage']} is pulled by its tag; `blueprint images pin` keeps the digest in images.lock.yaml."
    )
    assert note in resolve(tmp_path, PLANNED, "eks", EKS_FLEET).notes
    kept = ("mode", "ttft_ms", "itl_ms", "min_endpoint", "max_gpu_budget")
    assert {name: [planner.get(key) for key in kept] for name, planner in config["planners"].items()} == {  # type: ignore[union-attr]
        "worker": ["agg", 700, 40, 1, 8]
    }
    config = resolve(tmp_path, PLANNED_APART, "eks", EKS_FLEET).framework_config
    assert {name: [planner.get(key) for key in kept] for name, planner in config["planners"].items()} == {  # type: ignore[union-attr]
        "prefill": ["prefill", 700, None, 2, 6],
        "decode": ["decode", None, 40, 1, 8],
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_planned_worker_alone_says_what_its_engines_steps_took(tmp_path: Path, engine: str) -> None:
    halves = PLANNED_APART.replace("2..3, scale: {planner: on}", "2")
    prefill, decode, frontend = resolve(tmp_path, choose(engine, halves), "eks", EKS_FLEET).services
    variable = "DYN_FORWARDPASS_METRIC_PORT"
    assert [service.env.get(variable) for service in (prefill, decode, frontend)] == [None, "20380", None]


def test_without_keda_a_planner_scales(tmp_path: Path) -> None:
    fleet = EKS_FLEET.replace("{operators: on, observability: on}", "{}")
    worker, _ = resolve(tmp_path, PLANNED, "eks", fleet).services
    assert worker.replicas.scale is None, "KEDA has no part in it"


REFUSED_PLANNERS = {
    "another framework": (
        PLANNED.replace("framework: dynamo\n", ""),
        "eks",
        "framework: plain has no planner. Fix: set framework: dynamo, or scale: {queue: 4}.",
    ),
    "ECS": (
        PLANNED.replace("framework: dynamo\n", ""),
        "ecs",
        "framework: plain has no planner. Fix: set framework: dynamo, or scale: {queue: 4}.",
    ),
    "no limit": (
        PLANNED.replace(", itl_ms: {p95: 40}", ""),
        "eks",
        "the SLO has no limit of itl_ms, which the planner keeps. "
        "Fix: set slo: {itl_ms: {p95: ...}}, or scale: {queue: 4}.",
    ),
}


def test_a_blueprint_with_a_planner_runs_on_this_machine_unchanged_and_says_that_nothing_scales(tmp_path: Path) -> None:
    text = PLANNED.replace("Qwen/Qwen3-32B", "tiny").replace("input_tokens: 3000, output_tokens: 1000, ", "")
    deployment = resolve(tmp_path, text.replace("8k", "2k"), "local", EKS_FLEET)
    assert "Nothing scales on this machine: worker runs 1 of 1..4 replicas." in deployment.notes
    assert not any("DYN_FORWARDPASS_METRIC_PORT" in service.env for service in deployment.services)


@pytest.mark.parametrize("case", REFUSED_PLANNERS)
def test_a_planner_is_refused_where_there_is_none_or_no_limit(tmp_path: Path, case: str) -> None:
    text, target, message = REFUSED_PLANNERS[case]
    fleet = (
        EKS_FLEET.replace("add_ons: {operators: on, observability: on}", "orchestrator: ecs")
        if target == "ecs"
        else EKS_FLEET
    )
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, target, fleet)
    assert f"roles.worker.scale.planner: true: {message}" in str(error.value)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (
            "{queue: 4, planner: on}",
            "scale.queue: 4: KEDA scales by it, and the planner in KEDA's place: only one may own the replicas. "
            "Fix: remove queue, or planner.",
        ),
        ("{planner: on, slo: on}", 'scale.slo: "on": the planner follows the SLO by itself. Fix: remove slo.'),
        (
            "{planner: on, cool_down: 2min}",
            'scale.cool_down: "2min": the planner stops a replica once the others alone would keep the SLO. '
            "Fix: remove cool_down.",
        ),
        (
            "{planner: on, peaks: {at: 16:30..23:00, replicas: 2}}",
            "scale.peaks: the planner knows no times of the day. Fix: remove peaks.",
        ),
        (
            "{planner: off}",
            "scale: it must have exactly one of queue and kv_usage. Fix: set queue: 4, or kv_usage: 80%.",
        ),
    ],
)
def test_keda_and_the_planner_never_own_the_same_replicas(tmp_path: Path, scale: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(tmp_path, PLANNED.replace("{planner: on}", scale), "eks", EKS_FLEET)
    assert message in str(error.value)


REFUSED_ON_EKS = {
    "prefill and decode by EFA": (
        APART.replace("pool: gpus, accelerators: 2", "pool: gpus, accelerators: 4"),
        EKS_FLEET.replace("types: g6e.12xlarge", "types: p5en.48xlarge, zones: us-west-2a, efa: on"),
        'blueprint.yaml:3:12: framework: "dynamo": its image for EFA, by which prefill hands over to decode, is another one, '
        "which was not compared. Fix: set tuning: {kv_transfer: host}, or use framework: plain.",
    ),
    "a fleet without KEDA": (
        ON_EKS,
        EKS_FLEET.replace("operators: on", "operators: off"),
        'blueprint.yaml:7:51: roles.worker.replicas: "1..4": KEDA scales it by Prometheus\' metrics, which the fleet installs '
        "with operators and observability. Fix: set add_ons: {operators: on} in the fleet and apply it, or replicas: 4.",
    ),
    "no replica while there is no request": (
        ON_EKS.replace("1..4", "0..4"),
        EKS_FLEET,
        'blueprint.yaml:7:51: roles.worker.replicas: "0..4": Dynamo\'s frontend forgets a model without workers, so that no '
        "request would start one. Fix: set replicas: 1..4, or use framework: plain.",
    ),
    "several models": (
        """\
pattern: multi-model
framework: dynamo
roles:
  models:
    small: {pool: gpus, model: Qwen/Qwen3-8B, context: 8k}
    large: {pool: gpus, model: Qwen/Qwen3-32B, context: 8k, accelerators: 2}
traffic: {users: 2, input_tokens: 3000, output_tokens: 1000}
slo: {}
""",
        EKS_FLEET,
        'blueprint.yaml:3:12: framework: "dynamo": all workers of a DynamoGraphDeployment have one name, by which the '
        "frontend would mix the models. Fix: use another framework, or a blueprint for each model.",
    ),
}


@pytest.mark.parametrize("case", REFUSED_ON_EKS)
def test_what_it_does_not_run_on_eks_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    text, fleet, message = REFUSED_ON_EKS[case]
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, "eks", fleet)
    assert str(error.value).replace(f"{tmp_path}/", "").splitlines() == [message]


def choose(engine: str, text: str = ON_EKS) -> str:
    return text.replace("framework: dynamo", f"framework: dynamo\nengine: {engine}")


def read_settings(command: Sequence[str]) -> dict[str, Any]:
    """What is written to the engine's file of settings before its worker starts."""
    file = command[command.index("--extra-engine-args") + 1]
    settings: dict[str, Any] = json.loads(command[command.index(file) + 1])
    return settings


def test_its_worker_of_tensorrt_llm_gets_options_and_the_rest_in_the_engines_file(tmp_path: Path) -> None:
    extra = "tuning: {kv_cache: fp8, prefix_cache: off, sequences: 32, batch_tokens: 4k}\nslo:"
    text = choose("tensorrt-llm").replace("slo:", extra).replace("{policy: cache-aware}", "{policy: load-aware}")
    worker, frontend = resolve(tmp_path, text, "eks", EKS_FLEET).services
    assert worker.command[worker.command.index("-m") - 1 :] == (
        *("python3", "-m", "dynamo.trtllm", "--model", "/scratch/fetched/weights"),
        *("--served-model-name", "Qwen/Qwen3-32B", "--max-seq-len", "8000", "--publish-metrics"),
        *("--tensor-parallel-size", "2", "--max-num-tokens", "4000", "--max-batch-size", "32"),
        *("--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "qwen3"),
        *("--extra-engine-args", "/tmp/settings.json"),
    )
    assert read_settings(worker.command) == {
        "enable_chunked_prefill": True,
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False},
    }
    assert worker.env["TRTLLM_NO_USAGE_STATS"] == "1", "Dynamo has no option for it"
    assert (worker.metrics_path, worker.port) == ("/metrics", 9090), "of Dynamo's page, not of trtllm-serve's"
    assert worker.metrics["queue"] == "trtllm_num_requests_waiting"
    assert worker.image == frontend.image == "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.6.1"


def test_an_option_of_tensorrt_llm_is_spelt_as_dynamo_spells_it(tmp_path: Path) -> None:
    text = choose("tensorrt-llm").replace("slo:", "engine_arguments: {max_batch_size: 16}\nslo:")
    words = resolve(tmp_path, text, "eks", EKS_FLEET).services[0].command
    assert words[words.index("--max-batch-size") + 1] == "16"


def test_prefill_and_decode_of_tensorrt_llm_hand_over_by_nixl(tmp_path: Path) -> None:
    prefill, decode, _ = resolve(tmp_path, choose("tensorrt-llm", APART), "eks", EKS_FLEET).services
    for worker in (prefill, decode):
        assert worker.command[-2:] == ("--disaggregation-mode", worker.role)
        assert worker.env["UCX_TLS"].startswith("tcp,"), "left alone UCX takes any network"
        settings = read_settings(worker.command)
        assert settings["cache_transceiver_config"] == {"backend": "NIXL"}
        assert settings["disable_overlap_scheduler"] is (worker is prefill)
        assert "side" not in worker.ports, "where vLLM and SGLang listen"


def test_its_worker_of_sglang_gets_sglangs_own_options(tmp_path: Path) -> None:
    worker, frontend = resolve(tmp_path, choose("sglang"), "eks", EKS_FLEET).services
    assert worker.command == (
        *("python3", "-m", "dynamo.sglang", "--model-path", "/scratch/fetched/weights"),
        *("--served-model-name", "Qwen/Qwen3-32B", "--host", "0.0.0.0", "--context-length", "8000"),
        *("--page-size", "16", "--enable-metrics", "--tp-size", "2"),
        *("--dyn-tool-call-parser", "qwen25", "--dyn-reasoning-parser", "qwen3"),
        *("--allowed-media-domains", "none.invalid"),
    )
    assert worker.image == frontend.image == "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.6.1"
    prefill, decode, _ = resolve(tmp_path, choose("sglang", APART), "eks", EKS_FLEET).services
    for part in (prefill, decode):
        assert part.command.count("--disaggregation-mode") == 1
        assert part.command[part.command.index("--disaggregation-mode") + 1] == part.role
        assert part.address_variables == ("SGLANG_HOST_IP",)
    assert (prefill.ports.get("side"), decode.ports.get("side")) == (5600, None), "where SGLang listens"


RECORDED_PARSERS: dict[str, Any] = json.loads(Path(__file__).with_name("dynamo-parsers.json").read_text())
"""Names that its wheel lists."""

ABSENT_PARSERS = {
    ("vllm", "tools"): {"ernie45", "granite", "granite4", "llama4_json", "mimo", "olmo3", "seed_oss"},
    ("vllm", "reasoning"): {"ernie45", "mimo", "olmo3", "seed_oss"},
    ("sglang", "tools"): {"mimo"},
    ("sglang", "reasoning"): {"mimo"},
}
"""Of the catalog's models, by engine: forms that Dynamo does not read."""


@pytest.mark.parametrize("key", ["tools", "reasoning"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_catalogs_parsers_have_names_that_dynamo_lists(engine: str, key: Literal["tools", "reasoning"]) -> None:
    pair = frameworks.load_frameworks()["dynamo"].engines[engine]
    assert pair.parsers[key] == set(RECORDED_PARSERS[key])
    recorded = engine_options.load(engine)
    assert recorded
    assert pair.parser_names[key].keys() & set(recorded.parsers[key]), "some name is this engine's"
    names = {name for row in engines.load_engines()[engine].answer_parsers for name in getattr(row, key)}
    assert {name for name in names if not pair.find_parser(key, name)} == ABSENT_PARSERS.get((engine, key), set())


@pytest.mark.parametrize(
    ("engine", "tools", "own"),
    [
        ("vllm", "deepseek_v31", "deepseek_v3_1"),
        ("sglang", "deepseekv31", "deepseek_v3_1"),
        ("tensorrt-llm", "deepseek_v31", "deepseek_v3_1"),
        ("vllm", "hermes", "hermes"),
        ("tensorrt-llm", "qwen3", "hermes"),
        ("tensorrt-llm", "qwen3_coder", "qwen3_coder"),
    ],
)
def test_a_parser_is_dynamos_of_the_same_form(engine: str, tools: str, own: str) -> None:
    assert frameworks.load_frameworks()["dynamo"].engines[engine].find_parser("tools", tools) == own


@pytest.mark.parametrize(("engine", "tools"), [("vllm", "openai"), ("sglang", "gpt-oss")])
def test_a_model_whose_parsers_dynamo_calls_otherwise_runs(tmp_path: Path, engine: str, tools: str) -> None:
    text = choose(engine).replace("Qwen/Qwen3-32B", f"openai/gpt-oss-20b\ntools: {tools}")
    command = resolve(tmp_path, text, "eks", EKS_FLEET).services[0].command
    assert command[command.index("--dyn-tool-call-parser") + 1] == "harmony"
    assert command[command.index("--dyn-reasoning-parser") + 1] == "gpt_oss"


REFUSED_OF_ENGINES = {
    "drafts from the prompt": (
        choose("sglang").replace("slo:", "tuning: {speculative: {method: ngram}}\nslo:"),
        'blueprint.yaml:11:23: tuning.speculative: "ngram": SGLang drafts from the prompt only with blocks of one token '
        "on some GPUs, and Dynamo's frontend needs larger ones. Fix: remove speculative.",
    ),
    "an option of the engine's server alone": (
        choose("tensorrt-llm").replace("slo:", "engine_arguments: {trust_remote_code: true}\nslo:"),
        "blueprint.yaml:11:39: engine_arguments.trust_remote_code: true: dynamo 1.6.1 runs tensorrt-llm 1.3.0rc29, where "
        "there is no such option. Fix: remove trust_remote_code, or use another framework.",
    ),
    "an option that came with a later version": (
        choose("sglang").replace("slo:", "engine_arguments: {enable_watermark: true}\nslo:"),
        "blueprint.yaml:11:38: engine_arguments.enable_watermark: true: dynamo 1.6.1 runs sglang 0.5.21, where there is no "
        "such option. Fix: remove enable_watermark, or use another framework.",
    ),
    "a template of one's own": (
        ON_EKS.replace("context: 8k", "context: 8k\nchat_template: own.jinja"),
        'blueprint.yaml:6:16: chat_template: "own.jinja": Dynamo\'s workers read a template from a file, and their pods have '
        "the model's only. Fix: remove it, or use framework: plain.",
    ),
}


@pytest.mark.parametrize("case", REFUSED_OF_ENGINES)
def test_what_its_workers_of_an_engine_do_not_carry_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    text, message = REFUSED_OF_ENGINES[case]
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, "eks", EKS_FLEET)
    assert str(error.value).replace(f"{tmp_path}/", "").splitlines() == [message]


@pytest.fixture(scope="module")
def cells() -> dict[str, list[ServingDeployment]]:
    """What the matrix renders for Dynamo on EKS, by engine."""
    found: dict[str, list[ServingDeployment]] = {}
    for cell in matrix_cells.build("eks"):
        if cell.framework == "dynamo" and isinstance(cell.deployment, ServingDeployment):
            assert cell.is_rendered_only
            found.setdefault(cell.engine, []).append(cell.deployment)
    return found


ABSENT = {"vllm": "uvicorn_log_level", "tensorrt-llm": "no_telemetry", "sglang": "watermark_config"}
"""An option of each engine that its worker under Dynamo does not have: of the engine's server, or of a later version."""


@pytest.mark.parametrize("engine", frameworks.load_frameworks()["dynamo"].engines)
def test_the_version_under_dynamo_has_every_argument_that_is_rendered(
    tmp_path: Path, cells: Mapping[str, Sequence[ServingDeployment]], engine: str
) -> None:
    known = engine_options.load_arguments(frameworks.load_frameworks()["dynamo"].engines[engine].arguments).arguments
    assert {item.pattern for item in cells[engine]} == {"aggregated", "disaggregated", "distributed"}
    here = [resolve(tmp_path)] if engine == "vllm" else []
    words = [word for item in (*here, *cells[engine]) for word in item.services[0].command]
    names = {word[2:].replace("-", "_") for word in words if word.startswith("--") and word != "--"}
    assert names - DYNAMO_OPTIONS <= known
    assert ABSENT[engine] in engine_options.get_options(engine) and ABSENT[engine] not in known
