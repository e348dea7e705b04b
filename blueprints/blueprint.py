"""`blueprint.yaml`: what to serve, under which load, and what the answer must be like. Plain typed data."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from infra.errors import InputError, Mistake
from infra.fleet import Name
from infra.settings import Contradiction, Document, Settings, load, written
from infra.units import Duration, Form, Rate, Share, TokenRange, Tokens

FILE = "blueprint.yaml"

Model = Annotated[
    str, Form(r"[^\s-].{0,254}", "a model: a name of the catalogue, a hub id or a folder", "Qwen/Qwen3-0.6B")
]
Weights = Annotated[
    str,
    Form(
        r"s3(?:://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+)?",
        "a place to stream weights from: s3 or s3://BUCKET/PREFIX",
        "s3://my-models/qwen3-32b",
    ),
]
Prompts = Annotated[str, Form(r"[^\s/~-].{0,250}\.jsonl", "a JSONL file in the blueprint's folder", "prompts.jsonl")]


class Worker(Settings):
    """The role that runs the engine."""

    pool: Name
    """The fleet's pool that carries it."""

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How many copies run."""

    accelerators: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators of one replica; the model is split over them (tensor parallelism)."""


class Router(Settings):
    """The role that spreads requests over the workers."""

    policy: Literal["cache-aware", "round-robin", "random", "power-of-two", "consistent-hash"] = "cache-aware"
    """How a worker is chosen for a request."""


class Roles(Settings):
    """The roles of the aggregated pattern."""

    worker: Annotated[Worker, Field(examples=[{"pool": "general"}])]
    """Replicas of the engine; each does prefill and decode."""

    router: Router = Router()
    """One endpoint before the workers."""


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

    time_limit: Duration = written("10min")
    """The validation ends then, however many requests are done."""

    deadline: Duration = written("60s")
    """A request not answered by then has failed."""

    warm_up: Annotated[int, Field(ge=0, le=100_000)] = 10
    """Requests sent first and not counted."""

    api: Literal["chat", "completions"] = "chat"
    """The OpenAI endpoint that is called."""

    input_tokens: TokenRange = written("256")
    """Length of a prompt, drawn evenly from the range."""

    output_tokens: TokenRange = written("64")
    """Length of an answer, drawn evenly from the range."""

    shared_prefix: Share = written("0%")
    """Share of each prompt that it has in common with the other prompts of its group."""

    prefix_groups: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """How many groups of prompts with a common prefix there are."""

    data: Prompts | None = None
    """A JSONL file beside the blueprint with prompts (and expected answers) to send instead of made ones."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of lengths, prompts and arrivals."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._one_loop(), self._spaced_arrivals(), self._groups_share())

    def _one_loop(self) -> Iterator[Contradiction]:
        if (self.users is None) == (self.arrivals is None):
            where = () if self.users is None else ("arrivals",)
            yield Contradiction(where, "it must have exactly one of users and arrivals", "users: 8, or arrivals: 20/s")

    def _spaced_arrivals(self) -> Iterator[Contradiction]:
        if self.users is not None and self.process == "constant":
            why = "it spaces the arrivals of the open loop, and users is the closed loop"
            yield Contradiction(("process",), why, "arrivals: 20/s in place of users, or no process")

    def _groups_share(self) -> Iterator[Contradiction]:
        if self.prefix_groups > 1 and self.shared_prefix == 0:
            why = "the prompts of a group have nothing in common while shared_prefix is 0%"
            yield Contradiction(("prefix_groups",), why, "shared_prefix: 50% too, or no prefix_groups")


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

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._in_order(),)

    def _in_order(self) -> Iterator[Contradiction]:
        limits = [(name, getattr(self, name)) for name in ("p50", "p90", "p95", "p99")]
        limits = [(name, limit) for name, limit in limits if limit is not None]
        for (lower, limit), (higher, least) in itertools.pairwise(limits):
            if limit > least:
                why = f"{higher} is {least:g}, which {lower} cannot exceed: this limit would say nothing"
                yield Contradiction((lower,), why, f"{least:g} or less, or no {lower}")


class Slo(Settings):
    """What the answers must be like; `validate` says whether they are."""

    ttft_ms: Percentiles = Percentiles()
    """Time to first token."""

    itl_ms: Percentiles = Percentiles()
    """Inter-token latency."""

    e2e_ms: Percentiles = Percentiles()
    """From the request's start to its last token."""

    errors: Share = written("0%")
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

    model: Model
    """A model of the catalogue, a hub id such as Qwen/Qwen3-0.6B, or a folder that holds config.json."""

    engine: Literal["vllm"] = "vllm"
    """What runs the model."""

    weights: Weights = "s3"
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = 4096
    """Most tokens of a request, prompt and answer together."""

    roles: Annotated[Roles, Field(examples=[{"worker": {"pool": "general"}}])]
    """What runs, and on which pool."""

    traffic: Annotated[Traffic, Field(examples=[{"users": 8}])]
    """The load it is made for."""

    slo: Annotated[Slo, Field(examples=[{"ttft_ms": {"p95": 800}}])]
    """What the answers must be like."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._fits_the_context(),)

    def _fits_the_context(self) -> Iterator[Contradiction]:
        longest = self.traffic.input_tokens.most + self.traffic.output_tokens.most
        if longest > self.context:
            yield Contradiction(
                ("context",) if "context" in self.model_fields_set else ("traffic", "input_tokens"),
                f"a request of this traffic takes up to {longest} tokens, input and output together, "
                f"and the context is {self.context}",
                f"context: {longest} or more, or shorter input_tokens and output_tokens",
            )


def read(folder: Path) -> Document[Blueprint]:
    """Reads the blueprint in `folder`.

    Raises:
        InputError: with every mistake of its file at once.
    """
    if not folder.exists():
        raise InputError([Mistake(folder, 1, 1, "", "", "there is no such folder", _what_is_there(folder))])
    if not folder.is_dir():
        why = "it is a file, and a blueprint is a folder"
        raise InputError([Mistake(folder, 1, 1, "", "", why, f"the folder that holds it, {folder.parent}")])
    if not (folder / FILE).exists():
        why = f"the folder holds no {FILE}"
        raise InputError([Mistake(folder, 1, 1, "", "", why, "the folder of a blueprint; `blueprint new` makes one")])
    document = load(folder / FILE, Blueprint)
    data = document.value.traffic.data
    if data is not None and not (folder / data).is_file():
        why = f"there is no such file in {folder}"
        raise InputError(
            [document.mistake(("traffic", "data"), data, why, "the name of a JSONL file beside the blueprint")]
        )
    return document


def _what_is_there(folder: Path) -> str:
    here = [file.parent for file in folder.parent.glob(f"*/{FILE}")]
    patterns = [file.parent for file in Path(__file__).parent.glob(f"*/{FILE}")]
    near = difflib.get_close_matches(folder.name, [found.name for found in here + patterns], n=1)
    found = [path for path in here + patterns if path.name in near]
    return f"the folder of a blueprint{f', such as {found[0]}' if found else '; `blueprint new` makes one'}"
