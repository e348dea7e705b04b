"""What cannot work between roles, on a pattern or on a target: each refusal's text, and beside it what does work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.settings.errors import InputError
from llm_serving.workloads.serving.deployment import Deployment
from tests.workloads.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
pools:
  general: {types: g6e.12xlarge, size: 0..4}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}
  p5en-apart: {types: p5en.48xlarge, zones: us-west-2a, size: 4, efa: on}
  p5en-without: {types: p5en.48xlarge, zones: us-west-2c, size: 4}
  b300: {types: p6-b300.48xlarge, zones: us-west-2b, size: 2, efa: on}
"""

AGGREGATED = "pattern: aggregated\nmodel: MODEL\nroles:\n  worker: {WORKER}\n"
DISAGGREGATED = "pattern: disaggregated\nmodel: MODEL\nroles:\n  prefill: {PREFILL}\n  decode: {DECODE}\n"
DISTRIBUTED = AGGREGATED.replace("aggregated", "distributed")
TRAFFIC_AND_SLO = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"

SMALL, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B-FP8"


def resolve_blueprint(folder: Path, text: str, target: str = "eks", cores: int = 2) -> Deployment:
    folder = folder / "mine"
    folder.mkdir(exist_ok=True)
    return resolving.resolve_files(folder, text, FLEET, target, cores=cores)


def get_error(folder: Path, text: str, target: str = "eks", cores: int = 2) -> str:
    with pytest.raises(InputError) as error:
        resolve_blueprint(folder, text, target, cores)
    return str(error.value).replace(f"{folder}/mine/", "")


def format_aggregated(model: str = SMALL, extra: str = "", **worker: Any) -> str:
    return AGGREGATED.replace("MODEL", model).replace("{WORKER}", format_flow(worker)) + extra + TRAFFIC_AND_SLO


def format_distributed(model: str = LARGE, extra: str = "", **worker: Any) -> str:
    return DISTRIBUTED.replace("MODEL", model).replace("{WORKER}", format_flow(worker)) + extra + TRAFFIC_AND_SLO


def format_disaggregated(prefill: dict[str, Any], decode: dict[str, Any], model: str = SMALL, extra: str = "") -> str:
    text = (
        DISAGGREGATED.replace("MODEL", model)
        .replace("{PREFILL}", format_flow(prefill))
        .replace("{DECODE}", format_flow(decode))
    )
    return text + extra + TRAFFIC_AND_SLO


