"""The report of one validation: plain data, the same for report.json and for the page. No input or output.

report.json is this model; its JSON Schema is published beside this file as report.schema.json.
"""

from __future__ import annotations

import json
import operator
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import GenerateJsonSchema

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.load import answer
from llm_serving.validation.load.driver_result import ProcessWatch
from llm_serving.validation.statistics.engine_metrics import Agreement, KvTransfers, Replica
from llm_serving.validation.statistics.gate import MissedObjective
from llm_serving.validation.statistics.load_cost import Cost
from llm_serving.validation.statistics.sample_statistics import Latency, Metric
from llm_serving.validation.statistics.time_series import Steady
from llm_serving.validation.statistics.unlike_workers import UnlikeWorkers


class Requests(PublishedData):
    """Counted requests, without the warm-up."""

    total: int
    """Sent requests."""

    failed: int
    """Of them, those without a complete answer in time."""

    by_error: dict[str, int]
    """Failed requests by kind: connect, http_STATUS, deadline, truncated, empty, server_error, client, or a user
    class's own."""

    planned: int
    """Number in the blueprint; fewer are sent if the time limit ends the load."""


class Throughput(PublishedData):
    """Rates of answered requests."""

    requests_per_s: float
    """Answered requests per second."""

    output_tokens_per_s: float
    """Generated tokens per second, from the server's usage."""

    inputs_per_s: float | None = None
    """Answered texts per second, for tasks whose answers have no tokens; null for others."""


class InputLength(PublishedData):
    """End-to-end latency of the requests within bounds of length."""

    from_tokens: int
    """Fewest input tokens of one of these requests, all of its texts together."""

    to_tokens: int
    """Most."""

    requests: int
    """How many these are."""

    p50: float
    """Median of their latencies, in milliseconds."""

    p95: float
    """95th percentile, in milliseconds."""


class ModelLoad(PublishedData):
    """What the load asked of one model, and how that was answered."""

    model: str
    """Value of the requests' `model`."""

    requests: int
    """Sent requests."""

    failed: int
    """Of them, those without a complete answer in time."""

    metrics: dict[Metric, Latency]
    """Latencies of its answered requests in milliseconds."""

    throughput: Throughput
    """Of its answers, over the time of the whole load."""


class Goodput(PublishedData):
    """Requests that meet every limit on a latency at once."""

    share: float | None
    """Their share of all requests; null without one."""

    requests_per_s: float
    """Their rate."""


class ShareBounds(PublishedData):
    """A share of all requests, each bound at 95% confidence."""

    value: float
    """The share in this load, from 0 to 1."""

    lower: float
    """Its lower bound."""

    upper: float
    """Its upper bound."""


class Bound(PublishedData):
    """A statistic over all requests in milliseconds, of which failed ones count as infinite."""

    value: float | None
    """The estimate; null without a sample or where it is infinite."""

    upper: float | None
    """Its upper bound; null where the load is too short for one or it is infinite."""

    infinite: bool
    """Whether failed requests make the estimate infinite."""


def compute_judged_rates(throughput: Throughput, steady: Steady | None, users: int | None) -> dict[str, float]:
    """Return the rates that the SLO is held against: in the closed loop those of a load that goes on.

    That its users begin in turn, and end one by one, is the load's doing and not the service's.
    """
    return compute_lasting_rates(throughput, steady if users else None)


def compute_lasting_rates(throughput: Throughput, steady: Steady | None) -> dict[str, float]:
    """Return the rates of a load that goes on, as far as it was steady."""
    rates = throughput.model_dump(exclude_none=True)
    if not (steady and steady.requests_per_s and throughput.requests_per_s):
        return rates
    growth = steady.requests_per_s / throughput.requests_per_s
    return {name: rate * growth for name, rate in rates.items()}


class Tokens(PublishedData):
    """Tokens of the answered requests, from the server's usage; null if it reports none."""

    input_mean: float | None
    """Mean length of a prompt, including the chat template."""

    output_mean: float | None
    """Mean length of an answer."""

    input_exact: float | None
    """Share of prompts with exactly the requested length; null for the user's own prompts."""

    output_exact: float | None
    """Share of answers with exactly the requested length; null for the user's own prompts."""


class PromptOverlap(PublishedData):
    """Text that prompts share, and the part of it that the engines found in their caches."""

    prompts: float | None
    """Share of the counted prompts' text that an earlier one to the same model began with, in whole blocks of 64
    characters; null without prompts. Prompts from a JSONL file count the first time that they are sent."""

    of: int
    """Number of prompts compared."""

    cached: float | None
    """Share of the prompt tokens that the engines found in their caches, from their own counters; null if those were
    not read. Unlike `prompts` it depends on the router and on the size of the caches."""

    traffic: str
    """Digest of the settings that decide the prompts, including the content of a JSONL file. A blueprint without a
    policy and a share takes `prompts` from the newest report with the same digest."""


