"""What becomes of a request whose endpoint hangs, breaks off, or answers what is no answer."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from batch import endpoint as endpoint_module
from batch.endpoint import Answer, Endpoint, EndpointAway, NoAnswer
from batch.metrics import parse_load
from batch.secrets import ApiKey

from llm_serving import processes

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def send(answer: bytes | None, settings: Any, *, timeout_s: float = 60.0) -> Answer:
    """Send a request to a server that answers so many bytes and closes; None keeps it waiting."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await asyncio.sleep(60)
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def run() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}", ApiKey(settings), timeout_s, ())
        try:
            return await endpoint.send("/v1/completions", {"prompt": "x"})
        finally:
            await endpoint.close()
            server.close()

    return asyncio.run(run())


def test_a_request_has_the_headers_of_its_class_and_cannot_hide_that_it_is_of_a_batch(
    batch_settings: Any,
) -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.json_response({})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            endpoint = Endpoint(
                url, ApiKey(batch_settings), 60, (), {"x-objective": "chat-low", "X-Request-Class": "x"}
            )
            try:
                await endpoint.send("/v1/completions", {"prompt": "x"})
            finally:
                await endpoint.close()

    asyncio.run(run())
    [headers] = seen
    assert (headers["x-objective"], headers["X-Request-Class"]) == ("chat-low", "batch")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "no answer within the time limit"),
        (b"", "ServerDisconnectedError"),
        (b"\x00\x01 garbage \xff\r\n\r\n", "ClientResponseError|ClientConnectionError|ServerDisconnectedError"),
        (HEAD + b"Content-Length: 100\r\n\r\n" + b'{"choices": [', "ClientPayloadError"),
        (HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"cho\r\n', "ClientPayloadError"),
        (HEAD + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000, "the answer has more than 1000 bytes"),
    ],
    ids=["hangs", "closes", "garbage", "half an answer", "half a stream", "endless"],
)
def test_an_answer_that_does_not_arrive_whole_is_none(
    answer: bytes | None, reason: str, batch_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_MAX_ANSWER_BYTES", 1000)
    with pytest.raises(NoAnswer, match=reason):
        send(answer, batch_settings, timeout_s=0.3 if answer is None else 60.0)


def test_an_answer_nested_too_deeply_is_no_json(batch_settings: Any) -> None:
    body = b"[" * 100_000
    answer = send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, batch_settings)
    assert (answer.status, answer.body) == (200, None)


def test_a_router_can_tell_rows_from_other_requests(batch_settings: Any) -> None:
    async def run() -> str | None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"choices": [request.headers.get("X-Request-Class")]})

        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        async with TestServer(app) as server:
            endpoint = Endpoint(str(server.make_url("")).rstrip("/"), ApiKey(batch_settings), 60, ())
            received = await endpoint.send("/v1/completions", {"prompt": "x"})
            await endpoint.close()
        return received.body["choices"][0] if isinstance(received.body, dict) else None

    assert asyncio.run(run()) == "batch", "as images/router/front.conf reads it"


def test_a_whole_answer_arrives(batch_settings: Any) -> None:
    """The control of the test above."""
    body = json.dumps({"choices": []}).encode()
    answer = send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, batch_settings)
    assert (answer.status, answer.body) == (200, {"choices": []})


def test_the_load_of_all_engines_behind_a_name_is_read(batch_settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless Service: one name, an address for each engine; one of three does not answer."""
    hosts: list[str] = []

    async def show(request: web.Request) -> web.Response:
        hosts.append(request.host)
        return web.Response(text="vllm:num_requests_running 3.0\nvllm:num_requests_waiting 1.0\n")

    async def run() -> Any:
        app = web.Application()
        app.router.add_get("/metrics", show)
        runner = web.AppRunner(app)
        await runner.setup()
        port = processes.claim_free_ports(1)[0]
        for address in ("127.0.0.1", "127.0.0.2"):
            await web.TCPSite(runner, address, port).start()
        loop = asyncio.get_running_loop()
        entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3, 1)]
        entries.append((socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)))

        async def resolve(host: str, *_: Any, **__: Any) -> Any:
            assert host == "chat-engines.serving.svc"
            return entries

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        url = f"http://chat-engines.serving.svc:{port}/metrics"
        endpoint = Endpoint("http://127.0.0.1:1", ApiKey(batch_settings), 60.0, (url,))
        try:
            pages = await endpoint.read_metrics()
        finally:
            await endpoint.close()
            await runner.cleanup()
        assert sorted(pages) == [f"http://127.0.0.{last}:{port}/metrics" for last in (1, 2)]
        assert set(hosts) == {f"chat-engines.serving.svc:{port}"}
        return parse_load(pages.values(), batch_settings.metrics)

    load = asyncio.run(run())
    assert (load.running, load.waiting) == (6.0, 2.0)


def test_without_engines_or_with_others_pages_no_load_is_known(batch_settings: Any) -> None:
    async def run() -> dict[str, str]:
        endpoint = Endpoint("http://127.0.0.1:1", ApiKey(batch_settings), 60.0, ("http://127.0.0.1:1/metrics",))
        try:
            return await endpoint.read_metrics()
        finally:
            await endpoint.close()

    assert asyncio.run(run()) == {}
    assert parse_load([], batch_settings.metrics) is None
    others = ["router:requests_processing 3\n"]  # 0 of an engine's would read as an idle engine
    assert parse_load(others, batch_settings.metrics) is None


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "no answer, as of a node that is gone"])
def test_an_endpoint_that_is_not_there_got_nothing(
    batch_settings: Any, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    if is_silent:
        monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", mock.AsyncMock(side_effect=TimeoutError))
    port = processes.claim_free_ports(1)[0]

    async def ask() -> bool:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", ApiKey(batch_settings), 60.0, ())
        try:
            with pytest.raises(EndpointAway):
                await endpoint.send("/v1/completions", {})
            return await endpoint.is_up()
        finally:
            await endpoint.close()

    assert asyncio.run(ask()) is False


@pytest.mark.parametrize(("status", "expected"), [(200, True), (404, True), (405, True), (502, False), (503, False)])
def test_an_endpoint_without_a_list_of_models_is_up_once_it_answers(
    batch_settings: Any, status: int, expected: bool
) -> None:
    async def list_models(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async def ask() -> bool:
        app = web.Application()
        app.router.add_get("/v1/models", list_models)
        async with TestServer(app) as server:
            endpoint = Endpoint(f"http://127.0.0.1:{server.port}", ApiKey(batch_settings), 60.0, ())
            try:
                return await endpoint.is_up()
            finally:
                await endpoint.close()

    assert asyncio.run(ask()) is expected


def test_the_key_goes_to_the_endpoint_alone(batch_settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    async def take(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers.get("Authorization")))
        if request.path == "/metrics":
            return web.Response(body=b"\xff\xfe")
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async def run() -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", take)
        server = TestServer(app)
        await server.start_server()
        base = str(server.make_url("")).rstrip("/")
        key = ApiKey(batch_settings)
        monkeypatch.setattr(key, "value", "secret")
        endpoint = Endpoint(base, key, 60.0, [f"{base}/metrics"])
        try:
            answer = await endpoint.send("/v1/completions", {"prompt": "x"})
            await endpoint.is_up()
            await endpoint.read_metrics()
            return answer.status
        finally:
            await endpoint.close()
            await server.close()

    assert asyncio.run(run()) == 307
    assert seen == [("/v1/completions", "Bearer secret"), ("/v1/models", "Bearer secret"), ("/metrics", None)]
