"""The catalog's router under load, with engines that are slow, busy or dead: the real vllm-router and fake engines."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving import paths, processes
from llm_serving.services.service import Service
from tests import engines_own
from tests.http_handler import QuietHandler
from tests.kinds.serving.resolving import resolve_files

pytestmark = pytest.mark.engine

FLEET = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools:\n  small: {types: g6e.4xlarge, size: 0..8}\n"
TRAFFIC = "traffic: {users: 8, input_tokens: 32, output_tokens: 8, deadline: 1s}\nslo: {}\n"
AGGREGATED = (
    "name: chat\npattern: aggregated\nmodel: tiny\nroles: {worker: {pool: small, replicas: 2}, router: ROUTER}\n"
    + TRAFFIC
)
DISAGGREGATED = (
    "name: chat\npattern: disaggregated\nmodel: tiny\n"
    "roles: {prefill: {pool: small}, decode: {pool: small}, router: ROUTER}\n" + TRAFFIC
)
WORDS = 5


class Engine(ThreadingHTTPServer):
    """A fake engine that streams `WORDS` words to each request."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.health_s = 0.0
        """Until it answers /health."""

        self.pause_s = 0.0
        """Before each word."""

        self.answered = 0

        self.is_dead = False

    def die(self) -> None:
        """Refuse connections, and end those that a client keeps open at their next request."""
        self.is_dead = True
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        if self.path == "/health":
            time.sleep(self.server.health_s)
        self.respond_json({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Engine)
        if self.server.is_dead:
            self.close_connection = True
            return None
        self.server.answered += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body.get("stream"):  # prefill's part of a request
            choice = {"index": 0, "text": "a", "finish_reason": "length"}
            answer = {"id": "x", "object": "text_completion", "model": "tiny", "choices": [choice]}
            return self.respond_json({**answer, "kv_transfer_params": {"do_remote_prefill": True}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(WORDS):
            time.sleep(self.server.pause_s)
            self._send_event(json.dumps({"id": "x", "choices": [{"index": 0, "text": "word ", "finish_reason": None}]}))
        self._send_event("[DONE]")
        self.close_connection = True
        return None

    def _send_event(self, data: str) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()


@contextlib.contextmanager
def _run_deployment(folder: Path, blueprint: str, router: str = "{}") -> Iterator[tuple[Service, list[Engine]]]:
    """The blueprint's own router before two fake engines."""
    names = ("aws", "router", "router-admin", "router-metrics", "worker-0", "worker-1", "prefill-0", "decode-0")
    ports = dict(zip(names, processes.claim_free_ports(len(names)), strict=True))
    deployment = resolve_files(
        folder,
        blueprint.replace("ROUTER", router),
        FLEET,
        "local",
        ports=ports,
        engine_folder=str(engines_own.find_executables()),
        image_programs={"router-front": (sys.executable, str(paths.IMAGES / "router" / "router_front.py"))},
    )
    engine_servers = [Engine(process.port) for process in deployment.workers]
    for engine in engine_servers:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
    process = deployment.entries[0]
    with (folder / "router.log").open("wb") as log:
        child = processes.spawn(process.command, environment=process.env, output=log)
    try:
        processes.wait_until(lambda: _stream(process) == (200, WORDS), "the router", 60)
        yield process, engine_servers
    finally:
        processes.stop(child)
        for engine in engine_servers:
            engine.shutdown()
            engine.server_close()


def _stream(router: Service) -> tuple[int, int]:
    """A streamed completion's status, and how many words of it arrived; (0, 0) without a connection."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": WORDS, "stream": True})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        received = b""
        with contextlib.suppress(http.client.HTTPException):
            while chunk := response.read1():
                received += chunk
        return response.status, received.count(b'"word ')
    except OSError:
        return 0, 0
    finally:
        connection.close()


@pytest.mark.parametrize("blueprint", [AGGREGATED, DISAGGREGATED], ids=["aggregated", "disaggregated"])
@pytest.mark.parametrize(
    ("router", "expected_words"), [("{}", range(WORDS, WORDS + 1)), ("{request_timeout: 1s}", range(WORDS))]
)
def test_streams_end_at_the_routers_request_timeout_and_not_at_the_load_tests_deadline(
    tmp_path: Path, blueprint: str, router: str, expected_words: range
) -> None:
    with _run_deployment(tmp_path, blueprint, router) as (process, engine_servers):
        for engine in engine_servers:
            engine.pause_s = 0.5
        assert _stream(process)[1] in expected_words


def test_engines_that_answer_health_slowly_under_load_stay_in(tmp_path: Path) -> None:
    with _run_deployment(tmp_path, AGGREGATED) as (process, engine_servers):
        for engine in engine_servers:
            engine.health_s = 2.5
        start_time = time.monotonic()
        # Long enough for several health checks; on a busy machine until both have had their share.
        while time.monotonic() - start_time < 15 or not all(engine.answered > 10 for engine in engine_servers):
            assert _stream(process) == (200, WORDS)
            assert time.monotonic() - start_time < 120
            time.sleep(0.2)


def test_a_dead_engine_costs_no_client_its_answer(tmp_path: Path) -> None:
    with _run_deployment(tmp_path, AGGREGATED) as (process, (dead, alive)):
        processes.wait_until(lambda: bool(_stream(process)) and bool(dead.answered), "requests to the first", 90)
        dead.die()
        before = alive.answered
        statuses = [_stream(process) for _ in range(40)]
        assert statuses == [(200, WORDS)] * 40
        assert alive.answered - before == 40
        processes.wait_until(
            lambda: _list_health(process) == {dead.url: False, alive.url: True}, "the health check", 90
        )


def _list_health(router: Service) -> dict[str, bool]:
    # Of the router itself: what is before it lets clients call the inference API alone.
    (admin,) = (word.partition("=")[2] for word in router.command if word.startswith("--router="))
    with urllib.request.urlopen(f"http://{admin}/workers", timeout=60) as response:
        return {worker["url"]: worker["is_healthy"] for worker in json.load(response)["workers"]}
