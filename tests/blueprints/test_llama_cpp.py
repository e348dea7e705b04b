"""A copy of the aggregated pattern on llama.cpp: deployed, answered, validated and destroyed, with nothing else changed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import gguf
from llm_serving.hub import make_tiny
from llm_serving.kinds.serving.validation import validate as validation
from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups, readiness, supervisor, weights
from llm_serving.validation.base import ValidationOptions
from tests import serving

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60
STREAMS = 3
MAX_TOKENS = 240  # a busy machine writes so many within the ten seconds that a stop waits
ATTEMPTS = 20

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentPlan]:
    root = tmp_path_factory.mktemp("gguf")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    settings = root / "mine" / "blueprint.yaml"
    settings.write_text(f"engine: llama.cpp\n{settings.read_text()}")
    engine_setups.find("llama.cpp").ensure()
    planned = planning.plan(root / "mine", ROOT / "fleet.yaml", root=root, target="local")
    try:
        deployed = deploy.deploy(planned, lambda _: None)
        assert deployed
        yield deployed
    finally:
        deploy.destroy(planned.directory)


def test_the_router_answers_chat_streams_usage_and_spreads_requests(plan: DeploymentPlan) -> None:
    url = plan.deployment.url
    answer = json.loads(
        serving.post(
            url, "/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=4
        )
    )
    assert answer["usage"]["completion_tokens"] == 4
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = serving.request_completion(url, max_tokens=5, **options)
    chunks = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: {")]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [5]
    assert stream.rstrip().endswith("data: [DONE]")


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find_city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
CALL_BEGIN, LINE_END = "<tool_call>", "Ċ"  # the byte-level tokenizer's line feed


@pytest.fixture(scope="module")
def client(plan: DeploymentPlan) -> openai.OpenAI:
    """Through the router, as clients come."""
    return openai.OpenAI(base_url=f"{plan.deployment.url}/v1", api_key="none", timeout=START_LIMIT_S, max_retries=0)


def _ask(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Where?"}], **body)


@pytest.fixture(scope="module")
def forced_call() -> dict[str, Any]:
    """The fields of a request whose answer begins with a call; the server's own grammar forces all that follows.

    The model never chooses a mark by itself, so both tokens are far ahead of all others until each was written once.
    """
    tokenizer = make_tiny.train_tokenizer("tiny")
    bias = {str(tokenizer.token_to_id(CALL_BEGIN)): 5000, str(tokenizer.token_to_id(LINE_END)): 4500}
    return {"tools": [TOOL], "logit_bias": bias, "presence_penalty": 1000, "max_tokens": 150}


def test_a_call_of_a_tool_is_read_from_the_answer_and_from_a_stream(
    client: openai.OpenAI, forced_call: dict[str, Any]
) -> None:
    call = _ask(client, **forced_call).choices[0].message.tool_calls[0].function
    assert call.name == "find_city"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    chunks = _ask(client, **forced_call, stream=True)
    calls = [call.function for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert calls[0].name == "find_city"
    assert re.search(r'"city"\s*:\s*"(Rome|Oslo)"', "".join(call.arguments or "" for call in calls))


def test_what_the_model_thinks_comes_apart_from_its_answer(client: openai.OpenAI) -> None:
    grammar = {"grammar": 'root ::= "<think>so</think>" ("yes" | "no")'}
    message = _ask(client, extra_body=grammar).choices[0].message
    assert message.reasoning_content == "so"
    assert message.content in ("yes", "no")
    deltas = [choice.delta for chunk in _ask(client, extra_body=grammar, stream=True) for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "so"


def test_the_patterns_load_is_answered_and_reported(plan: DeploymentPlan) -> None:
    options = ValidationOptions(logs=plan.directory.logs, runs=plan.directory.reports, folder=plan.folder, requests=60)
    report, folder = validation.validate(plan.deployment, options)
    assert (report.requests.total, report.requests.failed) == (60, 0)
    assert report.throughput.output_tokens_per_s > 0
    assert not [remark for remark in report.remarks if "answered no request" in remark]
    assert (folder / "report.html").is_file()


def test_a_killed_replica_comes_back_with_the_weights_that_were_copied(plan: DeploymentPlan) -> None:
    process = plan.deployment.workers[0]
    server = _find_server(plan, process.name)
    server.send_signal(signal.SIGKILL)
    processes.wait_until(lambda: not server.is_running(), "the end", START_LIMIT_S)
    processes.wait_until(lambda: readiness.is_answering(process), "the replica", START_LIMIT_S)
    log = plan.directory.get_log_path(process.name).read_text()
    assert log.count("copying s3://") <= 1, "the second start finds the file"


def _find_server(plan: DeploymentPlan, name: str) -> psutil.Process:
    """llama-server itself, without the program that drains it."""
    running = supervisor.find_running(plan.directory)
    assert running
    [server] = [
        child
        for child in psutil.Process(running.read_state(name).pid).children(recursive=True)
        if "--library-path" in child.cmdline()  # the packages' own; its launcher stays
    ]
    return server


def test_a_replica_that_is_stopped_finishes_the_requests_that_it_has(plan: DeploymentPlan) -> None:
    running = supervisor.find_running(plan.directory)
    assert running
    victim = plan.deployment.workers[0]
    server = _find_server(plan, victim.name)
    with ThreadPoolExecutor(1) as threads, _suspend_amid_streams(server, victim) as streams:
        stop = threads.submit(running.stop, victim.name)
        processes.wait_until(
            lambda: running.read_state(victim.name).state == "STOPPING", "the stop", START_LIMIT_S, interval_s=0.01
        )
        server.resume()
        assert all(b"data: [DONE]" in stream.read_to_end() for stream in streams if stream.count_tokens())
        stop.result(START_LIMIT_S)
    assert not readiness.is_answering(victim)
    log = plan.directory.get_log_path(victim.name).read_text()
    assert re.search(r"^drain: [1-9]\d* requests in flight", log, re.MULTILINE), "it was stopped amid requests"
    running.start(victim.name)
    readiness.wait(running, [victim])


class _Stream:
    """A streamed answer of one replica, without the router: no other replica takes it."""

    def __init__(self, process: Service, number: int) -> None:
        body = {"model": "tiny", "prompt": f"{number} {serving.PROMPT}", "max_tokens": MAX_TOKENS, "ignore_eos": True}
        payload = json.dumps({**body, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
        self._socket = socket.create_connection((process.host, process.port), START_LIMIT_S)
        self._socket.sendall(f"{head}\r\n\r\n".encode() + payload)
        self._received = b""

    def wait_for_token(self) -> None:
        self._socket.settimeout(START_LIMIT_S)
        while not self.count_tokens():
            received = self._socket.recv(65536)
            assert received, self._received
            self._received += received

    def count_tokens(self) -> int:
        return self._received.count(b"data: {")

    def read_what_came(self) -> None:
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while received := self._socket.recv(65536):
                self._received += received

    def read_to_end(self) -> bytes:
        self._socket.settimeout(START_LIMIT_S)
        while received := self._socket.recv(65536):
            self._received += received
        self._socket.close()
        return self._received.rstrip()


@contextlib.contextmanager
def _suspend_amid_streams(server: psutil.Process, process: Service) -> Iterator[list[_Stream]]:
    """Suspend a server that has certainly most of at least one answer before it; on a busy machine they may end first."""
    for _ in range(ATTEMPTS):
        streams = [_Stream(process, number) for number in range(STREAMS)]
        streams[0].wait_for_token()
        server.suspend()
        try:
            processes.wait_until(lambda: server.status() == psutil.STATUS_STOPPED, "the suspension", START_LIMIT_S)
            for stream in streams:  # all that it wrote has come: it runs no more
                stream.read_what_came()
            if any(0 < stream.count_tokens() < MAX_TOKENS / 2 for stream in streams):
                yield streams
                return
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # the caller has stopped it
                server.resume()
        for stream in streams:
            stream.read_to_end()
    pytest.fail(f"in {ATTEMPTS} attempts each answer ended before its server was suspended")


def test_a_copy_that_was_cut_short_in_s3_is_refused_before_an_engine_starts(plan: DeploymentPlan) -> None:
    environment, model = plan.deployment.environment, plan.deployment.loaded_models[0]
    client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    key = model.weights.uri.removeprefix(f"s3://{environment.bucket}/") + gguf.FILE
    whole = client.get_object(Bucket=environment.bucket, Key=key)["Body"].read()
    client.put_object(Bucket=environment.bucket, Key=key, Body=whole[:-100])
    try:
        with pytest.raises(Unavailable, match=rf"cut short: {len(whole) - 100} bytes, {len(whole)} by its header"):
            weights.check(plan.deployment)
    finally:
        client.put_object(Bucket=environment.bucket, Key=key, Body=whole)
    assert weights.check(plan.deployment) == len(whole)
