"""The report of one validation: plain data, the same for report.json and for the page. No input or output.

report.json is this model; its JSON Schema is published beside this file as report.schema.json.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llm_serving.catalog import engines
from llm_serving.catalog.engines import Engine
from llm_serving.validation import answer, engine_metrics, gate, statistics
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult
from llm_serving.validation.engine_metrics import Agreement, EngineMetrics, Replica
from llm_serving.validation.gate import MissedObjective
from llm_serving.validation.statistics import Latency, Metric
from llm_serving.workloads.serving.deployment import Deployment

BUSY_CPU_SHARE = 0.8
"""Share of a core above which the driver itself may limit the load."""

LATE_MS = 20.0
"""99th percentile of the driver's delay above which the report has a remark."""

MIN_SHARE = 0.005
"""Smallest share that is not shown as 0%."""

MIN_SHARED_TEXT = 0.1
"""Share of prompts' text above which an empty cache is worth a remark: chat templates alone make up a few percent."""

MAX_SHOWN = 200
"""Answers in a report; requests.jsonl has all of them."""

METHOD = (
    "Latencies are of answered requests; failed ones count in the error rate.",
    "Time to first token ends at the first event with content or whose usage counts a token.",
    "Inter-token latency is the gap between two events with tokens, divided by the tokens of the later one.",
    "End-to-end latency ends at the last byte of the stream.",
    "Tokens are the server's own count, from its usage.",
    "Percentiles interpolate linearly between the two closest ranks (numpy's default).",
    "Throughput is of answered requests, from the start of the first counted request to the end of the last.",
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Requests(_Part):
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


class Throughput(_Part):
    """Rates of answered requests."""

    requests_per_s: float
    """Answered requests per second."""

    output_tokens_per_s: float
    """Generated tokens per second, from the server's usage."""


class Tokens(_Part):
    """Tokens of the answered requests, from the server's usage; null if it reports none."""

    input_mean: float | None
    """Mean length of a prompt, including the chat template."""

    output_mean: float | None
    """Mean length of an answer."""

    input_exact: float | None
    """Share of prompts with exactly the requested length; null for the user's own prompts."""

    output_exact: float | None
    """Share of answers with exactly the requested length; null for the user's own prompts."""


class PromptOverlap(_Part):
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


class WeightLoading(_Part):
    """How the engine loaded its weights, from its own log."""

    source: str
    """Location of the weights."""

    bytes: int | None
    """Bytes that one replica read; null if not in its log."""

    seconds: float | None
    """Seconds that the slowest replica took; null if not in its log."""

    random: bool
    """Whether they are random numbers."""


class ShownAnswer(_Part):
    """One answer and the expected one."""

    prompt: str
    actual: str
    expected: str | None
    """Null if none was given."""

    same: bool | None
    """Whether they are equal except for white space; null if none was given."""

    error: str | None
    """The kind of failure, if it failed."""

    detail: str


class ExpectedAnswers(_Part):
    """Number of answers as expected."""

    compared: int
    """Answered requests with an expected answer."""

    same: int
    """Of them, those equal except for white space."""


class Report(_Part):
    """One validation of a deployment against its SLO."""

    verdict: Literal["pass", "fail"]
    """`pass` if every objective of the SLO is met."""

    missed: list[MissedObjective]
    """Objectives that were missed."""

    requests: Requests
    metrics: dict[Metric, Latency]
    """Latencies of answered requests in milliseconds; inter-token latency of all their tokens but the first."""

    throughput: Throughput
    replicas: list[Replica]
    weights: WeightLoading
    settings: dict[str, Any]
    """Deployment, load and SLO."""

    versions: dict[str, str]
    emulated: list[str]
    """Parts that were emulated, a sentence each."""

    name: str
    """The deployment."""

    started_at: str
    """Start of the counted load, UTC, ISO 8601."""

    duration_s: float
    """From the start of the first counted request to the end of the last."""

    tokens: Tokens
    shared: PromptOverlap

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


def build_schema() -> dict[str, Any]:
    """Return the JSON Schema of report.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Report.model_json_schema(mode="serialization")}


def render_schema() -> str:
    """Return the published schema file."""
    return json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"


def build(
    deployment: Deployment,
    result: DriverResult,
    samples: Sequence[Sample],
    weights: WeightLoading,
    versions: Mapping[str, str],
    prompts_digest: str = "",
) -> Report:
    """Build the report from the driver's result; `prompts_digest` is of the settings that decide the prompts."""
    answered = [sample for sample in samples if sample.error is None]
    metrics = {metric: statistics.summarize_latency(values) for metric, values in collect_latencies(answered).items()}
    throughput = _compute_throughput(answered, result.duration_s)
    missed = _find_missed(deployment, samples, metrics, throughput)
    engine = engines.load_engines()[deployment.engine]
    before, after = (engine_metrics.parse_pages(p, engine) for p in (result.metrics_before, result.metrics_after))
    replicas = _count_replicas(deployment, engine, before, after) if result.metrics_after else []
    tokens = _count_tokens(answered)
    overlap = _measure_overlap(result, engine_metrics.compute_cached_share(before, after), prompts_digest)
    return Report(
        verdict="fail" if missed else "pass",
        missed=missed,
        requests=_count_requests(samples, result.planned),
        metrics=metrics,
        throughput=throughput,
        replicas=replicas,
        weights=weights,
        settings=_collect_settings(deployment),
        versions={**result.versions, **versions},
        emulated=list(deployment.emulated),
        name=deployment.name,
        started_at=result.started_at,
        duration_s=round(result.duration_s, 3),
        tokens=tokens,
        shared=overlap,
        agreement=_compare_metrics(deployment, metrics, before, after),
        expected=_compare_expected(answered),
        answers=_select_shown(samples),
        remarks=_build_remarks(deployment, result, samples, tokens, overlap, replicas),
        method=[_describe_clock(deployment, result), *METHOD],
    )


def _find_missed(
    deployment: Deployment, samples: Sequence[Sample], metrics: Mapping[Metric, Latency], throughput: Throughput
) -> list[MissedObjective]:
    failed = sum(sample.error is not None for sample in samples)
    return gate.find_missed_objectives(deployment.slo, metrics, len(samples), failed, throughput.model_dump())


def _count_requests(samples: Sequence[Sample], planned: int) -> Requests:
    by_error = Counter(sample.error for sample in samples if sample.error)
    return Requests(total=len(samples), failed=by_error.total(), by_error=dict(by_error.most_common()), planned=planned)


def _count_replicas(
    deployment: Deployment, engine: Engine, before: Mapping[str, EngineMetrics], after: Mapping[str, EngineMetrics]
) -> list[Replica]:
    names = [process.name for process in deployment.engine_processes]
    return engine_metrics.count_replica_requests(names, before, after, engine.finish_reasons.unanswered)


def _measure_overlap(result: DriverResult, cached_share: float | None, prompts_digest: str) -> PromptOverlap:
    def round_share(share: float | None) -> float | None:
        return None if share is None else round(share, 4)

    return PromptOverlap(
        prompts=round_share(result.shared_prompts),
        of=result.shared_prompt_count,
        cached=round_share(cached_share),
        traffic=prompts_digest,
    )


def _compare_metrics(
    deployment: Deployment,
    metrics: Mapping[Metric, Latency],
    before: Mapping[str, EngineMetrics],
    after: Mapping[str, EngineMetrics],
) -> list[Agreement]:
    """Compare the client's numbers with those of the engines that answer it.

    With prefill and decode apart no engine sees a whole request: decode's own times begin after prefill.
    """
    names = {process.name for role in deployment.answering_roles for process in role.instances}
    sees_all = deployment.answering_roles == deployment.engine_roles
    comparable: Mapping[Metric, Latency] = metrics if sees_all else {"itl_ms": metrics["itl_ms"]}
    answering = {name: parsed for name, parsed in after.items() if name in names}
    return engine_metrics.compare(comparable, before, answering)


def _select_answering(deployment: Deployment, replicas: Sequence[Replica]) -> list[Replica]:
    names = {process.name for role in deployment.answering_roles for process in role.instances}
    return [replica for replica in replicas if replica.name in names]


def collect_latencies(answered: Sequence[Sample]) -> dict[Metric, list[float]]:
    """Return every latency in milliseconds; inter-token latency once for each token after its answer's first."""
    return {
        "ttft_ms": [sample.ttft_ms for sample in answered if sample.ttft_ms is not None],
        "itl_ms": [gap.ms for sample in answered for gap in sample.gaps for _ in range(gap.tokens)],
        "e2e_ms": [sample.e2e_ms for sample in answered if sample.e2e_ms is not None],
    }


def _compute_throughput(answered: Sequence[Sample], duration_s: float) -> Throughput:
    if duration_s <= 0:
        return Throughput(requests_per_s=0.0, output_tokens_per_s=0.0)
    output_tokens = sum(sample.output_tokens or 0 for sample in answered)
    return Throughput(
        requests_per_s=round(len(answered) / duration_s, 3), output_tokens_per_s=round(output_tokens / duration_s, 3)
    )


def _count_tokens(answered: Sequence[Sample]) -> Tokens:
    def compute_mean(counts: list[int]) -> float | None:
        return round(sum(counts) / len(counts), 1) if counts else None

    def compute_exact_share(pairs: list[tuple[int | None, int | None]]) -> float | None:
        known = [(requested, actual) for requested, actual in pairs if requested is not None and actual is not None]
        return sum(requested == actual for requested, actual in known) / len(known) if known else None

    return Tokens(
        input_mean=compute_mean([sample.input_tokens for sample in answered if sample.input_tokens is not None]),
        output_mean=compute_mean([sample.output_tokens for sample in answered if sample.output_tokens is not None]),
        input_exact=compute_exact_share([(sample.asked_input, sample.input_tokens) for sample in answered]),
        output_exact=compute_exact_share([(sample.asked_output, sample.output_tokens) for sample in answered]),
    )


def _collect_settings(deployment: Deployment) -> dict[str, Any]:
    settings = deployment.model_dump(
        mode="json",
        include={"pattern", "target", "fleet", "engine", "url", "traffic", "slo"},
        exclude_none=True,
    )
    main_model = deployment.served_models[0]
    if deployment.traffic.arrivals is None:
        settings["traffic"].pop("process")  # only arrivals have a process
    roles = {role.name: len(role.instances) for role in deployment.engine_roles}
    return {
        **settings,
        "model": main_model.model,
        "served_model": main_model.name,
        **({"models": list(deployment.model_names)} if len(deployment.model_names) > 1 else {}),
        "context": main_model.context,
        "replicas": len(deployment.engine_processes),
        **({"roles": roles} if len(roles) > 1 else {}),
    }


def _compare_expected(answered: Sequence[Sample]) -> ExpectedAnswers | None:
    matches = [is_same for sample in answered if (is_same := _is_expected(sample)) is not None]
    return ExpectedAnswers(compared=len(matches), same=sum(matches)) if matches else None


def _is_expected(sample: Sample) -> bool | None:
    """Return whether the answer is the expected one except for white space; None if none was given."""
    return None if sample.expected is None else sample.text.split() == sample.expected.split()


def _select_shown(samples: Sequence[Sample]) -> list[ShownAnswer]:
    """Return, in the order of sending, the first answers with text and the first failure of each kind."""
    shown: list[ShownAnswer] = []
    failures: set[str] = set()
    for sample in sorted(samples, key=lambda item: item.number):
        if sample.error in failures or not (sample.error or sample.prompt) or len(shown) >= MAX_SHOWN:
            continue
        if sample.error:
            failures.add(sample.error)
        shown.append(
            ShownAnswer(
                prompt=sample.prompt,
                actual=sample.text,
                expected=sample.expected,
                same=_is_expected(sample),
                error=sample.error,
                detail=sample.detail,
            )
        )
    return shown


def _describe_clock(deployment: Deployment, result: DriverResult) -> str:
    start = "it was sent" if deployment.traffic.arrivals is None else "it was due (open loop)"
    end = "the kernel received the bytes" if result.kernel_times else "the driver read the bytes"
    return f"A request's times run from when {start}, including connecting, to when {end}."


def _build_remarks(
    deployment: Deployment,
    result: DriverResult,
    samples: Sequence[Sample],
    tokens: Tokens,
    overlap: PromptOverlap,
    replicas: Sequence[Replica],
) -> list[str]:
    """Return the caveats of the numbers."""
    return [
        *_build_load_remarks(deployment, result, samples, tokens),
        *_build_cache_remarks(deployment, overlap, tokens),
        *_build_replica_remarks(samples, _select_answering(deployment, replicas)),
    ]


def _build_load_remarks(
    deployment: Deployment, result: DriverResult, samples: Sequence[Sample], tokens: Tokens
) -> list[str]:
    remarks = []
    if len(samples) < result.planned:
        limit = deployment.traffic.time_limit
        remarks.append(f"{len(samples)} of {result.planned} requests were sent before the time limit of {limit:g} s.")
    if result.cpu_share > BUSY_CPU_SHARE:
        remarks.append(f"The load driver used {result.cpu_share:.0%} of a core: latencies may include its own delays.")
    lateness = statistics.summarize_latency([sample.late_ms for sample in samples])
    if lateness.p99 is not None and lateness.p99 > LATE_MS:
        remarks.append(
            f"Requests were sent up to {lateness.p99:.0f} ms (p99) after they were due; their times include that delay."
        )
    if tokens.input_exact is not None and tokens.input_exact < 1:
        remarks.append(f"{1 - tokens.input_exact:.0%} of the prompts have another length than requested.")
    if tokens.output_exact is not None and tokens.output_exact < 1:
        remarks.append(f"{1 - tokens.output_exact:.0%} of the answers have another length than requested.")
    if any(sample.input_tokens is None for sample in samples if sample.error is None):
        remarks.append("The server reports no usage: events are counted as output tokens.")
    if result.warm_up_failed:
        remarks.append(f"{result.warm_up_failed} of {result.warm_up_sent} warm-up requests failed (not counted).")
    return remarks


def _build_cache_remarks(deployment: Deployment, overlap: PromptOverlap, tokens: Tokens) -> list[str]:
    """Explain why the engines found nothing in their caches although prompts share text."""
    if overlap.cached is None or overlap.cached >= MIN_SHARE or (overlap.prompts or 0) < MIN_SHARED_TEXT:
        return []
    block = max(role.kv_block for role in deployment.engine_roles)
    length = tokens.input_mean
    if length is not None and length <= block:
        reason = f"they cache whole blocks of {block} tokens, and a prompt has {length:g} on average"
    else:
        reason = (
            f"they cache whole blocks of {block} tokens, and shared beginnings may be shorter or evicted before reuse"
        )
    return [f"Prompts share {overlap.prompts:.0%} of their text, and engines found 0% in their caches: {reason}."]


def _build_replica_remarks(samples: Sequence[Sample], replicas: Sequence[Replica]) -> list[str]:
    remarks = [
        f"{replica.name} restarted during the load: its count starts there."
        for replica in replicas
        if replica.restarted
    ]
    remarks += [
        f"The metrics of {replica.name} could not be read after the load."
        for replica in replicas
        if replica.requests is None
    ]
    remarks += [f"{replica.name} answered no request." for replica in replicas if replica.requests == 0]
    counted = sum(replica.requests or 0 for replica in replicas)
    answered = sum(sample.error is None for sample in samples)
    if replicas and not remarks and counted != answered:
        remarks.append(f"The replicas count {counted} answered requests, the client counts {answered}.")
    return remarks


def list_error_kinds(report: Report) -> list[tuple[str, int, str]]:
    """Return each kind of failure with its count and description."""
    return [(kind, count, _describe_error(kind)) for kind, count in report.requests.by_error.items()]


def _describe_error(kind: str) -> str:
    if kind.startswith("http_"):
        return f"the server returned status {kind.removeprefix('http_')}"
    return answer.ERROR_KINDS.get(kind, "defined by the user class")
