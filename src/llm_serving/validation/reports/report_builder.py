"""Build the report of one validation from what its driver measured. No input or output."""

from __future__ import annotations

import importlib.metadata
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.catalog import frameworks
from llm_serving.catalog.engines import Engine
from llm_serving.services import tasks
from llm_serving.services.traffic import Traffic
from llm_serving.settings import own_yaml
from llm_serving.validation.base import LoadSource
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.reports import report_remarks
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import (
    Bound,
    ExpectedAnswers,
    Goodput,
    InputLength,
    ModelLoad,
    PromptOverlap,
    Report,
    Requests,
    ShareBounds,
    ShownAnswer,
    Throughput,
    Tokens,
    compute_judged_rates,
)
from llm_serving.validation.statistics import (
    distribution,
    engine_metrics,
    further_latencies,
    gate,
    load_cost,
    sample_statistics,
    scoring,
    soundness,
    time_series,
    unlike_workers,
)
from llm_serving.validation.statistics.distribution import Distribution, Estimate
from llm_serving.validation.statistics.engine_metrics import Agreement, EngineMetrics, KvTransfers, Replica
from llm_serving.validation.statistics.gate import MissedObjective
from llm_serving.validation.statistics.sample_statistics import METRICS, Latency, Metric
from llm_serving.validation.statistics.time_series import Steady
from llm_serving.validation.statistics.unlike_workers import UnlikeWorkers

MAX_SHOWN = 200
"""Answers in a report; requests.jsonl has all of them."""

METHOD_FILE = Path(__file__).with_name("method.yaml")


def build(measured: Measured) -> Report:
    target, samples, answered = measured.target, measured.samples, measured.answered
    readings = _read_engines(measured)
    numbers = _compute_numbers(measured, readings)
    judgement = _judge(measured, numbers)
    is_kept = judgement["verdict"] == "pass"
    lasting_per_s = _compute_lasting_rate(target.traffic, samples, numbers.steady, numbers.throughput, is_kept=is_kept)
    return Report(
        **judgement,
        **_describe_run(measured),
        not_measured=measured.unmeasured,
        cost=load_cost.estimate(target.price, answered, lasting_per_s),
        driver=measured.result.processes,
        longest_stall_s=round(numbers.stall_s, 3),
        requests=_count_requests(samples, measured.result.planned),
        metrics=numbers.metrics,
        further={
            name: Latency(count=0) if name in measured.unmeasured else latency
            for name, latency in further_latencies.summarize(answered).items()
        },
        throughput=numbers.throughput,
        by_input=_group_by_input(answered) if target.pooled else [],
        by_model=_group_by_model(measured),
        steady=numbers.steady,
        replicas=readings.replicas,
        unlike_workers=numbers.unlike,
        routers=_count_router_requests(measured),
        tokens=numbers.tokens,
        shared=numbers.overlap,
        kv_transfers=_summarize_transfers(target, readings, numbers.metrics),
        agreement=_compare_metrics(target, readings, numbers.metrics),
        expected=_compare_expected(target.traffic, samples),
        answers=_select_shown(samples),
        remarks=_list_remarks(measured, numbers, readings),
        method=_list_method(measured),
    )


def _describe_run(measured: Measured) -> dict[str, Any]:
    """Return the fields that say what ran, when, and with which settings."""
    target, result, driver = measured.target, measured.result, measured.driver
    return {
        "name": target.name,
        "started_at": result.started_at,
        "duration_s": round(result.duration_s, 3),
        "settings": _collect_settings(target) | ({"driver": driver.name} if driver else {}),
        "weights": target.weights,
        "images": target.images,
        "emulated": list(target.emulated),
        "versions": {
            **result.versions,
            "blueprint": importlib.metadata.version("llm-serving-blueprints"),
            **target.versions,
        },
    }


class _Numbers(NamedTuple):
    """What is computed from a load once, for its verdict, its tables and its remarks."""

    metrics: dict[Metric, Latency]
    throughput: Throughput
    steady: Steady | None
    tokens: Tokens
    overlap: PromptOverlap
    stall_s: float
    unlike: list[UnlikeWorkers]


