"""An OpenAI-compatible server with known delays and injected faults, to calibrate a load driver.

It needs no model: the first token comes a fixed time after the request, each further one a fixed time after the last.
It records the actual times (`GET /known`) and exports them with vLLM's metric names (`GET /metrics`), to compare with a
client's measurements. One process, standard library only:

    python -m tests.known_server --port 8000 --ttft-ms 50 --itl-ms 10

A word of up to five letters is one token, a longer one two; a chat adds CHAT_OVERHEAD tokens. A picture is a PNG file
in a data URL, and PICTURE_TOKENS tokens; `GET /known` lists each by its digest and size.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import bisect
import contextlib
import functools
import hashlib
import json
import signal
import socket
import struct
import sys
import time
import urllib.request
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from llm_serving import processes, program

Fault = Literal["hang", "http_500", "cut", "reset", "empty", "error_event", "slow"]
"""`hang` never answers, `cut` ends the stream half-way, `reset` drops the connection before the answer, `empty` sends
no tokens, `error_event` sends an error inside the stream, `slow` takes ten times as long to the first token."""

CACHE_BLOCK = 16

TICK_S = 0.05

CHAT_OVERHEAD = 7
"""Tokens of the chat template."""

PICTURE_TOKENS = 64

_DATA_URL = "data:image/png;base64,"

_BUCKETS = {
    "vllm:time_to_first_token_seconds": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
    ),
    "vllm:inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "vllm:e2e_request_latency_seconds": (
        0.3,
        0.5,
        0.8,
        1.0,
        1.5,
        2.0,
        2.5,
        5.0,
        10.0,
        15.0,
        20.0,
        30.0,
        40.0,
        50.0,
        60.0,
    ),
}
"""Upper bounds in seconds, as in vLLM 0.32 (the smaller ones)."""


@dataclass(frozen=True)
class Behaviour:
    """Delays and faults of the server."""

    ttft_s: float = 0.05
    itl_s: float = 0.01
    tokens_per_chunk: int = 1
    """Tokens of one event of the stream."""
    faults: tuple[Fault, ...] = ()
    """Injected faults, in turn."""
    fault_interval: int = 1
    """Every how many streamed requests a fault occurs."""
    plain: bool = False
    """Refuse vLLM's own parameters and send no usage with each chunk, as other servers do."""
    slots: int = 0
    """Streamed requests answered at once, the others wait in turn: slots / (ttft_s + itl_s * (tokens - 1)) requests a
    second are its capacity. 0 answers all at once."""
    stall_s: float = 0.0
    """How long the server sends nothing at the end of each `stall_interval_s`."""
    stall_interval_s: float = 10.0
    ttft_growth_s: float = 0.0
    """By how much the time to first token grows with each streamed request."""
    length_share: float = 1.0
    """Share of the requested tokens that an answer has."""
    admitted: int = 0
    """Requests of chats at once, streamed or not, beyond which others get 429. 0 admits all."""
    only_streams: bool = False
    """Stream the answer of a request that asks for no stream, too."""
    cache: bool = False
    """Remember the beginnings of prompts, in blocks of CACHE_BLOCK words; the first token waits for the others."""


