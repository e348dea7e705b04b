"""Draw pictures from text with a pipeline of diffusers, behind OpenAI's API of pictures.

    diffusion-server --model FOLDER --served-model-name NAME --device cuda --dtype bfloat16 [--max-waiting N] ...

POST /v1/images/generations draws, as the openai client asks. Of `response_format` there is b64_json only, since this
server keeps no files; `seed`, `num_inference_steps`, `guidance_scale` and `negative_prompt` are named as vLLM-Omni
names them. GET /v1/models, /health and /metrics are those of other engines.

One picture is computed at a time. Requests wait in one queue; beyond --max-waiting they get 429 with Retry-After at
once. Who disconnects is no longer computed. After an error of CUDA, with which every further picture would fail, the
server ends. With SIGTERM /health and new requests get 503, and the requests that it
has are answered, for at most DRAIN_S seconds; then they get 503 too.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import copy
import gc
import inspect
import io
import json
import math
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import prometheus_client
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

DRAIN_S = 10.0
"""Longest wait for requests where the environment's DRAIN_S says nothing; below the 15 s of the local target."""

END_S = 3.0
"""For answers on their way to clients once all are computed."""

MAX_BODY_BYTES = 2**20

KEEP_ALIVE_S = 120
"""Longer than routers keep an idle connection, so that none is used while it closes."""

POLL_S = 0.25
"""Between two looks whether a client is still there."""

REMEMBERED = 20
"""Requests whose mean time a Retry-After is reckoned with."""

BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 45, 60, 120, 300)
"""Upper edges of the histogram of times, in seconds."""

UNBOUNDED_TOKENS, ASSUMED_TOKENS = 100_000, 512
"""Tokens from which a tokenizer's limit is none, and the limit that is taken then."""


ENDING = "this replica ends. Fix: ask again."


class Drawing(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(min_length=1, max_length=32_000)]
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=10)] = 1
    size: Annotated[str, Field(pattern=r"^(?:auto|[1-9]\d{0,4}x[1-9]\d{0,4})$")] = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    user: str | None = None
    """The client's own name of who asks; it changes nothing."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=200)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    negative_prompt: Annotated[str, Field(max_length=32_000)] | None = None


class Refusal(Exception):
    """An answer that is no picture."""

    def __init__(self, status: int, message: str, param: str | None = None, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.param, self.retry_after_s = status, param, retry_after_s

    def build_response(self) -> JSONResponse:
        """Return it in the form of OpenAI's errors."""
        client_kind = "rate_limit_exceeded" if self.status == 429 else "invalid_request_error"
        kind = "server_error" if self.status >= 500 else client_kind
        error = {"message": str(self), "type": kind, "param": self.param, "code": None}
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s else {}
        return JSONResponse({"error": error}, self.status, headers)


class Stopped(Exception):
    """Nobody waits for the pictures any more."""


class DeviceLost(Exception):
    """The GPU computes no more for this process."""


@dataclass
class Metrics:
    """What /metrics shows."""

    registry: prometheus_client.CollectorRegistry = field(default_factory=prometheus_client.CollectorRegistry)

    def __post_init__(self) -> None:
        shared: dict[str, Any] = {"registry": self.registry}
        self.waiting = prometheus_client.Gauge("diffusion_requests_waiting", "Requests that wait.", **shared)
        self.running = prometheus_client.Gauge("diffusion_requests_running", "Requests that are computed.", **shared)
        self.finished = prometheus_client.Counter("diffusion_requests", "Requests that ended.", ["outcome"], **shared)
        self.pictures = prometheus_client.Counter("diffusion_pictures", "Pictures that were drawn.", **shared)
        self.steps = prometheus_client.Counter("diffusion_steps", "Steps that were computed.", **shared)
        self.seconds = prometheus_client.Histogram(
            "diffusion_request_seconds", "Time of answered requests, waiting included.", buckets=BUCKETS, **shared
        )
        for outcome in ("answered", "failed", "cancelled", "refused"):
            self.finished.labels(outcome)


