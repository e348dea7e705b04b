"""Fits the coefficients of a step's time to published measurements, and writes src/llm_serving/catalog/step_times.yaml.

    .venv/bin/python -m scripts.fit_step_times           # writes the file, prints the errors
    .venv/bin/python -m scripts.fit_step_times --check   # prints the errors of the file as it is

Two thirds of the configurations in tests/prediction/data/serving-points.csv are fitted, the others tell the error.
"""

from __future__ import annotations

import csv
import datetime
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from llm_serving.catalog import config_json, instances, models, step_times
from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators
from llm_serving.catalog.models import Model
from llm_serving.catalog.quantizations import FP8_TENSOR, NVFP4
from llm_serving.catalog.step_times import EFFICIENCIES, SECONDS, Coefficients, FittedDevice, Interval, StepTimes
from llm_serving.engines import vllm
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.prediction.calibration import BURST, Load, calibrate
from llm_serving.prediction.simulation import Limits, Outcome, Request, Simulation, compute_percentile
from llm_serving.prediction.step_time import StepTime

DATA = Path(__file__).parents[1] / "tests/prediction/data"
POINTS, MODELS = DATA / "serving-points.csv", DATA / "models.yaml"

Known = Mapping[str, Mapping[str, str]]
"""What MODELS says."""

DEVICES = {
    "A10G": "g5.xlarge",
    "A100-40": "p4d.24xlarge",
    "A100-80": "p4de.24xlarge",
    "B200": "p6-b200.48xlarge",
    "B300": "p6-b300.48xlarge",
    "H100": "p5.48xlarge",
    "H200": "p5en.48xlarge",
    "Inferentia2": "inf2.48xlarge",
    "L4": "g6.xlarge",
    "L40S": "g6e.xlarge",
    "RTX PRO 6000": "g7e.2xlarge",
    "Trainium": "trn1.32xlarge",
    "Trainium2": "trn2.48xlarge",
}
"""Instance type whose accelerator was measured."""


class Shape(NamedTuple):
    """A configuration that was measured under several loads."""

    model: str
    gpu: str
    tensor: int
    precision: str
    engine: str


@dataclass(frozen=True)
class Point:
    """One measurement of a closed loop."""

    number: int
    shape: Shape
    input_tokens: int
    output_tokens: int
    users: int
    tpot_s: float
    step: StepTime

    def build_load(self) -> Load:
        """Return it as what calibrates the time between tokens."""

        def predict(times: StepTimes) -> tuple[float, float]:
            self.step.use(times)
            return 0.0, self.predict_tpot_s()

        return Load(0.0, self.tpot_s, predict)

    def predict_tpot_s(self) -> float:
        """Return the mean time between tokens: a step of all users, and its share of the prompts between."""
        context = self.users * (self.input_tokens + self.output_tokens / 2)
        step_s = self.step.compute_base_s(self.users, self.users) + self.step.compute_cache_s(self.users, context)
        added_tokens = self.users + self.input_tokens
        prompt_s = self.step.compute_base_s(added_tokens, self.users) - self.step.compute_base_s(self.users, self.users)
        prompt_s += self.step.compute_attention_s(self.input_tokens, 0)
        return step_s + (self.users - 1) * prompt_s / self.output_tokens


def main(arguments: Sequence[str]) -> int:
    """Fit and write, or only report; return the exit code."""
    points = read_points()
    fitted = [point for point in points if not is_held_out(point)]
    held_out = [point for point in points if is_held_out(point)]
    if "--check" not in arguments:
        write(fit_all(fitted))
    times = step_times.load()
    print(f"{len(fitted)} points fitted: {describe(list_errors(fitted, times))}")
    print(f"{len(held_out)} held out:   {describe(list_errors(held_out, times))}")
    for gpu in sorted({point.shape.gpu for point in points}):
        of_gpu = [point for point in held_out if point.shape.gpu == gpu]
        print(f"  {gpu}: {len(of_gpu)} held out: {describe(list_errors(of_gpu, times))}")
    return 0


