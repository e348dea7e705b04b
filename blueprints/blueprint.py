"""`blueprint.yaml`: what to serve, under which load, and what the answer must be like. Plain typed data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from infra.fleet import Name
from infra.settings import Settings
from infra.units import Duration, Range, Rate, Share, Tokens, wrong


class Worker(Settings):
    """The role that runs the engine."""

    pool: Name
    """The fleet's pool that carries it."""

    replicas: Annotated[int, Field(ge=1)] = 1
    """How many copies run."""

    accelerators: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators of one replica; the model is split over them (tensor parallelism)."""


class Router(Settings):
    """The role that spreads requests over the workers."""

    policy: Literal["cache-aware", "round-robin", "random", "power-of-two", "consistent-hash"] = "cache-aware"
    """How a worker is chosen for a request."""


class Roles(Settings):
    """The roles of the aggregated pattern."""

    worker: Worker
    """Replicas of the engine; each does prefill and decode."""

    router: Router = Router()
    """One endpoint before the workers."""


class Traffic(Settings):
    """The load that the deployment is made for; `validate` plays it."""

    users: Annotated[int, Field(ge=1)] | None = None
    """Closed loop: this many users, each sending its next request when the last is answered."""

    arrivals: Rate | None = None
    """Open loop: requests a second, whatever the server does."""

    process: Literal["poisson", "constant"] = "poisson"
    """How arrivals are spaced in the open loop."""

    requests: Annotated[int, Field(ge=1)] = 300
    """How many requests are counted."""

    time_limit: Duration = 600.0
    """The validation ends then, however many requests are done."""

    deadline: Duration = 60.0
    """A request not answered by then has failed."""

    warm_up: Annotated[int, Field(ge=0)] = 10
    """Requests sent first and not counted."""

    api: Literal["chat", "completions"] = "chat"
    """The OpenAI endpoint that is called."""

    input_tokens: Range = Field("256", validate_default=True)
    """Length of a prompt, drawn evenly from the range."""

    output_tokens: Range = Field("64", validate_default=True)
    """Length of an answer, drawn evenly from the range."""

    shared_prefix: Share = 0.0
    """Share of each prompt that it has in common with the other prompts of its group."""

    prefix_groups: Annotated[int, Field(ge=1)] = 1
    """How many groups of prompts with a common prefix there are."""

    data: str | None = None
    """A JSONL file beside the blueprint with prompts (and expected answers) to send instead of made ones."""

    seed: int = 0
    """Seed of lengths, prompts and arrivals."""

    @model_validator(mode="after")
    def _one_loop(self) -> Traffic:
        if (self.users is None) == (self.arrivals is None):
            raise wrong("it must say exactly one of `users` and `arrivals`", "users: 8, or arrivals: 20/s")
        return self


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


class Slo(Settings):
    """What the answers must be like; `validate` says whether they are."""

    ttft_ms: Percentiles = Percentiles()
    """Time to first token."""

    itl_ms: Percentiles = Percentiles()
    """Inter-token latency."""

    e2e_ms: Percentiles = Percentiles()
    """From the request's start to its last token."""

    errors: Share = 0.0
    """Most failed requests, as a share of all."""

    output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least throughput of generated tokens."""

    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least throughput of answered requests."""


class Blueprint(Settings):
    """A user's copy of a pattern."""

    name: Name | None = None
    """Name of the deployment; the folder's name where left out."""

    pattern: Literal["aggregated"]
    """The folder under blueprints/ that this is a copy of."""

    model: str = Field(min_length=1)
    """A model of the catalogue, a hub id such as Qwen/Qwen3-0.6B, or a folder that holds config.json."""

    engine: Literal["vllm"] = "vllm"
    """What runs the model."""

    weights: str = Field("s3", pattern=r"^s3(://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/\S+)?$")
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = Field(4096)
    """Most tokens of a request, prompt and answer together."""

    roles: Roles
    """What runs, and on which pool."""

    traffic: Traffic
    """The load it is made for."""

    slo: Slo
    """What the answers must be like."""

    @model_validator(mode="after")
    def _fits_the_context(self) -> Blueprint:
        longest = self.traffic.input_tokens.most + self.traffic.output_tokens.most
        if longest > self.context:
            raise wrong(
                f"traffic reaches {longest} tokens a request (input_tokens and output_tokens at their most), "
                f"and the context is {self.context}",
                f"context: {longest} or more, or shorter traffic",
            )
        return self
