"""Answers what vllm-router asks an engine that joins it, so that it hears the events of the engine's cache.

For `vllm serve --middleware event_sources.EventSources`, on the PYTHONPATH. vllm-router 0.1.17 asks each engine that it
is told of at /get_server_info what the cache is of, and at /kv_event_sources where to listen; it passes over a source
that does not name its encoding. vLLM 0.32.0 has no such page as the first, and names no encoding at the second: over
gRPC it does, where the router takes what is here (`encoding` msgpack, `schema_version` 1; vLLM's pages on KV events).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ENCODING = {"encoding": "msgpack", "schema_version": 1}


class EventSources:
    """Two pages before the engine's own; every other request goes through untouched."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = _PAGES.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if page is None:
            await self.app(scope, receive, send)
            return
        body = json.dumps(page(scope["app"].state)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _describe_cache(state: Any) -> dict[str, Any]:
    """Engines that give the same here have blocks that can be compared."""
    cache = state.vllm_config.cache_config
    block = getattr(cache, "effective_attention_block_size", None) or cache.block_size
    return {"model_id": state.vllm_config.model_config.served_model_name, "kv_block_size": block}


def _list_event_sources(state: Any) -> dict[str, Any]:
    """By data-parallel rank."""
    sources = state.engine_client.get_kv_event_sources()
    return {str(rank): {**dataclasses.asdict(source), **ENCODING} for rank, source in sources.items()}


_PAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/get_server_info": _describe_cache,
    "/kv_event_sources": _list_event_sources,
}
