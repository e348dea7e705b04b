"""A provider's OpenAI-compatible API, emulated: it keeps each request, and fails as a prompt asks.

`fault: 429` or any other status refuses, `fault: hang` never answers, and of a stream `fault: early` closes the connection
before the first token, and `fault: cut` half-way, once the client has read the first half; `fault: stall` says the first
half and no more. `fault: abort` answers as an engine does that gives the answer up.

At Bedrock's paths it is an emulator of Bedrock's Converse API, which answers all.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.http_handler import QuietHandler

FAILING = "outside"
"""Model that obeys such prompts; all others answer them."""

HALF = "half half half "
"""What a stream that dies half-way says, a word an event."""

ANSWER_TOKENS = 5
"""Of each whole answer."""

BEDROCK_ANSWER = "Answer of Bedrock."

RETRY_AFTER_S = "7"
"""What a refusal says."""

LIMIT_S = 120.0


class BedrockCall(NamedTuple):
    """A request to Bedrock's API."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Provider:
    """A running emulator."""

    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests; each is answered with its number."""

    headers: list[dict[str, str]] = field(default_factory=list)
    """Their headers, by names in small letters."""

    bedrock_calls: list[BedrockCall] = field(default_factory=list)
    half_read: threading.Event = field(default_factory=threading.Event)
    """Set by a client that has read half of a stream."""

    left: threading.Event = field(default_factory=threading.Event)
    """Set once nobody waits for a request that hangs."""


@contextlib.contextmanager
def run_provider() -> Iterator[Provider]:
    """Run the emulator."""
    provider = Provider()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/model/"):
                provider.bedrock_calls.append(BedrockCall(self.path, dict(self.headers), sent))
                self._send(200, *build_bedrock_answer(is_stream=self.path.endswith("/converse-stream")))
                return
            body = json.loads(sent)
            provider.headers.append({name.lower(): value for name, value in self.headers.items()})
            provider.received.append(body)
            fault, is_stream = find_fault(body), body.get("stream", False)
            if fault == "stall":
                self._send_half(len(provider.received), HALF.split(), is_stalled=True)
            elif self.path.endswith("/images/generations"):
                self._send(200, "application/json", b'{"created": 1, "data": [{"b64_json": "aGk="}]}')
            elif self.path.endswith("/responses"):
                self._send(200, *build_response(len(provider.received), is_stream=is_stream))
            elif fault.isdigit():
                self._send(int(fault), "application/json", b'{"error": {"message": "injected fault"}}')
            elif fault == "abort":
                self._send(200, *build_answer(len(provider.received), is_stream=is_stream, reason="abort"))
            elif fault == "hang":
                self.rfile.read(1)  # until the client gives up
                provider.left.set()
            elif fault:
                self._send_half(len(provider.received), HALF.split() if fault == "cut" else [])
            else:
                name = f"chatcmpl-{self.headers['X-Request-Id']}"  # as vLLM 0.32.0 makes it
                self._send(200, *build_answer(len(provider.received), is_stream=is_stream, name=name))

        def _send(self, status: int, kind: str, answer: bytes) -> None:
            retry_after = {"Retry-After": RETRY_AFTER_S} if status != 200 else {}
            self.respond(status, answer, {"Content-Type": kind, **retry_after})

        def _send_half(self, number: int, words: list[str], *, is_stalled: bool = False) -> None:
            """Send the first events of a stream in chunks, and never the last chunk."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in words:
                text = f"{word} "
                choice = {
                    "index": 0,
                    "finish_reason": None,
                    "text": text,
                    "delta": {"role": "assistant", "content": text},
                }
                content = build_event(number, choice)
                if self.path.endswith("/responses"):
                    place = {"item_id": "msg", "output_index": 0, "content_index": 0, "sequence_number": 1}
                    content = {"type": "response.output_text.delta", **place, "delta": text}
                event = f"data: {json.dumps(content)}\n\n".encode()
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            if is_stalled:
                self.rfile.read(1)  # until the client gives up
                provider.left.set()
            elif words:
                provider.half_read.wait(LIMIT_S)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        provider.url = f"http://127.0.0.1:{server.server_port}"
        yield provider
        server.shutdown()


def find_fault(body: dict[str, Any]) -> str:
    """Find the fault that a request asks for; empty where it asks for none."""
    prompt = str(body["messages"][-1]["content"] if "messages" in body else body.get("input") or body.get("prompt"))
    return prompt.partition("fault: ")[2] if body["model"].endswith(FAILING) else ""


def build_event(number: int, choice: dict[str, Any]) -> dict[str, Any]:
    """Build an event of a stream."""
    return {
        "id": f"recorded-{number}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "known",
        "choices": [choice],
    }


def build_answer(number: int, *, is_stream: bool, reason: str = "stop", name: str = "") -> tuple[str, bytes]:
    """Build the content type and the body of a chat's answer, or of its stream of one event with the whole answer."""
    message = {"role": "assistant", "content": f"Answer {number}."}
    text = message["content"]  # of completions
    choice = {"index": 0, "finish_reason": reason, "text": text, "delta" if is_stream else "message": message}
    answer = {
        **build_event(number, choice),
        **({} if is_stream else {"object": "chat.completion"}),
        **({"id": name} if name else {}),
        "usage": {"prompt_tokens": 7, "completion_tokens": ANSWER_TOKENS, "total_tokens": 12},
    }
    body = json.dumps(answer)
    if not is_stream:
        return "application/json", body.encode()
    return "text/event-stream", f"data: {body}\n\ndata: [DONE]\n\n".encode()


def build_response(number: int, *, is_stream: bool) -> tuple[str, bytes]:
    """Build the content type and the body of an answer of the API of responses, or of its stream of one event."""
    part = {"type": "output_text", "text": f"Answer {number}.", "annotations": []}
    message = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 7, "output_tokens": ANSWER_TOKENS, "total_tokens": 12}
    answer = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "known", "status": "completed"}
    text = json.dumps({**answer, "output": [message], "usage": usage})
    if not is_stream:
        return "application/json", text.encode()
    event = f'{{"type": "response.completed", "sequence_number": 0, "response": {text}}}'
    return "text/event-stream", f"event: response.completed\ndata: {event}\n\n".encode()


def build_bedrock_answer(*, is_stream: bool) -> tuple[str, bytes]:
    """Build the content type and the body of an answer of Converse or ConverseStream."""
    usage = {"usage": {"inputTokens": 7, "outputTokens": ANSWER_TOKENS, "totalTokens": 12}, "metrics": {"latencyMs": 1}}
    if not is_stream:
        message = {"role": "assistant", "content": [{"text": BEDROCK_ANSWER}]}
        answer = {"output": {"message": message}, "stopReason": "end_turn", **usage}
        return "application/json", json.dumps(answer).encode()
    events = {
        "messageStart": {"role": "assistant"},
        "contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": BEDROCK_ANSWER}},
        "contentBlockStop": {"contentBlockIndex": 0},
        "messageStop": {"stopReason": "end_turn"},
        "metadata": usage,
    }
    return "application/vnd.amazon.eventstream", b"".join(build_frame(name, event) for name, event in events.items())


def build_frame(name: str, event: dict[str, Any]) -> bytes:
    """Build a frame of AWS's event streams: lengths, headers, payload, and the CRC of each part."""
    values = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for key, value in values.items()
    )
    payload = json.dumps(event).encode()
    lengths = struct.pack("!II", len(headers) + len(payload) + 16, len(headers))
    frame = lengths + struct.pack("!I", binascii.crc32(lengths)) + headers + payload
    return frame + struct.pack("!I", binascii.crc32(frame))