@dataclass
class ServerRecord:
    """Actual times in seconds, on the server's clock, from a request's last byte to the write."""

    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)
    open_requests: int = 0
    cached: set[int] = field(default_factory=set)
    """Hashes of prompts' beginnings, of whole blocks each."""
    pictures: list[tuple[str, int, int]] = field(default_factory=list)
    """Digest, width and height of each picture that came in a streamed request."""
    cache_queries: int = 0
    cache_hits: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Of all answers, streamed or not."""
    late_s: float = 0.0
    """Longest time that the machine held the server up: a tick of its clock came so much later than it was due."""

    async def tick(self) -> None:
        """Note how late each tick comes, for as long as the server runs."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s = max(self.late_s, loop.time() - due)

    def count_tokens(self, prompt_tokens: int, output_tokens: int) -> None:
        """Count the tokens of an answer."""
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens

    def look_up(self, text: str, prompt_tokens: int) -> float:
        """Return the share of a prompt's words that were in the cache, and put all of them there."""
        words = text.split()
        blocks = [hash(tuple(words[:end])) for end in range(CACHE_BLOCK, len(words) + 1, CACHE_BLOCK)]
        share = sum(block in self.cached for block in blocks) * CACHE_BLOCK / max(1, len(words))
        self.cached.update(blocks)
        self.cache_queries += prompt_tokens
        self.cache_hits += round(share * prompt_tokens)
        return share

    def render_metrics(self) -> str:
        """Return Prometheus text with vLLM's names."""
        lines = []
        for reason in ("stop", "length", "abort"):
            lines.append(f'vllm:request_success_total{{finished_reason="{reason}"}} {self.finished[reason]}')
        lines.append(f"vllm:prefix_cache_queries_total {self.cache_queries}")
        lines.append(f"vllm:prefix_cache_hits_total {self.cache_hits}")
        lines.append(f"vllm:prompt_tokens_total {self.prompt_tokens}")
        lines.append(f"vllm:generation_tokens_total {self.output_tokens}")
        for name, samples in zip(_BUCKETS, (self.ttft_s, self.itl_s, self.e2e_s), strict=True):
            counts = Counter(bisect.bisect_left(_BUCKETS[name], sample) for sample in samples)
            below = 0
            for index, bound in enumerate((*_BUCKETS[name], float("inf"))):
                below += counts[index]
                lines.append(f'{name}_bucket{{le="{bound if bound != float("inf") else "+Inf"}"}} {below}')
            lines += [f"{name}_sum {sum(samples)}", f"{name}_count {len(samples)}"]
        return "\n".join(lines) + "\n"


def count_tokens(text: str) -> int:
    """Return the tokens of a text by this server's rule."""
    return sum(1 if len(word) <= 5 else 2 for word in text.split())


def _join_text(content: str | list[dict[str, Any]]) -> str:
    """Return a message's text, which may be a list of parts."""
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)


def _find_pictures(messages: list[dict[str, Any]]) -> list[bytes]:
    """Return the pictures of messages."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.removeprefix(_DATA_URL), validate=True) for url in urls]


def _describe_picture(png: bytes) -> tuple[str, int, int]:
    """Return a picture's digest, width and height."""
    width, height = struct.unpack(">II", png[16:24])
    return hashlib.sha256(png).hexdigest(), width, height


class Slots:
    """Streams that are answered at once; the others wait in turn."""

    def __init__(self, count: int) -> None:
        self._free = count or sys.maxsize
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as a slot is free."""
        if self._free:
            self._free -= 1
            begin()
        else:
            self._waiting.append(begin)

    def give_back(self) -> None:
        """Free the slot of a stream that ended."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


