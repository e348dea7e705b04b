"""What the real vllm-router does with a replica that refuses requests, by the status of its answer."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving import processes
from tests import dns_discovery
from tests.http_handler import QuietHandler

pytestmark = pytest.mark.engine

# Of the catalog's row, but for how long a replica is left out: as long as the test.
ARGUMENTS = ("--enable-igw", "--policy", "round_robin", "--retry-max-retries", "6", "--cb-failure-threshold", "5",
    "--cb-timeout-duration-secs", "3600")  # fmt: skip
HOSTS = ("127.0.2.1", "127.0.2.2")


class Replica(ThreadingHTTPServer):
    """An engine that answers, or refuses with a status."""

    daemon_threads = True
    refusal = 0
    """Status of its refusals; 0 where it answers."""
    answered = 0


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond_json({"object": "list", "data": [{"id": "alpha"}]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Replica)
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refusal:
            body = b'{"error": {"message": "full"}}'
            self.send_response(self.server.refusal)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.server.answered += 1
        choices = [{"index": 0, "text": "a", "finish_reason": "stop"}]
        self.respond_json({"id": "x", "object": "text_completion", "model": "alpha", "choices": choices})


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    [port] = processes.claim_free_ports(1)
    servers = [Replica((host, port), Handler) for host in HOSTS]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(url: str) -> tuple[int, str | None]:
    """Return the status of a completion, and when to come again."""
    body = json.dumps({"model": "alpha", "prompt": "who?", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, None
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Retry-After"]


@pytest.mark.parametrize(("refusal", "returns"), [(429, True), (503, False)])
def test_a_replica_that_was_full_is_asked_again_at_once_after_429_alone(
    replicas: list[Replica], tmp_path: Path, refusal: int, returns: bool
) -> None:
    full, free = replicas
    port = full.server_address[1]
    dns_discovery.write_dns(tmp_path, worker=list(HOSTS))
    with dns_discovery.run_router(tmp_path, "--router=ROUTER", f"--worker=worker:{port}", router=ARGUMENTS) as (url, _):
        processes.wait_until(
            lambda: ask(url)[0] == 200 and full.answered and free.answered, "answers of both", 90, interval_s=0.2
        )
        full.refusal, before = refusal, full.answered
        assert [ask(url)[0] for _ in range(20)] == [200] * 20, "the other replica answers"
        assert full.answered == before
        full.refusal = 0
        assert [ask(url)[0] for _ in range(4)] == [200] * 4
        assert (full.answered > before) == returns


def test_where_all_are_full_the_client_learns_when_to_come_again(replicas: list[Replica], tmp_path: Path) -> None:
    port = replicas[0].server_address[1]
    dns_discovery.write_dns(tmp_path, worker=list(HOSTS))
    with dns_discovery.run_router(tmp_path, "--router=ROUTER", f"--worker=worker:{port}", router=ARGUMENTS) as (url, _):
        processes.wait_until(lambda: ask(url)[0] == 200, "an answer", 90, interval_s=0.2)
        for replica in replicas:
            replica.refusal = 429
        assert ask(url) == (429, "1")
