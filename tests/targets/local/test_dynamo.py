"""Dynamo's real frontend and workers of two models: found, reached by loopback alone, bounded, chosen by their caches,
and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import engine_setups
from tests import serving
from tests.kinds.serving.frameworks import test_dynamo

pytestmark = serving.mark_framework("dynamo")

MIGRATIONS = "dynamo_frontend_model_migration_total"
"""Requests that the frontend gave to another worker. Source: Dynamo 1.6.1, its page."""


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """Two workers of `tiny` and one of `other` behind the frontend."""
    root = tmp_path_factory.mktemp("dynamo")
    with serving.run_framework("dynamo", root, start_blueprint, lines="logs: json\n") as started:
        yield started


def _find_workers(plan: DeploymentPlan, model: str) -> list[psutil.Process]:
    return [each for each in serving.list_processes(plan) if {"dynamo.vllm", model} <= {*each.cmdline()}]


def test_it_listens_on_loopback_addresses_alone(plan: DeploymentPlan) -> None:
    serving.assert_loopback(plan)


def test_the_engine_of_a_worker_is_a_fork(plan: DeploymentPlan) -> None:
    titles = [" ".join(process.cmdline()).strip() for process in serving.list_processes(plan)]
    assert titles.count("VLLM::ForkServer") == titles.count("VLLM::EngineCore") == 3


def test_the_report_counts_every_request_at_the_replica_that_answered(plan: DeploymentPlan, tmp_path: Path) -> None:
    serving.assert_counted(plan, tmp_path)


def test_each_model_answers_by_its_name(plan: DeploymentPlan) -> None:
    serving.assert_named(plan)


def test_a_model_whose_worker_is_full_refuses_more_while_the_other_answers(plan: DeploymentPlan) -> None:
    [worker] = _find_workers(plan, "other")
    serving.assert_bounded(plan, worker, retry_after=None)


def test_its_frontend_logs_json_with_the_id_of_each_request_and_without_prompts(plan: DeploymentPlan) -> None:
    prompt = "Nobody logs these words."
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    headers = {"Content-Type": "application/json", "X-Request-Id": "call-1"}
    request = urllib.request.Request(f"{plan.deployment.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200

    def read_lines() -> list[dict[str, Any]]:
        whole_lines, _, _ = (plan.directory.logs / "router.log").read_text().rpartition("\n")
        return [json.loads(line) for line in whole_lines.splitlines() if "call-1" in line]

    processes.wait_until(lambda: "request completed" in {line["message"] for line in read_lines()}, "its line", 60)
    assert {line["x_request_id"] for line in read_lines()} == {"call-1"}
    assert not [file for file in plan.directory.logs.glob("*.log") if prompt in file.read_text()]


def test_a_prompt_goes_where_its_beginning_was_seen_unless_the_policy_is_another(plan: DeploymentPlan) -> None:
    *others, chosen = serving.repeat_prompt(plan, "The router sends a request to the worker that has seen it. " * 20, 6)
    assert others == [0, 0] and chosen >= 5 * 128, "five of six found whole blocks, all of them at one worker"
    changed = serving.change_policy(plan, "round-robin")
    hits = serving.repeat_prompt(changed, "A turn for each worker, whatever it has seen. " * 20, 6)
    assert min(hits[1:]) >= 2 * 128, "each worker had the first of its three"


def test_requests_go_on_when_their_worker_is_killed(plan: DeploymentPlan) -> None:
    victim, _ = _find_workers(plan, "tiny")
    migrated = serving.sum_counter(f"{plan.deployment.url}/metrics", MIGRATIONS)
    victim.suspend()  # each second request is its own and stays with it
    with serving.Load(plan.deployment.url, deadline_s=300, users=4) as load:
        load.wait_answers(2)
        victim.kill()
        assert serving.complete(plan.deployment.url, model="other")
        load.wait_answers(8)
    assert load.failed == []
    assert serving.sum_counter(f"{plan.deployment.url}/metrics", MIGRATIONS) > migrated, "it had some under way"


def list_models(url: str) -> set[str]:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
            return {row["id"] for row in json.load(response)["data"]}
    except OSError:
        return set()


def test_a_frontend_takes_no_workers_of_a_release_whose_name_goes_on_after_its_own(
    plan: DeploymentPlan, tmp_path: Path
) -> None:
    """A worker in the namespace of a release `other-b`, as the operator calls it, and frontends of a release `other`."""
    [router] = plan.deployment.entries
    frontend = router.command[: router.command.index("dynamo.frontend") + 1][-3:]
    model = plan.deployment.workers[0].command[plan.deployment.workers[0].command.index("--model") + 1]
    sibling, ports = "dyn://other-b-1a2b3c4d.backend.generate", processes.claim_free_ports(2)
    loose = {name: value for name, value in router.env.items() if name != "DYN_NAMESPACE_PREFIX_STRICT"}
    commands = [
        (
            [*frontend[:2], "dynamo.mocker", "--model-path", model, "--model-name", "sibling", "--endpoint", sibling],
            router.env,
        ),
        *(
            ([*frontend, "--http-host", "127.0.0.1", "--http-port", str(port), "--namespace-prefix", "other"], env)
            for port, env in zip(ports, (loose, router.env), strict=True)
        ),
    ]
    with contextlib.ExitStack() as started:
        log = started.enter_context((tmp_path / "log").open("w"))
        for command, env in commands:
            process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=subprocess.STDOUT)
            started.callback(process.wait, 60)
            started.callback(process.terminate)
        taking, own = (f"http://127.0.0.1:{port}" for port in ports)
        processes.wait_until(lambda: list_models(taking) == {"other", "sibling"}, "the loose frontend's models", 180, 1)
        processes.wait_until(lambda: list_models(own) == {"other"}, "the release's own model", 180, 1)


PARSE = """
import json, sys, types

