"""The probe's program against a server on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving import processes

PROGRAM = Path(__file__).parents[2] / "charts" / "inference" / "files" / "answer.py"


class Server(ThreadingHTTPServer):
    """Answers every POST with `said`."""

    status = 200
    response_body = b""
    may_answer = threading.Event()
    """Clear: it never answers."""

    requests: list[tuple[str, object, str | None]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, body, self.headers["Authorization"]))
        if not server.may_answer.wait(10):
            return
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.response_body)))
        self.end_headers()
        self.wfile.write(server.response_body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


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
        thread.join(10)


def run_probe(port: int, *, seconds: str = "5", key: str = "") -> tuple[int, str]:
    """Exit code and standard error of the program."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    environment = {**os.environ, "VLLM_API_KEY": key}
    command = [sys.executable, str(PROGRAM), url, '{"model": "m", "prompt": "ready?"}', seconds]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    return run.returncode, run.stderr


@pytest.mark.parametrize("said", ['{"choices": [{"text": "y"}]}', '{"data": [[0.1]]}', '{"results": [{"index": 0}]}'])
def test_a_completion_an_embedding_and_a_ranking_are_answers(server: Server, said: str) -> None:
    server.response_body = said.encode()
    assert run_probe(server.server_port) == (0, "")
    assert server.requests == [("/v1/completions", {"model": "m", "prompt": "ready?"}, None)]


def test_the_servers_key_goes_along(server: Server) -> None:
    server.response_body = b'{"choices": [{}]}'
    assert run_probe(server.server_port, key="secret")[0] == 0
    assert server.requests[0][2] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (200, '{"choices": []}', 'no answer in {"choices": []}'),
        (200, '{"status": "ok"}', 'no answer in {"status": "ok"}'),
        (200, "[1]", "no answer in [1]"),
        (200, "OK", "Expecting value"),
        (500, "engine core is dead", "HTTP Error 500: Internal Server Error: engine core is dead"),
        (404, "no such model", "HTTP Error 404: Not Found: no such model"),
    ],
)
def test_whatever_else_comes_is_none_and_is_said(server: Server, status: int, said: str, why: str) -> None:
    server.status, server.response_body = status, said.encode()
    code, error = run_probe(server.server_port)
    assert code == 1
    assert why in error


def test_a_server_that_hangs_is_given_up_after_the_seconds(server: Server) -> None:
    server.may_answer.clear()
    code, error = run_probe(server.server_port, seconds="0.5")
    assert code == 1
    assert "timed out" in error


def test_nobody_there_is_said() -> None:
    code, error = run_probe(processes.claim_free_ports(1)[0])
    assert code == 1
    assert "Connection refused" in error
