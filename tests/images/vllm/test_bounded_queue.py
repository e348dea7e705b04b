"""The status of an engine with a full queue; in the real engine in tests/blueprints/test_real_time.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "images" / "vllm" / "bounded_queue.py"

FULL = "The queue is full."


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with as much of vLLM as it reads."""
    vllm, exceptions = ModuleType("vllm"), ModuleType("vllm.exceptions")
    vars(exceptions).update(
        QueueOverflowError=lambda: SimpleNamespace(message=FULL),
        MaxQueuedTokensError=lambda: SimpleNamespace(message="Too many tokens."),
    )
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.exceptions", exceptions)
    spec = importlib.util.spec_from_file_location("bounded_queue", FILE)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def answer(module: ModuleType, status: int, *parts: bytes) -> tuple[int, dict[bytes, bytes], bytes, int]:
    """Return status, headers, body and the number of messages of an engine's answer behind the module."""
    messages: list[dict[str, Any]] = []

    async def serve_engine(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-engine", b"vllm")]})
        for number, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts) - 1})

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(module.BoundedQueue(serve_engine)({"type": "http"}, None, send))
    body = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], dict(messages[0]["headers"]), body, len(messages)


def _format_error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": 503}}).encode()


@pytest.mark.parametrize("split", [1, 40], ids=["one part", "two parts"])
def test_a_full_queue_is_429_with_the_time_to_come_again(module: ModuleType, split: int) -> None:
    error = _format_error(FULL)
    parts = (error,) if split == 1 else (error[:split], error[split:])
    status, headers, body, _ = answer(module, 503, *parts)
    assert (status, headers[b"retry-after"], headers[b"content-length"]) == (429, b"1", str(len(body)).encode())
    assert json.loads(body)["error"]["type"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, _format_error("The engine is dead.")),
        (503, b"no JSON"),
        (503, b'"text"'),
        (500, _format_error(FULL)),
        (200, b"{}"),
    ],
)
def test_every_other_answer_is_the_engine_s(module: ModuleType, status: int, body: bytes) -> None:
    assert answer(module, status, body)[:3] == (status, {b"x-engine": b"vllm"}, body)


def test_parts_of_a_stream_pass_as_they_come(module: ModuleType) -> None:
    assert answer(module, 200, b"data: a\n\n", b"data: b\n\n")[3] == 3
