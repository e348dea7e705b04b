"""The pattern for calls with a deadline, as real processes: refused, warm, and gone when their clients are."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths, processes
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from tests import serving

pytestmark = pytest.mark.engine

LIMIT = 2
LONG: dict[str, Any] = {"max_tokens": 15_000, "ignore_eos": True}
"""An answer that does not end before it is given up, however busy the machine."""


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """The pattern with one replica and a limit that two requests reach."""
    root = tmp_path_factory.mktemp("real-time")
    shutil.copytree(paths.PATTERNS / "real-time", root / "mine")
    file = root / "mine" / "blueprint.yaml"
    text = file.read_text()
    assert "max_requests: 64" in text
    text = text.replace("context: 2k", "context: 16k").replace("max_requests: 64", f"max_requests: {LIMIT}")
    text = text.replace("replicas: 2", f"replicas: 1, max_requests: {LIMIT}")
    file.write_text(f"{text}\nlogs: json\n")
    with start_blueprint(root / "mine", root) as running:
        yield running


@pytest.fixture
def engine(plan: DeploymentPlan) -> Service:
    [worker] = plan.deployment.workers
    return worker


def ask(plan: DeploymentPlan, system: str, address: str = "", **body: Any) -> http.client.HTTPConnection:
    """Send a chat through the router, or to another address, and do not wait for its answer."""
    connection = http.client.HTTPConnection(address or urllib.parse.urlsplit(plan.deployment.url).netloc, timeout=60)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Which?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, **body}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def count_running(engine: Service) -> int:
    return round(serving.read_counter(engine, "vllm:num_requests_running"))


def count_whole_answers(engine: Service) -> int:
    return round(serving.read_counter(engine, "vllm:request_success_total", finished_reason="length"))


def test_the_system_prompt_is_cached_before_the_first_request(plan: DeploymentPlan, engine: Service) -> None:
    def count_hits(system: str) -> float:
        before = serving.read_counter(engine, "vllm:prefix_cache_hits_total")
        with contextlib.closing(ask(plan, system)) as connection:
            assert connection.getresponse().status == 200
        return serving.read_counter(engine, "vllm:prefix_cache_hits_total") - before

    text = (paths.PATTERNS / "real-time" / "system-prompt.txt").read_text()
    assert count_hits(text) > 0
    assert count_hits(f"Not {text}") == 0, "another beginning was never computed"


def test_a_full_replica_refuses_as_the_router_does(plan: DeploymentPlan, engine: Service) -> None:
    with contextlib.ExitStack() as at_the_end:
        for _ in range(LIMIT):
            at_the_end.enter_context(contextlib.closing(ask(plan, "", **LONG)))
        processes.wait_until(lambda: count_running(engine) == LIMIT, "both requests in the engine", 60, 0.05)
        with contextlib.closing(ask(plan, "", f"{engine.host}:{engine.port}", stream=True)) as refused:
            response = refused.getresponse()
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert json.load(response)["error"]["type"] == "rate_limit_exceeded"
    processes.wait_until(lambda: count_running(engine) == 0, "room in the engine", 60, 0.05)
    with contextlib.closing(ask(plan, "", f"{engine.host}:{engine.port}")) as accepted:
        assert accepted.getresponse().status == 200


def test_a_request_that_its_client_gives_up_leaves_the_engine_and_makes_room(
    plan: DeploymentPlan, engine: Service
) -> None:
    whole_answers = count_whole_answers(engine)
    with contextlib.ExitStack() as at_the_end:
        connections = [at_the_end.enter_context(contextlib.closing(ask(plan, "", **LONG))) for _ in range(LIMIT)]
        processes.wait_until(lambda: count_running(engine) == LIMIT, "both requests in the engine", 60, 0.05)
        with contextlib.closing(ask(plan, "")) as refused:
            response = refused.getresponse()
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert count_running(engine) == LIMIT, "the refused request is none of the engine's"
        for connection in connections:
            connection.close()
    processes.wait_until(lambda: count_running(engine) == 0, "an engine without requests", 60, 0.05)
    assert count_whole_answers(engine) == whole_answers, "neither came to its end"
    with contextlib.closing(ask(plan, "")) as admitted:
        assert admitted.getresponse().status == 200


def test_one_id_leads_through_the_lines_of_all_parts_and_none_has_the_prompt(plan: DeploymentPlan) -> None:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Open sesame"}], "max_tokens": 1})
    headers = {"Content-Type": "application/json", "X-Request-Id": "request-42"}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(plan.deployment.url).netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        assert (response.status, response.getheader("X-Request-Id")) == (200, "request-42")

    def read_log(name: str) -> str:
        return (plan.directory.logs / f"{name}.log").read_text()

    def find_lines(name: str, program: str) -> list[str]:
        lines = read_log(name).splitlines()
        return [line for line in lines if "request-42" in line and program in line]

    # The router passes the id on, and has no line of its own for a request.
    parts = (("router", "nginx"), ("worker-0", "request_logger"), ("worker-0", "async_llm"))
    processes.wait_until(lambda: all(find_lines(*part) for part in parts), "the id in each log", 60)
    assert all(json.loads(line) for line in read_log("router").splitlines())
    # Libraries below the engine, such as torch, write text.
    engine_lines = [line for line in read_log("worker-0").splitlines() if line.startswith("{")]
    assert len([json.loads(line) for line in engine_lines]) > 20
    assert "sesame" not in read_log("router") + read_log("worker-0")