class WeightLoading(PublishedData):
    """How the engine loaded its weights, from its own log."""

    source: str
    """Location of the weights."""

    bytes: int | None
    """Bytes that one replica read; null if not in its log."""

    seconds: float | None
    """Seconds that the slowest replica took; null if not in its log."""

    random: bool
    """Whether they are random numbers."""

    commit: str | None = None
    """Commit on the model hub that they are a copy of; null if they are of a folder, or of a copy that kept none."""


class ShownAnswer(PublishedData):
    """One answer and the expected one."""

    prompt: str
    actual: str
    expected: str | None
    """Null if none was given."""

    same: bool | None
    """Whether they are equal except for white space; null if none was given."""

    score: float | None = None
    """From 0 to 1; null if none was given."""

    error: str | None
    """The kind of failure, if it failed."""

    detail: str


class ExpectedAnswers(PublishedData):
    """Number of answers as expected."""

    compared: int
    """Answered requests with an expected answer."""

    same: int
    """Of them, those equal except for white space."""

    score_by: str
    """How they were scored."""

    score: float | None
    """Mean score from 0 to 1; each expected answer counts once, and failed requests score 0."""


class Report(PublishedData):
    """One validation of a deployment against its SLO."""

    verdict: Literal["pass", "fail", "not shown"]
    """`pass` if every objective of the SLO is shown to be met, `fail` if one is missed, else `not shown`."""

    missed: list[MissedObjective]
    """Objectives that were missed; those of one role of unlike accelerators name it."""

    not_shown: list[str]
    """Why the load shows neither, a sentence each, with what would."""

    shown_by_no_load: list[str] = Field(default=[])
    """Those of them that stay in a longer or a lower load of the same prompts."""

    not_measured: dict[str, str] = Field(default={})
    """Objectives that were not measured, with why: a drop-in driver has something else instead, or answers could not be
    scored."""

    goodput: Goodput
    bounds: dict[Metric, dict[str, Bound]]
    """Each statistic over all requests, failed ones as infinite, with its upper bound at 95% confidence."""

    share_bounds: dict[Literal["errors", "goodput"], ShareBounds] = Field(default={})
    """Failed and good requests as shares of all; empty without a request."""

    requests: Requests
    metrics: dict[Metric, Latency]
    """Latencies of answered requests in milliseconds; inter-token latency of all their tokens but the first."""

    further: dict[str, Latency]
    """Latencies that other tools report, of answered requests in milliseconds: `ttfo_ms`, `icl_ms`, `tpot_ms`,
    `normalized_ms`; docs in the page."""

    throughput: Throughput
    by_input: list[InputLength] = Field(default=[])
    """Latency by the length of the input, for tasks whose answers have no tokens: in up to four groups of as many
    requests."""

    by_model: list[ModelLoad] = Field(default=[], exclude_if=operator.not_)
    """Each model that the load asked; absent where it asked one. The verdict is of all together."""

    steady: Steady | None
    """The same without ramp and drain; null where nothing is left of the load."""

    replicas: list[Replica]
    unlike_workers: list[UnlikeWorkers] = Field(default=[])
    """Each role of a model on unlike accelerators; empty where all replicas are alike, or have no counters."""

    routers: dict[str, int] = Field(default={})
    """Requests that each router counted during the load; empty where their metrics were not read."""

    weights: WeightLoading | None
    settings: dict[str, Any]
    """Deployment, load and SLO."""

    versions: dict[str, str]
    images: dict[str, str] = Field(default={})
    """Container image of each role, with the digest where one is known; empty where processes run without images."""

    emulated: list[str]
    """Parts that were emulated, a sentence each."""

    name: str
    """The deployment."""

    started_at: str
    """Start of the counted load, UTC, ISO 8601."""

    duration_s: float
    """From the start of the first counted request to the end of the last."""

    cost: Cost | None
    """What the load cost; null on a target without prices."""

    driver: list[ProcessWatch]
    """Each process of the load driver."""

    longest_stall_s: float
    """Longest time without any token while requests were in flight."""

    tokens: Tokens
    shared: PromptOverlap
    kv_transfers: KvTransfers | None
    """The hand-over from prefill to decode; null where one engine does both, or has no counters of it."""

    agreement: list[Agreement]
    """The client's numbers, compared with the engine's own."""

    expected: ExpectedAnswers | None
    """Over all requests; null if no expected answers were given."""

    answers: list[ShownAnswer]
    """The first answers, with the expected ones if given, and the first failure of each kind."""

    remarks: list[str]
    """Caveats of the numbers."""

    method: list[str]
    """Definitions of the numbers."""


class _UntitledSchema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def build_schema() -> dict[str, Any]:
    tree = Report.model_json_schema(schema_generator=_UntitledSchema, mode="serialization")
    return {"$schema": _UntitledSchema.schema_dialect, **tree}


def render_schema() -> str:
    return json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"


def describe_error(kind: str) -> str:
    if kind.startswith("http_"):
        return f"the server returned status {kind.removeprefix('http_')}"
    return answer.ERROR_KINDS.get(kind, "defined by the user class")
