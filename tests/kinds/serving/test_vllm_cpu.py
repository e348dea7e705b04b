"""Blueprints of vLLM on pools of CPUs: the image, the memory and the threads that a replica is given, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import engines, instances, models
from llm_serving.engines import memory, vllm
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-east-1
zones: [us-east-1b, us-east-1c]
orchestrator: both
pools:
  graviton: {types: [m8g.8xlarge, m8g.4xlarge], size: 0..4, orchestrator: eks}
  intel: {types: c8i.4xlarge, size: 0..4, orchestrator: ecs}
  both: {types: [g6.4xlarge, c8i.4xlarge], size: 0..4, orchestrator: eks}
"""
MODEL = "Qwen/Qwen3-4B"


def _format(role: str, extra: str = "", model: str = MODEL) -> str:
    return (
        f"name: mine\npattern: aggregated\nmodel: {model}\nroles: {{worker: {{{role}}}}}\n"
        f"traffic: {{users: 2}}\nslo: {{errors: 0%}}\n{extra}"
    )


def _get_flag(deployment: ServingDeployment, flag: str) -> str:
    command = deployment.workers[0].command
    return command[command.index(flag) + 1]


@pytest.mark.parametrize(("pool", "target"), [("graviton", "eks"), ("intel", "ecs")])
def test_a_replica_has_a_node_for_itself_with_its_own_image_and_binds_its_threads(
    pool: str, target: str, tmp_path: Path
) -> None:
    deployment = resolving.resolve_files(tmp_path, _format(f"pool: {pool}, replicas: 4"), FLEET, target)
    [role] = deployment.workers
    assert role.image.endswith("/demo/vllm-cpu:0.32.0-4")
    assert (role.resources.device, role.resources.accelerators, role.resources.cpus) == ("", 0, 13)
    assert role.env["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert role.env["TORCH_COMPILE_DISABLE"] == "1", "the image has no compiler"
    assert role.env["VLLM_CACHE_ROOT"] == "/opt/vllm/cache", "where the image has descriptions of architectures"
    assert not {"OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING"} & role.env.keys()
    assert "uni" not in role.command, "in one process with the server no thread is bound"
    assert role.prefetch is None, "weights are streamed"
    assert int(role.env["RUNAI_STREAMER_MEMORY_LIMIT"]) < role.resources.memory_bytes / 4
    with pytest.raises(InputError, match=r"grows to 4 nodes, which fit 4\. Fix: set replicas: 4 or less"):
        resolving.resolve_files(tmp_path, _format(f"pool: {pool}, replicas: 5"), FLEET, target)


def test_the_cache_is_what_the_smallest_type_leaves(tmp_path: Path) -> None:
    deployment = resolving.resolve_files(tmp_path, _format("pool: graviton"), FLEET, "eks")
    [role], cpu = deployment.workers, engines.load_engines()["vllm"].platforms["cpu"]
    cache = int(_get_flag(deployment, "--kv-cache-memory-bytes"))
    weights = cpu.weight_copies * models.find(MODEL).weight_bytes
    assert cpu.base_bytes + weights + cache < role.resources.memory_bytes - role.resources.shared_memory_bytes
    assert (
        cache
        == vllm.compute_fit(
            models.find(MODEL), instances.find("m8g.4xlarge"), ReplicaSetup(1, context=4096)
        ).cache_bytes
    )
    alone = resolving.resolve_files(
        tmp_path, _format("pool: graviton"), FLEET.replace("[m8g.8xlarge, m8g.4xlarge]", "m8g.8xlarge"), "eks"
    )
    assert int(_get_flag(alone, "--kv-cache-memory-bytes")) > 2 * cache


def test_a_replica_has_the_memory_of_one_socket_alone() -> None:
    half, whole = (
        vllm.compute_fit(models.find(MODEL), instances.find(f"m8g.{size}xlarge"), ReplicaSetup(1, context=4096))
        for size in (24, 48)
    )
    assert (instances.find("m8g.48xlarge").sockets, instances.find("m8g.24xlarge").sockets) == (2, 1)
    assert half.budget_bytes == whole.budget_bytes == pytest.approx(384 * memory.GIB * memory.NODE_SHARE * 0.92)
    assert half.tokens_per_s == whole.tokens_per_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_format("pool: graviton", model="Qwen/Qwen3-235B-A22B"), "it does not fit into a node of the pool graviton: on m8g.8xlarge weights 564 GB and reserve 2.2 GB are 459 GB more than the 107 GB of a replica; "),
        (_format("pool: graviton", model="openai/gpt-oss-20b"), 'model: "openai/gpt-oss-20b": its weights are mxfp4, and on m8g.8xlarge the engine vllm takes those of 16 bits. Fix: use the checkpoint that is not quantized, or a pool of types with accelerators.'),
        (_format("pool: graviton", "tuning: {quantization: fp8}\n"), 'tuning.quantization: "fp8": the engine has no arithmetic of 8-bit floats on CPU. Fix: remove quantization.'),
        (_format("pool: graviton", "tuning: {kv_offload: 1Gi}\n"), "the engine moves cached prompts to memory from GPUs alone. Fix: remove kv_offload."),
        (_format("pool: graviton, accelerators: 2"), "roles.worker.accelerators: 2: the pool graviton has no accelerators, and on CPU a replica has one node. Fix: set accelerators: 1."),
        (_format("pool: graviton", "framework: ray\n"), "roles.worker.accelerators: 1: the pool graviton has no accelerators: m8g.8xlarge has none, m8g.4xlarge has none. Fix: use a pool of types with accelerators."),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_do_on_cpu_is_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    fleet = f"{FLEET}add_ons: {{operators: on}}\n"
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, fleet, "eks")
    assert message in str(error.value)


def test_in_a_pool_with_gpus_too_replicas_run_on_those_alone(tmp_path: Path) -> None:
    [role] = resolving.resolve_files(tmp_path, _format("pool: both"), FLEET, "eks").workers
    assert role.placement.instance_types == ("g6.4xlarge",)
    assert (role.resources.accelerators, "vllm-cpu" in role.image) == (1, False)


def test_prefill_hands_its_cache_to_decode_on_cpu_without_a_copy(tmp_path: Path) -> None:
    text = _format("pool: graviton").replace("aggregated", "disaggregated")
    text = text.replace("worker: {pool: graviton}", "prefill: {pool: graviton}, decode: {pool: graviton}")
    deployment = resolving.resolve_files(tmp_path, text, FLEET, "eks")
    for role in deployment.workers:
        assert role.command.count("--kv-cache-memory-bytes") == 1
        assert '"kv_buffer_device": "cpu"' in role.command[role.command.index("--kv-transfer-config") + 1]
        assert role.env["UCX_TLS"] == "tcp,self,sm"
