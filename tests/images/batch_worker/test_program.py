"""What the programs log: text, or JSON with a line for each request, whose id the endpoint gets too."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from batch import program, settings
from batch.endpoint import Endpoint, EndpointAway
from batch.secrets import ApiKey

from llm_serving import processes

PROMPT = "buy seven candles"


@contextlib.contextmanager
def take_handlers() -> Iterator[None]:
    """Leave the root logger without handlers, as a program finds it; it gets its own back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


async def send_two(batch_settings: Any, ids: list[str]) -> None:
    """Send a request that is answered, and one to an endpoint that is away."""

    async def answer(request: web.Request) -> web.Response:
        ids.append(request.headers["X-Request-Id"])
        usage = {"prompt_tokens": 5, "completion_tokens": 2}
        return web.json_response({"choices": [{"text": "of wax"}], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        endpoint = Endpoint(str(server.make_url("")).rstrip("/"), ApiKey(batch_settings), 60, ())
        await endpoint.send("/v1/completions", {"prompt": PROMPT}, "batch_1a2b.7")
        await endpoint.close()
    away = Endpoint(f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}", ApiKey(batch_settings), 60, ())
    with pytest.raises(EndpointAway):
        await away.send("/v1/completions", {"prompt": PROMPT}, "batch_1a2b.8")
    await away.close()


def run(logs: str, batch_settings: Any, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def open_program(read: Any) -> Any:
        def work() -> None:
            asyncio.run(send_two(read, ids))
            try:
                raise ValueError("broken")
            except ValueError:
                logging.getLogger("batch-rows").exception("line %d of %s", 9, "batch_1a2b")

        return work

    monkeypatch.setattr(settings, "read", lambda: dataclasses.replace(batch_settings, logs=logs))
    with take_handlers():
        assert program.run("batch-worker", open_program) == 0


def test_json_has_a_line_for_each_request_with_the_id_that_the_endpoint_got(
    batch_settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids: list[str] = []
    run("json", batch_settings, ids, monkeypatch)
    text = capsys.readouterr().out
    lines = map(json.loads, text.splitlines())
    answered, away, broken = (line for line in lines if line["message"] in ("request", "line 9 of batch_1a2b"))
    assert re.fullmatch(r"[A-Za-z0-9._:/+=-]{1,128}", answered["request_id"]), "images/router/front.conf keeps it"
    assert [answered["request_id"]] == ids
    assert ids[0].startswith("batch_1a2b.7.")
    known = ("program", "message", "path", "status", "input_tokens", "output_tokens")
    assert [answered[name] for name in known] == ["batch-worker", "request", "/v1/completions", 200, 5, 2]
    assert (away["status"], away["request_id"].startswith("batch_1a2b.8.")) == (0, True)
    assert "Cannot connect" in away["error"]
    assert (broken["level"], broken["message"]) == ("error", "line 9 of batch_1a2b")
    assert "ValueError: broken" in broken["exception"]
    assert PROMPT not in text
    assert "of wax" not in text


def test_text_has_no_line_for_a_request(
    batch_settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids: list[str] = []
    run("text", batch_settings, ids, monkeypatch)
    text = capsys.readouterr().out
    assert len(ids) == 1
    assert "line 9 of batch_1a2b" in text
    assert ids[0] not in text
