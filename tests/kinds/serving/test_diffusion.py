"""Blueprints of the engine diffusion: what each target is given, and what is refused with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_serving.kinds.serving import predicted_load, summary
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.tables import deployment_table
from tests.kinds.serving import resolving

FLUX = "black-forest-labs/FLUX.1-schnell"
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
add_ons: {observability: on, schedulers: on, operators: on}
pools:
  general: {types: [g6.12xlarge, g6e.12xlarge], size: 0..4, orchestrator: eks}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  small: {types: g6.12xlarge, size: 0..4, orchestrator: eks}
  cpus: {types: m8g.4xlarge, size: 0..4, orchestrator: eks}
"""
LINES = (
    "pattern: aggregated\nname: mine\nengine: diffusion\n"
    f"model: {FLUX}\n"
    "task: draw\nroles: {worker: {pool: general}}\ntraffic: {users: 2}\nslo: {}\n"
)


def _resolve(folder: Path, text: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target, cores=4)


def _change(old: str, new: str) -> str:
    assert old in LINES
    return LINES.replace(old, new)


@pytest.mark.parametrize(("pool", "target"), [("general", "eks"), ("on-ecs", "ecs")])
def test_on_gpus_a_replica_has_one_and_its_weights_on_the_nodes_disk(pool: str, target: str, tmp_path: Path) -> None:
    text = _change("pool: general}", f"pool: {pool}, replicas: 1..4, scale: {{queue: 4}}}}")
    deployment = _resolve(tmp_path, text, target)
    [worker], [role] = deployment.workers, deployment.engine_roles
    assert role.instance_types == ("g6e.12xlarge",), "31 GiB and a picture do not fit into the 24 GB of L4"
    assert (worker.resources.accelerators, worker.resources.device) == (1, "nvidia.com/gpu")
    assert worker.prefetch
    assert worker.prefetch.uris["weights"].endswith(f"/pipelines/{FLUX}/")
    assert worker.command[:3] == ("diffusion-server", "--model", "/scratch/fetched/weights")
    assert worker.command[-4:] == ("--device", "cuda", "--dtype", "bfloat16")
    assert worker.image.endswith("/demo/diffusion:0.42.1-2")
    assert worker.env["DRAIN_S"] == "120", "disruption.drain"
    assert worker.probe
    assert (worker.probe.path, worker.probe.health) == ("/v1/images/generations", "/health")
    assert worker.probe.body["num_inference_steps"] == 1
    assert worker.metrics["queue"] == "diffusion_requests_waiting"
    assert worker.replicas.scale
    assert worker.replicas.scale.signal == "queue"


def test_here_the_same_server_draws_on_cpu(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, _change(FLUX, "tiny-draw"), "local")
    command = deployment.workers[0].command
    assert command[command.index("--") + 1] == "diffusion-server"
    assert command[-6:] == ("--device", "cpu", "--dtype", "float32", "--threads", "4")
    assert "/v1/images/generations" in deployment_table.format_request(deployment)
    assert deployment.workers[0].resources.memory_bytes > 500_000_000


def test_what_is_asked_for_is_shown_and_nothing_is_predicted(tmp_path: Path) -> None:
    text = _change("{users: 2}", "{users: 2, input_tokens: 20, draw: {size: 1024x1024, steps: 4, count: 2}}")
    text = text.replace("slo: {}", "slo: {e2e_ms: {p95: 9000}, inputs_per_s: 2}") + "context: 2k\n"
    deployment = _resolve(tmp_path, text)
    described = dict(summary.describe(load(tmp_path / "blueprint.yaml", Blueprint), deployment))
    assert "2 x 1024x1024 in 4 steps by /v1/images/generations" in described["traffic"]
    assert described["slo"].startswith("e2e p95 < 9000 ms, at least 2 pictures/s")
    assert "context" not in described["model"]
    assert deployment.notes[0] == (
        "Left out, since an answer of the task draw has no tokens: traffic.input_tokens, context."
    )
    assert predicted_load.predict_requests_per_s(deployment) is None


