"""The two pages in an engine that a router asks; before the real engine and router in tests/blueprints/test_kv_aware.py."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "images" / "vllm" / "event_sources.py"


@dataclasses.dataclass
class Source:
    """As much of vLLM's KVEventsConfig as the router reads."""

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""


def _get(path: str, cache: SimpleNamespace, method: str = "GET") -> Any:
    """The page, or the engine's own answer."""
    spec = importlib.util.spec_from_file_location("event_sources", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: list[dict[str, Any]] = []

    async def serve_engine(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b'"the engine"'})

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    model = SimpleNamespace(served_model_name="tiny")
    client = SimpleNamespace(get_kv_event_sources=lambda: {0: Source()})
    state = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model, cache_config=cache), engine_client=client)
    scope = {"type": "http", "method": method, "path": path, "app": SimpleNamespace(state=state)}
    asyncio.run(module.EventSources(serve_engine)(scope, None, send))
    return json.loads(messages[-1]["body"])


PLAIN = SimpleNamespace(block_size=16, effective_attention_block_size=None)


@pytest.mark.parametrize(
    ("cache", "block"), [(PLAIN, 16), (SimpleNamespace(block_size=16, effective_attention_block_size=528), 528)]
)
def test_blocks_have_the_size_in_the_events(cache: SimpleNamespace, block: int) -> None:
    assert _get("/get_server_info", cache) == {"model_id": "tiny", "kv_block_size": block}


def test_the_sources_are_the_engine_s_own_with_their_encoding() -> None:
    expected = dataclasses.asdict(Source()) | {"encoding": "msgpack", "schema_version": 1}
    assert _get("/kv_event_sources", PLAIN) == {"0": expected}


@pytest.mark.parametrize(("path", "method"), [("/v1/models", "GET"), ("/get_server_info", "POST")])
def test_the_engine_answers_all_other_requests(path: str, method: str) -> None:
    assert _get(path, PLAIN, method) == "the engine"
