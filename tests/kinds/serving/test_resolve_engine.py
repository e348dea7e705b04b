"""The cache-aware threshold of the resolver, tested with the real vllm-router and two fake engines."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from llm_serving import processes
from llm_serving.catalog import routers
from tests import engines_own
from tests.http_handler import QuietHandler

pytestmark = pytest.mark.engine

TOKENS = 2000
HELD_MAX_TOKENS = 99
"""As many tokens asked for, and the engine answers only when it is let go."""


class Engine(ThreadingHTTPServer):
    """A fake engine: each character is a token, as in vLLM's /render; records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[int] = []
        self.let_go = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond_json({"object": "list", "data": [{"id": "known", "object": "model"}]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Engine)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/render"):
            return self.respond_json(
                [{"token_ids": [ord(character) for character in body["prompt"]], "model": "known"}]
            )
        self.server.received.append(ord(body["prompt"][-1]))
        if body["max_tokens"] == HELD_MAX_TOKENS:
            self.server.let_go.wait(120)
        choice = {"index": 0, "text": "a", "finish_reason": "length"}
        return self.respond_json({"id": "x", "object": "text_completion", "model": "known", "choices": [choice]})


@pytest.fixture
def engine_pair() -> Iterator[tuple[Engine, Engine]]:
    servers = (Engine(), Engine())
    for engine in servers:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
    yield servers
    for engine in servers:
        engine.let_go.set()
        engine.shutdown()
        engine.server_close()


@contextlib.contextmanager
def _run_router(engine_pair: tuple[Engine, Engine]) -> Iterator[str]:
    """vllm-router with the policy's own word and all else as it comes; yields its URL."""
    port, metrics = processes.claim_free_ports(2)
    word = routers.load_routers()["vllm-router"].policies["cache-aware"]
    command = [
        *(str(engines_own.find_executables() / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--policy", word),
        *("--worker-urls", *(engine.url for engine in engine_pair)),
    ]
    child = processes.spawn(command, environment={})
    try:
        processes.wait_until(lambda: _is_healthy(f"http://127.0.0.1:{port}/health"), "the router", 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        processes.stop(child)


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as response:
        return bool(response.status == 200)
    return False


def _send(url: str, shared: float, number: int, max_tokens: int = 1) -> None:
    """A prompt that begins like all others, ends like none, and whose last token is its number."""
    unique_tokens = TOKENS - round(TOKENS * shared) - 1
    prompt = (
        "s" * (TOKENS - unique_tokens - 1)
        + "".join(chr(1000 + number * TOKENS + index) for index in range(unique_tokens))
        + chr(number)
    )
    body = json.dumps({"model": "known", "prompt": prompt, "max_tokens": max_tokens}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        response.read()


@pytest.mark.parametrize(("beside", "followed"), [(-0.01, False), (0.01, True)])
def test_the_router_prefers_a_busier_engines_prefix_only_above_the_resolvers_share(
    engine_pair: tuple[Engine, Engine], beside: float, followed: bool
) -> None:
    shared = routers.load_routers()["vllm-router"].cache_aware_share + beside
    with _run_router(engine_pair) as url:
        _send(url, shared, 1)
        blocked = threading.Thread(target=_send, args=(url, shared, 2, HELD_MAX_TOKENS))
        blocked.start()
        processes.wait_until(
            lambda: any(2 in engine.received for engine in engine_pair), "the request that is held", 90
        )
        _send(url, shared, 3)
        for engine in engine_pair:
            engine.let_go.set()
        blocked.join(120)
    busy = next(engine for engine in engine_pair if 2 in engine.received)
    assert (3 in busy.received) is followed
