"""One streamed answer: its tokens with their times, its text, its usage and its error. No input or output.

Definitions, the same everywhere in the report:

- The first token is the first event with content (text, reasoning or a tool call), or whose usage counts a token: an
  engine may send a token whose bytes are not yet a character. The event that only opens a chat (its role) has none.
- Inter-token latency is the gap between two events with tokens, divided by the tokens of the later one, and counts once
  for each of them. vLLM reports their number with each event on request; for other servers the final usage is spread
  evenly over the events.
- An answer is complete after `[DONE]`, or after a finish reason before a clean end of the stream; one that the engine
  gave up is not.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

from llm_serving.settings import untrusted_json
from llm_serving.validation.statistics.sample_statistics import Metric

CONNECT = "connect"
DEADLINE = "deadline"
TRUNCATED = "truncated"
EMPTY = "empty"
SERVER_ERROR = "server_error"
CLIENT = "client"

ERROR_KINDS = {
    CONNECT: "no connection: refused, unreachable, or a wrong name or certificate",
    DEADLINE: "incomplete at the deadline",
    TRUNCATED: "the stream ended before the answer was complete",
    EMPTY: "the answer has no tokens",
    SERVER_ERROR: "the server sent an error inside the stream, or gave the answer up",
    CLIENT: "the user class raised an exception",
}
"""Description of each kind of failure; others are `http_STATUS` and what a user class's `check` returns."""


GIVEN_UP = {"abort", "error", "cancelled", "timeout"}
"""Finish reasons of an answer that the engine ended early, as where it stops or sleeps: vLLM and SGLang send `abort`
and then `[DONE]`, with HTTP 200 (github.com/vllm-project/vllm/issues/57082, read 2026-11-29), TensorRT-LLM the last
two."""

Time = Annotated[float, Field(ge=-1e12, le=1e12)]
"""In seconds or milliseconds; no NaN, and nothing beyond thirty years."""

Count = Annotated[int, Field(ge=0, lt=10**7)]
"""More tokens than any context has."""


class Gap(NamedTuple):
    """Inter-token latency at one event: milliseconds per token, and the number of tokens."""

    ms: Time
    tokens: Count


@dataclass
class Sample:
    """One request and its result. Times in ms count from when it was due (open loop) or sent (closed loop)."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    number: Count
    start_s: Time
    """When it was due or sent, in seconds from the start of the counted load."""
    turn: Count = 1
    """Its place in its session."""
    model: str = ""
    """Name of the model that it asked; empty where a load asks the deployment's only one."""
    waited_ms: Time = 0.0
    """Wait in the open loop for one of the requests at once to end; included in the times below."""
    late_ms: Time = 0.0
    """The driver's own delay before it was sent; included in the times below."""
    unread_ms: Time = 0.0
    """Longest time between a chunk's arrival in the kernel and its read; not included in the times."""
    ttft_ms: Time | None = None
    """Time to first token, of reasoning too."""
    ttfo_ms: Time | None = None
    """Time to first output: content or a tool call."""
    e2e_ms: Time | None = None
    failed_ms: Time | None = None
    """Until it failed; None for an answered request, and where the driver does not say."""
    gaps: list[Gap] = field(default_factory=list)
    asked_input: Count | None = None
    asked_output: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    inputs: Count = 1
    """Texts of the request."""
    error: str | None = None
    """A key of ERROR_KINDS, `http_STATUS`, or the user class's own name; None for an answered request."""
    detail: str = ""
    text: str = ""
    picture: str = ""
    """The first picture of the answer, a PNG file in base64; of the answers that a report shows."""
    prompt: str = ""
    expected: str | None = None
    score: Time | None = None
    """From 0 to 1, by the expected answer."""

    @property
    def in_flight_ms(self) -> float | None:
        """How long it was in flight, answered or failed."""
        return self.failed_ms if self.e2e_ms is None else self.e2e_ms

    def list_token_times(self) -> Iterator[tuple[float, int]]:
        """Yield when tokens arrived, in seconds from the start of the counted load, and how many at once."""
        if self.ttft_ms is None:
            return
        time_ms = self.ttft_ms
        # What the later events do not have, the first had; a server without usage counts as one.
        yield self.start_s + time_ms / 1000, max(1, (self.output_tokens or 1) - sum(gap.tokens for gap in self.gaps))
        for gap in self.gaps:
            time_ms += gap.ms * gap.tokens
            yield self.start_s + time_ms / 1000, gap.tokens

    def get_latency(self, metric: Metric) -> float | None:
        """Return a latency of the request in milliseconds; the mean of its tokens' for inter-token latency."""
        return self.compute_mean_gap_ms() if metric == "itl_ms" else getattr(self, metric)

    def compute_mean_gap_ms(self) -> float | None:
        """Return the mean inter-token latency of the answer."""
        tokens = sum(gap.tokens for gap in self.gaps)
        return sum(gap.ms * gap.tokens for gap in self.gaps) / tokens if tokens else None

    def to_json(self) -> str:
        # Not asdict: its deep copy takes as long as parsing the answer.
        data = vars(self) | {"gaps": [[round(gap.ms, 3), gap.tokens] for gap in self.gaps]}
        if not self.model:
            del data["model"]
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        # A server that cuts text at UTF-16's units sends one character's halves in two events; no file takes a half.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @classmethod
    def from_json(cls, line: str) -> Sample:
        """Return what `to_json` wrote; raises `ValueError` where it is no such line."""
        return _build_reader().validate_json(line)


