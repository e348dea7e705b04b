"""Let the program that started an engine put it to sleep and wake it, and say since when a request has waited for it.

For `vllm serve --uds SOCKET --middleware sleep_pages.SleepPages`, on the PYTHONPATH. vLLM's own pages come only with
VLLM_SERVER_DEV_MODE, and with it /collective_rpc, which calls any method (0.32.0, entrypoints/serve/dev). These three
are answered on a Unix socket only, which the folder's permissions guard; on any other they are the engine's 404, and
the header counts for nothing.

POST /sleep frees the accelerator: the weights go to the host's memory, the KV cache is dropped. Requests that run end
there, or with ?mode=keep wait and are computed on from their last token after POST /wake_up (v1/engine/core.py,
pause_scheduler and _reset_caches). GET /is_sleeping changes nothing. All answer {"is_sleeping": BOOL}.

A request with the header X-Arrived-At, in seconds since 1970, has waited since then: the engine's times to the first
token and of the whole request begin there (v1/metrics/stats.py, arrival_time).
"""

from __future__ import annotations

import contextvars
import json
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MODES = ("abort", "keep")
LEVEL = 1
"""Weights in the host's memory; at 2 they would be gone, and read again from storage."""

ARRIVAL = b"x-arrived-at"
_arrived_at = contextvars.ContextVar[float | None]("arrived_at", default=None)


class SleepPages:
    """Answers three pages; passes every other request to the engine."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._counts_arrivals = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_unix_socket(scope):
            await self.app(scope, receive, send)
            return
        client = scope["app"].state.engine_client
        page = _PAGES.get((scope["method"], scope["path"]))
        if page is None:
            self._note_arrival(client, dict(scope["headers"]).get(ARRIVAL))
            await self.app(scope, receive, send)
            return
        status, answer = await page(client, urllib.parse.parse_qs(scope["query_string"].decode("latin-1")))
        body = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _note_arrival(self, client: Any, arrival: bytes | None) -> None:
        """Let the engine count a request from its arrival."""
        _arrived_at.set(float(arrival) if arrival else None)
        if not self._counts_arrivals:
            client.add_request = _count_from_arrival(client.add_request)
            self._counts_arrivals = True


def _count_from_arrival(add_request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the engine's `add_request`, which all that generates or embeds calls, with the arrival of its request."""

    async def add(*values: Any, **options: Any) -> Any:
        arrived_at = _arrived_at.get()
        return await add_request(
            *values, **(options if arrived_at is None else {**options, "arrival_time": arrived_at})
        )

    return add


def _is_unix_socket(scope: Scope) -> bool:
    """Return whether a request came by a Unix socket.

    By the engine's own end of the connection: uvicorn knows no client of a TCP connection that was just reset either,
    and takes another's word for it (X-Forwarded-For).
    """
    server = scope.get("server")
    return server is not None and server[1] is None and str(server[0]).startswith("/")


async def _sleep(client: Any, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
    mode = query.get("mode", MODES)[0]
    if mode not in MODES:
        return 400, {"error": {"message": f"mode: {mode}: it is not one of {', '.join(MODES)}"}}
    await client.sleep(LEVEL, mode)
    return await _tell(client, query)


async def _wake(client: Any, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
    await client.wake_up()
    return await _tell(client, query)


async def _tell(client: Any, _query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
    return 200, {"is_sleeping": await client.is_sleeping()}


_PAGES = {("POST", "/sleep"): _sleep, ("POST", "/wake_up"): _wake, ("GET", "/is_sleeping"): _tell}
