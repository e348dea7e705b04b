"""The load of a deployment, and what its answers must be like: `traffic` and `slo` of `blueprint.yaml`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llm_serving.services.formats import FORMATS
from llm_serving.services.slo import BaseSlo
from llm_serving.services.token_lengths import TokenLengths
from llm_serving.settings.document import Conflict, Settings, check_one_of, parse_default
from llm_serving.settings.units import Bounds, Duration, ImageCount, Inputs, Rate, Share, Turns

PromptFile = Annotated[str, FORMATS["prompt-file"]]
TraceFile = Annotated[str, FORMATS["trace-file"]]
JudgeUrl = Annotated[str, FORMATS["judge-url"]]


Pixels = Annotated[int, Field(ge=16, le=4096)]


_LOOPS = {
    "process": ("open", "it spaces the arrivals of the open loop, and users is the closed loop"),
    "max_concurrency": ("open", "it bounds the open loop, and users is the closed loop, which has no more at once"),
    "think_time": ("closed", "it is the pause of a user of the closed loop, and this is the open loop"),
}
"""Settings of one loop: which one, and why the other takes no such setting."""


class Judge(Settings):
    """A model that scores answers."""

    url: JudgeUrl
    """OpenAI-compatible server. BLUEPRINT_JUDGE_API_KEY is its bearer token."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    """`model` of its requests."""


class Images(Settings):
    """Generated pictures of a request, PNG files of random colors: no two requests have the same."""

    count: ImageCount = parse_default("1")
    """Pictures per request, drawn uniformly from the range; in a session, per turn."""

    width: Pixels
    """Width in pixels."""

    height: Pixels
    """Height in pixels."""


MAX_PIXELS = 1024 * 1024
"""Of a picture that is drawn: what the memory of engines is reckoned for."""


PictureSize = Annotated[str, FORMATS["picture-size"]]


class Draw(Settings):
    """Pictures that a request asks for, by the task draw."""

    size: PictureSize | None = None
    """Width and height in pixels. Default is the model's own."""

    steps: Annotated[int, Field(ge=1, le=200)] | None = None
    """Steps of a picture. Default is the model's own."""

    count: Annotated[int, Field(ge=1, le=10)] = 1
    """Pictures per request, one computed after the other."""

    def build_fields(self) -> dict[str, str | int]:
        """Return its fields of a request's body, as OpenAI and vLLM-Omni name them."""
        fields = {"size": self.size, "num_inference_steps": self.steps, "n": self.count}
        return {name: value for name, value in fields.items() if value is not None}

    def _check_size(self) -> Iterator[Conflict]:
        width, _, height = (self.size or "0x0").partition("x")
        if int(width) * int(height) > MAX_PIXELS:
            reason = f"memory is reckoned for pictures of up to {MAX_PIXELS:,} pixels"
            yield Conflict(("size",), reason, "set size: 1024x1024 or less")