class ClientConnection(asyncio.Protocol):
    """One client's connection: sequential requests, each answered on a timer."""

    def __init__(self, behaviour: Behaviour, record: ServerRecord, counter: Iterator[int], slots: Slots) -> None:
        self._behaviour, self._record, self._counter, self._slots = behaviour, record, counter, slots
        self._holds_slot = False
        self._is_open = False
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._timer:
            self._timer.cancel()
        if self._streaming:
            self._record.finished["abort"] += 1
        self._close_request()
        self._release_slot()

    def _close_request(self) -> None:
        if self._is_open:
            self._is_open = False
            self._record.open_requests -= 1

    def _release_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._slots.give_back()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = head.split(b" ", 2)
        if method == b"POST":
            self._answer(path.decode(), json.loads(rest[:length]))
        else:
            self._serve_page(path.decode())

    def _serve_page(self, path: str) -> None:
        if path == "/metrics":
            self._send_response(200, self._record.render_metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/known":
            times = {"ttft_s": self._record.ttft_s, "itl_s": self._record.itl_s, "e2e_s": self._record.e2e_s}
            page = {**times, "pictures": self._record.pictures, "cpu_s": time.process_time()}
            page["late_s"] = self._record.late_s
            self._send_json(200, page)
        elif path == "/version":
            self._send_json(200, {"version": "known"})
        elif path == "/v1/models":
            self._send_json(200, {"object": "list", "data": [{"id": "known", "object": "model"}]})
        elif path in ("/health", "/ping"):
            self._send_json(200, {})
        else:
            self._send_json(404, {"error": {"message": f"no such page: {path}"}})

    def _send_json(self, status: int, body: Any) -> None:
        self._send_response(status, json.dumps(body).encode(), "application/json")

    def _send_response(self, status: int, body: bytes, kind: str) -> None:
        self._close_request()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _answer(self, path: str, body: dict[str, Any]) -> None:
        start = self._loop.time()
        behaviour = self._behaviour
        if behaviour.admitted and self._record.open_requests >= behaviour.admitted:
            return self._send_json(429, {"error": {"message": "too many requests"}})
        self._is_open = True
        self._record.open_requests += 1
        chat = path.endswith("/chat/completions")
        if behaviour.plain and ("ignore_eos" in body or "continuous_usage_stats" in body.get("stream_options", {})):
            return self._send_json(400, {"error": {"message": "unrecognized request argument supplied: ignore_eos"}})
        text = " ".join(_join_text(message["content"]) for message in body["messages"]) if chat else str(body["prompt"])
        pngs = _find_pictures(body["messages"]) if chat else []
        prompt_tokens = count_tokens(text) + (CHAT_OVERHEAD if chat else 0) + PICTURE_TOKENS * len(pngs)
        count = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        count = max(1, round(count * behaviour.length_share))
        if not body.get("stream") and not behaviour.only_streams:
            content = {"message": {"role": "assistant", "content": "token " * count}} if chat else {"text": "token"}
            choice = {"index": 0, "finish_reason": "length", **content}
            self._record.count_tokens(prompt_tokens, count)
            page = {"model": body["model"], "choices": [choice], "usage": _build_usage(prompt_tokens, count)}
            if behaviour.admitted:  # long enough for others to be one too many
                self._timer = self._loop.call_later(behaviour.ttft_s, self._send_json, 200, page)
                return None
            return self._send_json(200, page)
        self._record.pictures += map(_describe_picture, pngs)
        number = next(self._counter)
        strikes, remainder = divmod(number, behaviour.fault_interval)
        fault = behaviour.faults[(strikes - 1) % len(behaviour.faults)] if behaviour.faults and remainder == 0 else None
        if fault == "hang":
            return None
        if fault == "http_500":
            return self._send_json(500, {"error": {"message": "injected fault"}})
        if fault == "reset":
            return self._transport.abort()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._streaming = True
        sent_tokens = 0 if fault == "empty" else count
        stream = _Stream(f"known-{uuid.uuid4().hex}", body["model"], chat, prompt_tokens, sent_tokens, fault)
        stream.usage = bool(body.get("stream_options", {}).get("include_usage"))
        stream.each_usage = bool(body.get("stream_options", {}).get("continuous_usage_stats"))
        first = behaviour.ttft_s * (10 if fault == "slow" else 1) + behaviour.ttft_growth_s * number
        if behaviour.cache:
            first *= 1 - self._record.look_up(text, prompt_tokens)
        self._slots.take(functools.partial(self._begin, stream, start, first))
        return None

    def _begin(self, stream: _Stream, start: float, first_s: float) -> None:
        """Start to answer a request that came at `start` and has a slot now; the client may have left meanwhile."""
        if self._transport.is_closing():
            self._slots.give_back()
            return
        self._holds_slot = True
        due = max(start, self._loop.time()) + first_s if self._behaviour.slots else start + first_s
        self._timer = self._loop.call_at(due, self._write_next, stream, start, due)

    def _write_next(self, stream: _Stream, start: float, due: float) -> None:
        """Write the event that is due, and set the timer of the next one."""
        behaviour = self._behaviour
        if resume := self._find_resume():
            self._timer = self._loop.call_at(resume, self._write_next, stream, start, resume)
            return None
        if stream.sent >= stream.count:
            return self._finish(stream, start)
        if stream.fault in ("cut", "error_event") and stream.sent * 2 >= stream.count:
            if stream.fault == "error_event":
                self._transport.write(
                    _format_chunk(_format_event({"error": {"message": "injected fault", "code": 500}}))
                )
            return self._transport.close()
        share = min(behaviour.tokens_per_chunk, stream.count - stream.sent)
        now = self._loop.time()
        if stream.sent == 0:
            self._record.ttft_s.append(now - start)
        else:
            self._record.itl_s += [(now - stream.last) / share] * share
        stream.last = now
        stream.sent += share
        data = _format_chunk(stream.build_event(share))
        if stream.sent >= stream.count:
            self._transport.write(data)
            return self._finish(stream, start)
        self._transport.write(data)
        # From the due time, not from now: a late write does not delay all later ones.
        due += behaviour.itl_s * share
        self._timer = self._loop.call_at(due, self._write_next, stream, start, due)
        return None

    def _find_resume(self) -> float | None:
        """Return when a stall of the server that lasts now ends; None without one."""
        behaviour, now = self._behaviour, self._loop.time()
        remaining = behaviour.stall_interval_s - now % behaviour.stall_interval_s
        return now + remaining if remaining < behaviour.stall_s else None

    def _finish(self, stream: _Stream, start: float) -> None:
        self._record.e2e_s.append(self._loop.time() - start)
        self._record.count_tokens(stream.prompt_tokens, stream.sent)
        self._record.finished["length"] += 1
        self._streaming = False
        self._close_request()
        self._transport.write(_format_chunk(stream.build_closing()) + b"0\r\n\r\n")
        self._release_slot()


def _build_usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _format_event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _format_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class _Stream:
    """One answer in progress."""

    id: str
    model: str
    chat: bool
    prompt_tokens: int
    count: int
    fault: Fault | None
    usage: bool = False
    each_usage: bool = False
    sent: int = 0
    last: float = 0.0

    def build_event(self, share: int) -> bytes:
        """Return the event of the last `share` sent tokens."""
        text = "".join(f"w{index} " for index in range(self.sent - share, self.sent))
        reason = "length" if self.sent >= self.count else None
        return self._build_event(text, reason)

    def build_closing(self) -> bytes:
        data = b"" if self.count else self._build_event("", "stop")
        if self.usage:
            last = {"id": self.id, "model": self.model, "choices": []}
            data += _format_event({**last, "usage": _build_usage(self.prompt_tokens, self.sent)})
        return data + b"data: [DONE]\n\n"

    def _build_event(self, text: str, reason: str | None) -> bytes:
        content = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": reason}
        usage = {"usage": _build_usage(self.prompt_tokens, self.sent)} if self.each_usage else {}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return _format_event({"id": self.id, "object": kind, "model": self.model, "choices": [choice], **usage})


async def serve(port: int, behaviour: Behaviour) -> None:
    """Serve on loopback until a signal."""
    record, counter, slots = ServerRecord(), iter(range(1, sys.maxsize)), Slots(behaviour.slots)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ClientConnection(behaviour, record, counter, slots), "127.0.0.1", port, backlog=4096
    )
    stopped = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopped.set)
    async with server:
        ticking = asyncio.create_task(record.tick())
        await stopped.wait()
        ticking.cancel()


