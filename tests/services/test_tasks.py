"""Models that answer whole texts with numbers: one key of a copy of the pattern, and what follows from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import models
from llm_serving.kinds.serving import predicted_load, summary
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.kind import KIND
from llm_serving.services import tasks
from llm_serving.services.traffic import Percentiles
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.tables import deployment_table
from tests.kinds.serving import resolving

ROOT = Path(__file__).resolve().parents[2]

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
add_ons: {observability: on, schedulers: on, operators: on}
pools:
  general: {types: g6e.12xlarge, size: 0..4, orchestrator: eks}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  trainium: {types: trn2.48xlarge, zones: us-west-2b, size: 1, orchestrator: eks}
"""

COPY = (ROOT / "blueprints/aggregated/blueprint.yaml").read_text().replace("model: tiny #", "model: MODEL #")
LINES = (
    "pattern: aggregated\nname: mine\nmodel: tiny-embed\ntask: embed\nroles: {worker: {pool: general}}\n"
    "traffic: {users: 2}\nslo: {}\n"
)


def resolve_text(folder: Path, text: str, target: str = "local") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target, cores=4)


def resolve_copy(folder: Path, task: str, target: str = "local", model: str = "") -> ServingDeployment:
    """A copy of the pattern with its model and its task changed, and no other key."""
    text = COPY.replace("MODEL", f"{model or f'tiny-{task}'}\nname: mine\ntask: {task}")
    return resolve_text(
        folder, text.replace("pool: general", "pool: on-ecs" if target == "ecs" else "pool: general"), target
    )


