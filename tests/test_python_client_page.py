"""The code of docs/python-client.md, run before a server that hangs, refuses and answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "python-client.md").read_text("utf-8")
[CODE] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}  # fmt: skip
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
LONG_S = 60.0
SLOW = -1


class Server:
    """Gives each request the next of `statuses`; 0 hangs until the client is gone, SLOW answers after the next one."""

    def __init__(self, *statuses: int) -> None:
        self.requests: list[str] = []
        self.hanging, self.gone = asyncio.Event(), asyncio.Event()
        self._answered = asyncio.Event()
        self._statuses = list(statuses)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.requests.append(head)
        await reader.readexactly(int(re.findall(r"content-length: (\d+)", head)[0]))
        status = self._statuses.pop(0)
        if status == SLOW:
            await self._answered.wait()
            await asyncio.sleep(0.2)  # until the client has that answer
            status = 200
        if status == 0:
            self.hanging.set()
            await reader.read()
            self.gone.set()
        else:
            body = json.dumps(ANSWER).encode()
            writer.write(
                b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
            )
            writer.write(body)
            await writer.drain()
            self._answered.set()
        writer.close()


def run(
    server_statuses: tuple[int, ...], use: Callable[[Callable[..., Awaitable[Any]], Server], Awaitable[None]]
) -> None:
    """Run `use` with the page's `ask` before a server."""

    async def main() -> None:
        server = Server(*server_statuses)
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        names: dict[str, Any] = {}
        exec(CODE.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), names)
        async with listening, asyncio.timeout(LONG_S):
            await use(names["ask"], server)

    asyncio.run(main())


def test_a_call_that_hangs_is_hedged_and_the_other_one_ends() -> None:
    async def use(ask: Callable[..., Awaitable[Any]], server: Server) -> None:
        answer = await ask(LONG_S, 0.01, **BODY)
        assert answer.choices[0].message.content == "yes"
        await server.gone.wait()
        assert len(server.requests) == 2

    run((0, 200), use)


def test_a_second_request_that_fails_ends_no_first_one() -> None:
    async def use(ask: Callable[..., Awaitable[Any]], server: Server) -> None:
        answer = await ask(LONG_S, 0.01, **BODY)
        assert answer.choices[0].message.content == "yes"
        assert len(server.requests) == 2

    run((SLOW, 503), use)


def test_an_answer_in_time_has_no_second_request() -> None:
    async def use(ask: Callable[..., Awaitable[Any]], server: Server) -> None:
        await ask(LONG_S, LONG_S, **BODY)
        assert len(server.requests) == 1
        assert "x-request-timeout-ms: 60000" in server.requests[0]

    run((200,), use)


def test_a_deadline_that_passes_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(ask: Callable[..., Awaitable[Any]], server: Server) -> None:
        deadline = asyncio.timeout(LONG_S)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "timeout", {LONG_S: deadline}.__getitem__)
            asking = asyncio.ensure_future(ask(LONG_S, LONG_S, **BODY))
            await server.hanging.wait()
        deadline.reschedule(0)  # it has passed
        with pytest.raises(TimeoutError):
            await asking
        await server.gone.wait()

    run((0,), use)


def test_429_is_raised_at_once_and_not_repeated() -> None:
    async def use(ask: Callable[..., Awaitable[Any]], server: Server) -> None:
        with pytest.raises(openai.RateLimitError):
            await ask(LONG_S, LONG_S, **BODY)
        assert len(server.requests) == 1

    run((429,), use)
