"""The end of a llama.cpp server that has requests in flight: the real server, behind its launcher and without it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.catalog import gguf
from llm_serving.hub import make_gguf
from llm_serving.targets.local import engine_setups
from tests import serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LIMIT_S = 200
TOKENS = 100
LONG = 30_000
"""Tokens of an answer that never ends before it is given up."""

Start = Callable[[str], tuple["subprocess.Popen[bytes]", str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf.make("tiny", tmp_path_factory.mktemp("drain")) / gguf.FILE


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server of one slot that drains for so many seconds; returns its process and its URL."""
    setup = engine_setups.find("llama.cpp")
    setup.ensure()
    servers: list[subprocess.Popen[bytes]] = []

    def run(drain_s: str) -> tuple[subprocess.Popen[bytes], str]:
        [port] = processes.claim_free_ports(1)
        command = [str(setup.executables / "llama-server"), "--model", str(model), "--alias", "tiny", "--offline"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", "1", "--ctx-size", "32768", "--metrics"]
        with (tmp_path / "server.log").open("wb") as output:
            environment = {**os.environ, "DRAIN_S": drain_s}
            server = processes.spawn([*command, "--threads", "1"], environment=environment, output=output)
        servers.append(server)
        log = tmp_path / "server.log"
        processes.wait_until(lambda: "listening on" in log.read_text(), "llama-server", LIMIT_S)
        return server, f"http://127.0.0.1:{port}"

    yield run
    for server in servers:
        processes.stop(server)


@contextlib.contextmanager
def _hold_slot(url: str) -> Iterator[None]:
    """Keep the one slot busy with a stream, which is given up after the block."""
    body = {"model": "tiny", "prompt": "The", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        assert response.readline()
        yield


def _send_two(url: str, users: ThreadPoolExecutor, tokens: int) -> list[Future[str]]:
    """Send a stream and another request."""
    limits = {"max_tokens": tokens, "ignore_eos": True}
    return [users.submit(serving.request_completion, url, LIMIT_S, stream=stream, **limits) for stream in (True, False)]


def _wait_for_requests(url: str, count: int) -> None:
    processes.wait_until(lambda: _count_requests(url) == count, f"{count} requests", LIMIT_S)


def _count_requests(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        return sum(map(float, re.findall(r"^llamacpp:requests_\w+ (\S+)$", response.read().decode(), re.MULTILINE)))


def test_requests_in_flight_are_answered_to_their_last_token_before_the_server_ends(
    start: Start, tmp_path: Path
) -> None:
    server, url = start(str(LIMIT_S))
    log = tmp_path / "server.log"
    with ThreadPoolExecutor(2) as users:
        with _hold_slot(url):
            requests = _send_two(url, users, TOKENS)
            _wait_for_requests(url, 3)
            server.send_signal(signal.SIGTERM)
            begun = f"drain: 3 requests in flight, at most {LIMIT_S} s for them"
            processes.wait_until(lambda: begun in log.read_text(), "the drain", LIMIT_S)
        streamed, whole = (request.result(LIMIT_S) for request in requests)
    assert streamed.rstrip().endswith("data: [DONE]")
    assert json.loads(whole)["usage"]["completion_tokens"] == TOKENS
    assert server.wait(LIMIT_S) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_requests_that_outlast_the_time_to_drain_fail_at_once_instead_of_hanging(start: Start) -> None:
    server, url = start("0")
    with ThreadPoolExecutor(2) as users:
        requests = _send_two(url, users, LONG)
        _wait_for_requests(url, 2)
        server.send_signal(signal.SIGTERM)
        ended_at = time.monotonic()
        failures = [request.exception(LIMIT_S) for request in requests]
    assert all(isinstance(failure, Exception) for failure in failures), "the server itself ends with the signal"
    assert time.monotonic() - ended_at < 25, "left alone the server keeps them for half a minute and longer"
    assert server.wait(LIMIT_S) == 0


def test_a_server_that_ends_by_itself_ends_the_launcher_with_its_own_code() -> None:
    program = engine_setups.find("llama.cpp").executables / "llama-server"
    result = subprocess.run([program, "--no-such-option"], capture_output=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 1
