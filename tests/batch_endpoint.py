"""A mock OpenAI-compatible endpoint with set delays, in the place of engines: it serves so many requests at a time.

What it answers follows from the row's text: `refuse` in it gets 400, `break` 500, each time; any other row is answered
after `--delay-ms`, and its answer repeats its text. It counts how often each text came (`GET /known`), and shows its
load under vLLM's metric names (`GET /metrics`). `POST /slots` with a number changes how many it serves at a time;
`POST /crowd` with one makes more than so many slow each other down, as a larger batch does an engine's steps.

    python -m tests.batch_endpoint --port 8000 --delay-ms 200 --slots 16
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from llm_serving import program

OUTPUT_TOKENS = 8

TTFT = "vllm:time_to_first_token_seconds"
TTFT_BOUNDS_S = (0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, math.inf)
"""As in vLLM 0.32, v1/metrics/buckets.py; some of them. An answer comes at once, so its first token takes as long."""


@dataclass
class Engine:
    """So many requests run at a time, the rest wait."""

    delay_s: float
    slots: int
    running: int = 0
    waiting: int = 0
    crowd: int = 0
    """More than so many running requests take longer in proportion; 0 for none."""

    first_tokens: list[int] = field(default_factory=lambda: [0] * len(TTFT_BOUNDS_S))
    """Answers by how long they took: above the bound before, at or below this one."""

    seen: Counter[str] = field(default_factory=Counter)
    _room: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def serve(self, text: str) -> None:
        """Take a slot for the time of a request."""
        start = time.monotonic()
        self.seen[text] += 1
        self.waiting += 1
        try:
            async with self._room:
                await self._room.wait_for(lambda: self.running < self.slots)
                self.running += 1
        finally:
            self.waiting -= 1
        try:
            crowding = max(1.0, self.running / self.crowd) if self.crowd else 1.0
            await asyncio.sleep(self.delay_s * random.uniform(0.5, 1.5) * crowding)
            self.first_tokens[bisect.bisect_left(TTFT_BOUNDS_S, time.monotonic() - start)] += 1
        finally:
            self.running -= 1
            async with self._room:
                self._room.notify()

    async def resize(self, slots: int) -> None:
        """Change how many run at a time."""
        self.slots = slots
        async with self._room:
            self._room.notify_all()


def build_app(engine: Engine) -> web.Application:
    """Build the server."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = str(body["messages"][-1]["content"])
        await engine.serve(text)
        if "refuse" in text:
            return web.json_response({"error": {"message": "no", "code": 400}}, status=400)
        if "break" in text:
            return web.json_response({"error": {"message": "broken", "code": 500}}, status=500)
        if body.get("stream"):
            return web.Response(text=_format_stream(_build_answer(text)), content_type="text/event-stream")
        return web.json_response(_build_answer(text))

    async def show_metrics(_: web.Request) -> web.Response:
        gauges = {"num_requests_running": engine.running, "num_requests_waiting": engine.waiting}
        lines = [f'vllm:{name}{{engine="0"}} {value}' for name, value in gauges.items()]
        for index, bound in enumerate(TTFT_BOUNDS_S):
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            lines.append(f'{TTFT}_bucket{{engine="0",le="{label}"}} {sum(engine.first_tokens[: index + 1])}')
        return web.Response(text="\n".join(lines) + "\n")

    async def show_known(_: web.Request) -> web.Response:
        return web.json_response(engine.seen)

    async def list_models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def resize(request: web.Request) -> web.Response:
        await engine.resize(int(await request.text()))
        return web.Response()

    async def set_crowd(request: web.Request) -> web.Response:
        engine.crowd = int(await request.text())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/known", show_known)
    app.router.add_post("/slots", resize)
    app.router.add_post("/crowd", set_crowd)
    return app


def _build_answer(text: str) -> dict[str, Any]:
    return {
        "id": "mock",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": len(text.split()), "completion_tokens": OUTPUT_TOKENS},
    }


def _format_stream(answer: dict[str, Any]) -> str:
    """An answer as the events of a stream, all of which come at its end."""
    [choice] = answer["choices"]
    chunk = {**answer, "object": "chat.completion.chunk", "choices": [{**choice, "delta": choice["message"]}]}
    usage = {**answer, "object": "chat.completion.chunk", "choices": []}
    return "".join(f"data: {json.dumps(event)}\n\n" for event in (chunk, usage)) + "data: [DONE]\n\n"


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=100)
    parser.add_argument("--slots", type=int, default=64, help="requests at a time")
    arguments = parser.parse_args()

    async def build() -> web.Application:
        return build_app(Engine(arguments.delay_ms / 1000, arguments.slots))

    web.run_app(build(), host="127.0.0.1", port=arguments.port, print=None)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
