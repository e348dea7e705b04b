"""Who may put an engine to sleep, and say when a request came; the real engine behind them in test_model_switch.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "images" / "vllm" / "sleep_pages.py"
SOCKET = ("/tmp/switch-1/0.sock", None)
"""What uvicorn says of the engine's end of a Unix socket."""


class Client:
    """As much of an engine's client as the pages call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def add_request(self, request_id: str, **named: Any) -> None:
        self.calls.append(("add_request", request_id, named))

    async def sleep(self, level: int, mode: str) -> None:
        self.calls.append(("sleep", level, mode))

    async def wake_up(self) -> None:
        self.calls.append(("wake_up",))

    async def is_sleeping(self) -> bool:
        return bool(self.calls) and self.calls[-1][0] == "sleep"


def ask(method: str, path: str, query: str = "", **scope: Any) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """Return the status, the answer, and what the engine was asked to do."""
    spec = importlib.util.spec_from_file_location("sleep_pages", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: list[dict[str, Any]] = []

    async def serve_engine(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/completions":  # whose answer is a task of its own where it is a stream
            await asyncio.create_task(client.add_request("one", priority=0))
        await send({"type": "http.response.start", "status": 404})
        await send({"type": "http.response.body", "body": b'"the engine"'})

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    client = Client()
    request = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "client": None, "server": SOCKET, "headers": [],
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=client)), **scope,
    }  # fmt: skip
    asyncio.run(module.SleepPages(serve_engine)(request, None, send))
    return messages[0]["status"], json.loads(messages[1]["body"]), client.calls


@pytest.mark.parametrize(
    ("method", "path", "query", "is_sleeping", "calls"),
    [
        ("POST", "/sleep", "", True, [("sleep", 1, "abort")]),
        ("POST", "/sleep", "mode=keep", True, [("sleep", 1, "keep")]),
        ("POST", "/sleep", "level=2", True, [("sleep", 1, "abort")]),
        ("POST", "/wake_up", "", False, [("wake_up",)]),
        ("GET", "/is_sleeping", "", False, []),
    ],
)
def test_by_the_unix_socket_the_engine_sleeps_and_wakes(
    method: str, path: str, query: str, is_sleeping: bool, calls: list[tuple[Any, ...]]
) -> None:
    assert ask(method, path, query) == (200, {"is_sleeping": is_sleeping}, calls)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param({"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 40000)}, id="loopback"),
        pytest.param({"server": ("10.0.0.7", 8000), "client": ("10.0.0.9", 40000)}, id="network"),
        pytest.param({"server": ("10.0.0.7", 8000), "client": None}, id="a connection that was reset"),
        pytest.param({"server": None, "client": None}, id="unknown"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")])
def test_by_any_other_way_the_engine_has_no_such_page(method: str, path: str, scope: dict[str, Any]) -> None:
    assert ask(method, path, **scope) == (404, "the engine", [])


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/sleep"), ("POST", "/is_sleeping"), ("POST", "/collective_rpc"), ("POST", "/v1/chat/completions")],
)
def test_every_other_request_is_the_engine_s(method: str, path: str) -> None:
    assert ask(method, path) == (404, "the engine", [])


def test_an_unknown_mode_is_refused() -> None:
    assert ask("POST", "/sleep", "mode=now") == (
        400,
        {"error": {"message": "mode: now: it is not one of abort, keep"}},
        [],
    )


def test_a_websocket_is_the_engine_s() -> None:
    assert ask("POST", "/sleep", type="websocket")[2] == []


@pytest.mark.parametrize(
    ("scope", "named"),
    [
        pytest.param({"headers": [(b"x-arrived-at", b"1795806000.25")]}, {"arrival_time": 1795806000.25}, id="said"),
        pytest.param({}, {}, id="not said"),
        pytest.param(
            {"headers": [(b"x-arrived-at", b"1795806000.25")], "server": ("10.0.0.7", 8000)}, {}, id="by the network"
        ),
    ],
)
def test_a_request_counts_from_when_it_came_to_who_started_the_engine(
    scope: dict[str, Any], named: dict[str, Any]
) -> None:
    calls = ask("POST", "/v1/completions", **scope)[2]
    assert calls == [("add_request", "one", {"priority": 0, **named})]