class Painter:
    """Computes the pictures of requests, one after the other."""

    def __init__(self, pipeline: Any, max_waiting: int, max_pixels: int) -> None:
        self.metrics = Metrics()
        self.under_way = 0
        """Requests that wait or are computed."""

        self._pipeline, self._max_waiting, self._max_pixels = pipeline, max_waiting, max_pixels
        self._parameters = inspect.signature(type(pipeline).__call__).parameters
        tokenizer, self._max_tokens = find_tokenizer(pipeline, self._parameters)
        # A copy: the pipeline's own refuses a second thread while it is used.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._stops: set[threading.Event] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="painter")
        self._times: deque[float] = deque(maxlen=REMEMBERED)

    def check(self, drawing: Drawing) -> None:
        """Require that the pipeline can draw it.

        Raises:
            Refusal: with the field that is wrong.
        """
        for name in ("guidance_scale", "negative_prompt"):
            if getattr(drawing, name) is not None and name not in self._parameters:
                pipeline = type(self._pipeline).__name__
                raise Refusal(400, f"{name}: a {pipeline} takes none. Fix: remove {name}.", name)
        if drawing.size != "auto":
            self._check_size(*read_size(drawing.size))
        tokens = self.count_tokens(drawing.prompt)
        if tokens > self._max_tokens:
            reason = f"prompt: {tokens} tokens, and the model reads {self._max_tokens}"
            raise Refusal(400, f"{reason}. Fix: shorten it.", "prompt")

    def count_tokens(self, prompt: str) -> int:
        """Count the tokens of a prompt; 0 for a pipeline without a tokenizer."""
        return len(self._tokenizer(prompt)["input_ids"]) if self._tokenizer else 0

    def _check_size(self, width: int, height: int) -> None:
        processor = getattr(self._pipeline, "image_processor", None)
        multiple = int(processor.config.vae_scale_factor) if processor else 8
        if width % multiple or height % multiple:
            reason = f"size: {width}x{height}: both must be multiples of {multiple}"
            near = "x".join(str(max(multiple, round(side / multiple) * multiple)) for side in (width, height))
            raise Refusal(400, f"{reason}. Fix: set size: {near}.", "size")
        if width * height > self._max_pixels:
            reason = f"size: {width}x{height}: more than the {self._max_pixels:,} pixels that there is memory for"
            raise Refusal(400, f"{reason}. Fix: ask for a smaller picture.", "size")

    async def draw(self, drawing: Drawing, stop: threading.Event) -> list[bytes]:
        """Return the pictures as PNG files.

        Args:
            stop: set once nobody waits for them.

        Raises:
            Refusal: too many requests wait.
            Stopped: `stop` was set before the end.
        """
        if self.under_way > self._max_waiting:
            raise Refusal(429, "too many requests wait. Fix: ask again later.", retry_after_s=self._estimate_wait_s())
        self.under_way += 1
        self._stops.add(stop)
        self.metrics.waiting.inc()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._compute, drawing, stop)
        finally:
            self._stops.discard(stop)
            self.under_way -= 1

    def stop_all(self) -> None:
        """End what waits or is computed, at the next step."""
        for stop in list(self._stops):
            stop.set()

    def _estimate_wait_s(self) -> int:
        mean_s = sum(self._times) / len(self._times) if self._times else 1.0
        return max(1, math.ceil(mean_s))

    def _compute(self, drawing: Drawing, stop: threading.Event) -> list[bytes]:
        self.metrics.waiting.dec()
        if stop.is_set():
            raise Stopped
        self.metrics.running.inc()
        started = time.monotonic()
        try:
            seed = secrets.randbits(63) if drawing.seed is None else drawing.seed
            pictures = [self._draw_one(drawing, (seed + number) % 2**63, stop) for number in range(drawing.n)]
            self._times.append(time.monotonic() - started)
            return pictures
        except RuntimeError as error:
            if not computes():
                raise DeviceLost(str(error)) from error
            raise
        finally:
            self.metrics.running.dec()

    def _draw_one(self, drawing: Drawing, seed: int, stop: threading.Event) -> bytes:
        import torch

        def end_step(_pipeline: Any, _step: int, _time: Any, values: dict[str, Any]) -> dict[str, Any]:
            self.metrics.steps.inc()
            if stop.is_set():
                raise Stopped
            return values

        options: dict[str, Any] = {
            name: value
            for name in ("num_inference_steps", "guidance_scale", "negative_prompt")
            if (value := getattr(drawing, name)) is not None
        }
        if drawing.size != "auto":
            options["width"], options["height"] = read_size(drawing.size)
        if "callback_on_step_end" in self._parameters:
            options["callback_on_step_end"] = end_step
        # Of the CPU: the same seed begins with the same noise on every device.
        generator = torch.Generator("cpu").manual_seed(seed)
        picture = self._pipeline(prompt=drawing.prompt, generator=generator, **options).images[0]
        self.metrics.pictures.inc()
        content = io.BytesIO()
        picture.save(content, format="PNG")
        return content.getvalue()


