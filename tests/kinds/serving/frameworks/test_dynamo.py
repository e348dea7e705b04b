"""Dynamo: its workers' and its frontend's command lines, and what it does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import engine_options, engines
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
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


def resolve(folder: Path, text: str = BLUEPRINT, target: str = "local") -> ServingDeployment:
    return resolving.resolve_files(folder, f"name: mine\n{text}", FLEET, target)


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
        *("--router-mode", "kv", "--migration-limit", "3", "--no-router-kv-events"),
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
        'blueprint.yaml:3:12: framework: "dynamo": dynamo 1.6.1 runs vllm 0.31.0, and not llama.cpp. Fix: set engine: '
        "vllm, or another framework.",
    ),
    "a policy": (
        BLUEPRINT.replace("cache-aware", "consistent-hash"),
        'blueprint.yaml:8:20: roles.router.policy: "consistent-hash": the router of vllm under dynamo in the pattern '
        "aggregated has no such policy. Fix: use one of cache-aware, load-aware, round-robin, random.",
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
        "blueprint.yaml:10:20: tuning.priority: true: Dynamo reads the priority of a request from a field of its own, which "
        "was not compared. Fix: set priority: off in a copy to try here.",
    ),
    "an option of the engine's server": (
        BLUEPRINT.replace("slo:", "engine_arguments: {uvicorn_log_level: debug}\nslo:"),
        'blueprint.yaml:10:39: engine_arguments.uvicorn_log_level: "debug": dynamo 1.6.1 runs vllm 0.31.0, which has no '
        "such option. Fix: remove uvicorn_log_level, or use another framework.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_run_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    (tmp_path / "system.txt").write_text("Answer in one word.")
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text)
    assert str(error.value).replace(f"{tmp_path}/", "").splitlines() == [message]


def test_the_version_under_dynamo_has_every_argument_that_is_rendered(tmp_path: Path) -> None:
    known = engine_options.load_arguments(engines.load_frameworks()["dynamo"].engines["vllm"].arguments).arguments
    words = resolve(tmp_path).services[0].command
    names = {word[2:].replace("-", "_") for word in words if word.startswith("--") and word != "--"}
    assert names - {"dyn_tool_call_parser"} <= known
    assert "uvicorn_log_level" not in known, "Dynamo starts no server of the engine"