@functools.cache
def _build_reader() -> TypeAdapter[Sample]:
    return TypeAdapter(Sample)


@dataclass
class Answer:
    """A parsed answer, with the arrival times of its tokens on the clock of the chunks."""

    times: list[float] = field(default_factory=list)
    """One for each event with tokens."""
    counts: list[int] = field(default_factory=list)
    """Tokens of each of those events."""
    output_time: float | None = None
    """Arrival of the first content or tool call."""
    text: str = ""
    picture: str = ""
    """The first of its pictures, a PNG file in base64."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    failure: str | None = None
    """The message of an error event."""

    @property
    def is_complete(self) -> bool:
        return self.done or self.finish_reason is not None

    def compute_gaps(self) -> list[Gap]:
        """Return the inter-token latencies, as defined above."""
        return [
            Gap((after - before) * 1000 / tokens, tokens)
            for before, after, tokens in zip(self.times, self.times[1:], self.counts[1:], strict=False)
        ]

    def spread_usage(self) -> None:
        """Spread the tokens of the final usage evenly over the events, for a server that reports them no sooner."""
        events, total = len(self.times), self.output_tokens or 0
        if 0 < events < total:
            self.counts = [(index + 1) * total // events - index * total // events for index in range(events)]


def parse_stream(chunks: Sequence[tuple[float, bytes]]) -> Answer:
    """Parse a stream of server-sent events from its chunks, each with its arrival time in seconds.

    An event of another form than OpenAI's is the answer's failure.
    """
    answer = Answer()
    try:
        _read_events(chunks, answer)
    except (AttributeError, TypeError, ValueError) as error:
        answer.failure = answer.failure or f"event is not of OpenAI's form: {type(error).__name__}: {error}"
    return answer


def _read_events(chunks: Iterable[tuple[float, bytes]], answer: Answer) -> None:
    texts: list[str] = []
    counted, has_usage = 0, None
    for time, data in _split_events(chunks):
        if data == b"[DONE]":
            answer.done = True
            continue
        try:
            event = untrusted_json.parse(data)
        except ValueError:
            answer.failure = answer.failure or f"event is not JSON: {data[:200]!r}"
            continue
        if not isinstance(event, dict):
            continue
        if event.get("error") or event.get("object") == "error":
            error = event.get("error", event)
            answer.failure = answer.failure or str(error.get("message", error) if isinstance(error, dict) else error)
            continue
        reasoning, output = _extract_content(event, answer)
        content = reasoning + output
        texts.append(content)
        if output and answer.output_time is None:
            answer.output_time = time
        usage = event.get("usage") or {}
        answer.input_tokens = read_count(usage, "prompt_tokens", answer.input_tokens)
        answer.output_tokens = read_count(usage, "completion_tokens", answer.output_tokens)
        if not event.get("choices"):
            continue
        has_usage = "completion_tokens" in usage if has_usage is None else has_usage
        # A usage in each event gives the number of its tokens; otherwise assume one until the final usage.
        assumed = counted + bool(content)
        tokens = (int(usage.get("completion_tokens", assumed)) if has_usage else assumed) - counted
        counted += tokens
        if tokens > 0:
            answer.times.append(time)
            answer.counts.append(tokens)
    answer.text = "".join(texts)
    if counted != answer.output_tokens:
        answer.spread_usage()


def read_count(usage: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    """Return a count of tokens; raises `TypeError` where it is no number."""
    count = usage.get(name, default)
    if not isinstance(count, int | None):
        raise TypeError(f"usage.{name} is {count!r}")
    return count


def _split_events(chunks: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield each event's data with the time of the chunk that completed it."""
    buffer, time = b"", 0.0
    for time, chunk in chunks:
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time, line[5:].strip()
    if buffer.startswith(b"data:"):
        yield time, buffer[5:].strip()


def _extract_content(event: dict[str, Any], answer: Answer) -> tuple[str, str]:
    """Return an event's reasoning, and its output: content and tool calls of a chat's delta, or a completion's text."""
    reasoning, output = [], []
    for choice in event.get("choices") or ():
        if reason := choice.get("finish_reason"):
            answer.finish_reason = str(reason)
        delta = choice.get("delta")
        if delta is None:
            output.append(choice.get("text"))
            continue
        # Two names of one thing, of which a server may send both.
        reasoning.append(delta.get("reasoning_content") or delta.get("reasoning"))
        output.append(delta.get("content"))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            output += [function.get("name"), function.get("arguments")]
    return "".join(filter(None, reasoning)), "".join(filter(None, output))


def set_error(sample: Sample, answer: Answer, *, has_tokens: bool = True) -> None:
    """Set the error of an answer that ended, if it has one; `has_tokens` says whether a good one has some."""
    if answer.failure:
        sample.error, sample.detail = SERVER_ERROR, answer.failure
    elif answer.finish_reason in GIVEN_UP:
        reason = f"the engine ended the answer after {sum(answer.counts)} tokens: finish_reason {answer.finish_reason}"
        sample.error, sample.detail = SERVER_ERROR, reason
    elif not answer.is_complete:
        sample.error, sample.detail = TRUNCATED, f"the stream ended after {sum(answer.counts)} tokens, incomplete"
    elif has_tokens and not answer.times and not answer.output_tokens:
        sample.error, sample.detail = EMPTY, "the server sent no tokens"