def computes() -> bool:
    """Return whether the GPU, if any, still computes for this process: after most errors of CUDA nothing does."""
    import torch

    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
    return True


def find_tokenizer(pipeline: Any, parameters: Mapping[str, inspect.Parameter]) -> tuple[Any, int]:
    """Return the tokenizer of a pipeline that reads the longest prompts, and the tokens that it reads."""
    widest: tuple[Any, int] = (None, 0)
    for name, tokenizer in pipeline.components.items():
        if not name.startswith("tokenizer") or tokenizer is None:
            continue
        limit = int(tokenizer.model_max_length)
        # What the encoder takes of it, where the pipeline says so.
        default = parameters["max_sequence_length"].default if "max_sequence_length" in parameters else None
        if limit > UNBOUNDED_TOKENS:
            limit = default if isinstance(default, int) else ASSUMED_TOKENS
        if limit > widest[1]:
            widest = tokenizer, limit
    return widest


def read_size(text: str) -> tuple[int, int]:
    """Read WIDTHxHEIGHT."""
    width, _, height = text.partition("x")
    return int(width), int(height)


class Log:
    """Writes a line for each request, without what it asks."""

    def __init__(self, form: str) -> None:
        self._is_json = form == "json"

    def write(self, message: str, **values: Any) -> None:
        if self._is_json:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(json.dumps({"time": now, "program": "diffusion", "message": message, **values}), flush=True)
        else:
            print(" ".join([message, *(f"{name}={value}" for name, value in values.items())]), flush=True)


def build_app(painter: Painter, served_model: str, log: Log) -> FastAPI:
    """Build the server's application; `app.state.draining` ends what is new."""
    app = FastAPI(openapi_url=None)
    app.state.draining = False

    @app.get("/health")
    def report_health() -> Response:
        return Response(status_code=503 if app.state.draining else 200)

    @app.get("/metrics")
    def show_metrics() -> Response:
        content = prometheus_client.generate_latest(painter.metrics.registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": served_model, "object": "model", "created": 0, "owned_by": "local"}]}

    @app.post("/v1/images/generations")
    async def generate(request: Request) -> Response:
        started = time.monotonic()
        outcome, response = await _respond(request, painter, served_model, log)
        seconds = time.monotonic() - started
        painter.metrics.finished.labels(outcome).inc()
        if outcome == "answered":
            painter.metrics.seconds.observe(seconds)
        request_id = re.sub(r"[^A-Za-z0-9._:/+=-]", "", request.headers.get("x-request-id", ""))[:128]
        log.write(outcome, status=response.status_code, seconds=round(seconds, 3), request_id=request_id)
        return response

    return app


async def _respond(request: Request, painter: Painter, served_model: str, log: Log) -> tuple[str, Response]:
    """Return the outcome of a request, as the metrics name it, and the response."""
    try:
        return "answered", await _answer(request, painter, served_model)
    except Refusal as refusal:
        return "refused", refusal.build_response()
    except Stopped:
        if request.app.state.draining:
            return "cancelled", Refusal(503, ENDING, retry_after_s=1).build_response()
        return "cancelled", Response(status_code=499)
    except DeviceLost as error:
        # Who fails at once would get the most requests of all replicas.
        log.write("the GPU computes no more: this replica ends", error=str(error))
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - of any part of a pipeline
        log.write("a picture could not be drawn", error=f"{type(error).__name__}: {error}")
        reason = f"the picture could not be drawn: {type(error).__name__}"
        return "failed", Refusal(500, reason).build_response()


async def _answer(request: Request, painter: Painter, served_model: str) -> Response:
    if request.app.state.draining:
        raise Refusal(503, ENDING, retry_after_s=1)
    drawing = read_drawing(await read_body(request))
    if drawing.model not in (None, served_model):
        raise Refusal(404, f"model: {drawing.model!r} is not served here. Fix: set model: {served_model}.", "model")
    painter.check(drawing)
    stop = threading.Event()
    async with _watch(request, stop):
        pictures = await painter.draw(drawing, stop)
    tokens = painter.count_tokens(drawing.prompt)
    return JSONResponse(
        {
            "created": int(time.time()),
            "output_format": drawing.output_format,
            "data": [{"b64_json": base64.b64encode(picture).decode()} for picture in pictures],
            "usage": {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens},
        }
    )


@contextlib.asynccontextmanager
async def _watch(request: Request, stop: threading.Event) -> AsyncIterator[None]:
    """Set `stop` once the client is gone."""

    async def look() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(POLL_S)
        stop.set()

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Refusal: it is too large.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, f"the body has more than {MAX_BODY_BYTES} bytes. Fix: shorten the prompt.")
    return body


