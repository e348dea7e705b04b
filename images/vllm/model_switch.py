"""Serve several models on the same accelerators: one is awake, the others sleep in the host's memory.

    model-switch --listen HOST:PORT [--max-waiting N] ... --engine vllm serve A ... --engine vllm serve B ...

Starts each engine with a Unix socket of its own, one after the other, and puts each to sleep before the next starts;
the first named ends up awake. A request goes to the engine of its `model`, or to that which is awake where it names
none. For another model than the one that is awake it waits, in the order of arrival; beyond --max-waiting requests it
gets 429 with Retry-After at once, as does one that would take the bodies of all that are here beyond --max-bytes. The
model of the oldest that waits comes next, once the one that is awake has been so for --least-awake seconds, or without
a request for as long as a switch takes: new requests for that one wait too then, and those that run have --finish
seconds. What still runs stops there, and is computed on, from the token where it was, when its model has its next turn,
which it waits for like a request.

GET /health is 200 while all engines run; /v1/models lists the models of all; /metrics has the engines' own, whose
times begin when a request comes here, with those that wait here as one more engine's queue, and model_switch_*. An
engine that ends ends this program, with status 1 after a drain; who waits for its model gets 503 at once. With SIGTERM
/health and new requests get 503, and those that it has are answered, for at most DRAIN_S seconds; then the engines end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import prometheus_client
from aiohttp import web
from turns import Broken, Limits, Metrics, Refusal, Turns, build_end

DRAIN_S = 10.0
"""Longest wait for requests where the environment's DRAIN_S says nothing; below the 15 s of the local target."""

END_S = 5.0
"""For engines to end by themselves once they are asked to; then they are killed."""

POLL_S = 0.5
"""Between two looks whether an engine has loaded."""

ANSWER_S = 2.0
"""For answers on their way to clients once all are computed."""

PAGE_S = 10
"""Longest wait for an engine's own pages, which it answers awake and asleep."""

SWITCH_S = 300
"""Longest time to sleep or to wake; an engine that takes longer is broken."""

MAX_BODY_BYTES = 64 * 2**20
"""Of one request, which waits in memory; pictures of a prompt are in it."""

LOG = logging.getLogger("model-switch")

ENGINE = "--engine"
"""Before each engine's command, whose own words may be -- too."""

MODULE = "sleep_pages.SleepPages"
"""The engines' own pages for this program, beside it."""

SERVED = re.compile(
    r"/v1/(?:chat/completions|completions|responses|embeddings|messages|messages/count_tokens)"
    r"|/(?:v1/|v2/)?rerank|/(?:v1/)?score|/pooling|/classify|/tokenize|/detokenize"
)
"""Of the engines' pages, those that name a model and change nothing."""

TOKENS = frozenset(("/tokenize", "/detokenize", "/v1/messages/count_tokens"))
"""Those that an engine answers without its model, awake or asleep: a tokenizer does it."""