def _compute_numbers(measured: Measured, readings: _EngineReadings) -> _Numbers:
    target, result, samples, answered = measured.target, measured.result, measured.samples, measured.answered
    return _Numbers(
        metrics=_summarize_metrics(target, answered, measured.unmeasured),
        throughput=_compute_throughput(answered, result.duration_s, pooled=bool(target.pooled)),
        steady=time_series.compute_steady_rates(samples, target.traffic.users or 0, result.ramp_s),
        tokens=_count_tokens(answered),
        overlap=_measure_overlap(measured, readings),
        stall_s=soundness.find_longest_stall(samples, target.traffic.deadline),
        unlike=_summarize_unlike(target, readings),
    )


def _list_remarks(measured: Measured, numbers: _Numbers, readings: _EngineReadings) -> list[str]:
    target, driver, source = measured.target, measured.driver, measured.source
    answering_replicas = [replica for replica in readings.replicas if replica.name in readings.answering]
    return [
        *([source.described] if source and source.is_limit else []),
        *measured.notes,
        *([f"The answers were not scored: {measured.unscored}."] if measured.unscored else []),
        *(driver.list_notes(target.traffic) if driver else ()),
        *unlike_workers.list_unclear(numbers.unlike),
        *report_remarks.build(measured, numbers.tokens, numbers.overlap, answering_replicas),
    ]


def _list_method(measured: Measured) -> list[str]:
    target, source = measured.target, measured.source
    answers = "pictures" if target.task == tasks.DRAW else "numbers" if target.pooled else "tokens"
    return [
        *([source.described] if source and not source.is_limit else []),
        _describe_clock(measured),
        *own_yaml.read(METHOD_FILE)[answers],
    ]


class _EngineReadings(NamedTuple):
    """The engines' metrics before the load and after it, by replica."""

    engine: Engine | None
    before: Mapping[str, EngineMetrics]
    after: Mapping[str, EngineMetrics]
    replicas: list[Replica]
    """With the requests that each counts; none where the engine counts none."""

    roles: Mapping[str, str]
    """Role of each replica, by name."""

    answering: AbstractSet[str]
    """Names of the replicas whose answers clients get: with prefill and decode apart, decode's."""


def _read_engines(measured: Measured) -> _EngineReadings:
    target, result = measured.target, measured.result
    if not target.engine:
        return _EngineReadings(None, {}, {}, [], {}, set())
    engine = frameworks.get_engine(target.engine, target.framework)
    before, after = (engine_metrics.parse_pages(p, engine) for p in (result.metrics_before, result.metrics_after))
    roles = _list_replica_roles(target, measured.source)
    unanswered = engine.finish_reasons.unanswered
    counts_requests = bool(result.metrics_after) and "finished" in engine.metrics
    replicas = engine_metrics.count_replica_requests(roles, before, after, unanswered) if counts_requests else []
    answering_roles = {role.name for role in target.roles if role.answers}
    answering = {name for name, role in roles.items() if role in answering_roles}
    return _EngineReadings(engine, before, after, replicas, roles, answering)


def _summarize_metrics(
    target: LoadTarget, answered: Sequence[Sample], unmeasured: Mapping[str, str]
) -> dict[Metric, Latency]:
    metrics, latencies = {}, collect_latencies(answered)
    for metric in list_metrics(target):
        names = {name.partition(".")[2] for name in unmeasured if name.startswith(f"{metric}.")}
        left_out = dict.fromkeys([*names, *(("min", "max") if names else ())])
        metrics[metric] = sample_statistics.summarize_latency(latencies[metric]).model_copy(update=left_out)
    return metrics


