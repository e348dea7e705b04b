"""Predicted times against published ones, most of which the fit has not seen."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from llm_serving.catalog import instances, models, step_times
from llm_serving.catalog.quantizations import FP8_TENSOR, MXFP4, NVFP4
from llm_serving.catalog.step_times import StepTimes
from llm_serving.engines import vllm
from llm_serving.engines.memory import Split
from llm_serving.prediction.calibration import calibrate
from llm_serving.prediction.simulation import Limits, Request, Simulation, compute_percentile
from llm_serving.prediction.step_time import StepTime, apply_precision, select_precision
from llm_serving.settings.errors import InputError
from scripts import fit_step_times
from scripts.fit_step_times import OpenLoop, Point

TYPES = (
    "g5.12xlarge", "g6.12xlarge", "g6e.12xlarge", "g7e.12xlarge", "p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "trn1.32xlarge",
)  # fmt: skip


@cache
def read_held_out() -> list[Point]:
    return [point for point in fit_step_times.read_points() if fit_step_times.is_held_out(point)]


def list_relative_errors(points: list[Point], times: StepTimes) -> list[float]:
    return [abs(math.exp(-error) - 1) for error in fit_step_times.list_errors(points, times)]


def simulate_tpot_s(point: Point) -> float:
    """Return the mean time between tokens of the loop, step after step."""
    batch = vllm.select_batch(fit_step_times.find_device(point.shape.gpu))
    count = max(20, 3 * point.users)
    lengths = np.random.default_rng(0).uniform(0.9, 1.1, (count, 2)) * (point.input_tokens, point.output_tokens)
    requests = [Request(0.0, int(row[0]), max(2, int(row[1]))) for row in lengths]
    outcome = Simulation(point.step, Limits(batch.sequences, batch.tokens, 10**8)).run(requests, point.users)
    return sum(gap * count for gap, count in outcome.gaps) / sum(count for _, count in outcome.gaps)


def test_points_that_were_not_fitted_are_predicted_within_the_goals() -> None:
    points = read_held_out()
    errors = list_relative_errors(points, step_times.load())
    assert len(points) >= 60
    assert np.median(errors) <= 0.12
    assert np.quantile(errors, 0.9) <= 0.40
    for gpu in {point.shape.gpu for point in points}:
        of_gpu = [point for point in points if point.shape.gpu == gpu]
        assert np.median(list_relative_errors(of_gpu, step_times.load())) <= 0.30, gpu


def test_the_simulated_loop_is_within_the_goals_too() -> None:
    points = read_held_out()[::4]
    for point in points:
        point.step.use(step_times.load())
    errors = [abs(simulate_tpot_s(point) / point.tpot_s - 1) for point in points]
    assert np.median(errors) <= 0.12
    assert np.quantile(errors, 0.9) <= 0.40


def test_the_interval_holds_four_in_five_of_the_points_that_were_not_fitted() -> None:
    times, inside = step_times.load(), 0
    for point in read_held_out():
        point.step.use(times)
        interval = times.intervals[point.step.basis]
        inside += interval.low <= point.tpot_s / point.predict_tpot_s() <= interval.high
    assert 0.70 <= inside / len(read_held_out()) <= 0.90


@pytest.mark.parametrize("share", [0.7, 1.3])
def test_coefficients_that_are_off_by_30_percent_miss_the_goals(share: float) -> None:
    times = step_times.load()
    off = {key: device.model_copy(update={"scale": device.scale * share}) for key, device in times.devices.items()}
    errors = list_relative_errors(read_held_out(), times.model_copy(update={"devices": off}))
    assert np.median(errors) > 0.12


def list_maxima() -> list[Point]:
    return [row for row in fit_step_times.read_maxima() if row.number not in fit_step_times.UNUSUAL_MAXIMA]


def test_no_throughput_exceeds_tensorrt_llms_published_maximum_by_a_tenth() -> None:
    exceeded = []
    for maximum in list_maxima():
        maximum.step.use(step_times.load())
        if maximum.predict_tpot_s() < maximum.tpot_s / 1.1:
            exceeded.append(maximum.number)
    assert exceeded == []


def compute_floor_s(step: StepTime, tokens: int, sequences: int, context: float) -> float:
    """Return seconds below which no step gets: all bytes at the peak of the memory, all operations at theirs."""
    window = min(context, sequences * (step._model.window or 0))
    moved_bytes = step._dense_bytes + step._expert_bytes * step._compute_touched_share(tokens)
    moved_bytes += context * step._token_bytes + window * step._window_bytes
    return max(moved_bytes / step._bandwidth, tokens * step._token_operations / step._operations)


def test_values_narrower_than_keys_take_fewer_operations() -> None:
    device, model = instances.find("p5.48xlarge").accelerators, models.find("Qwen/Qwen3-8B")
    assert device and (model.head_dim, model.value_dim) == (128, 0)
    attention_s = [
        StepTime(model.model_copy(update={"value_dim": width}), device, Split(1)).compute_attention_s(8192, 0)
        for width in (0, 128, 64)
    ]
    assert [seconds / attention_s[0] for seconds in attention_s] == pytest.approx([1, 1, 0.75])


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b"])
@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp4"])
def test_no_step_is_faster_than_the_roofline_and_more_work_takes_longer(type_: str, name: str, precision: str) -> None:
    device = instances.find(type_).accelerators
    assert device
    for tensor in (1, 2, 4):
        step = StepTime(apply_precision(models.find(name), precision), device, Split(tensor))
        times = []
        for sequences, context in ((1, 100), (8, 8_000), (64, 64_000), (256, 1_000_000)):
            seconds = step.compute_base_s(sequences, sequences) + step.compute_cache_s(sequences, context)
            assert seconds >= compute_floor_s(step, sequences, sequences, context)
            times.append(seconds)
        assert times == sorted(times)
        prompts = [step.compute_base_s(tokens, 1) + step.compute_attention_s(tokens, 0) for tokens in (16, 512, 8192)]
        assert prompts == sorted(prompts)


def test_weights_in_fewer_bits_than_the_hardware_multiplies_are_widened() -> None:
    accelerators = {
        name: instances.find(name).accelerators for name in ("p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge")
    }
    chosen = {
        (scheme and scheme.label, name): select_precision(scheme, device)
        for name, device in accelerators.items()
        for scheme in (None, FP8_TENSOR, NVFP4, MXFP4)
        if device
    }
    assert [chosen[label, "p4d.24xlarge"] for label in (None, "fp8", "nvfp4", "mxfp4")] == ["bf16"] * 4
    assert [chosen[label, "p5.48xlarge"] for label in (None, "fp8", "nvfp4", "mxfp4")] == [
        "bf16",
        "fp8",
        "bf16",
        "bf16",
    ]
    assert [chosen[label, "p6-b200.48xlarge"] for label in (None, "fp8", "nvfp4", "mxfp4")] == [
        "bf16", "fp8", "fp4", "fp4"
    ]  # fmt: skip


def test_links_slow_down_what_is_split() -> None:
    model = models.find("Qwen/Qwen3-32B")
    speedups = {}
    for name in ("g6e.12xlarge", "p5.48xlarge"):
        device = instances.find(name).accelerators
        assert device
        one, four = (StepTime(model, device, Split(tensor)).compute_base_s(2048, 1) for tensor in (1, 4))
        speedups[name] = one / four
    assert speedups["g6e.12xlarge"] < 2 < speedups["p5.48xlarge"]


def test_whole_experts_wait_for_the_accelerator_that_has_most_to_do() -> None:
    device = instances.find("p5.48xlarge").accelerators
    assert device
    parts, whole = (
        StepTime(models.find("Qwen/Qwen3-30B-A3B"), device, Split(4, whole_experts=is_whole))
        for is_whole in (False, True)
    )
    ratios = [whole.compute_base_s(tokens, 1) / parts.compute_base_s(tokens, 1) for tokens in (8, 64, 4096)]
    assert all(ratio > 1 for ratio in ratios)
    assert ratios[0] > 1.05
    assert ratios[1] < 1.02, "so many tokens visit all experts"
    times = [whole.compute_base_s(tokens, 1) for tokens in (1, 8, 64, 512, 4096)]
    assert times == sorted(times)
    assert all(whole.compute_base_s(tokens, 1) >= compute_floor_s(whole, tokens, 1, 0) for tokens in (1, 8, 64, 4096))


def test_copies_of_the_attention_layers_exchange_the_tokens_of_their_experts() -> None:
    model = models.find("Qwen/Qwen3-30B-A3B")
    added = {}
    for name in ("g6e.48xlarge", "p5.48xlarge"):
        device = instances.find(name).accelerators
        assert device
        copies = StepTime(model, device, Split(data=8, whole_experts=True))
        times = [copies.compute_base_s(tokens, tokens) for tokens in (1, 8, 64, 512)]
        assert times == sorted(times)
        assert all(copies.compute_base_s(tokens, 1) >= compute_floor_s(copies, tokens, 1, 0) for tokens in (1, 64, 512))
        alone = copies.compute_base_s(512, 1)
        copies._token_link_s = 0.0
        added[name] = alone - copies.compute_base_s(512, 1)
    # Each copy's 512 tokens of 2,048 numbers go to seven others and come back, in each of 48 layers.
    moved = 512 * 2048 * 2 * 7 * 2 * 48
    assert added["p5.48xlarge"] == pytest.approx(moved / (450e9 * step_times.load().coefficients.link_efficiency))
    assert added["g6e.48xlarge"] > 10 * added["p5.48xlarge"], "PCIe joins them"


def test_copies_of_the_attention_layers_read_the_latent_cache_once() -> None:
    """Multi-head latent attention keeps its cache whole on every accelerator: split layers all read it."""
    device = instances.find("p5en.48xlarge").accelerators
    assert device
    model = models.find("deepseek-ai/DeepSeek-V3")
    split, copies = (StepTime(model, device, own) for own in (Split(8), Split(data=8, whole_experts=True)))
    requests, context = 256, 256 * 8000
    split_s = split.compute_base_s(requests, requests) + split.compute_cache_s(requests, context)
    copies_s = copies.compute_base_s(requests // 8, requests // 8) + copies.compute_cache_s(requests // 8, context / 8)
    assert copies_s < 0.9 * split_s


def test_open_loops_of_vllm_on_h100_are_predicted() -> None:
    loops = [loop for loop in fit_step_times.read_open_loops() if loop.rate > fit_step_times.LOW_RATE]
    ttft, e2e = [], []
    for loop in loops:
        outcome = loop.simulate(step_times.load())
        ttft.append(abs(compute_percentile(outcome.ttft_s, 95) / loop.ttft_p95_s - 1))
        e2e.append(abs(np.mean(outcome.e2e_s) / loop.e2e_s - 1))
    assert len(loops) == 6
    assert np.median(ttft) <= 0.15
    assert np.median(e2e) <= 0.15


def test_loads_between_those_that_calibrate_are_predicted_within_their_interval() -> None:
    times = step_times.load()
    calibrated = fit_step_times.list_calibrated_errors(read_held_out(), times)
    interval = times.intervals["calibrated"]
    inside = sum(math.log(interval.low) <= error <= math.log(interval.high) for error in calibrated)
    assert len(calibrated) >= 30
    assert np.median([abs(math.exp(-error) - 1) for error in calibrated]) <= 0.08
    assert interval.high - interval.low < times.intervals["catalog"].high - times.intervals["catalog"].low
    assert 0.70 <= inside / len(calibrated) <= 0.90


def test_open_loops_calibrated_at_a_lower_load_are_predicted() -> None:
    by_shape: dict[object, list[OpenLoop]] = {}
    for loop in fit_step_times.read_open_loops():
        by_shape.setdefault((loop.shape, loop.input_tokens), []).append(loop)
    pairs = [sorted(loops, key=lambda loop: loop.rate) for loops in by_shape.values() if len(loops) == 2]
    errors = []
    for low, high in pairs:
        ttft_s, e2e_s = high.build_load().predict(calibrate(step_times.load(), low.build_load(), None))
        errors.append((abs(ttft_s / high.ttft_p95_s - 1), abs(e2e_s / high.e2e_s - 1)))
    assert len(errors) == 4
    assert np.median([ttft for ttft, _ in errors]) <= 0.07
    assert np.median([e2e for _, e2e in errors]) <= 0.07


def test_an_accelerator_without_a_known_bandwidth_is_refused() -> None:
    device = instances.find("g6.xlarge").accelerators
    assert device
    with pytest.raises(InputError) as refused:
        StepTime(models.find("Qwen/Qwen3-8B"), device.model_copy(update={"bandwidth_gb_s": None}), Split())
    assert str(refused.value) == "L4: its bandwidth or operations are not known. Fix: use another type."