class Traffic(Settings):
    """The load that the deployment is designed for; `validate` sends it."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["users"]}, {"required": ["arrivals"]}, {"required": ["trace"]}],
            "not": {"required": ["users", "arrivals"]},
        }
    )

    arrivals: Rate | None = None
    """Open loop: requests per second, independent of the server, as from many independent clients."""

    process: Literal["poisson", "constant"] = "poisson"
    """Spacing of arrivals in the open loop."""

    burstiness: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Shape of the gamma distribution that spaces `poisson` arrivals, as in `vllm bench serve`: 1 is Poisson, less
    is burstier, more is more even."""

    max_concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Maximum concurrent requests in the open loop. Further ones wait until one ends; their times count from when they
    were due."""

    users: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Closed loop: this many users, each sending its next request when the last is answered. While a service is
    stalled, it gets no more requests, so that few of them measure the stall."""

    think_time: Duration | None = None
    """Mean pause of a user between an answer and its next request, in the closed loop and in sessions of several turns;
    each is drawn from an exponential distribution."""

    turns: Turns = parse_default("1")
    """Requests per session, drawn uniformly from the range: each after the first is sent `think_time` after the answer,
    with the conversation so far. `input_tokens` is then the length of each message, and `arrivals` counts all requests:
    sessions start at that rate divided by their turns."""

    requests: Annotated[int, Field(ge=1, le=10_000_000)] = 300
    """Number of counted requests."""

    time_limit: Duration = parse_default("10min")
    """Time limit of the validation."""

    deadline: Duration = parse_default("60s")
    """Time limit of a request; without an answer by then it has failed."""

    warm_up: Annotated[int, Field(ge=0, le=100_000)] = 10
    """Requests sent first, which are not counted."""

    api: Literal["chat", "completions"] = "chat"
    """The OpenAI endpoint to call."""

    input_tokens: TokenLengths = parse_default("256")
    """Length of a prompt: drawn uniformly from a range, or from a distribution. With a trace: bounds of its lengths."""

    output_tokens: TokenLengths = parse_default("64")
    """Length of an answer, as `input_tokens`. With `data`: maximum tokens of an answer."""

    inputs: Inputs = parse_default("1")
    """Texts of a request, each of `input_tokens`, for the tasks embed, rerank and classify; of rerank the documents of
    a query."""

    images: Images | None = None
    """Pictures sent with each prompt, for a multimodal model. Their tokens come on top of `input_tokens`."""

    draw: Draw | None = None
    """Pictures that each request asks for, by the task draw."""

    shared_prefix: Share = parse_default("0%")
    """Share of each prompt that it has in common with the other prompts of its group. By default, a router
    without a policy uses the share that `validate` measured with the same prompts."""

    prefix_groups: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Number of groups of prompts with a common prefix."""

    data: PromptFile | None = None
    """A JSONL file beside the blueprint with prompts to send instead of generated ones; or the first prompts of
    ShareGPT's conversations, with answers as long as theirs. A line has `prompt` or `messages`, and may have the
    answer's exact length as `output_tokens`, an answer to compare with as `expected`, and fields of its request:
    `chat_template_kwargs`, `frequency_penalty`, `logit_bias`, `logprobs`, `max_completion_tokens`, `max_tokens`,
    `min_p`, `parallel_tool_calls`, `presence_penalty`, `reasoning_effort`, `repetition_penalty`, `response_format`,
    `seed`, `stop`, `temperature`, `tool_choice`, `tools`, `top_k`, `top_logprobs` and `top_p`. Other keys are not sent;
    the report names them."""

    score_by: Literal["exact", "contains", "json_schema", "similarity", "judge"] = "exact"
    """How answers are scored against the expected ones of `data`: equal except for white space, containing them, JSON
    that matches the expected JSON Schema, similar in meaning by an embedding model, or by a judge."""

    judge: Judge | None = None
    """The model that scores answers by `score_by: judge`."""

    trace: TraceFile | None = None
    """A trace beside the blueprint: Azure LLM inference, Mooncake or BurstGPT, as published. Requests have its
    times and lengths; with `users` or `arrivals`, only its lengths."""

    trace_speed: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Speed of a trace: at 2, its requests come in half the time."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of lengths and arrivals. The words of prompts differ from run to run, so that no cache has them already."""

    @property
    def prompt_file(self) -> str | None:
        """File beside the blueprint that decides what prompts share, if there is one."""
        return self.data or self.trace

    @property
    def has_shared_prefix(self) -> bool:
        """Whether `shared_prefix` was written, 0% or more."""
        return "shared_prefix" in self.model_fields_set

    @property
    def max_images(self) -> int:
        """Most pictures of a request: the last of a session holds all before it."""
        return self.turns.max * self.images.count.max if self.images else 0

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of a request, prompt and answer together, without pictures: the last of a session holds all
        before it."""
        return self.turns.max * (self.input_tokens.max + self.output_tokens.max)

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (*super().find_conflicts(), *map(self._find_loop_conflicts, _LOOPS))

    @property
    def replays_times(self) -> bool:
        """Whether requests come at the times of a trace."""
        return self.trace is not None and self.users is None and self.arrivals is None

    @property
    def is_open_loop(self) -> bool:
        """Whether requests come whatever the server does."""
        return self.users is None

    def _check_burstiness(self) -> Iterator[Conflict]:
        if self.burstiness == 1:
            return
        if self.arrivals is None:
            yield Conflict(
                ("burstiness",),
                "it spaces arrivals, and there are none",
                "write arrivals: 20/s, or leave burstiness out",
            )
        elif self.process == "constant":
            yield Conflict(
                ("burstiness",), "constant arrivals have none", "write process: poisson, or leave burstiness out"
            )

    def _check_turns(self) -> Iterator[Conflict]:
        if self.turns.max == 1:
            return
        for key, file in (("data", self.data), ("trace", self.trace)):
            if file is not None:
                yield Conflict(
                    ("turns",), f"{key} has single requests", f"write turns without {key}, or {key} without turns"
                )
        if self.max_concurrency is not None:
            reason = "a session holds its place while its user thinks"
            yield Conflict(("max_concurrency",), reason, "leave max_concurrency out with turns")
        if self.api != "chat":
            yield Conflict(("turns",), "completions have no conversation", "write api: chat, or leave turns out")

    def _check_scoring(self) -> Iterator[Conflict]:
        if self.score_by != "exact" and self.data is None:
            reason = "it scores the answers to data, and there is none"
            yield Conflict(("score_by",), reason, "write data: FILE with expected answers, or leave score_by out")
        if self.judge is None and self.score_by == "judge":
            fix = "write judge: {url: URL, model: NAME}, or another score_by"
            yield Conflict(("score_by",), "it goes with judge, which is missing", fix)
        if self.judge is not None and self.score_by != "judge":
            yield Conflict(("judge",), "score_by is not judge", "write score_by: judge, or remove judge")

    def _check_trace(self) -> Iterator[Conflict]:
        if self.trace is None:
            return
        if self.data is not None:
            yield Conflict(("trace",), "data says what is sent, and so does a trace", "keep either data or trace")
        if self.shared_prefix > 0:
            reason = "a trace says itself what its prompts share"
            yield Conflict(("shared_prefix",), reason, "leave shared_prefix out")

    def _check_trace_bounds(self) -> Iterator[Conflict]:
        """Bound the lengths of a trace by the blueprint, which decides memory and context by them."""
        for name, example in (("input_tokens", "1..8k"), ("output_tokens", "1..1k")) if self.trace else ():
            lengths = getattr(self, name)
            if name not in self.model_fields_set:
                reason = "it bounds the lengths of a trace, and is missing"
                yield Conflict((name,), reason, f"write {name}: {example}")
            elif not isinstance(lengths, Bounds):
                reason = "a trace has its own lengths, and this bounds them"
                yield Conflict((name,), reason, f"write a range such as {example}")

    def _check_trace_speed(self) -> Iterator[Conflict]:
        if self.trace_speed != 1 and not self.replays_times:
            reason = "it is for the times of a trace, which are not used here"
            yield Conflict(
                ("trace_speed",), reason, "write trace: FILE without users and arrivals, or leave trace_speed out"
            )

    def _check_one_loop(self) -> Iterator[Conflict]:
        if self.users is None and self.arrivals is None and self.trace is not None:
            return
        yield from check_one_of(self, "users", "arrivals", fix="write arrivals: 20/s, or users: 8")

    def _find_loop_conflicts(self, name: str) -> Iterator[Conflict]:
        loop, reason = _LOOPS[name]
        if name == "think_time" and self.turns.max > 1:
            return  # between the turns of a session, in either loop
        if self.is_open_loop != (loop == "open") and getattr(self, name) != type(self).model_fields[name].default:
            alternative = "users: 8 in place of arrivals" if self.is_open_loop else "arrivals: 20/s in place of users"
            yield Conflict((name,), reason, f"write {alternative}, or leave {name} out")

    def _check_images(self) -> Iterator[Conflict]:
        if self.images is None:
            return
        if self.api != "chat":
            yield Conflict(("images",), "completions have text alone", "write api: chat, or leave images out")
        if self.data is not None:
            reason = "data says what is sent, and its messages may have pictures of their own"
            yield Conflict(("images",), reason, "keep either data or images")

    def _check_prefix_groups(self) -> Iterator[Conflict]:
        if self.prefix_groups > 1 and self.shared_prefix == 0:
            reason = "the prompts of a group have nothing in common while shared_prefix is 0%"
            yield Conflict(("prefix_groups",), reason, "write shared_prefix: 50% too, or leave prefix_groups out")


class Percentiles(Settings):
    """Limits in milliseconds by percentile."""

    p50: Annotated[float, Field(gt=0)] | None = None
    """Half of all requests stay below."""

    p90: Annotated[float, Field(gt=0)] | None = None
    """Nine in ten stay below."""

    p95: Annotated[float, Field(gt=0)] | None = None
    """Nineteen in twenty stay below."""

    p99: Annotated[float, Field(gt=0)] | None = None
    """Ninety-nine in a hundred stay below."""

    mean: Annotated[float, Field(gt=0)] | None = None
    """The mean stays below."""

    def _check_order(self) -> Iterator[Conflict]:
        limits = [(name, getattr(self, name)) for name in ("p50", "p90", "p95", "p99")]
        limits = [(name, limit) for name, limit in limits if limit is not None]
        for (lower, limit), (higher, higher_limit) in itertools.pairwise(limits):
            if limit > higher_limit:
                reason = f"{higher} is {higher_limit:g}, which {lower} cannot exceed: this limit would say nothing"
                yield Conflict((lower,), reason, f"write {higher_limit:g} or less, or leave {lower} out")


class Slo(BaseSlo):
    """Objectives for the answers, which `validate` checks."""

    ttft_ms: Percentiles = Percentiles()
    """Time to first token."""

    itl_ms: Percentiles = Percentiles()
    """Inter-token latency."""

    e2e_ms: Percentiles = Percentiles()
    """Time from the request's start to its last token."""

    errors: Share = parse_default("0%")
    """Maximum share of failed requests."""

    goodput: Share | None = None
    """Minimum share of requests that meet all latency limits at once. A request's own limit is that of the highest
    percentile; its inter-token latency is the mean of its answer."""

    score: Share | None = None
    """Minimum mean score of the answers with an expected one; failed requests score 0."""

    stall: Duration | None = None
    """Maximum time without any token while requests are in flight, such as `2s`."""

    output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum throughput of generated tokens, per second."""

    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum throughput of answered requests, per second."""

    inputs_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum throughput of answered texts, per second, for the tasks embed, rerank and classify; of drawn pictures for
    the task draw."""

    @property
    def limits_load(self) -> bool:
        """Whether it has a limit that a higher load can miss."""
        latencies = (self.ttft_ms, self.itl_ms, self.e2e_ms)
        return bool(self.goodput or self.stall) or any(latency != Percentiles() for latency in latencies)

    def _check_goodput(self) -> Iterator[Conflict]:
        if self.goodput == 1:
            reason = "no number of requests shows that every one will meet the limits"
            yield Conflict(("goodput",), reason, "write 99.9% or less")
