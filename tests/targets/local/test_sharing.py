"""Two models of one role on the real engine: both answer, in turns, and a replica without one of them starts again."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.kinds.gateway import database
from llm_serving.kinds.serving.deployment import narrow
from llm_serving.kinds.serving.validation import validate
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import readiness, status, supervisor
from llm_serving.validation.base import ValidationOptions
from tests import serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]

BLUEPRINT = """\
pattern: multi-model
roles:
  models:
    small: {model: tiny, pool: general, context: 2k, switch: {least_awake: 1s, finish: 1s}}
    long: {model: tiny, shares: small, context: 8k}
traffic: {users: 4, requests: 24, input_tokens: 32..64, output_tokens: 4..8, deadline: 60s}
slo: {errors: 0%}
"""


GATEWAY = """\
kind: gateway
pattern: gateway
teams: {all: {models: [first, second]}}
routes:
  first: {deployments: {deployment: mine, model: small}, price: {input: 1 USD, output: 1 USD}, retries: 0}
  second: {deployments: {deployment: mine, model: long}, price: {input: 1 USD, output: 2 USD}, retries: 0}
"""


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    root = tmp_path_factory.mktemp("sharing")
    file = Path(shutil.copytree(ROOT / "blueprints" / "multi-model", root / "mine")) / "blueprint.yaml"
    file.write_text(BLUEPRINT)
    with start_blueprint(file.parent, root) as running:
        yield running


def _count_switches(plan: DeploymentPlan) -> float:
    return serving.read_counter(plan.deployment.workers[0], "model_switch_seconds_count")


def test_both_models_answer_and_looking_at_the_deployment_wakes_none(plan: DeploymentPlan) -> None:
    with urllib.request.urlopen(f"{plan.deployment.url}/v1/models", timeout=60) as response:
        assert sorted(json.load(response)["models"]) == ["long", "small"]
    for model in ("small", "long"):
        switches = _count_switches(plan)
        assert json.loads(serving.request_completion(plan.deployment.url, model=model))["model"] == model
        assert _count_switches(plan) == switches + (model == "long"), "the first is awake from the start"
    switches = _count_switches(plan)
    assert {state.state for state in status.list_process_states(plan.directory)} == {"ready"}
    assert status.list_awake(plan.directory) == ["small-0: long is awake."]
    assert _count_switches(plan) == switches, "small sleeps on"


def test_a_validation_asks_both_and_counts_every_request(plan: DeploymentPlan, tmp_path: Path) -> None:
    [worker], switches = plan.deployment.workers, _count_switches(plan)
    counted = {
        name: serving.read_counter(worker, "vllm:request_success_total", model_name=name) for name in ("small", "long")
    }
    measured, _ = validate.validate(narrow(plan.deployment), ValidationOptions(logs=plan.directory.logs, runs=tmp_path))
    assert (measured.requests.total, measured.requests.failed) == (24, 0)
    assert [replica.requests for replica in measured.replicas] == [24]
    for name, before in counted.items():
        assert serving.read_counter(worker, "vllm:request_success_total", model_name=name) >= before + 12
    assert _count_switches(plan) > switches


def test_a_replica_takes_no_more_memory_than_the_resolver_assumes(plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(plan.directory)
    [worker] = plan.deployment.workers
    assert supervisord
    family = psutil.Process(supervisord.read_state(worker.name).pid).children(recursive=True)
    assert sum(child.memory_full_info().pss for child in family) < worker.resources.memory_bytes


def test_a_gateway_before_them_has_a_route_for_each_and_waits_for_its_turn(
    plan: DeploymentPlan, prisma_standin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prisma_standin.is_file()
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    root = plan.directory.root
    file = Path(shutil.copytree(ROOT / "blueprints" / "gateway", root / "edge")) / "blueprint.yaml"
    file.write_text(GATEWAY)
    shutil.copy(ROOT / "fleet.yaml", root)
    monkeypatch.chdir(root)

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert main.run(["gateway", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    try:
        assert main.run(["deploy", "edge", "--yes"]) == 0
        url = DeploymentDir("edge", root).load_deployment().url
        key, switches = run("key", "create", "edge", "--team", "all")["key"], _count_switches(plan)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120)

        def stream(number: int) -> int:
            route = ("first", "second")[number % 2]
            answer = client.chat.completions.create(
                model=route, messages=[{"role": "user", "content": f"{number}"}], max_tokens=4, stream=True
            )
            return sum(bool(part.choices and part.choices[0].delta.content) for part in answer)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(stream, range(16))), "none was lost, and each has its text"
        assert _count_switches(plan) > switches

        def count_requests() -> dict[str, int]:
            return {row["model"]: row["requests"] for row in run("usage", "edge", "--by", "team,model,deployment")}

        processes.wait_until(lambda: count_requests() == {"first": 8, "second": 8}, "records of all", 120, 1.0)
    finally:
        assert main.run(["destroy", "edge", "--yes"]) == 0


def test_a_replica_that_loses_an_engine_starts_again_with_both(plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(plan.directory)
    [worker] = plan.deployment.workers
    assert supervisord
    before = supervisord.read_state(worker.name).pid
    family = psutil.Process(before).children(recursive=True)
    engine = next(process for process in family if "--uds" in process.cmdline() and "long" in process.cmdline())
    engine.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == [], "the other engine is gone with it"
    processes.wait_until(lambda: supervisord.read_state(worker.name).pid not in (0, before), "the restart", 60)
    readiness.wait(supervisord, plan.deployment.services)

    def answers(model: str) -> bool:
        try:
            return bool(json.loads(serving.request_completion(plan.deployment.url, model=model))["model"] == model)
        except OSError:  # the router has not looked at it again
            return False

    for model in ("long", "small"):
        processes.wait_until(partial(answers, model), model, 60)
