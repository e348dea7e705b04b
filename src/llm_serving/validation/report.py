"""The report of one validation: plain data, the same for report.json and for the page. No input or output.

report.json is this model; its JSON Schema is published beside this file as report.schema.json.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llm_serving.validation import answer, engine_metrics, gate, statistics
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import Outcome
from llm_serving.validation.engine_metrics import Agreement, Replica
from llm_serving.validation.gate import Miss
from llm_serving.validation.statistics import Latency, Metric
from llm_serving.workloads.serving.deployment import Deployment

BUSY = 0.8
"""Share of a core above which the driver may be what is measured."""

LATE_MS = 20.0
"""Lateness of the driver (its 99th percentile) that is worth a remark."""

SHOWN_MOST = 200
"""Answers that a report shows; requests.jsonl holds all of them."""

METHOD = (
    "Only answered requests count for latencies; failed ones count for the error rate.",
    "Time to first token runs to the first event that carries content or whose usage counts a token.",
    "Inter-token latency is the gap between two events with tokens, divided by the tokens that the later one carries.",
    "End to end runs to the last byte of the stream.",
    "Tokens are the server's own, from its usage.",
    "Percentiles interpolate linearly between the two closest ranks (numpy's default).",
    "Throughput is what was answered, over the time from the first counted request to the end of the last.",
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Requests(_Part):
    """Counted requests; those of the warm-up are not among them."""

    total: int
    """All that were sent."""

    failed: int
    """Of them, those that were not answered well and in time."""

    by_error: dict[str, int]
    """Failed ones by kind: connect, http_STATUS, deadline, truncated, empty, server_error, client, or a user class's
    own."""

    planned: int
    """How many the blueprint asks for; fewer are sent when the time limit comes first."""


class Throughput(_Part):
    """What was answered, a second."""

    requests_per_s: float
    """Answered requests a second."""

    output_tokens_per_s: float
    """Generated tokens a second, by the server's usage."""


class Tokens(_Part):
    """Tokens of the answered requests, by the server's usage; null where it reports none."""

    input_mean: float | None
    """Mean length of a prompt, the chat template included."""

    output_mean: float | None
    """Mean length of an answer."""

    input_exact: float | None
    """Share of prompts that had exactly the length asked for; null for the user's own prompts."""

    output_exact: float | None
    """Share of answers that had exactly the length asked for; null for the user's own prompts."""


class Shared(_Part):
    """What the prompts have in common, and what of it the engines found in their caches."""

    prompts: float | None
    """Share of the counted prompts' text that an earlier one to the same model began with, in whole blocks of 64
    characters; null where none was sent. Prompts from a JSONL file count the first time that they are sent."""

    of: int
    """How many prompts that is of."""

    cached: float | None
    """Share of the prompt tokens that the engines found in their caches, by their own counters; null where those were
    not read. It depends on the router and on the caches' size, `prompts` does not."""

    traffic: str
    """Digest of what decides the prompts, the content of a JSONL file among it. A blueprint that states neither a
    policy nor a share takes `prompts` from the newest report of the same."""


class WeightsRead(_Part):
    """How the engine read its weights, from its own log."""

    source: str
    """Where from."""

    bytes: int | None
    """How many bytes one replica read; null where its log does not tell."""

    seconds: float | None
    """How long the slowest replica took; null where its log does not tell."""

    random: bool
    """Whether they are random numbers."""


class Shown(_Part):
    """One answer beside what was expected."""

    prompt: str
    actual: str
    expected: str | None
    """Null where none was given."""

    same: bool | None
    """Whether they are the same but for white space; null where none was given."""

    error: str | None
    """The kind of failure, if it failed."""

    detail: str


class Expected(_Part):
    """How many answers are as expected."""

    compared: int
    """Answered requests with an expected answer."""

    same: int
    """Of them, those whose answer is the same but for white space."""


class Report(_Part):
    """One validation of a deployment against its SLO."""

    verdict: Literal["pass", "fail"]
    """`pass` when every limit of the SLO holds."""

    missed: list[Miss]
    """The limits that do not hold."""

    requests: Requests
    metrics: dict[Metric, Latency]
    """Latencies in milliseconds over answered requests; inter-token latency over all their tokens but the first."""

    throughput: Throughput
    replicas: list[Replica]
    weights: WeightsRead
    settings: dict[str, Any]
    """What ran, under which load and SLO."""

    versions: dict[str, str]
    emulated: list[str]
    """What stood in for what."""

    name: str
    """The deployment."""

    started_at: str
    """When the counted load began, UTC, ISO 8601."""

    duration_s: float
    """From the first counted request to the end of the last."""

    tokens: Tokens
    shared: Shared

    agreement: list[Agreement]
    """The client's numbers beside the engine's own."""

    expected: Expected | None
    """Over all requests; null where no expected answer was given."""

    answers: list[Shown]
    """The first answers beside the expected ones, or the first few; and the first failure of each kind."""

    remarks: list[str]
    """What a reader should know before trusting the numbers."""

    method: list[str]
    """How the numbers are defined."""