def list_errors(folder: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as error:
        resolve_text(folder, text)
    return str(error.value).replace(f"{folder}/", "").splitlines()


@pytest.mark.parametrize("target", ["local", "eks", "ecs"])
@pytest.mark.parametrize(
    ("task", "path"), [("embed", "/v1/embeddings"), ("rerank", "/v1/rerank"), ("classify", "/classify")]
)
def test_a_copy_with_another_task_serves_its_endpoint_on_every_target(
    tmp_path: Path, task: str, path: str, target: str
) -> None:
    deployment = resolve_copy(tmp_path, task, target)
    for process in deployment.workers:
        assert process.command[process.command.index("--runner") + 1] == "pooling"
        assert "--enable-auto-tool-choice" not in process.command
        assert process.probe
        assert process.probe.path == path
    probe = deployment.entries[0].probe
    assert probe
    if target == "eks":  # where a router is ready if an engine is
        assert probe.path == "/readiness"
        return
    assert (probe.path, probe.body) == (
        path,
        {"model": f"tiny-{task}", **tasks.POOLED[deployment.task].build(["ready?"])},
    )
    assert path in deployment_table.format_request(deployment)


def test_what_writes_text_is_started_and_asked_as_before(tmp_path: Path) -> None:
    deployment = resolve_copy(tmp_path, "generate", model="tiny")
    assert all("--runner" not in process.command for process in deployment.workers)
    assert deployment.slo.ttft_ms.p95 == 5000
    assert deployment.unused_keys == ()


def test_limits_on_tokens_are_left_out_with_a_note_and_the_others_hold(tmp_path: Path) -> None:
    deployment = resolve_copy(tmp_path, "embed")
    assert (deployment.slo.ttft_ms, deployment.slo.itl_ms) == (Percentiles(), Percentiles())
    assert deployment.slo.e2e_ms.p99 == 30000
    assert deployment.notes == (
        "Left out, since an answer of the task embed has no tokens: slo.ttft_ms, slo.itl_ms, traffic.output_tokens.",
        "The router's policy is load-aware: of requests to /v1/embeddings it reads no text to follow.",
    )
    document = load(tmp_path / "blueprint.yaml", Blueprint)
    assert KIND.refresh(deployment, document.value).slo == deployment.slo
    described = dict(summary.describe(document, deployment))
    assert described["traffic"].endswith("1 x 320..352 tokens for /v1/embeddings, 300 requests")
    assert described["router"] == "load-aware"


def test_replicas_scale_by_the_engines_queue_on_eks_and_ecs(tmp_path: Path) -> None:
    text = LINES.replace("{pool: general}", "{pool: POOL, replicas: 1..4}")
    for pool, target in (("general", "eks"), ("on-ecs", "ecs")):
        worker = resolve_text(tmp_path, text.replace("POOL", pool), target).engine_roles[0]
        assert worker.scale
        assert worker.scale.queue
        assert worker.metrics["queue"] == "vllm:num_requests_waiting"


def test_a_ranking_model_that_is_stored_as_a_chat_model_is_told_to_the_engine(tmp_path: Path) -> None:
    text = LINES.replace("tiny-embed", "Qwen/Qwen3-Reranker-0.6B").replace("task: embed", "task: rerank")
    command = resolve_text(tmp_path, text, "eks").workers[0].command
    assert "Qwen3ForSequenceClassification" in command[command.index("--hf-overrides") + 1]
    assert command[command.index("--chat-template") + 1].endswith("qwen3_reranker.jinja")
    other = resolve_text(tmp_path, text.replace("Qwen/Qwen3-Reranker-0.6B", "BAAI/bge-reranker-v2-m3"), "eks")
    assert "--hf-overrides" not in other.workers[0].command


def test_a_model_that_is_made_to_be_cut_takes_dimensions(tmp_path: Path) -> None:
    text = LINES.replace("tiny-embed", "Qwen/Qwen3-Embedding-0.6B")
    command = resolve_text(tmp_path, text, "eks").workers[0].command
    assert command[command.index("--hf-overrides") + 1] == '{"is_matryoshka": true}'
    assert "--hf-overrides" not in resolve_text(tmp_path, LINES, "eks").workers[0].command


def test_a_text_needs_no_room_for_an_answer_in_the_context(tmp_path: Path) -> None:
    text = LINES.replace("{users: 2}", "{users: 2, input_tokens: 2000}") + "context: 2000\n"
    assert resolve_text(tmp_path, text).served_models[0].context == 2000
    assert list_errors(tmp_path, text.replace("task: embed\n", "").replace("tiny-embed", "tiny")) == [
        "blueprint.yaml:7:10: context: 2000: a request of this traffic takes up to 2064 tokens, input and output "
        "together, and the context is 2000. Fix: set context: 2064 or more, or shorter input_tokens and output_tokens."
    ]


def change(old: str, new: str) -> str:
    assert old in LINES
    return LINES.replace(old, new)


NO_TOKENS = "an answer of the task embed has no tokens"
REFUSED = [
    # the model and the task
    (
        change("task: embed\n", ""),
        '3: model: "tiny-embed": the model is made to embed, and the task here is generate. '
        "Fix: set task: embed, or use a model such as Qwen/Qwen3-0.6B.",
    ),
    (
        change("tiny-embed", "tiny"),
        '3: model: "tiny": the model is made to generate, and the task here is embed. '
        "Fix: set task: generate, or use a model such as Qwen/Qwen3-Embedding-0.6B.",
    ),
    (
        change("task: embed", "task: classify"),
        '3: model: "tiny-embed": the model is made to embed, and the task here is classify. '
        "Fix: set task: embed, or use a model such as tiny-classify.",
    ),
    (
        change("task: embed", "task: rank"),
        "4: task: \"rank\": not one of the choices. Fix: use rerank; the choices are 'generate', 'embed', 'rerank', 'classify' or 'draw'.",
    ),
    (
        "pattern: disaggregated\nmodel: tiny-embed\ntask: embed\nroles: {prefill: {pool: general}, decode: {pool: general}}\n"
        "traffic: {users: 2}\nslo: {}\n",
        '3: task: "embed": the pattern disaggregated is made for generate. Fix: set pattern: aggregated, or remove task.',
    ),
    (
        "pattern: disaggregated\nmodel: tiny-embed\nroles: {prefill: {pool: general}, decode: {pool: general}}\n"
        "traffic: {users: 2}\nslo: {}\n",
        '2: model: "tiny-embed": the model is made to embed, and the task here is generate. '
        "Fix: set pattern: aggregated with task: embed, or use a model such as Qwen/Qwen3-0.6B.",
    ),
    # where it does not run
    (
        change("tiny-embed\ntask: embed", "tiny-rerank\ntask: rerank\nengine: llama.cpp"),
        '3: model: "tiny-rerank": the engine llama.cpp reads one GGUF file, and this model is safetensors. '
        "Fix: set engine: sglang or engine: tensorrt-llm or engine: vllm.",
    ),
    # settings of tokens
    (change("slo: {}", "slo: {itl_ms: {p50: 20}}"), f"7: slo.itl_ms: {NO_TOKENS}. Fix: set e2e_ms: {{p50: 20}} in its place."),
    (change("slo: {}", "slo: {score: 90%}").replace("users: 2", "users: 2, data: a.jsonl"), f'7: slo.score: "90%": {NO_TOKENS}. Fix: remove score.'),
    (change("{users: 2}", "{users: 2, api: completions}"), f'6: traffic.api: "completions": {NO_TOKENS}. Fix: remove api.'),
    (change("{users: 2}", "{users: 2, turns: 2}"), f'6: traffic.turns: 2: {NO_TOKENS}. Fix: remove turns.'),
    (change("task: embed", "task: embed\ntools: hermes"), f'5: tools: "hermes": {NO_TOKENS}. Fix: remove tools.'),
    (change("task: embed", "task: embed\nreasoning: qwen3"), f'5: reasoning: "qwen3": {NO_TOKENS}. Fix: remove reasoning.'),
    (
        change("{pool: general}", "{pool: general, replicas: 1..2, scale: {kv_usage: 80%}}"),
        f'5: roles.worker.scale.kv_usage: "80%": {NO_TOKENS}. Fix: set queue: 4.',
    ),
    (
        change("{pool: general}}", "{pool: general}, router: {policy: kv-aware}}"),
        f'5: roles.router.policy: "kv-aware": {NO_TOKENS}. Fix: set policy: load-aware.',
    ),
    (
        change("{pool: general}", "{pool: general, max_requests: 31}").replace("users: 2", "users: 2, inputs: 8..32"),
        "5: roles.worker.max_requests: 31: each text counts, and a request of this traffic has up to 32: it would always "
        "get 429. Fix: set max_requests: 32 or more.",
    ),
    # settings of texts
    (
        change("tiny-embed\ntask: embed", "tiny").replace("users: 2", "users: 2, inputs: 4"),
        '5: traffic.inputs: 4: a request of the task generate has one prompt. '
        "Fix: set task: embed or rerank or classify, or remove inputs.",
    ),
    (
        change("tiny-embed\ntask: embed", "tiny").replace("slo: {}", "slo: {inputs_per_s: 4}"),
        '6: slo.inputs_per_s: 4: a request of the task generate has one prompt. '
        "Fix: set task: embed or rerank or classify or draw, or remove inputs_per_s.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_work_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    [error] = list_errors(tmp_path, text)
    assert re.sub(r"(?<=yaml:)(\d+):\d+", r"\1", error) == f"blueprint.yaml:{message}"


def test_a_folder_with_modules_json_is_a_model_that_embeds(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(models.read_config("tiny"))))
    text = LINES.replace("tiny-embed", str(folder))
    [message] = list_errors(tmp_path, text)
    assert "; modules.json in its folder would say that it embeds. Fix: set task: generate" in message
    (folder / models.MODULES_FILE).write_text("[]")
    assert models.find(str(folder)).task == "embed"
    assert resolve_text(tmp_path, text).task == "embed"


def test_arithmetic_counts_all_texts_of_a_request_and_no_answer(tmp_path: Path) -> None:
    def estimate(**settings: Any) -> float:
        written = ", ".join(f"{key}: {value}" for key, value in {"users": 2, **settings}.items())
        text = LINES.replace("tiny-embed", "Qwen/Qwen3-Embedding-8B").replace("users: 2", written)
        deployment = resolve_text(tmp_path, text, "eks")
        return predicted_load.predict_requests_per_s(deployment) or 0

    single = estimate(input_tokens=500)
    assert single > 0
    assert estimate(input_tokens=500, inputs=4) == pytest.approx(single / 4)
    assert estimate(input_tokens=500, output_tokens=64) == single


def test_every_task_that_answers_numbers_is_a_choice_and_has_a_made_model() -> None:
    task_names = {row.task for row in models.load().values() if row.random}
    assert task_names == {tasks.GENERATE, *tasks.POOLED}