HOP_HEADERS = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Of one connection only. Source: RFC 9110, section 7.6.1."""

ARRIVAL = "x-arrived-at"
"""Header by which an engine counts a request from its arrival here (sleep_pages.py)."""

OWN_HEADERS = HOP_HEADERS | {ARRIVAL, "content-encoding", "content-length", "expect", "host"}
"""What aiohttp has done with of a request, or is written here."""


class Bodies:
    """Bounds the memory of the bodies of requests, which wait, run or still arrive."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Return a request's body, for which there is room until the end.

        Raises:
            Refusal: it is too large, or others leave no room.
        """
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _build_excess()
        parts: list[bytes] = []
        body_bytes = 0
        try:
            async for part in request.content.iter_any():
                body_bytes += len(part)
                self._free_bytes -= len(part)
                if body_bytes > MAX_BODY_BYTES:
                    raise _build_excess()
                if self._free_bytes < 0:
                    reason = "the requests that are here leave no room for its body"
                    raise Refusal(429, f"{reason}. Fix: ask again later.", 1)
                parts.append(part)
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self._free_bytes += body_bytes


def _build_excess() -> Refusal:
    return Refusal(413, f"the body has more than {MAX_BODY_BYTES:,} bytes. Fix: send less.")


class Engine:
    """One model's engine, a child process that only this one reaches.

    Args:
        socket: path of the Unix socket that it gets.
    """

    def __init__(self, command: Sequence[str], socket: Path) -> None:
        self.models: list[dict[str, Any]] = []
        """Its entries of /v1/models: the model and its adapters."""

        self._command = [*command, "--uds", str(socket), "--middleware", MODULE]
        self._socket = socket
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """The model's name, once it is loaded."""
        return str(self.models[0]["id"]) if self.models else self._socket.stem

    async def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            Broken: it ended.
        """
        folders = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        self._process = await asyncio.create_subprocess_exec(*self._command, env=environment)
        # A connection each: the engine closes idle ones, maybe just when the next request is sent.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket), limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=PAGE_S),
            auto_decompress=False,
        )
        while True:
            with contextlib.suppress(Broken):
                await self.ask("GET", "/health")
                break
            if self._process.returncode is not None:
                raise Broken(f"{self.name}: it ended with status {self._process.returncode} before it served")
            await asyncio.sleep(POLL_S)
        self.models = json.loads(await self.ask("GET", "/v1/models"))["data"]

    async def sleep(self, keep: bool) -> None:
        """Free the accelerator.

        Args:
            keep: whether requests that run are computed on later; they end otherwise.
        """
        await self._set_sleeping("/sleep", is_sleeping=True, params={"mode": "keep" if keep else "abort"})

    async def wake(self) -> None:
        """Take the accelerator."""
        await self._set_sleeping("/wake_up", is_sleeping=False)

    async def ask(self, method: str, page: str, limit_s: float = PAGE_S, **options: Any) -> str:
        """Return one of its own pages.

        Raises:
            Broken: it does not answer so.
        """
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self.send(method, page, timeout=timeout, **options) as answer:
                text: str = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Broken(f"{self.name}: {method} {page}: {error or type(error).__name__}") from error
        if answer.status != 200:
            raise Broken(f"{self.name}: {method} {page}: {answer.status} {text[:300]}")
        return text

    def send(self, method: str, page: str, **options: Any) -> Any:
        """Send a request; returns the answer's context manager."""
        assert self._session, "it has started"
        return self._session.request(method, f"http://engine{page}", **options)

    async def watch(self) -> None:
        """Wait until it ends.

        Raises:
            Broken: it did.
        """
        assert self._process, "it has started"
        raise Broken(f"{self.name}: the engine ended with status {await self._process.wait()}")

    async def end(self) -> None:
        """End it if it runs."""
        if self._session:
            await self._session.close()
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S)
        if self._process.returncode is None:  # it may have ended just as its time was up
            self._process.kill()
            await self._process.wait()

    async def _set_sleeping(self, page: str, *, is_sleeping: bool, **options: Any) -> None:
        answer = json.loads(await self.ask("POST", page, SWITCH_S, **options))
        if answer["is_sleeping"] is not is_sleeping:
            raise Broken(f"{self.name}: POST {page}: {answer}")


