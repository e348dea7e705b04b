"""An engine without a model: `sleeping_engine.py NAME [FAULT] --uds SOCKET --middleware MODULE`, with vLLM's pages and rules.

A completion takes `max_tokens` steps, each a part of a stream, and as long as `hold` says in seconds a step; asleep it
makes none. The last waits for the file `until`. FAULT is a page that it answers 500 to, or `late`: it ends instead of serving.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web


class Engine:
    def __init__(self, name: str, fault: str) -> None:
        self.name, self.fault = name, fault
        self.awake = asyncio.Event()
        self.awake.set()
        self.running = self.sleeps = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Engine": self.name})
        await response.prepare(request)
        self.running += 1
        try:
            for number in range(body["max_tokens"]):
                await asyncio.sleep(body.get("hold", 0))
                while number == body["max_tokens"] - 1 and not Path(body.get("until", os.curdir)).exists():
                    await asyncio.sleep(0.01)
                await self.awake.wait()
                if body.get("crash") == number:
                    os._exit(3)
                await response.write(f"data: {self.name} {number}\n\n".encode())
        finally:
            self.running -= 1
        return response

    async def echo(self, request: web.Request) -> web.Response:
        return web.json_response({"headers": dict(request.headers), "body": await request.json()})

    async def set_sleeping(self, request: web.Request) -> web.Response:
        if request.path == self.fault:
            return web.Response(status=500, text="out of memory")
        if request.path == "/sleep" and request.query["mode"] == "abort" and self.running:
            return web.Response(status=500, text="it would end requests")
        if request.path == "/sleep":
            self.awake.clear()
            self.sleeps += 1
        else:
            self.awake.set()
        return web.json_response({"is_sleeping": not self.awake.is_set()})

    async def show_metrics(self, _request: web.Request) -> web.Response:
        lines = ["# HELP vllm:running Requests.", "# TYPE vllm:running gauge"]
        lines += [f'vllm:running{{model_name="{self.name}"}} {self.running}']
        lines += [f'vllm:asleep{{model_name="{self.name}"}} {int(not self.awake.is_set())}']
        lines += [f'vllm:sleeps{{model_name="{self.name}"}} {self.sleeps}']
        lines += ["# TYPE vllm:num_requests_waiting gauge"]
        lines += [f'vllm:num_requests_waiting{{engine="0",model_name="{self.name}"}} 0']
        lines += ["# TYPE process_memory gauge", "process_memory 5"]
        return web.Response(text="\n".join(lines) + "\n")

    async def list_models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.name}, {"id": f"{self.name}-adapter"}]})

    async def report_health(self, _request: web.Request) -> web.Response:
        return web.Response()


async def serve(name: str, fault: str, socket: str) -> None:
    engine = Engine(name, fault)
    app = web.Application(client_max_size=2**30)
    pages: Any = app.router
    pages.add_get("/health", engine.report_health)
    pages.add_get("/metrics", engine.show_metrics)
    pages.add_get("/v1/models", engine.list_models)
    pages.add_post("/sleep", engine.set_sleeping)
    pages.add_post("/wake_up", engine.set_sleeping)
    pages.add_post("/v1/completions", engine.complete)
    pages.add_post("/tokenize", engine.echo)
    pages.add_post("/pooling", engine.echo)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    own, rest = sys.argv[1 : sys.argv.index("--uds")], sys.argv[sys.argv.index("--uds") :]
    _, socket, _, middleware = rest
    importlib.import_module(middleware.rpartition(".")[0])  # on the path that it was started with
    print(json.dumps({"engine": own[0], "pid": os.getpid()}), flush=True)
    if own[1:] == ["late"]:
        sys.exit(4)
    asyncio.run(serve(own[0], own[1] if own[1:] else "", socket))
