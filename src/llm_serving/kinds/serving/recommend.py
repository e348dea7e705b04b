"""Find the cheapest deployment for a model, a traffic and an SLO, and write it as a blueprint; no network, no AWS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from llm_serving.catalog import instances, models, quotas, step_times
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.fleet.aws_limits import MIN_EKS_ZONES
from llm_serving.kinds.serving import blueprint as blueprints
from llm_serving.kinds.serving import measured_loads, predicted_load
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.measured_loads import Evidence
from llm_serving.prediction import search, step_time
from llm_serving.prediction.problem import Candidate, Limit, Problem, Result
from llm_serving.prediction.workload import Length, Workload
from llm_serving.services import inputs
from llm_serving.services.traffic import Traffic
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, quote_value
from llm_serving.settings.units import Bounds
from llm_serving.validation.load import trace

DEFAULT_REGION = "us-west-2"
"""That of the default fleet."""

MIN_TRACE = 100
"""Requests of a trace below which a 95th percentile is that of five."""

MAX_TRACE = 20_000
MAX_RATE = 1_000_000
"""Requests a second, the most that `arrivals` of a blueprint may be."""

LENGTHS = 2000
"""Requests drawn once; each simulated replica takes them from another place on."""

POOL = "recommended"


@dataclass(frozen=True)
class Question:
    """What was asked on the command line; None for what the blueprint or a default says."""

    folder: Path | None = None
    model: str | None = None
    arrivals: float | None = None
    input_tokens: Bounds | None = None
    output_tokens: Bounds | None = None
    shared_prefix: int | None = None
    ttft_p95: float | None = None
    itl_p95: float | None = None
    trace: Path | None = None
    types: Sequence[str] = ()
    region: str | None = None
    fleet: Path | None = None
    buy: str = "on-demand"
    max_usd_h: float | None = None
    top: int = 3


@dataclass(frozen=True)
class Answer:
    """What was found, with what it follows from."""

    model: Model
    region: str
    buy: str
    prices_dated: str
    traffic: dict[str, Any]
    limits: Sequence[Limit]
    context: int
    result: Result
    top: int
    notes: Sequence[str]


def recommend(question: Question) -> Answer:
    """Return the cheapest deployments for what was asked.

    Raises:
        InputError: something is missing, contradicts itself, or is not simulated.
    """
    document = blueprints.read(question.folder) if question.folder else None
    settings = document.value if document else None
    if document:
        _require_simulated(document)
    name, model = _require_model(question, settings)
    limits = list_limits(question, settings)
    workload, traffic = build_workload(question, document)
    parsed = Traffic.model_validate(traffic)
    longest = parsed.input_tokens.max + parsed.output_tokens.max
    context = max(longest, settings.context if settings else 0)
    if longest > model.max_context:
        reason = f"a request has up to {longest} tokens, more than the context of {model.name}, {model.max_context}"
        raise InputError(f"--output-tokens: {reason}. Fix: use shorter requests or another model.")
    region, rows = list_types(question)
    dates = [row.prices[region].source.date for row, _ in rows]
    evidence = measured_loads.collect(document, name, model, rows, traffic) if document else Evidence()
    problem = Problem(
        model,
        workload,
        limits,
        rows,
        question.max_usd_h or math.inf,
        question.top,
        context=context,
        measured=evidence.measured,
        calibrations=evidence.calibrations,
    )
    result = search.search(problem)
    notes = [*_list_notes(question, settings, result), *evidence.notes]
    return Answer(model, region, question.buy, min(dates), traffic, limits, context, result, question.top, notes)


def _require_model(question: Question, settings: Blueprint | None) -> tuple[str, Model]:
    """Return the model, and its name as it was written."""
    name = question.model or (settings.model if settings else None)
    if not name:
        raise InputError("--model: it is missing. Fix: write --model Qwen/Qwen3-32B, or name a blueprint's folder.")
    model = models.find(name)
    step_time.require_predicted("--model", name, model)
    return name, model


def _require_simulated(document: Document[Blueprint]) -> None:
    value = document.value
    traffic, worker = value.traffic, value.roles.worker
    refused = {
        ("task",): value.is_pooled and "answers without tokens are not simulated",
        ("traffic", "images"): traffic.images is not None and "pictures are not simulated",
        ("traffic", "turns"): traffic.turns.max > 1 and "sessions are not simulated",
        ("roles", "worker", "adapters"): bool(worker and worker.adapters) and "adapters are not simulated",
        ("roles", "models"): bool(value.roles.models) and "several models are not simulated",
        ("roles", "workers"): bool(value.roles.workers) and "replicas on unlike accelerators are not simulated",
        ("tuning", "speculative"): value.tuning.speculative is not None and "speculative decoding is not simulated",
    }
    for key_path, reason in refused.items():
        if reason:
            name = ".".join(key_path)
            raise InputError(f"{document.path}: {name}: {reason}. Fix: measure with blueprint sweep, or remove {name}.")


def list_limits(question: Question, settings: Blueprint | None) -> list[Limit]:
    """Return the limits of latency; those of the command line replace the blueprint's of the same metric.

    Raises:
        InputError: there is none.
    """
    question_limits = {"ttft_ms": question.ttft_p95, "itl_ms": question.itl_p95, "e2e_ms": None}
    limits = [Limit(metric, "p95", ms) for metric, ms in question_limits.items() if ms is not None]
    blueprint_limits = predicted_load.list_limits(settings.slo) if settings else []
    limits += [limit for limit in blueprint_limits if question_limits[limit.metric] is None]
    if not limits:
        raise InputError("--ttft-p95: there is no limit of latency. Fix: write --ttft-p95 800 --itl-p95 50.")
    return limits


def build_workload(question: Question, document: Document[Blueprint] | None) -> tuple[Workload, dict[str, Any]]:
    """Return the requests, and the traffic as a blueprint has it.

    Raises:
        InputError: arrivals or lengths are missing, or a trace is too short.
    """
    traffic = document.value.traffic if document else None
    trace_file = question.trace
    if trace_file is None and document and document.value.traffic.trace:
        trace_file = document.path.parent / document.value.traffic.trace
    if trace_file:
        return _build_from_trace(trace_file, question, traffic)
    rate = question.arrivals or (traffic.arrivals if traffic else None)
    if rate is None:
        reason = "a closed loop of users is not simulated" if traffic else "it is missing"
        raise InputError(f"--arrivals: {reason}. Fix: write --arrivals 10/s.")
    lengths = _require_lengths(question, traffic)
    base: dict[str, Any] = {"arrivals": _format_rate(rate)}
    for name, value in lengths.items():
        base[name] = str(value) if isinstance(value, tuple) else value.model_dump(mode="json")
    drawn = (traffic or Traffic.model_validate(base)).model_copy(update={"arrivals": rate, **lengths})
    rows = predicted_load.draw_lengths(drawn, LENGTHS)
    shared = question.shared_prefix
    if shared is not None:
        if shared > (shortest := min(row.input_tokens for row in rows)):
            reason = f"the shortest prompt has {shortest} tokens"
            raise InputError(f"--shared-prefix: {shared}: {reason}. Fix: use {shortest} or less.")
        base["shared_prefix"] = f"{100 * shared / (sum(row.input_tokens for row in rows) / len(rows)):.0f}%"
        rows = [row._replace(shared_tokens=shared) for row in rows]
    elif drawn.shared_prefix:
        base |= {"shared_prefix": f"{100 * drawn.shared_prefix:g}%", "prefix_groups": drawn.prefix_groups}
    burstiness = math.inf if drawn.process == "constant" else drawn.burstiness
    return Workload(rate, rows, burstiness=burstiness), base


def _require_lengths(question: Question, traffic: Traffic | None) -> dict[str, Any]:
    """Return the lengths of prompts and answers, as `traffic` of a blueprint names them."""
    lengths = {
        "input_tokens": question.input_tokens or (traffic.input_tokens if traffic else None),
        "output_tokens": question.output_tokens or (traffic.output_tokens if traffic else None),
    }
    for name, value in lengths.items():
        if value is None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: it is missing. Fix: write {option} 100..300.")
    return lengths


def _build_from_trace(path: Path, question: Question, traffic: Traffic | None) -> tuple[Workload, dict[str, Any]]:
    rows = trace.read(path, MAX_TRACE, is_sorted=True)
    if len(rows) < MIN_TRACE:
        reason = f"it has {len(rows)} requests with tokens, fewer than {MIN_TRACE}"
        raise InputError(f"--trace: {quote_value(path)}: {reason}. Fix: use a longer trace.")
    seen_blocks: set[int] = set()
    lengths = []
    for row in rows:
        common = sum(1 for _ in itertools.takewhile(seen_blocks.__contains__, row.blocks))
        seen_blocks.update(row.blocks)
        shared = min(common * trace.BLOCK_TOKENS, row.input_tokens)
        lengths.append(Length(row.input_tokens, row.output_tokens, row.blocks[0] if row.blocks else 0, shared))
    speed = traffic.trace_speed if traffic else 1.0
    span_s = rows[-1].at_s / speed
    if len(rows) - 1 > MAX_RATE * span_s:
        reason = f"its requests come at more than {MAX_RATE:,}/s"
        raise InputError(f"--trace: {quote_value(path)}: {reason}. Fix: use a trace with the times of its requests.")
    rate = question.arrivals or (len(rows) - 1) / span_s
    stretch = (len(rows) - 1) / rate / span_s / speed
    times = [row.at_s * stretch for row in rows]
    bounds = {}
    for name in ("input_tokens", "output_tokens"):
        counts = [getattr(row, name) for row in rows]
        bounds[name] = str(Bounds(min(counts), max(counts)))
    return Workload(rate, lengths, times), {"arrivals": _format_rate(rate, 4), **bounds}


def _format_rate(rate: float, digits: int = 10) -> str:
    """Format requests a second as a blueprint has them, without an exponent."""
    return f"{Decimal(f'{rate:.{digits}g}'):f}/s"


def list_types(question: Question) -> tuple[str, list[tuple[Instance, float]]]:
    """Return the region and the types that may be rented, with their prices.

    Raises:
        InputError: the region has no prices, a type is unknown or has none, or the fleet rents none of them.
    """
    fleet = inputs.read_fleet(question.fleet).value if question.fleet else None
    region = question.region or (fleet.region if fleet else DEFAULT_REGION)
    priced = _require_priced(region)
    for name in question.types:
        if name not in priced:
            row = instances.find(name)
            reason = f"it has no price in {region}" if row.accelerators else "it has no accelerators"
            raise InputError(f"--type: {quote_value(name)}: {reason}. Fix: use another type or region.")
    rented = {name for pool in fleet.pools.values() for name in pool.types} if fleet else set(priced)
    type_names = rented.intersection(question.types or priced)
    instance_rows = [row for name, row in priced.items() if name in type_names]
    if question.buy == "spot":
        instance_rows = [row for row in instance_rows if "spot" in row.purchase]
    if not instance_rows:
        subject = (
            f"--fleet: {quote_value(question.fleet)}: it rents none of the types" if fleet else "--type: none is left"
        )
        raise InputError(f"{subject}. Fix: use another fleet, --type or --buy.")
    return region, [(row, row.prices[region].usd_h) for row in instance_rows]


def _require_priced(region: str) -> dict[str, Instance]:
    """Return the types with accelerators that have a price in the region, by name."""
    accelerated = [row for row in instances.load().values() if row.accelerators]
    priced = {row.name: row for row in accelerated if region in row.prices}
    if not priced:
        regions = sorted({name for row in accelerated for name in row.prices})
        reason = "the catalog has no prices of it"
        raise InputError(f"--region: {quote_value(region)}: {reason}. Fix: use {' or '.join(regions)}.")
    return priced


def _list_notes(question: Question, settings: Blueprint | None, result: Result) -> Iterator[str]:
    times, engine = step_times.load(), measured_loads.ENGINE
    yield f"step times: {times.source}, {times.date}; {times.engines}"
    if settings and settings.engine != engine:
        yield f"memory, steps and what --write writes are those of {engine}, not of {settings.engine}"
    if question.buy == "spot":
        yield "the catalog has no spot prices: these are on-demand prices, which spot stays below"
    if any(candidate.basis == "extrapolated" for candidate in result.candidates):
        yield "extrapolated: no measurement of this accelerator was fitted; its interval is that of others left out"
    if question.trace:
        yield "prompts of the trace share what an earlier prompt began with, as long as the cache keeps it"


def describe_quota(candidate: Candidate, buy: str) -> str:
    """Return the quota that a deployment needs, in words."""
    instance = candidate.configuration.instance
    family = quotas.find_family(instance.name)
    quota = family.spot if buy == "spot" else family.on_demand
    vcpus = candidate.nodes * instance.vcpus
    return f"{quota.code} {quota.name}: {vcpus} vCPUs"


def build_payload(answer: Answer) -> dict[str, Any]:
    """Return the answer as `--json` shows it."""
    candidates = [build_candidate(candidate) for candidate in answer.result.candidates[: answer.top]]
    closest = answer.result.closest
    return {
        "model": answer.model.name,
        "region": answer.region,
        "prices_dated": answer.prices_dated,
        "slo": _build_slo(answer.limits),
        "chosen": candidates[0] if candidates else None,
        "candidates": candidates,
        **({"closest": build_candidate(closest)} if closest else {}),
        "rejected": [row._asdict() for row in answer.result.rejected],
        "notes": list(answer.notes),
    }


def _build_slo(limits: Sequence[Limit]) -> dict[str, dict[str, float]]:
    slo: dict[str, dict[str, float]] = {}
    for limit in limits:
        slo.setdefault(limit.metric, {})[limit.statistic] = limit.ms
    return slo


def build_candidate(candidate: Candidate) -> dict[str, Any]:
    """Return a deployment as `--json` shows it."""
    own = candidate.configuration
    return {
        "instance": own.instance.name,
        "pattern": choose_pattern(candidate),
        "nodes": candidate.nodes,
        "roles": [
            {
                "name": name,
                "tensor": own.split.tensor,
                "pipeline": own.split.pipeline,
                "expert": own.split.expert_ranks if own.split.whole_experts else 1,
                "replicas": replicas,
            }
            for name, replicas in count_replicas(candidate).items()
        ],
        "tuning": build_tuning(candidate),
        "usd_per_hour": round(candidate.usd_h, 4),
        "usd_per_million_output_tokens": round(candidate.usd_per_million_output_tokens, 4),
        "predicted": {
            metric: {name: round(value, 1) for name, value in latency._asdict().items()}
            for metric, latency in candidate.predicted.items()
        },
        "basis": candidate.basis,
        "limited_by": candidate.limited_by,
        "why": describe(candidate),
    }


def explain(answer: Answer, name: str) -> str:
    """Return in a line why a type is chosen, dearer, or out.

    Raises:
        InputError: the type was not considered.
    """
    candidate = next((row for row in answer.result.candidates if row.configuration.instance.name == name), None)
    if candidate:
        return f"{name}: {candidate.usd_h:,.2f} USD/h: {describe(candidate)}"
    rejected = next((row for row in answer.result.rejected if row.instance == name), None)
    if rejected:
        return f"{name}: {rejected.reason}"
    raise InputError(f"--explain: {quote_value(name)}: it was not considered. Fix: use a type with a price there.")


def count_replicas(candidate: Candidate) -> dict[str, int]:
    if candidate.configuration.is_disaggregated:
        return {"prefill": candidate.prefill_replicas, "decode": candidate.replicas}
    return {"worker": candidate.replicas}


def choose_pattern(candidate: Candidate) -> str:
    """Return the pattern that such a deployment is a copy of."""
    if candidate.configuration.is_disaggregated:
        return "disaggregated"
    return "distributed" if candidate.configuration.split.pipeline > 1 else "aggregated"


def build_tuning(candidate: Candidate) -> dict[str, Any]:
    """Return the settings of the engine that differ from its own."""
    own = candidate.configuration
    settings = {
        "quantization": "fp8" if own.precision == "fp8" else None,
        "kv_cache": own.kv_type if own.kv_type != "auto" else None,
        "batch_tokens": own.batch_tokens,
    }
    return {name: value for name, value in settings.items() if value is not None}


LIMITS_IN_WORDS = {
    "memory": "the KV cache is full",
    "ttft": "the time to first token is nearest to its limit",
    "itl": "the time between tokens is nearest to its limit",
    "e2e": "the time of a whole request is nearest to its limit",
}


def describe(candidate: Candidate) -> str:
    ranks, counts = candidate.configuration.split.ranks, count_replicas(candidate)
    total = sum(counts.values())
    words = " and ".join(f"{count} {name}" for name, count in counts.items()) if len(counts) > 1 else str(total)
    copies = candidate.configuration.split.data
    options = {**({"copies of the attention layers": copies} if copies > 1 else {}), **build_tuning(candidate)}
    settings = ", ".join(f"{name} {value}" for name, value in options.items()) or "the engine's defaults"
    return (
        f"{words} replica{'s' if total > 1 else ''} of {ranks} accelerator{'s' if ranks > 1 else ''}, {settings}; "
        f"{LIMITS_IN_WORDS[candidate.limited_by]}; {_describe_basis(candidate)}"
    )


def _describe_basis(candidate: Candidate) -> str:
    """Return what the numbers rest on, with the interval of the metric that is nearest to its limit."""
    metric = f"{candidate.limited_by}_ms"
    metric = metric if metric in candidate.predicted else "ttft_ms"
    nearest, name = candidate.predicted[metric], metric.removesuffix("_ms").upper()
    source = f" ({candidate.source})" if candidate.source else ""
    return f"{candidate.basis}{source}: {name} p95 of {nearest.low:,.0f} to {nearest.high:,.0f} ms"


def write(answer: Answer, folder: Path) -> None:
    """Write the chosen deployment as a blueprint with a fleet that rents it; the pattern's files are there already."""
    candidate = answer.result.candidates[0]
    own = candidate.configuration
    role = {
        "pool": POOL,
        "accelerators": own.split.ranks,
        **({"pipeline": own.split.pipeline} if own.split.pipeline > 1 else {}),
        **({"expert": True} if own.split.whole_experts else {}),
        **({"data": own.split.data} if own.split.data > 1 else {}),
    }
    blueprint = {
        "pattern": choose_pattern(candidate),
        "model": answer.model.name,
        "context": answer.context,
        "roles": {name: {**role, "replicas": replicas} for name, replicas in count_replicas(candidate).items()},
        **({"tuning": build_tuning(candidate)} if build_tuning(candidate) else {}),
        "traffic": answer.traffic,
        "slo": _build_slo(answer.limits),
    }
    zones = own.instance.zones.get(answer.region, ())
    pool: dict[str, Any] = {"types": own.instance.name, "buy": answer.buy, "size": f"0..{candidate.nodes}"}
    pool |= {"zones": zones[0]} if len(zones) == 1 else {}
    if zones and (own.is_disaggregated or own.split.pipeline > 1):
        pool |= {"efa": True, "zones": zones[0]}
    fleet = {
        "name": folder.name,
        "region": answer.region,
        "zones": _add_zones(zones, answer.region),
        "orchestrator": "eks",
        "pools": {POOL: pool},
        **({"add_ons": {"schedulers": True}} if own.split.pipeline > 1 else {}),
    }
    title = f"# Written by `blueprint recommend`: {describe(candidate)}.\n"
    (folder / "blueprint.yaml").write_text(title + yaml.safe_dump(blueprint, sort_keys=False), encoding="utf-8")
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet, sort_keys=False), encoding="utf-8")


def _add_zones(zones: Sequence[str], region: str) -> list[str]:
    """Return the zones of a type, with others of the region where a cluster takes more."""
    others = {zone for row in instances.load().values() for zone in row.zones.get(region, ())}.difference(zones)
    return sorted((*zones, *sorted(others)[: max(0, MIN_EKS_ZONES - len(zones))]))