def read_points() -> list[Point]:
    """Return the closed loops of vLLM and of Neuron with known lengths."""
    return [point for row, model_facts in _read_rows() if (point := read_point(row, model_facts))]


def _read_rows() -> list[tuple[Mapping[str, str], Known]]:
    """Return the published measurements, each with what is known of the models."""
    model_facts = yaml.safe_load(MODELS.read_text(encoding="utf-8"))
    with POINTS.open(encoding="utf-8", newline="") as rows:
        return [(row, model_facts) for row in csv.DictReader(rows)]


def read_point(row: Mapping[str, str], model_facts: Known) -> Point | None:
    """Return a row as a point; None for other loads, engines of 2023, and lengths or splits that are not stated."""
    lengths = [_read_length(row[name]) for name in ("input_tokens", "output_tokens")]
    loop, _, users = row["load"].partition(" ")
    is_used = loop == "closed" and row["tpot_ms"] and not row["engine"].startswith("TGI") and row["gpu"] in DEVICES
    if not is_used or None in lengths or not row["tensor"].isdecimal():
        return None
    shape = Shape(row["model"], row["gpu"], int(row["tensor"]), row["precision"].lower(), row["engine"])
    return Point(
        number=int(row["id"]),
        shape=shape,
        input_tokens=lengths[0] or 0,
        output_tokens=lengths[1] or 0,
        users=int(users),
        tpot_s=float(row["tpot_ms"]) / 1000,
        step=StepTime(build_model(shape, model_facts), find_device(shape.gpu), Split(shape.tensor)),
    )


def _read_length(text: str) -> int | None:
    """Return a length; ShareGPT's median where the row names it."""
    words = text.replace(",", "").split()
    if words and words[0].isdecimal():
        return int(words[0])
    return int(words[words.index("p50") + 1]) if "p50" in words else None


def build_model(shape: Shape, model_facts: Known) -> Architecture:
    """Return a model in the precision that was measured."""
    config = model_facts["configs"].get(shape.model)
    if config:
        model: Architecture = config_json.parse(config, shape.model)  # type: ignore[arg-type]
    else:
        model = models.load()[model_facts["catalog"].get(shape.model, shape.model)]
    scheme = {"fp8": FP8_TENSOR, "fp4": NVFP4, "int8": FP8_TENSOR.model_copy(update={"label": "int8"})}
    if model.scheme and shape.precision in (model.scheme.label, "mxfp4", "fp4") and "gpt-oss" in shape.model:
        return model
    return model.model_copy(update={"scheme": scheme[shape.precision]}) if shape.precision in scheme else model


def find_device(gpu: str) -> Accelerators:
    """Return a measured accelerator's row of the catalog."""
    device = instances.find(DEVICES[gpu]).accelerators
    assert device, gpu
    return device


def build_key(point: Point) -> str:
    """Return the name of a point's accelerator among those of the file."""
    return step_times.build_key(find_device(point.shape.gpu))


def is_held_out(point: Point) -> bool:
    """Return whether a point tells the error: every third configuration, by its lengths and its shape."""
    text = "|".join(map(str, (*point.shape, point.input_tokens, point.output_tokens)))
    return zlib.crc32(text.encode()) % 3 == 0


ENGINES = "vLLM 0.7.3 to 0.20.1; NVIDIA NIM 1.0; AWS Neuron"
SOURCE = "tests/prediction/data/serving-points.csv, fitted by scripts/fit_step_times.py"

MAX_EFFICIENCY = 0.95
START = {
    "memory_efficiency": 0.8, "expert_efficiency": 0.8, "cache_efficiency": 0.8, "bf16_efficiency": 0.6,
    "fp8_efficiency": 0.6, "fp4_efficiency": 0.45, "attention_efficiency": 0.5, "link_efficiency": 0.4,
    "step_s": 1e-3, "layer_s": 2e-5, "expert_layer_s": 2e-5, "sequence_s": 1e-5, "reduce_s": 8e-6,
}  # fmt: skip
"""From where the fit starts, and what it stays near where no measurement says otherwise."""