def read_drawing(body: bytes) -> Drawing:
    """Read the body of a request.

    Raises:
        Refusal: it is no JSON object of this form; names the field.
    """
    try:
        return Drawing.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(map(str, first["loc"]))
        if path == "response_format" and first["type"] == "literal_error":
            reason = "response_format: this server keeps no files that a URL could name"
            raise Refusal(400, f"{reason}. Fix: set response_format: b64_json.", path) from None
        if first["type"] == "extra_forbidden":
            raise Refusal(400, f"{path}: there is no such field. Fix: remove {path}.", path) from None
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise Refusal(400, f"{path or 'body'}: {reason}. Fix: correct it.", path or None) from None


class Server(uvicorn.Server):
    """A server that answers the requests that it has before it ends."""

    def __init__(self, config: uvicorn.Config, painter: Painter, log: Log, drain_s: float) -> None:
        super().__init__(config)
        self._app, self._painter, self._log, self._drain_s = config.app, painter, log, drain_s

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain with the first signal; end with the second."""
        if self._app.state.draining:
            super().handle_exit(sig, frame)
            return
        self._app.state.draining = True
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        count, deadline = self._painter.under_way, time.monotonic() + self._drain_s
        self._log.write(f"drain: {count} requests, at most {self._drain_s:g} s for them")
        while self._painter.under_way and time.monotonic() < deadline:
            time.sleep(POLL_S / 5)
        self._painter.stop_all()
        while self._painter.under_way and time.monotonic() < deadline + END_S:
            time.sleep(POLL_S / 5)
        self.should_exit = True


def load_pipeline(folder: Path, device: str, dtype: str, threads: int) -> Any:
    """Load a pipeline from its folder, from safetensors alone and without code of the folder.

    Raises:
        SystemExit: the folder holds none.
    """
    if not (folder / "model_index.json").is_file():
        sys.exit(f"{folder}: it holds no model_index.json. Fix: name the folder of a pipeline of diffusers.")
    import torch
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    variant = "fp16" if any(folder.glob("*/*.fp16*.safetensors")) else None
    options = {"local_files_only": True, "use_safetensors": True, "variant": variant}
    # Each part goes straight to the device: the node's memory never holds all of them.
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=getattr(torch, dtype), device_map=device, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def main(arguments: Sequence[str]) -> int:
    """Load the pipeline and serve; return the exit status."""
    parser = argparse.ArgumentParser("diffusion-server", description="Draw pictures from text.")
    parser.add_argument("--model", metavar="FOLDER", type=Path, required=True, help="with model_index.json")
    parser.add_argument("--served-model-name", metavar="NAME", required=True, help="what clients put in `model`")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0, help="of computation on CPU; PyTorch's own choice if 0")
    parser.add_argument("--max-waiting", metavar="N", type=int, default=32, help="requests that wait; 429 above it")
    parser.add_argument("--max-pixels", metavar="N", type=int, default=1024 * 1024, help="of a picture")
    parser.add_argument("--log", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    log = Log(options.log)
    started = time.monotonic()
    # What is imported and loaded stays. To search it for garbage took 0.9 of the 4.4 CPU-seconds of these imports.
    gc.disable()
    pipeline = load_pipeline(options.model, options.device, options.dtype, options.threads)
    gc.freeze()
    gc.enable()
    log.write(f"loaded {type(pipeline).__name__} in {time.monotonic() - started:.2f} s")
    painter = Painter(pipeline, options.max_waiting, options.max_pixels)
    app = build_app(painter, options.served_model_name, log)
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(END_S),
    )
    Server(config, painter, log, float(os.environ.get("DRAIN_S") or DRAIN_S)).run()
    # What is still computed has nobody who waits for it.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until it serves, there is nothing to finish
    sys.exit(main(sys.argv[1:]))