def format_flow(settings: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def get_flag(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


GENERAL, P5EN, B300 = {"pool": "general"}, {"pool": "p5en"}, {"pool": "b300"}

REFUSED = [
    # between the roles of a pattern
    (
        format_disaggregated(GENERAL, GENERAL, extra="tuning: {kv_offload: 16Gi}\n"),
        "blueprint.yaml:6:22: tuning.kv_offload: now '16Gi': the engine has one connector for KV caches: offloading "
        "would replace the one that sends them to decode. Fix: no kv_offload, or pattern: aggregated.",
    ),
    (
        format_disaggregated(GENERAL, P5EN, extra="tuning: {kv_transfer: rdma}\n"),
        "blueprint.yaml:6:23: tuning.kv_transfer: now 'rdma': prefill's pool has g6e.12xlarge, whose EFA does not reach "
        "the GPUs' memory (no GPUDirect RDMA). Fix: kv_transfer: host, or a pool of p5, p5en, p6-b200, p6-b300 or g7e.",
    ),
    (
        format_disaggregated({"pool": "p5en-without"}, P5EN, extra="tuning: {kv_transfer: rdma}\n"),
        "blueprint.yaml:6:23: tuning.kv_transfer: now 'rdma': prefill's pool has p5en.48xlarge, and efa is off there. "
        "Fix: efa: on in the pool.",
    ),
    (
        format_disaggregated(P5EN, {"pool": "p5en-apart"}),
        "blueprint.yaml:5:18: roles.decode.pool: now 'p5en-apart': EFA traffic does not cross an Availability Zone: "
        "prefill runs in us-west-2c and decode in us-west-2a. Fix: a pool in us-west-2c, or kv_transfer: host.",
    ),
    (
        format_disaggregated({**P5EN, "accelerators": 4}, {**P5EN, "accelerators": 2}),
        "blueprint.yaml:5:11: roles.decode: decode splits a layer 2 ways and prefill 4: the KV transfer sends a cache to "
        "as many ways or more, never to fewer. Fix: accelerators: 4 or more for decode.",
    ),
    (
        format_disaggregated({**P5EN, "accelerators": 2, "pipeline": 2}, {**P5EN, "accelerators": 4}),
        "blueprint.yaml:4:52: roles.prefill.pipeline: now 2: the KV transfer sends the cache of one pipeline stage. "
        "Fix: pipeline: 1.",
    ),
    (
        format_disaggregated({**B300, "replicas": 13}, {**B300, "accelerators": 4}, LARGE),
        "blueprint.yaml:5:3: roles.decode.replicas: now 1: the roles need prefill 2 and decode 1 nodes of the pool "
        "b300, which grows to 2. Fix: fewer replicas, or size: 2..3 in the pool.",
    ),
    # how a replica is split
    (
        format_distributed(pool="p5en", accelerators=16),
        "blueprint.yaml:4:3: roles.worker.pipeline: now 1: each layer would be split 16 ways, over more than the 8 of one "
        "node. Fix: pipeline: 2, so that a layer stays on one node.",
    ),
    (
        format_distributed(pool="p5en", accelerators=16, pipeline=2),
        "blueprint.yaml:4:38: roles.worker.accelerators: now 16: an expert's width, 1536, split 8 ways is 192, which cuts "
        "the FP8 blocks of 128: fewer ways, or expert parallelism. Fix: accelerators: 2 or 4 or 8, or expert: on.",
    ),
    (
        format_distributed(pool="p5en", accelerators=12, pipeline=3),
        "blueprint.yaml:4:38: roles.worker.accelerators: now 12: a replica over several nodes takes whole ones, and "
        "p5en.48xlarge has 8. Fix: a multiple of 8.",
    ),
    (
        format_distributed(pool="p5en-without", accelerators=16, pipeline=2),
        "blueprint.yaml:4:18: roles.worker.pool: now 'p5en-without': the nodes of a replica would communicate over TCP: the "
        "pool p5en-without has no EFA. Fix: efa: on in the pool, or accelerators: 8.",
    ),
    (
        format_aggregated(pool="p5en", accelerators=2, expert="on"),
        "blueprint.yaml:4:49: roles.worker.expert: now true: Qwen/Qwen3-0.6B has no experts to spread. Fix: expert: off.",
    ),
    (
        format_distributed(model="tiny", pool="p5en", accelerators=8, pipeline=8),
        "blueprint.yaml:4:51: roles.worker.pipeline: now 8: the model has 4 layers. Fix: pipeline: 4 or less.",
    ),
    (
        format_aggregated(pool="general", accelerators=3, data=2),
        "blueprint.yaml:4:41: roles.worker.accelerators: now 3: pipeline 1 times data 2 is 2, by which it does not "
        "divide. Fix: a multiple of 2.",
    ),
    # the machine
    (
        format_aggregated(pool="general", extra="tuning: {kv_offload: 900Gi}\n"),
        "blueprint.yaml:5:22: tuning.kv_offload: now '900Gi': a replica's share of its node is 82 GiB, of which half "
        "may hold cache. Fix: kv_offload: 40Gi or less.",
    ),
    (
        format_aggregated(pool="on-ecs"),
        "blueprint.yaml:4:18: roles.worker.pool: now 'on-ecs': ecs runs the pool's containers, and the target is eks. "
        "Fix: --target ecs, or a pool of eks.",
    ),
]

REFUSED_LOCALLY = [
    (
        format_distributed(model="tiny", pool="p5en", accelerators=2, pipeline=2),
        "blueprint.yaml:4:51: roles.worker.pipeline: now 2: the engine's pipeline stages start on CPU, and never answer. "
        "Fix: pipeline: 1 in a copy to try here.",
    ),
    (
        format_aggregated(model="Qwen/Qwen3-30B-A3B", pool="p5en", accelerators=2, expert="on"),
        "blueprint.yaml:4:49: roles.worker.expert: now true: the engine spreads experts by libraries that need GPUs. "
        "Fix: expert: off in a copy to try here.",
    ),
    (
        format_aggregated(model="tiny", pool="p5en", accelerators=2, replicas=3),
        "blueprint.yaml:4:51: roles.worker.replicas: now 3: worker 6 engine processes would run on 2 cores, which carry "
        "4. Fix: fewer in a copy to try here; a target with more nodes, --target TARGET, renders it.",
    ),
    (
        format_aggregated(model="tiny", pool="general", extra="tuning: {quantization: fp8}\n"),
        "blueprint.yaml:5:24: tuning.quantization: now 'fp8': the engine has no arithmetic of 8-bit floats on CPU. "
        "Fix: no quantization in a copy to try here.",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_an_unsupported_blueprint_is_refused_at_check_time(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text) == message


MULTI_MODEL = "pattern: multi-model\nroles:\n  models: {one: {model: tiny, pool: general}}\n"


@pytest.mark.parametrize(
    ("text", "target", "reason"),
    [
        (
            format_disaggregated(GENERAL, GENERAL, "tiny").replace(
                "traffic:", "  router: {policy: kv-aware}\ntraffic:"
            ),
            "local",
            "a router that reads prefill's cache events apart from decode's is not tested yet",
        ),
        (
            f"{MULTI_MODEL}  router: {{policy: kv-aware}}\n{TRAFFIC_AND_SLO}",
            "local",
            "the router reads the cache events of one model",
        ),
        (
            format_aggregated("tiny", pool="general", accelerators=2, data=2).replace(
                "traffic:", "  router: {policy: kv-aware}\ntraffic:"
            ),
            "local",
            "each data-parallel rank publishes its own cache's events, and the router reads one of each replica",
        ),
    ],
)
def test_kv_aware_routing_is_refused_without_cache_events(tmp_path: Path, text: str, target: str, reason: str) -> None:
    line = next(number for number, content in enumerate(text.splitlines(), 1) if "kv-aware" in content)
    assert get_error(tmp_path, text, target) == (
        f"blueprint.yaml:{line}:20: roles.router.policy: now 'kv-aware': {reason}. Fix: policy: cache-aware."
    )
    resolve_blueprint(tmp_path, text.replace("kv-aware", "cache-aware"), target)


@pytest.mark.parametrize(("text", "message"), REFUSED_LOCALLY)
def test_settings_that_need_an_accelerator_are_refused_on_local_alone(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text, "local") == message
    resolve_blueprint(tmp_path, text, "eks")


@pytest.mark.parametrize(
    ("model", "pool", "message"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", "b300", ""),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "b300", ""),
        (
            "Qwen/Qwen3-235B-A22B-FP8",
            "p5en",
            "on p5en.48xlarge weights 236 GB and reserve 6.26 GB are 105 GB more than the 138 GB of one accelerator. "
            "Fix: accelerators: 1 on p6-b300.48xlarge, or a smaller model.",
        ),
        (
            "nvidia/Qwen3-235B-A22B-NVFP4",
            "p5en",
            "on p5en.48xlarge weights 134 GB and reserve 6.26 GB are 2.48 GB more than the 138 GB of one accelerator. "
            "Fix: accelerators: 1 on p6-b200.48xlarge or accelerators: 2 on p4de.24xlarge, or a smaller model.",
        ),
    ],
)
def test_prefill_on_a_single_gpu_fits_a_235b_model_on_b300_and_not_on_h200(
    tmp_path: Path, model: str, pool: str, message: str
) -> None:
    text = format_disaggregated({"pool": pool, "replicas": 12}, {"pool": pool, "accelerators": 4}, model)
    if message:
        assert get_error(tmp_path, text).endswith(message)
        return
    prefill, decode, _ = resolve_blueprint(tmp_path, text).roles
    assert (prefill.replicas.max, prefill.resources.efa, decode.resources.efa) == (12, 2, 8)


def test_with_rdma_over_efa_nixl_uses_libfabric_and_the_pods_address(tmp_path: Path) -> None:
    for role in resolve_blueprint(tmp_path, format_disaggregated(P5EN, P5EN)).engine_roles:
        (process,) = role.processes
        assert '"backends": ["LIBFABRIC"]' in get_flag(process.command, "--kv-transfer-config")
        assert '"kv_load_failure_policy": "fail"' in get_flag(process.command, "--kv-transfer-config")
        assert process.env["FI_PROVIDER"] == "efa"
        assert process.env["FI_EFA_USE_DEVICE_RDMA"] == "1"
        assert process.env["FI_EFA_ENABLE_SHM_TRANSFER"] == "0"
        assert process.address_variables == ("VLLM_NIXL_SIDE_CHANNEL_HOST",)
        assert role.resources.efa == 2


def test_without_rdma_caches_go_through_host_memory_with_a_note(tmp_path: Path) -> None:
    deployment = resolve_blueprint(tmp_path, format_disaggregated(GENERAL, GENERAL))
    for role in deployment.engine_roles:
        assert '"kv_buffer_device": "cpu"' in get_flag(role.processes[0].command, "--kv-transfer-config")
        assert "FI_PROVIDER" not in role.processes[0].env
        assert role.resources.efa == 0
    assert any("no EFA with GPUDirect RDMA" in note for note in deployment.notes)
    host_deployment = resolve_blueprint(
        tmp_path, format_disaggregated(P5EN, P5EN, extra="tuning: {kv_transfer: host}\n")
    )
    assert any("as the blueprint asks" in note for note in host_deployment.notes)


def test_a_multi_node_replica_has_one_type_one_zone_and_a_leader(tmp_path: Path) -> None:
    text = format_distributed(model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, data=16, expert="on")
    worker = resolve_blueprint(tmp_path, text).engine_roles[0]
    leader, follower = worker.processes
    assert (worker.nodes, worker.instance_types, worker.zones) == (2, ("p5en.48xlarge",), ("us-west-2c",))
    assert (worker.resources.accelerators, worker.resources.efa) == (8, 16)
    assert (get_flag(leader.command, "--node-rank"), get_flag(follower.command, "--node-rank")) == (
        "0",
        "$(LWS_WORKER_INDEX)",
    )
    assert get_flag(leader.command, "--nnodes") == "2"
    assert get_flag(follower.command, "--master-addr") == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in follower.command and "--headless" not in leader.command
    assert (leader.probe is not None, follower.probe) == (True, None), "followers answer nobody"


def test_the_ray_executor_joins_the_machines(tmp_path: Path) -> None:
    text = format_distributed(
        model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, pipeline=2, expert="on", executor="ray"
    )
    leader, follower = resolve_blueprint(tmp_path, text).engine_roles[0].processes
    assert leader.command[:2] == ("sh", "-c") and "ray start --head" in leader.command[2]
    assert get_flag(leader.command, "--distributed-executor-backend") == "ray"
    assert "--nnodes" not in leader.command
    assert follower.command[:2] == ("ray", "start") and "--block" in follower.command