NO_TOKENS = "an answer of the task draw has no tokens"
REFUSED = [
    # the model, the engine and the task
    (
        _change("engine: diffusion\n", ""),
        f'3: model: "{FLUX}": the engine vllm reads safetensors, and this model is a pipeline of diffusers. Fix: set engine: diffusion.',
    ),
    (
        _change(FLUX, "Qwen/Qwen3-4B"),
        '4: model: "Qwen/Qwen3-4B": the engine diffusion reads a pipeline of diffusers, and this model is safetensors. '
        "Fix: set engine: sglang or engine: tensorrt-llm or engine: vllm.",
    ),
    (
        _change("task: draw\n", ""),
        f'4: model: "{FLUX}": the model is made to draw, and the task here is generate. '
        f"Fix: set task: draw, or use a model such as Qwen/Qwen3-0.6B.",
    ),
    (
        "pattern: disaggregated\nname: mine\nengine: diffusion\nmodel: tiny-draw\ntask: draw\n"
        "roles: {prefill: {pool: general}, decode: {pool: general}}\ntraffic: {users: 2}\nslo: {}\n",
        '5: task: "draw": the pattern disaggregated is made for generate. Fix: set pattern: aggregated, or remove task.',
    ),
    # where it does not run
    (
        _change("pool: general", "pool: small"),
        f'4: model: "{FLUX}": it does not fit into 1 accelerator of the pool small: on g6.12xlarge weights 33.7 GB and '
        "a picture's 6.76 GB are 16.7 GB more than the 23.8 GB of one accelerator. "
        "Fix: set pool: general and accelerators: 1, or use a smaller model.",
    ),
    (
        _change("pool: general", "pool: cpus"),
        '6: roles.worker.accelerators: 1: the pool cpus has no accelerators: m8g.4xlarge has none. '
        "Fix: use a pool of types with accelerators.",
    ),
    (
        _change("pool: general", "pool: general, accelerators: 2"),
        "6: roles.worker.accelerators: 2: this server draws on one accelerator; more replicas draw more pictures. Fix: set accelerators: 1.",
    ),
    # settings of text
    (_change("slo: {}", "slo: {ttft_ms: {p95: 900}}"), f"8: slo.ttft_ms: {NO_TOKENS}. Fix: set e2e_ms: {{p95: 900}} in its place."),
    (_change("slo: {}", "slo: {itl_ms: {p50: 20}}"), f"8: slo.itl_ms: {NO_TOKENS}. Fix: set e2e_ms: {{p50: 20}} in its place."),
    (_change("task: draw", "task: draw\ntuning: {speculative: {method: ngram}}"), f'6: tuning.speculative: {NO_TOKENS}. Fix: remove speculative.'),
    (_change("task: draw", "task: draw\ntuning: {kv_cache: fp8}"), '6: tuning.kv_cache: "fp8": a picture has no KV cache. Fix: set kv_cache: auto.'),
    (_change("task: draw", "task: draw\ntuning: {kv_offload: 4Gi}"), '6: tuning.kv_offload: "4Gi": a picture has no KV cache. Fix: remove kv_offload.'),
    (_change("task: draw", "task: draw\ntuning: {sequences: 4}"), "6: tuning.sequences: 4: this server draws one picture at a time. Fix: remove sequences."),
    (_change("task: draw", "task: draw\ntools: hermes"), f'6: tools: "hermes": {NO_TOKENS}. Fix: remove tools.'),
    (_change("pool: general", "pool: general, adapters: {sql: 's3://my-models/sql'}"), f"6: roles.worker.adapters: {NO_TOKENS}. Fix: remove adapters."),
    (_change("{users: 2}", "{users: 2, inputs: 4}"), "7: traffic.inputs: 4: a request for pictures has one prompt. Fix: set draw: {count: 4}."),
    (
        _change("{users: 2}", "{users: 2, draw: {size: 2048x1024}}"),
        '7: traffic.draw.size: "2048x1024": memory is reckoned for pictures of up to 1,048,576 pixels. Fix: set size: 1024x1024 or less.',
    ),
    (
        _change("task: draw\n", "").replace("engine: diffusion\n", "").replace(FLUX, "tiny").replace("users: 2", "users: 2, draw: {steps: 4}"),
        "5: traffic.draw: a request of the task generate asks for no pictures. Fix: set task: draw, or remove draw.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_work_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, text)
    [line] = str(error.value).replace(f"{tmp_path}/", "").splitlines()
    assert re.sub(r"(?<=yaml:)(\d+):\d+", r"\1", line) == f"blueprint.yaml:{message}"
