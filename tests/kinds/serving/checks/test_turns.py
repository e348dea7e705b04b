"""Models that take turns on the same accelerators: their memory, and every refusal's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import instances
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: both
pools:
  h100: {types: p5.48xlarge, size: 0..1, orchestrator: eks}
  h200: {types: p5en.48xlarge, size: 0..1, orchestrator: eks}
  tasks: {types: p5.48xlarge, size: 0..1, orchestrator: ecs}
  l40s: {types: g6e.2xlarge, size: 0..1, orchestrator: eks}
  small: {types: g6e.xlarge, size: 0..1, orchestrator: eks}
  cpu: {types: m8i.4xlarge, size: 0..2, orchestrator: eks}
"""
TRAFFIC_AND_SLO = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
LARGE, SMALL, LONGER = "Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B"
GGUF = "bartowski/Qwen_Qwen3-4B-GGUF:Q4_0"


def format_blueprint(place: str = "pool: h100", *, first: str = SMALL, second: str = LONGER, extra: str = "") -> str:
    models = f"    chat: {{model: {first}, {place}}}\n    code: {{model: {second}, shares: chat}}\n"
    return f"name: mine\npattern: multi-model\nroles:\n  models:\n{models}{extra}{TRAFFIC_AND_SLO}"


def resolve_text(folder: Path, text: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target, cores=4)


def list_errors(folder: Path, text: str, target: str = "eks") -> list[str]:
    with pytest.raises(InputError) as error:
        resolve_text(folder, text, target)
    return str(error.value).replace(f"{folder}/blueprint.yaml:", "").splitlines()