class Field:
    default = None

class BuildConfig:
    model_fields = dict.fromkeys(("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width"), Field)

# Its parser takes nothing of the engine but these fields' defaults.
engine = types.ModuleType("tensorrt_llm.llmapi")
engine.BuildConfig = BuildConfig
sys.modules |= {"tensorrt_llm": types.ModuleType("tensorrt_llm"), "tensorrt_llm.llmapi": engine}
from dynamo.trtllm import args
for words in json.loads(sys.argv[1]):
    try:
        config = args.parse_args(words)
    except SystemExit:
        print()
        continue
    mode = config.disaggregation_mode.value
    print(mode, config.tensor_parallel_size, config.publish_metrics, config.use_kv_events, config.extra_engine_args)
"""


def parse(commands: list[tuple[str, ...]]) -> list[list[str]]:
    """Read workers' options with Dynamo's own parser of TensorRT-LLM's workers, in Dynamo's environment."""
    python = engine_setups.find("vllm", "dynamo").ensure() / "python"
    command = [python, "-c", PARSE, json.dumps(commands)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [line.split() for line in run.stdout.splitlines()]


def test_its_own_parser_takes_the_options_of_tensorrt_llms_workers(tmp_path: Path) -> None:
    text = test_dynamo.choose("tensorrt-llm", test_dynamo.APART).replace("cache-aware", "kv-aware")
    prefill, decode, _ = test_dynamo.resolve(tmp_path, text, "eks", test_dynamo.EKS_FLEET).services
    commands = [worker.command[worker.command.index("dynamo.trtllm") + 1 :] for worker in (prefill, decode)]
    *parsed, refused = parse([*commands, (*commands[0], "--max_batch_size", "4")])
    assert parsed == [[worker.role, "2", "True", "True", "/tmp/settings.json"] for worker in (prefill, decode)]
    assert refused == [], "as trtllm-serve spells it"