EFFICIENCY_PRIOR, SECONDS_PRIOR = 0.4, 1.0
"""Standard deviations, in logits and in logarithms, of a coefficient around its start."""

SCALE_PRIORS = {"gpu": 0.08, "neuron": 0.5}
"""Standard deviations, in logarithms, of an accelerator's scale around 1: Neuron runs another engine."""

HUBER = 0.25
"""Residual, in logarithms, beyond which a measurement counts less."""


LARGE_TYPES = {"L40S": "g6e.48xlarge", "RTX PRO 6000": "g7e.48xlarge"}
"""Instance type with as many accelerators as were measured together, where that of DEVICES has one."""

MAX_SEQUENCES = 1024
"""Requests of a step, vLLM's own on such accelerators."""

UNUSUAL_MAXIMA = {547, 550, 554}
"""gpt-oss, published with less than half of what vLLM's own points of it come to."""


def read_maxima() -> list[Point]:
    """Return the most that TensorRT-LLM was published with, which vLLM does not exceed: each as a full batch's loop.

    Its KV cache type is the one that holds more requests.
    """
    return [read_maximum(row, model_facts) for row, model_facts in _read_rows() if row["load"] == "offline maximum"]


def read_maximum(row: Mapping[str, str], model_facts: Known) -> Point:
    """Return a row as a point; `tensor` is a number behind letters."""
    shape = Shape(row["model"], row["gpu"], int(row["tensor"].lstrip("DEPT")), row["precision"].lower(), row["engine"])
    lengths = int(row["input_tokens"]), int(row["output_tokens"])
    model, instance = build_model(shape, model_facts), instances.find(LARGE_TYPES.get(shape.gpu, DEVICES[shape.gpu]))
    assert isinstance(model, Model), "maxima are of models that the catalog has"
    setup = ReplicaSetup(shape.tensor, context=sum(lengths), dtype="fp8")
    cache_tokens = vllm.compute_fit(model, instance, setup).cache_tokens
    step = StepTime(model, find_device(shape.gpu), Split(shape.tensor), "fp8")
    users = min(MAX_SEQUENCES, int(cache_tokens / (lengths[0] + lengths[1] / 2)))
    return Point(int(row["id"]), shape, *lengths, users, users / float(row["output_tok_s"]), step)


@dataclass(frozen=True)
class OpenLoop:
    """One measurement of constant arrivals whose prompts were cached."""

    shape: Shape
    rate: float
    input_tokens: int
    output_tokens: int
    ttft_p50_s: float
    ttft_p95_s: float
    e2e_s: float
    step: StepTime

    def build_load(self) -> Load:
        """Return it as what calibrates."""

        def predict(times: StepTimes) -> tuple[float, float]:
            outcome = self.simulate(times)
            return compute_percentile(outcome.ttft_s, 95), float(np.mean(outcome.e2e_s))

        return Load(self.ttft_p95_s, self.e2e_s, predict)

    def simulate(self, times: StepTimes) -> Outcome:
        """Return two minutes of it."""
        self.step.use(times)
        batch = vllm.select_batch(find_device(self.shape.gpu))
        requests = [
            Request(number / self.rate, self.input_tokens, self.output_tokens, 0, self.input_tokens)
            for number in range(round(120 * self.rate))
        ]
        return Simulation(self.step, Limits(batch.sequences, batch.tokens, 10**6)).run(requests)


def read_open_loops() -> list[OpenLoop]:
    """Return the open loops with their percentiles, vLLM 0.15.1 on H100."""
    rows = [(row, model_facts) for row, model_facts in _read_rows() if row["load"].startswith("open constant")]
    return [read_open_loop(row, model_facts) for row, model_facts in rows]