def _judge(measured: Measured, numbers: _Numbers) -> dict[str, Any]:
    """Return the report's verdict, and what it rests on.

    A driver that was starved may have missed the SLO by itself: then only a latency counts that it cannot explain.
    """
    target, result, samples = measured.target, measured.result, measured.samples
    slo, distributions = target.slo, distribution.collect(samples)
    goodput = gate.count_goodput(slo, samples, result.duration_s)
    failed = len(samples) - len(measured.answered)
    outcome = gate.Outcome(
        distributions,
        goodput,
        failed,
        compute_judged_rates(numbers.throughput, numbers.steady, target.traffic.users),
        numbers.stall_s,
        scoring.compute_mean(samples),
        measured.unmeasured,
        soundness.find_rate_doubt(target.traffic, samples, numbers.steady),
    )
    missed, unshown = gate.judge(slo, outcome)
    missed += unlike_workers.list_missed(numbers.unlike, slo.errors)
    driver_doubts = soundness.find_driver_doubts(slo, result, samples)
    lasting = soundness.find_lasting_doubts(
        target.traffic, result, samples, shared=numbers.overlap.prompts, cached=numbers.overlap.cached
    )
    doubts = soundness.find_doubts(target.traffic, slo, result, samples)
    not_shown = [*(doubt.reason for doubt in driver_doubts), *lasting, *doubts, *unshown]
    delay_ms = max((doubt.delay_ms for doubt in driver_doubts), default=0.0)
    fails = any(not driver_doubts or _is_missed_without_driver(miss, delay_ms) for miss in missed)
    return {
        "verdict": "fail" if fails else "not shown" if missed or not_shown else "pass",
        "missed": missed,
        "not_shown": not_shown,
        "shown_by_no_load": lasting,
        "goodput": Goodput(share=goodput.share, requests_per_s=goodput.requests_per_s),
        "share_bounds": _build_share_bounds({"errors": failed, "goodput": goodput.good}, len(samples)),
        "bounds": {
            metric: _build_bounds(metric, distributions[metric], measured.unmeasured) for metric in list_metrics(target)
        },
    }


def _build_share_bounds(counts: Mapping[str, int], total: int) -> dict[str, ShareBounds]:
    if not total:
        return {}
    bounds = {name: sample_statistics.compute_share_bounds(count, total) for name, count in counts.items()}
    return {
        name: ShareBounds(value=round(counts[name] / total, 5), lower=round(lower, 5), upper=round(upper, 5))
        for name, (lower, upper) in bounds.items()
    }


def _is_missed_without_driver(miss: MissedObjective, delay_ms: float) -> bool:
    """Return whether a latency is over its limit by more than the driver may have added to it."""
    is_latency = miss.metric.partition(".")[0] in METRICS
    return is_latency and miss.value is not None and miss.value - delay_ms > miss.limit


def _build_bounds(metric: Metric, latencies: Distribution, unmeasured: Mapping[str, str]) -> dict[str, Bound]:
    """Build each statistic with its bound, without values for those that the driver does not measure."""
    bounds = {}
    for name in (*sample_statistics.PERCENTILES, distribution.MEAN):
        is_measured = f"{metric}.{name}" not in unmeasured
        estimate = latencies.estimate(name) if is_measured else Estimate(None, None)
        value, upper = (None if part is None or math.isinf(part) else round(part, 3) for part in estimate)
        bounds[name] = Bound(value=value, upper=upper, infinite=value is None and estimate.value is not None)
    return bounds


def _count_requests(samples: Sequence[Sample], planned: int) -> Requests:
    by_error = Counter(sample.error for sample in samples if sample.error)
    return Requests(total=len(samples), failed=by_error.total(), by_error=dict(by_error.most_common()), planned=planned)


def _list_replica_roles(target: LoadTarget, source: LoadSource | None) -> dict[str, str]:
    """Return the role of each replica by its name: the target's own where it names them, else the process's."""
    names = {role.name for role in target.roles}
    if source and source.pages:
        return {page.name: page.role for page in source.pages if page.role in names}
    return {name: role.name for role in target.roles for name in role.instances}


def _count_router_requests(measured: Measured) -> dict[str, int]:
    target, result, source = measured.target, measured.result, measured.source
    counts = dict[str, int]()
    for page in source.pages if source and target.router_requests else ():
        if page.role == target.router:
            pages = (result.metrics_after.get(page.name, ""), result.metrics_before.get(page.name, ""))
            after, before = (engine_metrics.count_requests(text, target.router_requests) for text in pages)
            counts[page.name] = int(after if after < before else after - before)  # it restarted in between
    return counts


def _summarize_unlike(target: LoadTarget, readings: _EngineReadings) -> list[UnlikeWorkers]:
    """Return what each role of a model on unlike accelerators did; nothing where engines count no requests."""
    roles = [role for role in target.roles if role.accelerators]
    if not roles or not readings.replicas:
        return []
    measures_requests = not (target.pooled and target.traffic.inputs.max > 1)  # else single texts
    return unlike_workers.summarize(
        {role: [name for name, its_role in readings.roles.items() if its_role == role.name] for role in roles},
        readings.replicas,
        readings.before,
        readings.after,
        list_metrics(target) if measures_requests else (),
        target.slo,
    )


