"""The load of a deployment, and what its answers must be like: `traffic` and `slo` of `blueprint.yaml`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llm_serving.settings.document import Conflict, Settings, parse_default
from llm_serving.settings.units import Duration, Rate, Share, TextFormat, TokenRange

PromptFile = Annotated[
    str, TextFormat(r"[^\s/~-].{0,250}\.jsonl", "a JSONL file in the blueprint's folder", "prompts.jsonl")
]


class Traffic(Settings):
    """The load that the deployment is made for; `validate` plays it."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["users"]}, {"required": ["arrivals"]}]})

    users: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Closed loop: this many users, each sending its next request when the last is answered."""

    arrivals: Rate | None = None
    """Open loop: requests a second, whatever the server does."""

    process: Literal["poisson", "constant"] = "poisson"
    """How arrivals are spaced in the open loop."""

    requests: Annotated[int, Field(ge=1, le=10_000_000)] = 300
    """How many requests are counted."""

    time_limit: Duration = parse_default("10min")
    """The validation ends then, however many requests are done."""

    deadline: Duration = parse_default("60s")
    """A request not answered by then has failed."""

    warm_up: Annotated[int, Field(ge=0, le=100_000)] = 10
    """Requests sent first and not counted."""

    api: Literal["chat", "completions"] = "chat"
    """The OpenAI endpoint that is called."""

    input_tokens: TokenRange = parse_default("256")
    """Length of a prompt, drawn evenly from the range."""

    output_tokens: TokenRange = parse_default("64")
    """Length of an answer, drawn evenly from the range."""

    shared_prefix: Share = parse_default("0%")
    """Share of each prompt that it has in common with the other prompts of its group. Where it is left out, a router
    without a policy goes by what `validate` measured of the same prompts."""

    prefix_groups: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """How many groups of prompts with a common prefix there are."""

    data: PromptFile | None = None
    """A JSONL file beside the blueprint with prompts (and expected answers) to send instead of made ones."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of lengths, prompts and arrivals."""

    @property
    def has_shared_prefix(self) -> bool:
        """Whether `shared_prefix` was written, 0% or more."""
        return "shared_prefix" in self.model_fields_set

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_one_loop(), self._check_process(), self._check_prefix_groups())

    def _check_one_loop(self) -> Iterator[Conflict]:
        if (self.users is None) == (self.arrivals is None):
            key_path = () if self.users is None else ("arrivals",)
            yield Conflict(key_path, "it must have exactly one of users and arrivals", "users: 8, or arrivals: 20/s")

    def _check_process(self) -> Iterator[Conflict]:
        if self.users is not None and self.process == "constant":
            reason = "it spaces the arrivals of the open loop, and users is the closed loop"
            yield Conflict(("process",), reason, "arrivals: 20/s in place of users, or no process")

    def _check_prefix_groups(self) -> Iterator[Conflict]:
        if self.prefix_groups > 1 and self.shared_prefix == 0:
            reason = "the prompts of a group have nothing in common while shared_prefix is 0%"
            yield Conflict(("prefix_groups",), reason, "shared_prefix: 50% too, or no prefix_groups")


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

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_order(),)

    def _check_order(self) -> Iterator[Conflict]:
        limits = [(name, getattr(self, name)) for name in ("p50", "p90", "p95", "p99")]
        limits = [(name, limit) for name, limit in limits if limit is not None]
        for (lower, limit), (higher, higher_limit) in itertools.pairwise(limits):
            if limit > higher_limit:
                reason = f"{higher} is {higher_limit:g}, which {lower} cannot exceed: this limit would say nothing"
                yield Conflict((lower,), reason, f"{higher_limit:g} or less, or no {lower}")


class Slo(Settings):
    """What the answers must be like; `validate` says whether they are."""

    ttft_ms: Percentiles = Percentiles()
    """Time to first token."""

    itl_ms: Percentiles = Percentiles()
    """Inter-token latency."""

    e2e_ms: Percentiles = Percentiles()
    """From the request's start to its last token."""

    errors: Share = parse_default("0%")
    """Most failed requests, as a share of all."""

    output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least throughput of generated tokens."""

    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least throughput of answered requests."""