def read_open_loop(row: Mapping[str, str], model_facts: Known) -> OpenLoop:
    """Return a row as an open loop: `open constant 5/s`, `p50; p95 30.8; p99 46.0`."""
    shape = Shape(row["model"], row["gpu"], int(row["tensor"]), row["precision"], row["engine"])
    return OpenLoop(
        shape=shape,
        rate=float(row["load"].split()[-1].removesuffix("/s")),
        input_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        ttft_p50_s=float(row["ttft_ms"]) / 1000,
        ttft_p95_s=float(row["ttft_is"].split("p95 ")[1].split(";")[0]) / 1000,
        e2e_s=float(row["e2e_ms"]) / 1000,
        step=StepTime(build_model(shape, model_facts), find_device(shape.gpu), Split(shape.tensor)),
    )


LOW_RATE = 6.0
"""Requests a second up to which an open loop tells `first_token_s`, what a first token took beyond the simulated steps;
the higher ones tell the error."""


def fit_all(points: Sequence[Point]) -> StepTimes:
    """Return the coefficients that fit best, and the intervals by what was left out."""
    times = fit(points)
    loops = [loop for loop in read_open_loops() if loop.rate <= LOW_RATE]
    beyond_s = [loop.ttft_p50_s - compute_percentile(loop.simulate(times).ttft_s, 50) for loop in loops]
    coefficients = times.coefficients.model_copy(update={"first_token_s": float(np.median(beyond_s))})
    times = times.model_copy(update={"coefficients": coefficients})
    keys = [build_key(point) for point in points]
    left_out = []
    for key in sorted(set(keys)):
        others = [point for point, own in zip(points, keys, strict=True) if own != key]
        of_key = [point for point, own in zip(points, keys, strict=True) if own == key]
        if len(of_key) >= MIN_DEVICE_POINTS:
            left_out += list_errors(of_key, fit(others))
    folds = []
    for fold in range(3):
        training = [point for point in points if _fold(point) != fold]
        folds += list_errors([point for point in points if _fold(point) == fold], fit(training))
    intervals = {
        "catalog": compute_interval(folds),
        "extrapolated": compute_interval(left_out),
        "calibrated": compute_interval(list_calibrated_errors(points, times)),
    }
    return times.model_copy(update={"intervals": intervals})


def list_calibrated_errors(points: Iterable[Point], times: StepTimes) -> list[float]:
    """Return the errors of a configuration's loads beside those that calibrate it: its lowest, and a burst."""
    by_shape: dict[tuple[Shape, int, int], list[Point]] = {}
    for point in points:
        by_shape.setdefault((point.shape, point.input_tokens, point.output_tokens), []).append(point)
    errors = []
    for loads in by_shape.values():
        low, *others = sorted(loads, key=lambda point: point.users)
        for burst in others if len(others) > 1 else ():
            if burst.users >= BURST * low.users:
                calibrated = calibrate(times, low.build_load(), burst.build_load())
                errors += list_errors((point for point in others if point is not burst), calibrated)
    return errors


MIN_DEVICE_POINTS = 4
"""Measurements of an accelerator from which its error, left out, counts."""


def _fold(point: Point) -> int:
    return zlib.crc32("|".join(map(str, (*point.shape, point.input_tokens))).encode()) // 7 % 3


def write(times: StepTimes) -> None:
    payload = {
        "source": SOURCE,
        "date": datetime.date.today().isoformat(),
        "engines": ENGINES,
        "coefficients": {name: float(f"{value:.4g}") for name, value in times.coefficients.model_dump().items()},
        "devices": {
            key: {"scale": round(device.scale, 4), "points": device.points} for key, device in times.devices.items()
        },
        "intervals": {name: interval.model_dump() for name, interval in times.intervals.items()},
    }
    head = "# Written by scripts/fit_step_times.py, which says how; step_times.py says what each number is.\n"
    step_times.FILE.write_text(head + yaml.safe_dump(payload, sort_keys=False), encoding="utf-8")
    step_times.load.cache_clear()


