"""The probe program against a server on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.targets import probe
from tests.http_handler import QuietHandler

PROGRAM = Path(probe.__file__)
BODY = '{"model": "m", "prompt": "ready?"}'


class Server(ThreadingHTTPServer):
    """Answers every request with `status` and `response_body`."""

    status = 200
    response_body = b""
    may_answer = threading.Event()
    """Cleared: requests get no answer."""

    requests: list[tuple[str, object, str | None]]
    """Path, body and Authorization header of each."""


class Handler(QuietHandler):
    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: object) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.requests.append((self.path, body, self.headers["Authorization"]))
        if not server.may_answer.wait(60):
            return
        self.respond(server.status, server.response_body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as http_server:
        http_server.requests = []
        http_server.may_answer = threading.Event()
        http_server.may_answer.set()
        thread = threading.Thread(target=http_server.serve_forever)
        thread.start()
        yield http_server
        http_server.may_answer.set()
        http_server.shutdown()
        thread.join(60)


def run_probe(
    port: int, *, path: str = "/v1/completions", body: str = BODY, seconds: str = "60", **env: str
) -> tuple[int, str]:
    """Return the exit code and standard error of the program."""
    environment = {**os.environ, "VLLM_API_KEY": "", **env}
    command = [sys.executable, str(PROGRAM), f"http://127.0.0.1:{port}{path}", body, seconds]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("/v1/chat/completions", '{"choices": [{"message": {"content": "y"}}]}'),
        ("/v1/completions", '{"choices": [{"text": "y"}]}'),
        ("/v1/embeddings", '{"data": [[0.1]]}'),
        ("/v1/rerank", '{"results": [{"index": 0}]}'),
        ("/rerank", '{"results": [{"index": 0}]}'),
        ("/score", '{"data": [{"score": 1}]}'),
        ("/of/another/server", '{"choices": [{"text": "y"}]}'),
        ("/of/another/server", '{"data": [[0.1]]}'),
        ("/of/another/server", '{"results": [{"index": 0}]}'),
    ],
)
def test_a_completion_an_embedding_and_a_ranking_are_answers(server: Server, path: str, response: str) -> None:
    server.response_body = response.encode()
    assert run_probe(server.server_port, path=path) == (0, "")
    assert server.requests == [(path, {"model": "m", "prompt": "ready?"}, None)]


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("/v1/chat/completions", '{"data": [[0.1]]}'),
        ("/v1/embeddings", '{"choices": [{"text": "y"}]}'),
        ("/v1/rerank", '{"data": [[0.1]]}'),
    ],
)
def test_the_path_decides_which_field_is_the_answer(server: Server, path: str, response: str) -> None:
    server.response_body = response.encode()
    code, error = run_probe(server.server_port, path=path)
    assert code == 1
    assert f"no answer in {response}" in error


def test_without_a_body_the_status_is_enough(server: Server) -> None:
    assert run_probe(server.server_port, path="/liveness", body="") == (0, "")
    assert server.requests == [("/liveness", None, None)]
    server.status = 503
    code, error = run_probe(server.server_port, path="/liveness", body="")
    assert code == 1
    assert "HTTP Error 503" in error


def test_the_api_key_is_sent_as_the_bearer_token(server: Server) -> None:
    server.response_body = b'{"choices": [{}]}'
    assert run_probe(server.server_port, VLLM_API_KEY="secret")[0] == 0
    assert server.requests[0][2] == "Bearer secret"


def test_a_proxy_of_the_environment_is_ignored(server: Server) -> None:
    server.response_body = b'{"choices": [{}]}'
    closed = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    assert run_probe(server.server_port, http_proxy=closed, no_proxy="")[0] == 0


@pytest.mark.parametrize(
    ("status", "response", "reason"),
    [
        (200, '{"choices": []}', 'no answer in {"choices": []}'),
        (200, '{"status": "ok"}', 'no answer in {"status": "ok"}'),
        (200, "[1]", "no answer in [1]"),
        (200, "OK", "Expecting value"),
        (500, "engine core is dead", "HTTP Error 500: Internal Server Error: engine core is dead"),
        (404, "no such model", "HTTP Error 404: Not Found: no such model"),
    ],
)
def test_any_other_response_is_an_error_with_its_text(server: Server, status: int, response: str, reason: str) -> None:
    server.status, server.response_body = status, response.encode()
    code, error = run_probe(server.server_port)
    assert code == 1
    assert reason in error


def test_a_response_that_is_not_http_is_an_error_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"what?\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, error = run_probe(listener.getsockname()[1])
        thread.join(60)
    assert code == 1
    assert "what?" in error
    assert "Traceback" not in error


def test_a_server_that_hangs_times_out(server: Server) -> None:
    server.may_answer.clear()
    code, error = run_probe(server.server_port, seconds="0.5")
    assert code == 1
    assert "timed out" in error


def test_a_closed_port_is_an_error() -> None:
    code, error = run_probe(processes.claim_free_ports(1)[0])
    assert code == 1
    assert "Connection refused" in error
