"""What a blueprint's own reports say for `recommend`: sweeps stand for themselves, a low load and a burst calibrate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving import paths
from llm_serving.catalog import instances, step_times
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import vllm
from llm_serving.engines.memory import Fit, Split
from llm_serving.kinds.serving import predicted_load
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.prediction import configurations
from llm_serving.prediction.calibration import BURST, Load, calibrate
from llm_serving.prediction.problem import Calibrations, Configuration, Measured, MeasuredPoint, Metrics
from llm_serving.prediction.simulation import Limits, Outcome, Request, Simulation, Step, compute_percentile, run_users
from llm_serving.prediction.step_time import StepTime, apply_precision, has_facts
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.runs import REPORT_FILE, SWEEP_FOLDER
from llm_serving.services.traffic import Traffic
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Document
from llm_serving.settings.errors import BlueprintError
from llm_serving.validation.load import load_plan

MAX_REPORTS = 200
"""Reports that are read, from the newest on."""

MAX_REQUESTS = 400
"""Simulated of a load that calibrates."""

_SHAPE = ("input_tokens", "output_tokens", "shared_prefix", "prefix_groups", "process", "burstiness")
_NOT_SIMULATED = {"think_time", "images", "data", "prompt_file", "trace", "max_concurrency", "turns"}
"""Settings of the traffic; reports leave out what is unset."""

ENGINE: str = Blueprint.model_fields["engine"].default
"""Whose steps are simulated, and which a blueprint that `recommend` writes runs."""

_TUNING = {"quantization", "kv_cache", "batch_tokens"}
"""Settings of the engine that the search chooses too."""


class MeasuredLoad(NamedTuple):
    """One report of `validate` or `sweep`."""

    file: Path
    configuration: Configuration
    traffic: Traffic
    replicas: int
    requests: int
    at_once: float
    """Requests under way in a replica, on average."""
    point: MeasuredPoint


@dataclass(frozen=True)
class Evidence:
    """What the reports say."""

    measured: Sequence[Measured] = ()
    calibrations: Calibrations = field(default_factory=dict)
    notes: Sequence[str] = ()


def collect(
    document: Document[Blueprint],
    name: str,
    model: Model,
    prices: Sequence[tuple[Instance, float]],
    traffic: Mapping[str, Any],
) -> Evidence:
    """Return what the reports of a blueprint, in the folder of its runs, say of a model on types with a price."""
    runs = Path.cwd() / paths.RUNS / resolve_name(document)
    loads = read_all(runs, name, {instance.name: usd_h for instance, usd_h in prices})
    measured = list(_list_sweeps(loads, traffic))
    calibrations, notes = {}, list[str]()
    # One that had room by the engine's own options alone would be simulated without any.
    simulated = [load for load in loads if _compute_fit(load, model).fits]
    for (device, split, precision), of_engine in _group(simulated).items():
        low, burst = (choose(of_engine, key=lambda load: load.at_once) for choose in (min, max))
        if burst.at_once < BURST * max(1.0, low.at_once):
            reason = "these loads identify no batch cost, and do not calibrate"
            notes.append(f"{device} x {split.tensor}: {reason}. Fix: validate with traffic: {{users: 32}} too.")
            continue
        own = apply_precision(model, precision)
        calibrations[device, split, precision] = calibrate(
            step_times.load(), _build_load(low, own), _build_load(burst, own)
        )
        files = " and ".join(str(load.file.parent.relative_to(Path.cwd())) for load in (low, burst))
        notes.append(f"calibrated: {device} x {split.tensor}, {precision}, by {files}")
    return Evidence(measured, calibrations, [*(f"measured: {row.source}" for row in measured), *notes])


def read_all(runs: Path, model: str, usd_h: Mapping[str, float]) -> list[MeasuredLoad]:
    """Return the loads of a model that can be simulated, the newest first; broken reports are left out.

    Args:
        usd_h: prices by type; loads of other types are left out too.
    """
    files = [*runs.glob(f"[0-9]*/{REPORT_FILE}"), *runs.glob(f"{SWEEP_FOLDER}*/*/*/{REPORT_FILE}")]
    newest = sorted(files, key=lambda file: str(file.relative_to(runs)).removeprefix(SWEEP_FOLDER), reverse=True)
    return [load for file in newest[:MAX_REPORTS] if (load := _read(file, model, usd_h))]


def _read(file: Path, model: str, usd_h: Mapping[str, float]) -> MeasuredLoad | None:
    try:
        report = untrusted_json.read(file, infinite=True)
        settings, tuning = report["settings"], report["settings"].get("tuning", {})
        traffic = Traffic.model_validate(settings["traffic"])
        (role,) = settings["instances"].values()
        is_known = settings["model"] == model and settings["engine"] == ENGINE and set(tuning) <= _TUNING
        is_simulated = not (report["requests"]["failed"] or _NOT_SIMULATED & set(settings["traffic"]))
        precision = tuning.get("quantization") or "bf16"
        is_one_node = role["pipeline"] * role["data"] == 1
        if not (is_known and is_simulated and is_one_node and precision in ("bf16", "fp8")):
            return None
        instance = instances.find(role["type"])
        if not (instance.accelerators and has_facts(instance.accelerators)):
            return None
        configuration = Configuration(
            instance,
            usd_h[instance.name],
            Split(role["tensor"], whole_experts=role["expert"]),
            precision,
            tuning.get("kv_cache", "auto"),
            tuning.get("batch_tokens"),
        )
        replicas, metrics = int(role["replicas"]), report["metrics"]
        upper = {
            metric: {name: _read_upper(bound) for name, bound in bounds.items()}
            for metric, bounds in report["bounds"].items()
        }
        at_once = report["throughput"]["requests_per_s"] * metrics["e2e_ms"]["mean"] / 1000 / replicas
        rate = traffic.arrivals / replicas if traffic.arrivals and not report["not_shown"] else 0.0
        point = MeasuredPoint(rate, metrics, upper)
        requests = int(report["requests"]["total"])
        return MeasuredLoad(file, configuration, traffic, replicas, requests, at_once, point)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BlueprintError):
        return None


def _read_upper(bound: Mapping[str, Any]) -> float:
    """Return a statistic's upper bound; the statistic itself where the load is too short for one."""
    value = math.inf if bound["infinite"] else bound["upper"] or bound["value"]
    return float(value)


