"""Answer vllm-router's requests about an engine's cache, so that it subscribes to the cache's events.

For `vllm serve --middleware event_sources.EventSources`, on the PYTHONPATH. vllm-router 0.1.17 requests
/get_server_info of each registered engine for the cache's model and block size, and /kv_event_sources for the endpoints
of its events; it ignores a source without an encoding. vLLM 0.32.0 lacks the first page and returns no encoding on the
second. It does over gRPC, where the router accepts the values used here (`encoding` msgpack, `schema_version` 1; vLLM's
pages on KV events).
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
    """Answers two paths; passes every other request to the engine."""

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
    """Return what makes blocks of two engines comparable: model and block size."""
    cache = state.vllm_config.cache_config
    block = getattr(cache, "effective_attention_block_size", None) or cache.block_size
    return {"model_id": state.vllm_config.model_config.served_model_name, "kv_block_size": block}


def _list_event_sources(state: Any) -> dict[str, Any]:
    """Return the sources of events, by data-parallel rank."""
    sources = state.engine_client.get_kv_event_sources()
    return {str(rank): {**dataclasses.asdict(source), **ENCODING} for rank, source in sources.items()}


_PAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/get_server_info": _describe_cache,
    "/kv_event_sources": _list_event_sources,
}
