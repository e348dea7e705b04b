"""Holds the prediction of an engine on this machine, calibrated by a low load and a burst, against a sweep of it.

    .venv/bin/python -m scripts.check_local_prediction      # skipped where others use more than 8% of a core
    .venv/bin/python -m scripts.check_local_prediction 50   # than 50%

Prints each load with its predicted and its measured latency, and the knee; exits 1 if the latencies differ by more than
10% in the median, or the knee by more than 15%.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import psutil
import yaml

from llm_serving import paths
from llm_serving.catalog import models, step_times
from llm_serving.catalog.instances import Accelerators
from llm_serving.cli import main as command_line
from llm_serving.engines import vllm
from llm_serving.engines.memory import Split
from llm_serving.kinds.serving import measured_loads
from llm_serving.prediction import search
from llm_serving.prediction.calibration import Load, calibrate
from llm_serving.prediction.problem import Limit, Metrics
from llm_serving.prediction.simulation import Limits, Outcome, compute_percentile
from llm_serving.prediction.step_time import StepTime
from llm_serving.services.traffic import Traffic
from llm_serving.targets import registry
from llm_serving.validation import base, run
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.search import sweep as sweeps
from llm_serving.validation.search.knee import Sweep
from llm_serving.validation.statistics.sample_statistics import compute_upper_bound

MAX_OTHERS = 8.0
"""Percent of a core."""

MODEL, INPUT, OUTPUT = "tiny", "200..300", "30..50"
SLOWDOWN = 3.0
"""The SLO that the knee is of: times as long as the low load took."""

LOWEST = "0.5/s"
"""First load of the sweep."""

POINT_S = 20.0
"""Of each load of the sweep, at least."""

PROCESSOR = Accelerators(
    kind="gpu", name="CPU", count=1, memory_mib=1024, bandwidth_gb_s=20, dense_tflops={"bf16": 0.2}
)
"""Where the calibration starts from: it scales all of it."""


def main(arguments: Sequence[str]) -> int:
    """Measure, calibrate and sweep; return the exit code."""
    allowed = float(arguments[0]) if arguments else MAX_OTHERS
    others = sum(psutil.cpu_percent(10, percpu=True))  # of all processes, while this one sleeps for ten seconds
    if others > allowed:
        print(f"skipped: other processes use {others:.0f}% of a core, more than {allowed:g}%")
        return 0
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        shutil.copytree(paths.PATTERNS / "aggregated", "mine")
        shutil.copy(paths.ROOT / "fleet.yaml", "fleet.yaml")
        write_blueprint()
        try:
            if command_line.run(["deploy", "mine", "--yes"]):
                return 1
            return compare()
        finally:
            command_line.run(["destroy", "mine", "--yes"])


def write_blueprint() -> None:
    """Write one replica of the model, without a prefix that prompts share."""
    blueprint = {
        "pattern": "aggregated", "model": MODEL, "context": "2k",
        "roles": {"worker": {"pool": "general", "replicas": 1, "accelerators": 1}, "router": {"policy": "round-robin"}},
        "traffic": {"arrivals": "1/s", "input_tokens": INPUT, "output_tokens": OUTPUT},
        "slo": {"ttft_ms": {"p95": 9000}},
    }  # fmt: skip
    Path("mine/blueprint.yaml").write_text(yaml.safe_dump(blueprint), encoding="utf-8")


def compare() -> int:
    """Return 0 where knee and latencies are within the goals."""
    target = registry.load_target("local")
    with target.open_validation(Path("mine"), Path("fleet.yaml"), None) as opened:
        load_target = base.load_validator(opened.deployment.kind).build_target(opened.deployment, opened.options.logs)

        step = StepTime(models.find(MODEL), PROCESSOR, Split())

        def measure(**load: object) -> Load:
            traffic = build_traffic(**load)
            measured = run.validate(load_target.model_copy(update={"traffic": traffic}), opened.options)[0]
            metrics: Metrics = {str(metric): latency.model_dump() for metric, latency in measured.metrics.items()}
            return measured_loads.build_load(step, find_limits(), traffic, metrics, traffic.requests)

        low, burst = measure(arrivals="1/s", requests=30), measure(users=32, requests=160)
        step.use(calibrate(step_times.load(), low, burst))
        limit = Limit("e2e_ms", "p95", SLOWDOWN * 1000 * low.e2e_s)
        slo = load_target.slo.model_copy(update={"e2e_ms": load_target.slo.e2e_ms.model_copy(update={"p95": limit.ms})})
        swept = load_target.model_copy(update={"slo": slo, "traffic": build_traffic(arrivals=LOWEST)})
        result, _ = sweeps.sweep(swept, sweeps.Options(point_s=POINT_S), opened.options)
    for name, load in (("low load", low), ("burst", burst)):
        print(f"{name}: E2E mean {1000 * load.e2e_s:.0f} ms, TTFT p95 {1000 * load.ttft_s:.0f} ms measured")
    return report(result, step, limit, swept)


def report(result: Sweep, step: StepTime, limit: Limit, load_target: LoadTarget) -> int:
    """Print what was predicted and measured; return 0 where both are within the goals."""

    def simulate(rate: float, times: int = 1) -> Outcome:
        traffic = sweeps.build_traffic(load_target, "rate", rate, POINT_S, 0.0, times)
        return measured_loads.simulate(step, find_limits(), traffic, traffic.requests)

    def keeps(rate: float) -> bool:
        """Judge as the sweep does: the estimate misses, or its bound keeps, if need be of a longer load."""
        for times in (1, sweeps.LONGER):
            outcome = simulate(rate, times)
            if search.compute_statistic(outcome, limit) > limit.ms:
                return False
            bound_s = compute_upper_bound(sorted(outcome.e2e_s), 0.95)
            if bound_s is not None and 1000 * bound_s <= limit.ms:
                return True
        return False

    predicted = find_knee(keeps)
    loads = [point for point in result.points if point.kept and point.e2e_p50_ms]
    errors = []
    for point in loads:
        ms = 1000 * compute_percentile(simulate(point.load).e2e_s, 50)
        errors.append(abs(ms / (point.e2e_p50_ms or math.inf) - 1))
        print(f"{point.load:g}/s: E2E p50 {ms:.0f} ms predicted, {point.e2e_p50_ms:.0f} ms measured")
    if not (result.kept and result.missed and len(loads) >= 4):
        print(f"knee: {predicted:.3g}/s predicted; the sweep found none, or kept fewer than four loads")
        return 1
    knee = math.sqrt(result.kept.load * result.missed.load)
    print(f"knee: {predicted:.3g}/s predicted, {knee:.3g}/s measured; E2E: median error {median(errors):.1%}")
    return int(abs(predicted / knee - 1) > 0.15 or median(errors) > 0.10)


def find_knee(keeps: Callable[[float], bool]) -> float:
    """Return the highest rate that keeps the SLO, by halving."""
    low, high = 0.0, 200.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def build_traffic(**load: object) -> Traffic:
    """Return prompts of the script's lengths under a load."""
    return Traffic.model_validate({"input_tokens": INPUT, "output_tokens": OUTPUT, "warm_up": 5, **load})


def find_limits() -> Limits:
    """Return what bounds a step of vLLM on CPUs."""
    batch = vllm.select_batch(None)
    return Limits(batch.sequences, batch.tokens, 10**6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