class Switch:
    """The engines, and the server before them."""

    def __init__(self, engines: Sequence[Engine], limits: Limits, bodies: Bodies) -> None:
        self.is_ending = False
        self._engines, self._limits, self._bodies, self._metrics = engines, limits, bodies, Metrics()
        self._by_model: dict[str, Engine] = {}
        self._turns: Turns | None = None

    def build_app(self) -> web.Application:
        """Build the server's application."""
        app = web.Application()
        app.router.add_get("/health", self._report_health)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/version", self._tell_version)
        app.router.add_post("/{page:.*}", self._answer)
        return app

    async def run(self) -> None:
        """Load all engines, and switch between them.

        Raises:
            Broken: an engine ended, or did not do what it was asked to.
        """
        first = self._engines[0]
        for engine in reversed(self._engines):
            started = time.monotonic()
            await engine.start()
            # The first sleep takes the host's memory, 20 s for 16 GiB (vLLM 0.32.0, one H200): no request waits for it.
            await engine.sleep(keep=False)
            LOG.info(f"{engine.name}: loaded in {time.monotonic() - started:.1f} s")
            for row in engine.models:
                if row["id"] in self._by_model:
                    raise Broken(f"{row['id']}: two engines serve it. Fix: give each --served-model-name of its own")
                self._by_model[row["id"]] = engine
            self._metrics.add(engine.name)
        await first.wake()
        self._turns = Turns(self._switch, first.name, self._limits, self._metrics)
        await asyncio.gather(self._turns.run(), *(self._watch(self._turns, engine) for engine in self._engines))

    async def drain(self, limit_s: float) -> None:
        """Refuse what is new, and wait for what is there, at most so many seconds."""
        self.is_ending = True
        if self._turns is None:
            return
        self._turns.end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._turns.wait_until_idle(), limit_s)
        self._turns.refuse_all()

    async def _watch(self, turns: Turns, engine: Engine) -> None:
        try:
            await engine.watch()
        except Broken:
            turns.give_up(engine.name)
            raise

    async def _switch(self, last: str, model: str, keep: bool) -> None:
        started = time.monotonic()
        await self._by_model[last].sleep(keep)
        asleep = time.monotonic()
        await self._by_model[model].wake()
        ended = time.monotonic()
        LOG.info(f"{model} in place of {last}: {asleep - started:.1f} s to sleep, {ended - asleep:.1f} s to wake")

    async def _report_health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self._turns is None or self.is_ending else 200)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        pages = await asyncio.gather(
            *(engine.ask("GET", "/metrics") for engine in self._engines if engine.models), return_exceptions=True
        )
        own = prometheus_client.generate_latest(self._metrics.registry).decode()
        queue = prometheus_client.generate_latest(self._metrics.queue_registry).decode()
        text = own + merge_metrics((*(page for page in pages if isinstance(page, str)), queue))
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus_client.CONTENT_TYPE_PLAIN_0_0_4})

    async def _list_models(self, _request: web.Request) -> web.Response:
        if self._turns is None:
            return _build_start().build_response()
        rows = itertools.chain.from_iterable(engine.models for engine in self._engines)
        return web.json_response({"object": "list", "data": list(rows)})

    async def _tell_version(self, _request: web.Request) -> web.Response:
        if self._turns is None:
            return _build_start().build_response()
        return web.Response(text=await self._engines[0].ask("GET", "/version"), content_type="application/json")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            if not SERVED.fullmatch(request.path):
                raise Refusal(404, f"{request.path}: no page of this server that takes a POST")
            if self.is_ending:
                raise build_end()
            if self._turns is None:
                raise _build_start()
            async with self._bodies.read(request) as body:
                engine, arrived_at = self._find_engine(body), time.time()
                if request.path in TOKENS:
                    return await _pass_on(request, body, engine, arrived_at)
                async with self._turns.hold(engine.name):
                    return await _pass_on(request, body, engine, arrived_at)
        except Refusal as refusal:
            return refusal.build_response()

    def _find_engine(self, body: bytes) -> Engine:
        assert self._turns, "it has started"
        try:
            # null and "" name none, as for vLLM (entrypoints/serve/engine/serving.py of 0.32.0, _is_model_supported).
            model = json.loads(body).get("model") or self._turns.awake
        except (ValueError, AttributeError, RecursionError) as error:
            raise Refusal(400, "the body is not a JSON object. Fix: name a model of /v1/models in one.") from error
        if not isinstance(model, str) or model not in self._by_model:
            model_names = ", ".join(sorted(self._by_model))
            raise Refusal(404, f"model: {str(model)[:200]}: it is not served here. Fix: set one of {model_names}.")
        return self._by_model[model]


def _build_start() -> Refusal:
    return Refusal(503, "the models are loaded. Fix: ask again later.", 5)


