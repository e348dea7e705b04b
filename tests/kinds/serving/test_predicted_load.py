"""The prediction that orders configurations: only its order is relied on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.kinds.serving import predicted_load
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.targets import planning
from tests.kinds.serving import resolving

BLUEPRINT = """\
pattern: aggregated
engine: {engine}
model: {model}
context: 8k
roles:
  worker: {{pool: wide, replicas: 1, accelerators: {accelerators}}}
tuning: {{sequences: {sequences}{tuning}}}
traffic: {{arrivals: 8/s, input_tokens: 1000, output_tokens: 200{traffic}}}
slo:
  ttft_ms: {{p95: {ttft}}}
engine_arguments: {{{arguments}}}
"""


def _estimate(root: Path, target: str = "eks", **values: object) -> float | None:
    settings = {
        "engine": "vllm",
        "model": "Qwen/Qwen3-8B",
        "accelerators": 1,
        "sequences": 256,
        "tuning": "",
        "traffic": "",
        "ttft": 800,
        "arguments": "",
        **values,
    }
    shutil.copytree(paths.PATTERNS / "aggregated", root / "mine", dirs_exist_ok=True)
    (root / "mine" / "blueprint.yaml").write_text(BLUEPRINT.format(**settings))
    deployment = planning.plan_offline(root / "mine", paths.ROOT / "fleet.yaml", target).deployment
    assert isinstance(deployment, ServingDeployment)
    return predicted_load.predict_requests_per_s(deployment)


def test_more_accelerators_and_larger_batches_promise_more(tmp_path: Path) -> None:
    single, four = (_estimate(tmp_path, accelerators=count) for count in (1, 4))
    assert single and four and single < four < 8 * single
    small = _estimate(tmp_path, sequences=4)
    assert small and small < single


def test_the_engines_own_options_count_as_those_of_tuning_do(tmp_path: Path) -> None:
    by_tuning, by_argument = {"tuning": ", batch_tokens: 512"}, {"arguments": "max_num_batched_tokens: 512"}
    assert _estimate(tmp_path, **by_tuning) == _estimate(tmp_path, **by_argument) != _estimate(tmp_path)
    less = _estimate(tmp_path, arguments="gpu_memory_utilization: 0.5")
    usual = _estimate(tmp_path)
    assert less and usual and less < usual, "fewer requests have room in the cache"


def test_a_state_takes_a_block_of_the_cache_however_short_the_request_is(tmp_path: Path) -> None:
    """Of 64 requests, 50 have blocks in the smaller cache, whose tokens of the longest ones would be enough for all."""
    hybrid = {"model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "accelerators": 4, "sequences": 64, "ttft": 10**5}
    small, large = (
        _estimate(tmp_path, **hybrid, arguments=f"gpu_memory_utilization: {share}") for share in (0.44, 0.6)
    )
    assert small and large and small < large


def test_sglang_runs_more_requests_where_each_has_one_state(tmp_path: Path) -> None:
    hybrid = {"model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "accelerators": 4, "ttft": 10**5}
    cached, uncached = (
        _estimate(tmp_path, engine="sglang", **hybrid, sequences=700, tuning=f", prefix_cache: {switch}")
        for switch in ("on", "off")
    )
    assert cached and uncached and cached < uncached


@pytest.mark.parametrize(("engine", "is_shared"), [("vllm", True), ("tensorrt-llm", False)])
def test_prompts_of_models_with_states_share_what_the_engine_caches(
    tmp_path: Path, engine: str, is_shared: bool
) -> None:
    hybrid = {"model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "accelerators": 4, "sequences": 64, "ttft": 10**5}
    plain, shared = (
        _estimate(tmp_path, engine=engine, **hybrid, traffic=traffic) for traffic in ("", ", shared_prefix: 80%")
    )
    assert plain and shared and (shared > 1.1 * plain) == is_shared


def test_a_stricter_slo_promises_less(tmp_path: Path) -> None:
    usual, strict, impossible = (_estimate(tmp_path, ttft=ms) for ms in (800, 300, 1))
    assert usual and strict and strict < 0.9 * usual
    assert impossible is None


def test_a_larger_model_promises_less(tmp_path: Path) -> None:
    small, large = (_estimate(tmp_path, model=name, accelerators=4) for name in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B"))
    assert small and large and small > 5 * large


def test_the_estimate_lies_above_what_is_measured_and_within_its_order(tmp_path: Path) -> None:
    """An L40S computes at most 362 TFLOPS: 8.2 billion parameters over 1,000 tokens take 45 ms, decode of 200 as long."""
    estimate = _estimate(tmp_path)
    assert estimate and 3 < estimate < 1 / 0.045


def test_fp8_and_a_shared_beginning_promise_more(tmp_path: Path) -> None:
    plain, fp8 = _estimate(tmp_path), _estimate(tmp_path, tuning=", quantization: fp8")
    shared = _estimate(tmp_path, traffic=", shared_prefix: 80%")
    assert plain and fp8 and shared and fp8 > 1.2 * plain and shared > 1.2 * plain


def test_accelerators_that_pcie_joins_promise_less_than_replicas_of_one(tmp_path: Path) -> None:
    single, four = (_estimate(tmp_path, accelerators=count) for count in (1, 4))
    assert single and four and four < 3 * single


def test_without_accelerators_there_is_no_estimate(tmp_path: Path) -> None:
    assert _estimate(tmp_path, target="local", model="tiny") is None


def test_on_trainium2_a_step_has_the_requests_that_it_is_compiled_for(tmp_path: Path) -> None:
    fleet = (
        "name: demo\nregion: us-east-2\nzones: [us-east-2a, us-east-2b]\norchestrator: eks\n"
        "pools:\n  wide: {types: trn2.48xlarge, zones: us-east-2b, size: 0..4}\n"
    )

    def estimate(tuning: str) -> float | None:
        text = BLUEPRINT.format(
            engine="vllm",
            model="Qwen/Qwen3-32B",
            accelerators="64, data: 8",
            sequences=8,
            tuning="",
            traffic="",
            ttft=5000,
            arguments="",
        )
        text = "name: mine\n" + text.replace("tuning: {sequences: 8}\n", tuning)
        deployment = resolving.resolve_files(tmp_path, text, fleet, "eks")
        return predicted_load.predict_requests_per_s(deployment)

    default = estimate("")
    assert default and default == estimate("tuning: {sequences: 8, batch_tokens: 2048}\n")


def test_stages_share_the_requests_of_a_step(tmp_path: Path) -> None:
    """Two stages are as two replicas of one, each with half of the requests."""
    fleet = (
        "name: demo\nregion: us-east-1\nzones: [us-east-1a]\norchestrator: eks\nadd_ons: {schedulers: on}\n"
        "pools:\n  wide: {types: p5en.48xlarge, efa: on, size: 0..4}\n"
    )

    def estimate(pattern: str, accelerators: str, sequences: int) -> float:
        text = BLUEPRINT.format(
            engine="vllm",
            model="Qwen/Qwen3-32B",
            accelerators=accelerators,
            sequences=sequences,
            tuning="",
            traffic="",
            ttft=5000,
            arguments="",
        )
        text = "name: mine\n" + text.replace("pattern: aggregated", f"pattern: {pattern}")
        promised = predicted_load.predict_requests_per_s(resolving.resolve_files(tmp_path, text, fleet, "eks"))
        assert promised
        return promised

    assert estimate("distributed", "16, pipeline: 2", 32) == pytest.approx(
        2 * estimate("aggregated", "8", 16), rel=0.01
    )
