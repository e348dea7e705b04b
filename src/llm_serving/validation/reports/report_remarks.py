"""The remarks of a report: caveats of its numbers, in the words of a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_serving.services import tasks
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import PromptOverlap, Tokens
from llm_serving.validation.statistics import sample_statistics, soundness
from llm_serving.validation.statistics.engine_metrics import Replica

BUSY_CPU_SHARE = 0.8
"""Share of a core above which the driver itself may limit the load."""

LATE_MS = 20.0
"""99th percentile of the driver's delay above which the report has a remark."""

REFUSED = "http_429"
"""Error of a sample whose request was one too many."""

MIN_SHARE = 0.005
"""Smallest share that is not shown as 0%."""

MIN_TOGETHER = 0.5
"""Share of tokens that came at once with the one before, from which the median inter-token latency is 0."""

MIN_SHARED_TEXT = 0.1
"""Share of prompts' text above which an empty cache is worth a remark: chat templates alone make up a few percent."""


def build(measured: Measured, tokens: Tokens, overlap: PromptOverlap, replicas: Sequence[Replica]) -> list[str]:
    """Return the remarks of a validation, in the order in which the report shows them."""
    target, result, samples = measured.target, measured.result, measured.samples
    return [
        *_describe_load(target, result, samples),
        *_describe_driver(target.traffic, result, samples),
        *_describe_prompts(target, result, samples, tokens),
        *_build_latency_remarks(target.traffic, target.slo, samples, measured.unmeasured),
        *_build_cache_remarks(target, overlap, tokens),
        *_build_replica_remarks(samples, replicas),
        *target.remarks,
    ]


def _describe_load(target: LoadTarget, result: DriverResult, samples: Sequence[Sample]) -> Iterator[str]:
    traffic = target.traffic
    if traffic.users is not None:
        yield (
            f"Closed loop of {traffic.users} users: a service that stops gets no more requests meanwhile, so that few "
            "see it; arrivals in traffic shows what clients would."
        )
    if len(samples) < result.planned:
        limit = traffic.time_limit
        sessions = "; a session ends with a failed request" if traffic.turns.max > 1 else ""
        yield f"{len(samples)} of {result.planned} requests were sent before the time limit of {limit:g} s{sessions}."
    if target.admitted and (refused := sum(sample.error == REFUSED for sample in samples)):
        yield (
            f"{refused} requests got 429: max_requests admits {target.admitted} at once. Fix: set users or "
            f"max_concurrency of traffic to {target.admitted} or less, or a higher max_requests."
        )


def _describe_driver(traffic: Traffic, result: DriverResult, samples: Sequence[Sample]) -> Iterator[str]:
    busiest = max((process.cpu_share for process in result.processes), default=0.0)
    if busiest > BUSY_CPU_SHARE:
        yield f"The load driver used {busiest:.0%} of a core: latencies may include its own delays."
    lateness = sample_statistics.summarize_latency([sample.late_ms for sample in samples])
    if lateness.p99 is not None and lateness.p99 > LATE_MS:
        yield (
            f"Requests were sent up to {lateness.p99:.0f} ms (p99) after they were due; their times include that delay."
        )
    waits = sample_statistics.summarize_latency([sample.waited_ms for sample in samples])
    if waits.p99 is not None and waits.p99 > LATE_MS:
        yield (
            f"Requests waited up to {waits.p99:.0f} ms (p99) for one of the {traffic.max_concurrency} requests at once "
            "to end; their times include that wait."
        )


def _describe_prompts(
    target: LoadTarget, result: DriverResult, samples: Sequence[Sample], tokens: Tokens
) -> Iterator[str]:
    """Yield how prompts and answers differ from those that were asked for, or were not counted."""
    traffic = target.traffic
    if traffic.data is not None and result.shared_prompt_count < len(samples):
        yield (
            f"{traffic.data} has {result.shared_prompt_count} prompts, fewer than the {len(samples)} requests: they "
            "were sent again, when engines may have had them in their caches."
        )
    if traffic.images and result.picture_tokens:
        size = f"{traffic.images.width} x {traffic.images.height}"
        yield f"A picture of {size} is {result.picture_tokens} of the input tokens, by the server's usage."
    for name, exact in (("prompts", tokens.input_exact), ("answers", tokens.output_exact)):
        if exact is not None and exact < 1:
            yield f"{1 - exact:.0%} of the {name} have another length than requested."
    if target.task != tasks.DRAW and any(sample.input_tokens is None for sample in samples if sample.error is None):
        counted = "latencies are not shown by length" if target.pooled else "events are counted as output tokens"
        yield f"The server reports no usage: {counted}."
    if result.warm_up_failed:
        yield f"{result.warm_up_failed} of {result.warm_up_sent} warm-up requests failed (not counted)."


def _build_latency_remarks(
    traffic: Traffic, slo: Slo, samples: Sequence[Sample], unmeasured: Mapping[str, str]
) -> Iterator[str]:
    """Yield what no limit catches: latencies that grow far within theirs, streams held back, stalls without a limit."""
    for growth in soundness.find_growth(traffic, samples):
        if not growth.threatens(slo):
            yield f"{growth.describe()}: a longer load shows where that ends."
    gaps = [gap for sample in samples for gap in sample.gaps]
    together, tokens = (sum(gap.tokens for gap in part) for part in ([gap for gap in gaps if gap.ms == 0], gaps))
    if together > MIN_TOGETHER * tokens:
        yield (
            f"{together / tokens:.0%} of the tokens came at once with the one before: the server, or a proxy that "
            "holds streams back, sends many together."
        )
    if slo.stall is None and "stall" not in unmeasured:
        stalls = soundness.describe_stalls(samples, traffic.deadline)
        if stalls:
            yield stalls


def _build_cache_remarks(target: LoadTarget, overlap: PromptOverlap, tokens: Tokens) -> list[str]:
    """Explain why the engines found nothing in their caches although prompts share text."""
    if overlap.cached is None or overlap.cached >= MIN_SHARE or (overlap.prompts or 0) < MIN_SHARED_TEXT:
        return []
    block = target.kv_block
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
    answered = sum(sample.inputs for sample in samples if sample.error is None)  # engines count texts
    if replicas and not remarks and counted != answered:
        remarks.append(f"The replicas count {counted} answered requests, the client counts {answered}.")
    return remarks