async def _pass_on(request: web.Request, body: bytes, engine: Engine, arrived_at: float) -> web.StreamResponse:
    """Send a request to its engine, with when it came here, and the answer to the client as it comes."""
    headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
    headers[ARRIVAL] = f"{arrived_at:.6f}"
    response: web.StreamResponse | None = None
    try:
        async with engine.send("POST", request.path, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in HOP_HEADERS:
                    response.headers.add(name, value)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
    except aiohttp.ClientError as error:
        if response is None or not response.prepared:
            raise Refusal(502, f"the engine did not answer: {type(error).__name__}") from error
        if request.transport:  # a cut stream must not look whole
            request.transport.close()
    return response


def merge_metrics(pages: Iterable[str]) -> str:
    """Return the engines' metrics as one page, each with its type once; what has no model's name is left out."""
    families: dict[str, list[str]] = {}
    for page in pages:
        family, is_first = "", False
        for line in page.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                if name != family:
                    family, is_first = name, name not in families
                if is_first and family.startswith("vllm:"):
                    families.setdefault(family, []).append(line)
            elif family.startswith("vllm:"):
                families.setdefault(family, []).append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


class JsonFormatter(logging.Formatter):
    """A line as images/router/router_front.py writes those of the router."""

    def format(self, record: logging.LogRecord) -> str:
        time_text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time_text, "program": record.name, "message": record.getMessage()})


def set_log(log_format: str) -> None:
    """Write lines beside the engines' own."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter("%(name)s: %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)


async def serve(options: argparse.Namespace) -> int:
    """Run the engines and the server until a signal or an engine's end; return the exit status."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    host, _, port = options.listen.rpartition(":")
    with tempfile.TemporaryDirectory(prefix="switch-") as folder:  # which nobody else may enter
        engines = [Engine(command, Path(folder) / f"{number}.sock") for number, command in enumerate(options.engines)]
        limits = Limits(options.max_waiting, options.least_awake, options.finish)
        switch = Switch(engines, limits, Bodies(options.max_bytes))
        app = web.AppRunner(
            switch.build_app(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=ANSWER_S,
            keepalive_timeout=120,
        )
        await app.setup()
        await web.TCPSite(app, host.strip("[]"), int(port), backlog=4096).start()
        work, signalled = asyncio.create_task(switch.run()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, signalled}, return_when=asyncio.FIRST_COMPLETED)
            error = work.exception() if work.done() else None
            if isinstance(error, Broken):
                LOG.info(f"error: {error}")
            elif error:
                raise error
            await switch.drain(float(os.environ.get("DRAIN_S") or DRAIN_S))
            return 1 if error else 0
        finally:
            work.cancel()
            await app.cleanup()
            await asyncio.gather(*(engine.end() for engine in engines))


def split(arguments: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the options, and the engines' commands, each after a word of its own."""
    groups: list[list[str]] = [[]]
    for word in arguments:
        if word == ENGINE:
            groups.append([])
        else:
            groups[-1].append(word)
    return groups[0], groups[1:]


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        "model-switch",
        usage=f"%(prog)s --listen HOST:PORT [options] {ENGINE} COMMAND... {ENGINE} COMMAND...",
        description=__doc__,
    )
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="for clients")
    parser.add_argument("--max-waiting", metavar="N", type=int, default=256, help="that wait for a turn; 429 beyond it")
    parser.add_argument(
        "--max-bytes", metavar="N", type=int, default=8 * MAX_BODY_BYTES, help="of requests' bodies; 429 beyond it"
    )
    parser.add_argument("--least-awake", metavar="S", type=float, default=10.0, help="seconds of a turn, at least")
    parser.add_argument("--finish", metavar="S", type=float, default=10.0, help="seconds for what runs at a turn's end")
    parser.add_argument("--log", choices=("text", "json"), default="text", help="form of this program's own lines")
    words, engines = split(arguments)
    options = parser.parse_args(words)
    if len(engines) < 2 or not all(engines):
        parser.error(f"it takes two commands of engines or more, each after {ENGINE}")
    if options.least_awake + options.finish <= 0:
        parser.error("--least-awake and --finish are both 0: requests of two models would stop each other for ever")
    options.engines = engines
    set_log(options.log)
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