def _measure_overlap(measured: Measured, readings: _EngineReadings) -> PromptOverlap:
    result, cached_share = measured.result, engine_metrics.compute_cached_share(readings.before, readings.after)
    prompts, cached = (None if share is None else round(share, 4) for share in (result.shared_prompts, cached_share))
    return PromptOverlap(prompts=prompts, of=result.shared_prompt_count, cached=cached, traffic=measured.prompts_digest)


def _summarize_transfers(
    target: LoadTarget, readings: _EngineReadings, metrics: Mapping[Metric, Latency]
) -> KvTransfers | None:
    before, after, engine = readings.before, readings.after, readings.engine
    if not (target.hands_over and after and engine and "transfer-time" in engine.metrics):
        return None
    prefilling = after.keys() - readings.answering
    return engine_metrics.summarize_transfers(metrics["ttft_ms"].mean, before, after, prefilling)


def _compare_metrics(
    target: LoadTarget, readings: _EngineReadings, metrics: Mapping[Metric, Latency]
) -> list[Agreement]:
    """Compare the client's numbers with those of the engines that answer it.

    With prefill and decode apart no engine sees a whole request: decode's own times begin after prefill.
    """
    if target.pooled and target.traffic.inputs.max > 1:
        return []  # the engine's times are of single texts
    comparable: Mapping[Metric, Latency] = {"itl_ms": metrics["itl_ms"]} if target.hands_over else metrics
    after = {name: page for name, page in readings.after.items() if name in readings.answering}
    return engine_metrics.compare(comparable, readings.before, after)


def collect_latencies(answered: Sequence[Sample]) -> dict[Metric, list[float]]:
    """Return every latency in milliseconds; inter-token latency once for each token after its answer's first."""
    return {
        "ttft_ms": [sample.ttft_ms for sample in answered if sample.ttft_ms is not None],
        "itl_ms": [gap.ms for sample in answered for gap in sample.gaps for _ in range(gap.tokens)],
        "e2e_ms": [sample.e2e_ms for sample in answered if sample.e2e_ms is not None],
    }


def list_metrics(target: LoadTarget) -> tuple[Metric, ...]:
    return ("e2e_ms",) if target.pooled else METRICS


def _compute_throughput(answered: Sequence[Sample], duration_s: float, *, pooled: bool) -> Throughput:
    def compute_rate(count: int) -> float:
        return round(count / duration_s, 3) if duration_s > 0 else 0.0

    return Throughput(
        requests_per_s=compute_rate(len(answered)),
        output_tokens_per_s=compute_rate(sum(sample.output_tokens or 0 for sample in answered)),
        inputs_per_s=compute_rate(sum(sample.inputs for sample in answered)) if pooled else None,
    )


def _compute_lasting_rate(
    traffic: Traffic, samples: Sequence[Sample], steady: Steady | None, throughput: Throughput, *, is_kept: bool
) -> float:
    """Return at how many requests a second the load would be answered if it went on: without ramp and end.

    Args:
        is_kept: whether the SLO is: then arrivals are answered at the rate at which they come.
    """
    if traffic.is_open_loop and (is_kept or soundness.has_kept_up(samples)):
        answered = sum(sample.error is None for sample in samples) / len(samples)
        last_start = max(sample.start_s for sample in samples)
        return answered * (traffic.arrivals or (len(samples) - 1) / max(last_start, 0.001))
    return steady.requests_per_s if steady and steady.requests_per_s else throughput.requests_per_s


INPUT_GROUPS = 4
"""Groups of as many requests by the length of their input."""


