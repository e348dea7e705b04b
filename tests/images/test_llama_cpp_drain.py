"""The end of a llama.cpp server that has requests in flight: the real server, behind its launcher and without it."""

from __future__ import annotations

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

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

LIMIT_S = 60
TOKENS = 2500

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
        command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", "1", "--ctx-size", "8192", "--metrics"]
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


def _ask(url: str, stream: bool) -> str:
    return serving.request_completion(url, LIMIT_S, max_tokens=TOKENS, ignore_eos=True, stream=stream)


def _send_two(url: str, users: ThreadPoolExecutor) -> list[Future[str]]:
    """A stream and another request for the one slot; one of them runs, and the other waits."""
    requests = [users.submit(_ask, url, stream) for stream in (True, False)]
    processes.wait_until(lambda: _count_requests(url) == 2, "both", 90, 0.02)
    return requests


def _count_requests(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        return sum(map(float, re.findall(r"^llamacpp:requests_\w+ (\S+)$", response.read().decode(), re.MULTILINE)))


def test_requests_in_flight_are_answered_to_their_last_token_before_the_server_ends(
    start: Start, tmp_path: Path
) -> None:
    server, url = start("50")
    with ThreadPoolExecutor(2) as users:
        requests = _send_two(url, users)
        server.send_signal(signal.SIGTERM)
        streamed, whole = (request.result(LIMIT_S) for request in requests)
    assert streamed.rstrip().endswith("data: [DONE]")
    assert json.loads(whole)["usage"]["completion_tokens"] == TOKENS
    assert server.wait(LIMIT_S) == 0
    assert "drain: 2 requests in flight, at most 50 s for them" in (tmp_path / "server.log").read_text()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_requests_that_outlast_the_time_to_drain_fail_at_once_instead_of_hanging(start: Start) -> None:
    server, url = start("0")
    with ThreadPoolExecutor(2) as users:
        requests = _send_two(url, users)
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
