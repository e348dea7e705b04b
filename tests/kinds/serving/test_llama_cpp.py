"""Blueprints of llama.cpp: what is refused with its reason, and what pools of CPUs are given."""

from __future__ import annotations

from pathlib import Path

import gguf as gguf_package
import pytest

from llm_serving.catalog import gguf, records
from llm_serving.catalog.records import ModelRecord
from llm_serving.hub import make_gguf
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-east-1
zones: [us-east-1b, us-east-1c]
orchestrator: both
pools:
  general: {types: g6e.2xlarge, size: 0..8, orchestrator: eks}
  graviton: {types: [m8g.4xlarge, m8g.8xlarge], size: 0..4, orchestrator: eks}
  intel: {types: c8i.4xlarge, size: 0..4, orchestrator: ecs}
"""
GGUF = "bartowski/Qwen_Qwen3-4B-GGUF:Q4_K_M"


def _format(role: str, extra: str = "", model: str = GGUF, engine: str = "llama.cpp") -> str:
    return (
        f"name: mine\npattern: aggregated\nengine: {engine}\nmodel: {model}\nroles: {{worker: {{{role}}}}}\n"
        f"traffic: {{users: 2}}\nslo: {{errors: 0%}}\n{extra}"
    )


@pytest.mark.parametrize(
    ("pool", "target", "cpus", "threads"), [("graviton", "eks", 13, "13"), ("intel", "ecs", 13, "6")]
)
def test_a_replica_has_a_node_for_itself_and_a_thread_for_each_core(
    pool: str, target: str, cpus: int, threads: str, tmp_path: Path
) -> None:
    deployment = resolving.resolve_files(tmp_path, _format(f"pool: {pool}, replicas: 4"), FLEET, target)
    [role] = deployment.workers
    command = role.command
    assert (role.resources.device, role.resources.accelerators, role.resources.cpus) == ("", 0, cpus)
    assert command[command.index("--threads") + 1] == threads
    assert int(command[command.index("--threads-http") + 1]) >= 128, "idle connections keep no request waiting"
    assert command[:3] == ("llama-server", "--model", "/scratch/fetched/weights/model.gguf")
    assert role.prefetch
    assert role.prefetch.uris["weights"].endswith("/gguf/bartowski/Qwen_Qwen3-4B-GGUF/Q4_K_M/")
    assert role.image.endswith("/demo/llama-cpp:b11669-4")
    assert role.env["DRAIN_S"] == "120", "of the launcher in that image: disruption.drain"
    with pytest.raises(InputError, match=r"grows to 4 nodes, which fit 4\. Fix: set replicas: 4 or less"):
        resolving.resolve_files(tmp_path, _format(f"pool: {pool}, replicas: 5"), FLEET, target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_format("pool: general"), 'roles.worker.pool: "general": g6e.2xlarge has L40S, on which the engine llama.cpp does not run. Fix: use a pool of types without accelerators, such as m8g or c8i, or another engine.'),
        (_format("pool: graviton, accelerators: 2"), 'roles.worker.accelerators: 2: the pool graviton has no accelerators, and on CPU a replica has one node. Fix: set accelerators: 1.'),
        (_format("pool: graviton", "tuning: {quantization: fp8}\n"), 'tuning.quantization: "fp8": GGUF files are quantized before they are copied, `blueprint model copy ORGANIZATION/MODEL-GGUF:Q8_0`. Fix: remove quantization.'),
        (_format("pool: graviton", "tuning: {kv_offload: 1Gi}\n"), "tuning.kv_offload: \"1Gi\": the cache is in the node's memory already. Fix: remove kv_offload."),
        (_format("pool: graviton, adapters: {sql: 's3://demo-models/sql'}"), "roles.worker.adapters: \"sql\": this repository deploys no adapters in GGUF's form. Fix: remove adapters."),
        (_format("pool: graviton, replicas: 1..2, scale: {kv_usage: 80%}"), 'roles.worker.scale.kv_usage: 0.8: the engine llama.cpp has no metric of it. Fix: set scale: {queue: 4}.'),
        (_format("pool: graviton").replace("}}\ntr", "}, router: {policy: kv-aware}}\ntr"), 'roles.router.policy: "kv-aware": llama.cpp publishes no events of its cache. Fix: set policy: cache-aware.'),
        (_format("pool: graviton", model="Qwen/Qwen3-4B"), 'model: "Qwen/Qwen3-4B": the engine llama.cpp reads one GGUF file, and this model is safetensors. Fix: set model: bartowski/Qwen_Qwen3-4B-GGUF:Q4_0 or engine: sglang or engine: tensorrt-llm or engine: vllm.'),
        (_format("pool: graviton", "engine_arguments: {threads: 3}\n"), 'engine_arguments: {threads: 3}: the catalog has no list'),
        (_format("pool: graviton", "task: embed\n", "BAAI/bge-m3"), 'model: "BAAI/bge-m3": the engine llama.cpp reads one GGUF file, and this model is safetensors. Fix: set engine: sglang or engine: tensorrt-llm or engine: vllm.'),
        (_format("pool: general", engine="vllm"), f'model: "{GGUF}": the engine vllm reads safetensors, and this model is one GGUF file. Fix: set model: Qwen/Qwen3-4B or engine: llama.cpp.'),
        (_format("pool: graviton", engine="sglang", model="Qwen/Qwen3-4B"), 'roles.worker.accelerators: 1: the pool graviton has no accelerators: m8g.4xlarge has none, m8g.8xlarge has none. Fix: use a pool of types with accelerators.'),
        (_format("pool: graviton", "context: 32k\ntuning: {sequences: 64}\n"), 'model: "bartowski/Qwen_Qwen3-4B-GGUF:Q4_K_M": it does not fit into a node of the pool graviton: '),
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_do_is_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, FLEET, "eks")
    assert message in str(error.value)


def test_disaggregation_is_refused_and_each_reason_is_llama_cpps_own(tmp_path: Path) -> None:
    text = _format("pool: graviton").replace("aggregated", "disaggregated")
    text = text.replace("worker: {pool: graviton}", "prefill: {pool: graviton}, decode: {pool: graviton}")
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, FLEET, "eks")
    assert 'pattern: "disaggregated": llama.cpp hands no KV cache from one server to another' in str(error.value)


@pytest.fixture(scope="module")
def tiny_header(tmp_path_factory: pytest.TempPathFactory) -> gguf.Header:
    """The header of a made GGUF file."""
    return gguf.read_file(make_gguf.make("tiny", tmp_path_factory.mktemp("gguf") / "tiny") / gguf.FILE)


@pytest.mark.parametrize(
    ("pooling", "task"), [(gguf_package.PoolingType.LAST, "embed"), (gguf_package.PoolingType.RANK, "rerank")]
)
def test_a_file_that_embeds_is_served_and_one_that_ranks_is_refused(
    pooling: int, task: str, tiny_header: gguf.Header, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, header = "someone/some-model-GGUF:Q8_0", tiny_header
    header = header.model_copy(update={"values": {**header.values, "qwen3.pooling_type": pooling}})
    records.save(ModelRecord(source=name, commit="c" * 40, gguf=header))
    text = _format("pool: graviton", f"task: {task}\n", model=name).replace("slo: {}", "slo: {e2e_ms: {p95: 900}}")
    if task == "rerank":
        with pytest.raises(InputError, match=r'task: "rerank": few GGUF files hold a head .+ Fix: set task: embed'):
            resolving.resolve_files(tmp_path, text, FLEET, "eks")
        return
    command = resolving.resolve_files(tmp_path, text, FLEET, "eks").workers[0].command
    assert command[command.index("--ubatch-size") + 1] == command[command.index("--batch-size") + 1] == "4096"
    assert "--embeddings" in command