@contextlib.contextmanager
def run_server(behaviour: Behaviour = Behaviour(), log: Path | None = None, core: int | None = None) -> Iterator[str]:
    """Run the server in a separate process, optionally pinned to a core; yield its base URL."""
    port = processes.claim_free_ports(1)[0]
    arguments = build_command(port, behaviour)
    with (log or Path("/dev/null")).open("ab") as sink:
        child = processes.spawn(arguments if core is None else ["taskset", "-c", str(core), *arguments], output=sink)
        try:
            processes.wait_until(lambda: _is_listening(port), "the server with known delays", timeout_s=60)
            yield f"http://127.0.0.1:{port}"
        finally:
            processes.stop(child)


def ask(url: str) -> dict[str, Any]:
    """Return what a server says of itself."""
    with urllib.request.urlopen(f"{url}/known", timeout=60) as page:
        known: dict[str, Any] = json.load(page)
    return known


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def build_command(port: int, behaviour: Behaviour) -> list[str]:
    """Return the server's command line."""
    arguments = [sys.executable, "-m", "tests.known_server", "--port", str(port)]
    arguments += ["--ttft-ms", str(behaviour.ttft_s * 1000), "--itl-ms", str(behaviour.itl_s * 1000)]
    arguments += ["--tokens-per-chunk", str(behaviour.tokens_per_chunk), "--slots", str(behaviour.slots)]
    arguments += ["--stall-ms", str(behaviour.stall_s * 1000)]
    arguments += ["--stall-interval-ms", str(behaviour.stall_interval_s * 1000)]
    arguments += ["--ttft-growth-ms", str(behaviour.ttft_growth_s * 1000), "--length", str(behaviour.length_share)]
    arguments += ["--admitted", str(behaviour.admitted)]
    arguments += ["--only-streams"] if behaviour.only_streams else []
    arguments += ["--cache"] if behaviour.cache else []
    arguments += ["--every", str(behaviour.fault_interval), "--faults", *behaviour.faults] if behaviour.faults else []
    return [*arguments, "--plain"] if behaviour.plain else arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=50.0, help="time to first token")
    parser.add_argument("--itl-ms", type=float, default=10.0, help="inter-token latency")
    parser.add_argument("--tokens-per-chunk", type=int, default=1, help="tokens in one event")
    parser.add_argument("--slots", type=int, default=0, help="requests answered at once; 0 for all")
    parser.add_argument("--faults", nargs="*", default=[], choices=get_args(Fault), help="injected faults, in turn")
    parser.add_argument("--every", type=int, default=1, help="with each how many-th request")
    parser.add_argument("--stall-ms", type=float, default=0.0, help="send nothing for this long")
    parser.add_argument("--stall-interval-ms", type=float, default=10_000.0, help="at the end of each such interval")
    parser.add_argument("--ttft-growth-ms", type=float, default=0.0, help="added with each streamed request")
    parser.add_argument("--length", type=float, default=1.0, help="share of the requested tokens in an answer")
    parser.add_argument("--admitted", type=int, default=0, help="requests at once that get no 429; 0 for all")
    parser.add_argument("--only-streams", action="store_true", help="stream where no stream is asked for, too")
    parser.add_argument("--cache", action="store_true", help="remember the beginnings of prompts")
    parser.add_argument("--plain", action="store_true", help="refuse what only vLLM knows")
    args = parser.parse_args()
    behaviour = Behaviour(
        ttft_s=args.ttft_ms / 1000,
        itl_s=args.itl_ms / 1000,
        tokens_per_chunk=args.tokens_per_chunk,
        faults=tuple(args.faults),
        fault_interval=args.every,
        plain=args.plain,
        slots=args.slots,
        admitted=args.admitted,
        stall_s=args.stall_ms / 1000,
        stall_interval_s=args.stall_interval_ms / 1000,
        cache=args.cache,
        ttft_growth_s=args.ttft_growth_ms / 1000,
        length_share=args.length,
        only_streams=args.only_streams,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(args.port, behaviour))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