def schema() -> dict[str, Any]:
    """The JSON Schema of report.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Report.model_json_schema(mode="serialization")}


def schema_text() -> str:
    """The schema as the file that is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def build(
    deployment: Deployment,
    outcome: Outcome,
    samples: Sequence[Sample],
    weights: WeightsRead,
    versions: Mapping[str, str],
    prompts: str = "",
) -> Report:
    """Draws the report from what the driver left behind.

    Args:
        prompts: digest of what decided the prompts.
    """
    answered = [sample for sample in samples if sample.error is None]
    by_error = Counter(sample.error for sample in samples if sample.error)
    metrics = {metric: statistics.latency(values) for metric, values in latencies(answered).items()}
    throughput = _throughput(answered, outcome.duration_s)
    missed = gate.missed(deployment.slo, metrics, len(samples), len(samples) - len(answered), throughput.model_dump())
    names = [process.name for process in deployment.replicas]
    replicas = engine_metrics.replicas(names, outcome.pages_before, outcome.pages_after) if outcome.pages_after else []
    tokens = _tokens(answered)
    return Report(
        verdict="fail" if missed else "pass",
        missed=missed,
        requests=Requests(
            total=len(samples),
            failed=len(samples) - len(answered),
            by_error=dict(by_error.most_common()),
            planned=outcome.planned,
        ),
        metrics=metrics,
        throughput=throughput,
        replicas=replicas,
        weights=weights,
        settings=_settings(deployment),
        versions={**outcome.versions, **versions},
        emulated=list(deployment.emulated),
        name=deployment.name,
        started_at=outcome.started_at,
        duration_s=round(outcome.duration_s, 3),
        tokens=tokens,
        shared=_shared(outcome, prompts),
        agreement=_agreement(deployment, metrics, outcome),
        expected=_expected(answered),
        answers=_shown(samples),
        remarks=_remarks(deployment, outcome, samples, _answering(deployment, replicas), tokens),
        method=[_clock(deployment, outcome), *METHOD],
    )


def _shared(outcome: Outcome, prompts: str) -> Shared:
    def rounded(share: float | None) -> float | None:
        return None if share is None else round(share, 4)

    found = engine_metrics.cached(outcome.pages_before, outcome.pages_after)
    return Shared(prompts=rounded(outcome.shared_prompts), of=outcome.shared_of, cached=rounded(found), traffic=prompts)


def _agreement(deployment: Deployment, metrics: Mapping[Metric, Latency], outcome: Outcome) -> list[Agreement]:
    """The client's numbers beside those of the engines that answer it.

    Where prefill stands apart, no engine sees a whole request: decode's own times begin when the prompt is read.
    """
    names = {process.name for role in deployment.answering for process in role.processes}
    whole = deployment.answering == deployment.engines
    both: Mapping[Metric, Latency] = metrics if whole else {"itl_ms": metrics["itl_ms"]}
    after = {name: text for name, text in outcome.pages_after.items() if name in names}
    return engine_metrics.compare(both, outcome.pages_before, after)


def _answering(deployment: Deployment, replicas: Sequence[Replica]) -> list[Replica]:
    names = {process.name for role in deployment.answering for process in role.processes}
    return [one for one in replicas if one.name in names]


def latencies(answered: Sequence[Sample]) -> dict[Metric, list[float]]:
    """Every latency in milliseconds; inter-token latency once for each token after its answer's first."""
    return {
        "ttft_ms": [sample.ttft_ms for sample in answered if sample.ttft_ms is not None],
        "itl_ms": [gap.ms for sample in answered for gap in sample.gaps for _ in range(gap.tokens)],
        "e2e_ms": [sample.e2e_ms for sample in answered if sample.e2e_ms is not None],
    }


def _throughput(answered: Sequence[Sample], duration_s: float) -> Throughput:
    if duration_s <= 0:
        return Throughput(requests_per_s=0.0, output_tokens_per_s=0.0)
    made = sum(sample.output_tokens or 0 for sample in answered)
    return Throughput(
        requests_per_s=round(len(answered) / duration_s, 3), output_tokens_per_s=round(made / duration_s, 3)
    )


def _tokens(answered: Sequence[Sample]) -> Tokens:
    def mean(counts: list[int]) -> float | None:
        return round(sum(counts) / len(counts), 1) if counts else None

    def exact(pairs: list[tuple[int | None, int | None]]) -> float | None:
        known = [(asked, had) for asked, had in pairs if asked is not None and had is not None]
        return sum(asked == had for asked, had in known) / len(known) if known else None

    return Tokens(
        input_mean=mean([sample.input_tokens for sample in answered if sample.input_tokens is not None]),
        output_mean=mean([sample.output_tokens for sample in answered if sample.output_tokens is not None]),
        input_exact=exact([(sample.asked_input, sample.input_tokens) for sample in answered]),
        output_exact=exact([(sample.asked_output, sample.output_tokens) for sample in answered]),
    )