def _list_sweeps(loads: Iterable[MeasuredLoad], traffic: Mapping[str, Any]) -> Iterator[Measured]:
    """Yield the newest sweep of each configuration with such traffic."""
    wanted, seen = _describe_shape(Traffic.model_validate(dict(traffic))), list[Configuration]()
    alike = (load for load in loads if load.point.rate and _describe_shape(load.traffic) == wanted)
    for folder, of_folder in itertools.groupby(alike, key=lambda load: load.file.parents[2]):
        swept = sorted(of_folder, key=lambda load: load.point.rate)
        configuration = swept[0].configuration
        if folder.name.startswith(SWEEP_FOLDER) and configuration not in seen:
            seen.append(configuration)
            points = tuple(load.point for load in swept)
            yield Measured(configuration, points, str(folder.relative_to(Path.cwd())))


def _describe_shape(traffic: Traffic) -> dict[str, Any]:
    return traffic.model_dump(mode="json", include=set(_SHAPE))


def _group(loads: Iterable[MeasuredLoad]) -> dict[tuple[str, Split, str], list[MeasuredLoad]]:
    groups: dict[tuple[str, Split, str], list[MeasuredLoad]] = {}
    for load in loads:
        own = load.configuration
        assert own.instance.accelerators
        key = (step_times.build_key(own.instance.accelerators), own.split, own.precision)
        groups.setdefault(key, []).append(load)
    return groups


def _compute_fit(load: MeasuredLoad, model: Model) -> Fit:
    own, traffic = load.configuration, load.traffic
    context = traffic.input_tokens.max + traffic.output_tokens.max
    served = apply_precision(model, own.precision)
    return configurations.compute_fit(served, own.instance, own.split, context, own.kv_type)


def _build_load(load: MeasuredLoad, model: Model) -> Load:
    own, device = load.configuration, load.configuration.instance.accelerators
    assert device
    step, batch = StepTime(model, device, own.split, own.kv_type), vllm.select_batch(device)
    limits = Limits(batch.sequences, own.batch_tokens or batch.tokens, _compute_fit(load, model).cache_tokens)
    count = max(1, min(MAX_REQUESTS, load.requests // load.replicas))
    return build_load(step, limits, load.traffic, load.point.metrics, count, load.replicas)


def build_load(
    step: StepTime, limits: Limits, traffic: Traffic, metrics: Metrics, count: int, replicas: int = 1
) -> Load:
    """Return what was measured of a traffic, with its simulation on one of the replicas."""

    def predict(times: step_times.StepTimes) -> tuple[float, float]:
        step.use(times)
        outcome = simulate(step, limits, traffic, count, replicas)
        return compute_percentile(outcome.ttft_s, 95), math.fsum(outcome.e2e_s) / len(outcome.e2e_s)

    return Load(metrics["ttft_ms"]["p95"] / 1000, metrics["e2e_ms"]["mean"] / 1000, predict)


def simulate(step: Step, limits: Limits, traffic: Traffic, count: int, replicas: int = 1) -> Outcome:
    """Return what becomes of so many requests of a traffic, sent as `validate` does, on one of its replicas."""
    sent = traffic.model_copy(update={"requests": count * replicas})
    lengths = predicted_load.draw_lengths(sent, sent.requests)[::replicas]
    if traffic.users:
        requests, users = [Request(0.0, *length) for length in lengths], math.ceil(traffic.users / replicas)
        return run_users(lambda: Simulation(step, limits), requests, users, math.ceil(traffic.warm_up / replicas))
    due = (load_plan.draw_arrivals(sent) or [])[::replicas]
    return Simulation(step, limits).run([Request(at_s, *length) for at_s, length in zip(due, lengths, strict=False)])