def compute_interval(errors: Sequence[float]) -> Interval:
    """Return what four in five of the measurements are, by the prediction."""
    low, high = np.quantile(errors, [0.1, 0.9])
    return Interval(low=round(math.exp(low), 3), high=round(math.exp(high), 3), points=len(errors))


def fit(points: Sequence[Point]) -> StepTimes:
    """Return coefficients by Levenberg and Marquardt's method, far residuals weighed less."""
    keys = sorted({build_key(point) for point in points})
    start = np.array([_encode(name, START[name]) for name in (*EFFICIENCIES, *SECONDS)] + [0.0] * len(keys))
    kinds = [find_device(next(p.shape.gpu for p in points if build_key(p) == key)).kind for key in keys]
    priors = [EFFICIENCY_PRIOR] * len(EFFICIENCIES) + [SECONDS_PRIOR] * len(SECONDS)
    deviations = np.array(priors + [SCALE_PRIORS[kind] for kind in kinds])

    maxima = [maximum for maximum in read_maxima() if maximum.number not in UNUSUAL_MAXIMA]

    def compute_residuals(values: np.ndarray) -> np.ndarray:
        times = _decode(values, keys, points)
        residuals = -np.array(list_errors(points, times))
        exceeded = [max(0.0, error) for error in list_errors(maxima, times)]
        weights = np.sqrt(np.minimum(1, HUBER / np.maximum(np.abs(residuals), 1e-9)))
        return np.concatenate([residuals * weights / 0.1, np.array(exceeded) / 0.03, (values - start) / deviations])

    return _decode(_minimize(compute_residuals, start), keys, points)


def _minimize(compute: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    values, damping, residuals = start.copy(), 1e-2, compute(start)
    for _ in range(40):
        jacobian = np.stack([(compute(values + step) - residuals) / 1e-4 for step in 1e-4 * np.eye(len(values))], 1)
        gradient, square = jacobian.T @ residuals, jacobian.T @ jacobian
        while damping < 1e6:
            trial = values - np.linalg.solve(square + damping * np.diag(np.diag(square)), gradient)
            trial_residuals = compute(trial)
            if trial_residuals @ trial_residuals < residuals @ residuals:
                break
            damping *= 4
        else:
            return values
        gain = residuals @ residuals - trial_residuals @ trial_residuals
        values, residuals, damping = trial, trial_residuals, damping / 4
        if gain < 1e-4 * (residuals @ residuals):
            break
    return values


def _encode(name: str, value: float) -> float:
    return math.log(value / (MAX_EFFICIENCY - value)) if name in EFFICIENCIES else math.log(value)


def _decode(values: np.ndarray, keys: Sequence[str], points: Sequence[Point]) -> StepTimes:
    names = (*EFFICIENCIES, *SECONDS)
    numbers = {
        name: float(MAX_EFFICIENCY / (1 + math.exp(-value))) if name in EFFICIENCIES else math.exp(value)
        for name, value in zip(names, values[: len(names)], strict=True)
    }
    counts = [sum(build_key(point) == key for point in points) for key in keys]
    devices = {
        key: FittedDevice(scale=math.exp(value), points=count)
        for key, value, count in zip(keys, values[len(names) :], counts, strict=True)
    }
    return StepTimes(
        source="",
        date="",
        engines="",
        coefficients=Coefficients(**numbers, first_token_s=0.0),
        devices=devices,
        intervals={},
        links=step_times.load_links(),
    )


def list_errors(points: Iterable[Point], times: StepTimes) -> list[float]:
    """Return logarithms of measured by predicted time between tokens."""
    errors = []
    for point in points:
        point.step.use(times)
        errors.append(math.log(point.tpot_s / point.predict_tpot_s()))
    return errors


def describe(errors: Sequence[float]) -> str:
    """Return median and p90 of the relative error."""
    if not errors:
        return "none"
    relative = [abs(math.exp(-error) - 1) for error in errors]
    return f"median {np.median(relative):.1%}, p90 {np.quantile(relative, 0.9):.1%}, bias {np.mean(errors):+.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