def _settings(deployment: Deployment) -> dict[str, Any]:
    plain = deployment.model_dump(
        mode="json",
        include={"pattern", "target", "fleet", "engine", "url", "traffic", "slo"},
        exclude_none=True,
    )
    first = deployment.models[0]
    if deployment.traffic.arrivals is None:
        plain["traffic"].pop("process")  # it spaces arrivals, and there are none
    roles = {role.name: len(role.processes) for role in deployment.engines}
    return {
        **plain,
        "model": first.model,
        "served_model": first.name,
        **({"models": list(deployment.names)} if len(deployment.names) > 1 else {}),
        "context": first.context,
        "replicas": len(deployment.replicas),
        **({"roles": roles} if len(roles) > 1 else {}),
    }


def _expected(answered: Sequence[Sample]) -> Expected | None:
    known = [same for sample in answered if (same := _same(sample)) is not None]
    return Expected(compared=len(known), same=sum(known)) if known else None


def _same(sample: Sample) -> bool | None:
    """Whether the answer is the expected one, white space aside; None where none was given."""
    return None if sample.expected is None else sample.text.split() == sample.expected.split()


def _shown(samples: Sequence[Sample]) -> list[Shown]:
    """In the order of sending: the first answers whose text was kept, and the first failure of each kind."""
    shown: list[Shown] = []
    failures: set[str] = set()
    for sample in sorted(samples, key=lambda one: one.number):
        if sample.error in failures or not (sample.error or sample.prompt) or len(shown) >= SHOWN_MOST:
            continue
        if sample.error:
            failures.add(sample.error)
        shown.append(
            Shown(
                prompt=sample.prompt,
                actual=sample.text,
                expected=sample.expected,
                same=_same(sample),
                error=sample.error,
                detail=sample.detail,
            )
        )
    return shown


def _clock(deployment: Deployment, outcome: Outcome) -> str:
    start = "it was sent" if deployment.traffic.arrivals is None else "it was due, whenever it was sent (open loop)"
    end = "the kernel took in the bytes" if outcome.kernel_times else "the driver read the bytes"
    return f"A request's times run from when {start}, connecting included, to when {end}."


def _remarks(
    deployment: Deployment, outcome: Outcome, samples: Sequence[Sample], replicas: Sequence[Replica], tokens: Tokens
) -> list[str]:
    """What a reader should know before trusting the numbers."""
    said = []
    if len(samples) < outcome.planned:
        limit = deployment.traffic.time_limit
        said.append(
            f"{len(samples)} of {outcome.planned} requests were sent: the time limit of {limit:g} s came first."
        )
    if outcome.cpu_share > BUSY:
        said.append(f"The load driver used {outcome.cpu_share:.0%} of a core: part of the times may be its own.")
    late = statistics.latency([sample.late_ms for sample in samples])
    if late.p99 is not None and late.p99 > LATE_MS:
        said.append(
            f"Requests went out up to {late.p99:.0f} ms (p99) after they were due; their times hold that delay."
        )
    if tokens.input_exact is not None and tokens.input_exact < 1:
        said.append(f"{1 - tokens.input_exact:.0%} of the prompts have another length than was drawn for them.")
    if tokens.output_exact is not None and tokens.output_exact < 1:
        said.append(f"{1 - tokens.output_exact:.0%} of the answers have another length than was asked for.")
    if any(sample.input_tokens is None for sample in samples if sample.error is None):
        said.append("The server reports no usage: output tokens are counted by events.")
    if outcome.warm_up_failed:
        said.append(f"{outcome.warm_up_failed} of {outcome.warm_up_sent} warm-up requests failed (not counted).")
    return said + _replica_remarks(samples, replicas)


def _replica_remarks(samples: Sequence[Sample], replicas: Sequence[Replica]) -> list[str]:
    said = [
        f"{one.name} restarted during the load: it counts only what came after." for one in replicas if one.restarted
    ]
    said += [f"The metrics of {one.name} could not be read after the load." for one in replicas if one.requests is None]
    said += [f"{one.name} answered no request." for one in replicas if one.requests == 0]
    counted = sum(one.requests or 0 for one in replicas)
    answered = sum(sample.error is None for sample in samples)
    if replicas and not said and counted != answered:
        said.append(f"The replicas count {counted} answered requests, the client {answered}.")
    return said


def error_kinds(report: Report) -> list[tuple[str, int, str]]:
    """Each kind of failure with its count and what it means."""
    return [(kind, count, _meaning(kind)) for kind, count in report.requests.by_error.items()]


def _meaning(kind: str) -> str:
    if kind.startswith("http_"):
        return f"the server answered with status {kind.removeprefix('http_')}"
    return answer.KINDS.get(kind, "what the user class calls it")