REFUSED = [
    (
        format_blueprint("pool: small", second=SMALL),
        '5:40: roles.models.chat.pool: "small": its 2 models take up to 74.7 GB of the host\'s memory, for all but one '
        "sleep: 2 times their weights, a draft's among them, 4.29 GB of each for an accelerator, and 537 MB of requests that "
        "wait; a replica's share of g6e.xlarge has 20.6 GB for it. Fix: use a pool of types with more memory beside each GPU, smaller models, or pool in place of shares for "
        "one.",
    ),
    (
        format_blueprint("pool: cpu", first="tiny", second="tiny"),
        '5:31: roles.models.chat.pool: "cpu": an engine that sleeps on CPU frees no memory. Fix: use a pool of types with '
        "GPUs, or remove shares.",
    ),
    (
        format_blueprint(extra="tuning: {kv_tiers: {ram: 8Gi}}\n"),
        'tuning.kv_tiers: "ram": each model that sleeps would keep its own in the host\'s memory, which holds their weights. Fix: '
        "remove kv_tiers, or shares.",
    ),
    (
        format_blueprint(extra="tuning: {kv_offload: 8Gi}\n"),
        'tuning.kv_offload: "8Gi": each model that sleeps would keep its own in the host\'s memory, which holds their weights. Fix: '
        "remove kv_offload, or shares.",
    ),
    (
        format_blueprint(extra="tuning: {quantization: fp8}\n"),
        'tuning.quantization: "fp8": an engine that can sleep keeps the weights as stored beside the smaller ones until all '
        "are loaded. Fix: remove quantization, and use a checkpoint that is stored so.",
    ),
    (
        format_blueprint(extra="  router: {policy: kv-aware}\n"),
        'roles.router.policy: "kv-aware": a model that sleeps loses its cache, and the router would go on counting on it. '
        "Fix: set policy: load-aware, or remove shares.",
    ),
    (
        format_blueprint("pool: h100, engine_arguments: {mm_encoder_tp_mode: data}"),
        'roles.models.chat.engine_arguments.mm_encoder_tp_mode: "data": the model takes turns with others, and the engine '
        "then keeps more of the accelerators asleep. Fix: remove mm_encoder_tp_mode, or shares.",
    ),
    (
        format_blueprint(extra="engine_arguments: {gpu_memory_utilization: 0.9}\n"),
        'engine_arguments.gpu_memory_utilization: "0.9": the deployment writes it by itself on EKS. Fix: remove '
        "gpu_memory_utilization.",
    ),
    (
        format_blueprint("pool: h200", second="openai/gpt-oss-120b"),
        '6:19: roles.models.code.model: "openai/gpt-oss-120b": its weights are mxfp4, of which an engine that can sleep holds '
        "up to 142 GB while it loads them, more than the 135 GB of one accelerator. Fix: set pool in place of shares for it, "
        "or use accelerators with more memory.",
    ),
    (
        format_blueprint("pool: h100, engine_arguments: {sleep_mode_offload_cudagraph: false}"),
        'roles.models.chat.engine_arguments.sleep_mode_offload_cudagraph: "false": the deployment writes it by itself. Fix: '
        "remove sleep_mode_offload_cudagraph.",
    ),
    (
        format_blueprint("pool: h100, accelerators: 16", first=LARGE),
        "roles.models.chat.accelerators: 16: a replica runs on one node, and in the pool h100 p5.48xlarge has 8. Fix: set "
        "accelerators: 8 or less, or use a pool of larger types.",
    ),
    (
        format_blueprint(extra="engine: tensorrt-llm\n"),
        'roles.models.code.shares: "chat": TensorRT-LLM\'s /release_memory is a prototype for training, which whoever reaches the '
        "engine may call. Fix: set pool: h100 in its place, or engine: vllm.",
    ),
    (
        format_blueprint("pool: cpu", first=GGUF, second=GGUF, extra="engine: llama.cpp\n"),
        'roles.models.code.shares: "chat": llama.cpp has no sleep from which a model wakes without being loaded again. Fix: set '
        "pool: cpu in its place.",
    ),
    (
        format_blueprint(extra="engine: diffusion\ntask: draw\n"),
        'task: "draw": the pattern multi-model is made for generate. Fix: set pattern: aggregated, or remove task.',
    ),
    (
        format_blueprint(extra="engine: sglang\n"),
        'roles.models.code.shares: "chat": SGLang gives memory back only while no request runs, at a page that whoever '
        "reaches the engine may call. Fix: set pool: h100 in its place, or engine: vllm.",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_take_turns_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    errors = list_errors(tmp_path, text)
    assert any(error.endswith(message) for error in errors), errors


def test_an_engine_that_cannot_sleep_anywhere_is_told_no_other_engine_s_reason(tmp_path: Path) -> None:
    text = format_blueprint("pool: cpu", first=GGUF, second=GGUF, extra="engine: llama.cpp\n")
    [error] = list_errors(tmp_path, text)
    assert "llama.cpp has no sleep" in error


def test_models_that_take_turns_leave_each_other_what_a_sleeping_one_keeps(tmp_path: Path) -> None:
    deployment = resolve_text(tmp_path, format_blueprint())
    words = " ".join(deployment.workers[0].command)
    # 0.92 of 79.19 GiB, less 2.5.
    assert words.count("--enable-sleep-mode --sleep-mode-offload-cudagraph --gpu-memory-utilization 0.888") == 2


def test_a_model_of_its_own_gets_all(tmp_path: Path) -> None:
    text = format_blueprint().replace("shares: chat", "pool: h100")
    deployment = resolve_text(tmp_path, text)
    assert not any("--enable-sleep-mode" in service.command for service in deployment.workers)
    assert len(deployment.workers) == 2


def test_a_third_model_takes_as_much_again(tmp_path: Path) -> None:
    text = format_blueprint(extra=f"    more: {{model: {LONGER}, shares: chat}}\n")
    assert "--gpu-memory-utilization 0.856" in " ".join(resolve_text(tmp_path, text).workers[0].command)


def test_a_model_that_would_fit_alone_is_refused_with_what_the_others_keep(tmp_path: Path) -> None:
    text = format_blueprint("pool: h100", first=LARGE, second=LARGE).replace("pool: h100", "pool: h100, context: 30k")
    errors = list_errors(tmp_path, text)
    assert "of whose memory a model that sleeps there keeps 3.2%" in errors[0]
    assert "Fix: set pool in place of shares for one of them, or set accelerators: 2 on p5.48xlarge" in errors[0]
    resolve_text(tmp_path, text.replace("shares: chat", "pool: h100, context: 30k"))


def test_models_share_one_replicas_accelerators_of_the_pool(tmp_path: Path) -> None:
    eight = "pool: h100, accelerators: 8"
    deployment = resolve_text(tmp_path, format_blueprint(eight, first=LARGE, second=LARGE))
    assert [service.resources.accelerators for service in deployment.workers] == [8]
    alone = format_blueprint(eight, first=LARGE, second=LARGE).replace("shares: chat", eight)
    assert "which grows to 1" in list_errors(tmp_path, alone)[0]


def test_check_says_what_it_saves_and_costs(tmp_path: Path) -> None:
    place = "pool: h100, replicas: 2, switch: {least_awake: 5s, finish: 4s}"
    text = format_blueprint(place, extra=f"    more: {{model: {SMALL}, shares: chat}}\n")
    [note] = [note for note in resolve_text(tmp_path, text).notes if "turns" in note]
    price = instances.load()["p5.48xlarge"].prices["us-east-2"].usd_h / 8
    assert note == (
        f"chat, code and more take turns on the accelerator of a replica, for {price:.2f} USD/h on p5.48xlarge in place of "
        f"{3 * price:.2f} for one each. They take up to 95.1 GB of its memory, and each that sleeps 2.68 GB of an "
        "accelerator. A request for one that sleeps waits about 2 s for weights to change places, at 20 GB/s, which was not "
        "measured here; while others have requests, up to 22 s (`switch` of chat: least_awake and finish)."
    )
    assert not any("20 GB/s" in note for note in resolve_text(tmp_path, text, "local").notes)


def test_a_draft_beside_each_model_counts_in_the_hosts_memory(tmp_path: Path) -> None:
    def read_bytes(extra: str = "") -> str:
        [note] = [note for note in resolve_text(tmp_path, format_blueprint(extra=extra)).notes if "turns" in note]
        return note.partition("They take up to ")[2].partition(", and each")[0]

    draft = "tuning: {speculative: {method: draft_model, model: MODEL}}\n"
    assert read_bytes() == "58 GB of its memory"
    # 1.19 GB of weights once loaded, for each of two models, twice in pinned memory.
    assert read_bytes(draft.replace("MODEL", "Qwen/Qwen3-0.6B")) == "62.8 GB of its memory"
    unknown = "58 GB of its memory, without my/draft beside each, whose size is not known here"
    assert read_bytes(draft.replace("MODEL", "my/draft")) == unknown