def _group_by_input(answered: Sequence[Sample]) -> list[InputLength]:
    """Return the latency by the length of the input; requests of one length stay together."""
    measured = sorted(
        (sample.input_tokens, sample.e2e_ms)
        for sample in answered
        if sample.input_tokens is not None and sample.e2e_ms is not None
    )
    groups: dict[int, list[tuple[int, float]]] = {}
    first_indexes: dict[int, int] = {}
    for index, (tokens, e2e_ms) in enumerate(measured):
        first = first_indexes.setdefault(tokens, index)
        groups.setdefault(first * INPUT_GROUPS // len(measured), []).append((tokens, e2e_ms))
    rows = []
    for group in groups.values():
        latency = sample_statistics.summarize_latency([e2e_ms for _, e2e_ms in group])
        (shortest, _), (longest, _) = group[0], group[-1]
        p50, p95 = latency.p50 or 0.0, latency.p95 or 0.0
        rows.append(InputLength(from_tokens=shortest, to_tokens=longest, requests=len(group), p50=p50, p95=p95))
    return rows


def _group_by_model(measured: Measured) -> list[ModelLoad]:
    target, duration_s = measured.target, measured.result.duration_s
    groups: dict[str, list[Sample]] = {}
    for sample in sorted(measured.samples, key=lambda sample: sample.number):
        groups.setdefault(sample.model or target.models[0], []).append(sample)
    loads = []
    for model, group in groups.items():
        answered = [sample for sample in group if sample.error is None]
        loads.append(
            ModelLoad(
                model=model,
                requests=len(group),
                failed=len(group) - len(answered),
                metrics=_summarize_metrics(target, answered, measured.unmeasured),
                throughput=_compute_throughput(answered, duration_s, pooled=bool(target.pooled)),
            )
        )
    return loads if len(loads) > 1 else []


def _count_tokens(answered: Sequence[Sample]) -> Tokens:
    def compute_mean(counts: list[int]) -> float | None:
        return round(sum(counts) / len(counts), 1) if counts else None

    def compute_exact_share(pairs: list[tuple[int | None, int | None]]) -> float | None:
        counted = [(requested, actual) for requested, actual in pairs if requested is not None and actual is not None]
        return sum(requested == actual for requested, actual in counted) / len(counted) if counted else None

    return Tokens(
        input_mean=compute_mean([sample.input_tokens for sample in answered if sample.input_tokens is not None]),
        output_mean=compute_mean([sample.output_tokens for sample in answered if sample.output_tokens is not None]),
        input_exact=compute_exact_share([(sample.asked_input, sample.input_tokens) for sample in answered]),
        output_exact=compute_exact_share([(sample.asked_output, sample.output_tokens) for sample in answered]),
    )


def _collect_settings(target: LoadTarget) -> dict[str, Any]:
    traffic = target.traffic
    settings = traffic.model_dump(mode="json", exclude_none=True)
    unused = [
        *(("process", "burstiness") if traffic.arrivals is None else ()),  # only arrivals have them
        *(() if traffic.replays_times else ("trace_speed",)),
        *(("score_by",) if traffic.data is None else ()),
        *(("turns",) if traffic.turns.max == 1 else ()),
        *(("output_tokens", "api") if target.pooled else ("inputs",)),
        *(("input_tokens", "inputs", "shared_prefix", "prefix_groups") if target.task == tasks.DRAW else ()),
    ]
    for key in unused:
        settings.pop(key)
    slo = target.slo.model_dump(mode="json", exclude_none=True)
    return {"target": target.target, "url": target.url, **target.settings, "traffic": settings, "slo": slo}


def _compare_expected(traffic: Traffic, samples: Sequence[Sample]) -> ExpectedAnswers | None:
    matches = [_is_expected(sample) for sample in samples if sample.error is None and sample.expected is not None]
    mean = scoring.compute_mean(samples)
    if not matches and mean is None:
        return None
    return ExpectedAnswers(compared=len(matches), same=matches.count(True), score_by=traffic.score_by, score=mean)


def _is_expected(sample: Sample) -> bool | None:
    """Return whether the answer is the expected one; None if none was given."""
    return None if sample.expected is None else scoring.is_same(sample.text, sample.expected)


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
                score=sample.score,
                error=sample.error,
                detail=sample.detail,
            )
        )
    return shown


def _describe_clock(measured: Measured) -> str:
    if driver := measured.driver:
        return f"A request's times run from when {driver.clock}, to when it read the bytes, as {driver.title} says."
    start = "it was due (open loop)" if measured.target.traffic.is_open_loop else "it was sent"
    end = "the kernel received the bytes" if measured.result.kernel_times else "the driver read the bytes"
    return f"A request's times run from when {start}, including connecting, to when {end}."
