"""What cannot work between roles, on a pattern or on a target: each refusal's text, and beside it what does work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import engines, instances, models
from llm_serving.kinds.serving import engine_process
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
add_ons: {observability: on, schedulers: on, operators: on}
pools:
  general: {types: g6e.12xlarge, size: 0..4}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}
  p5en-apart: {types: p5en.48xlarge, zones: us-west-2a, size: 4, efa: on}
  p5en-without: {types: p5en.48xlarge, zones: us-west-2c, size: 4}
  single: {types: g6e.xlarge, size: 0..4}
  small: {types: g6.xlarge, size: 0..4}
  b300: {types: p6-b300.48xlarge, zones: us-west-2b, size: 2, efa: on}
"""

AGGREGATED = "pattern: aggregated\nmodel: MODEL\nroles:\n  worker: {WORKER}\n"
DISAGGREGATED = "pattern: disaggregated\nmodel: MODEL\nroles:\n  prefill: {PREFILL}\n  decode: {DECODE}\n"
DISTRIBUTED = AGGREGATED.replace("aggregated", "distributed")
TRAFFIC_AND_SLO = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"

SMALL, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B-FP8"


def resolve_blueprint(folder: Path, text: str, target: str = "eks", cores: int = 2) -> ServingDeployment:
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
        'blueprint.yaml:6:22: tuning.kv_offload: "16Gi": the engine has one connector for KV caches: offloading '
        "would replace the one that sends them to decode. Fix: remove kv_offload, or set pattern: aggregated.",
    ),
    (
        format_disaggregated(GENERAL, P5EN, extra="tuning: {kv_transfer: rdma}\n"),
        'blueprint.yaml:6:23: tuning.kv_transfer: "rdma": prefill\'s pool has g6e.12xlarge, whose EFA does not reach '
        "the GPUs' memory (no GPUDirect RDMA). Fix: set kv_transfer: host, or a pool of p5, p5en, p6-b200, p6-b300 or g7e.",
    ),
    (
        format_disaggregated({"pool": "p5en-without"}, P5EN, extra="tuning: {kv_transfer: rdma}\n"),
        'blueprint.yaml:6:23: tuning.kv_transfer: "rdma": prefill\'s pool has p5en.48xlarge, and efa is off there. '
        "Fix: set efa: on in the pool.",
    ),
    (
        format_disaggregated({"pool": "single"}, {"pool": "small"}, model="Qwen/Qwen3-4B", extra="context: 40k\n"),
        'blueprint.yaml:5:18: roles.decode.pool: "small": without RDMA the transfer keeps a copy of the KV cache in the '
        "node's memory: a replica on g6.xlarge has 13.6 GiB, of which half hold 20,385 tokens, and a request takes 40,000. "
        "Fix: use a pool of types with more memory, or a shorter context.",
    ),
    (
        format_disaggregated(P5EN, {"pool": "p5en-apart"}),
        'blueprint.yaml:5:18: roles.decode.pool: "p5en-apart": EFA traffic does not cross an Availability Zone: '
        "prefill runs in us-west-2c and decode in us-west-2a. Fix: use a pool in us-west-2c, or kv_transfer: host.",
    ),
    (
        format_disaggregated({**P5EN, "accelerators": 4}, {**P5EN, "accelerators": 2}, "tiny"),
        "blueprint.yaml:5:38: roles.decode.accelerators: 2: prefill splits a layer 4 ways and decode 2: the 2 key and "
        "value heads lie on several of prefill's accelerators each, and the KV transfer then reads them into as many "
        "ways or more. Fix: set accelerators: 4 for decode, or 2 or fewer for prefill.",
    ),
    (
        format_disaggregated({**P5EN, "accelerators": 2, "pipeline": 2}, {**P5EN, "accelerators": 4}),
        "blueprint.yaml:4:52: roles.prefill.pipeline: 2: the KV transfer sends the cache of one pipeline stage. "
        "Fix: set pipeline: 1.",
    ),
    (
        format_disaggregated({**B300, "replicas": 13}, {**B300, "accelerators": 4}, LARGE),
        "blueprint.yaml:5:3: roles.decode.replicas: 1: the roles need prefill 2 and decode 1 nodes of the pool "
        "b300, which grows to 2. Fix: use fewer replicas, or set size: 2..3 in the pool.",
    ),
    # how a replica is split
    (
        format_distributed(pool="p5en", accelerators=16),
        "blueprint.yaml:4:3: roles.worker.pipeline: 1: each layer would be split 16 ways, over more than the 8 of one "
        "node. Fix: set pipeline: 2, so that a layer stays on one node.",
    ),
    (
        format_aggregated(LARGE, "engine: sglang\n", pool="p5en", accelerators=8),
        "blueprint.yaml:4:38: roles.worker.accelerators: 8: an expert's width, 1536, split 8 ways is 192, which cuts "
        "the FP8 blocks of 128: fewer ways, or expert parallelism. Fix: set accelerators: 1 or 2 or 4, or expert: on.",
    ),
    (
        format_distributed(model=LARGE, pool="p5en", accelerators=32, data=32),
        "blueprint.yaml:4:38: roles.worker.accelerators: 32: an expert's width, 1536, split 32 ways is 48, which cuts "
        "the FP8 blocks of 128: fewer ways, or expert parallelism. Fix: set expert: on.",
    ),
    (
        format_aggregated("BAAI/bge-reranker-v2-m3", "task: rerank\n", pool="p5en", accelerators=2, pipeline=2),
        "blueprint.yaml:4:51: roles.worker.pipeline: 2: no engine runs an encoder in stages. Fix: set pipeline: 1.",
    ),
    (
        format_distributed(pool="p5en", accelerators=12, pipeline=3),
        "blueprint.yaml:4:38: roles.worker.accelerators: 12: a replica over several nodes takes whole ones, and "
        "p5en.48xlarge has 8. Fix: use a multiple of 8.",
    ),
    (
        format_distributed(pool="p5en-without", accelerators=16, pipeline=2),
        'blueprint.yaml:4:18: roles.worker.pool: "p5en-without": the nodes of a replica would communicate over TCP: the '
        "pool p5en-without has no EFA. Fix: set efa: on in the pool, or accelerators: 8.",
    ),
    (
        format_aggregated(pool="p5en", accelerators=2, expert="on"),
        "blueprint.yaml:4:49: roles.worker.expert: true: Qwen/Qwen3-0.6B has no experts to spread. Fix: set expert: off.",
    ),
    (
        format_distributed(model="tiny", pool="p5en", accelerators=8, pipeline=8),
        "blueprint.yaml:4:51: roles.worker.pipeline: 8: the model has 4 layers. Fix: set pipeline: 4 or less.",
    ),
    (
        format_aggregated(pool="general", accelerators=3, data=2),
        "blueprint.yaml:4:41: roles.worker.accelerators: 3: pipeline 1 times data 2 is 2, by which it does not "
        "divide. Fix: use a multiple of 2.",
    ),
    # the machine
    (
        format_aggregated(pool="general", extra="tuning: {kv_offload: 900Gi}\n"),
        'blueprint.yaml:5:22: tuning.kv_offload: "900Gi": a replica\'s share of its node is 82 GiB, of which half '
        "may be shared memory, where the engine keeps this cache: 37 GiB are free there, and it takes 1.2 times its "
        "size. Fix: set kv_offload: 30Gi or less.",
    ),
    (
        format_aggregated(pool="on-ecs"),
        'blueprint.yaml:4:18: roles.worker.pool: "on-ecs": ecs runs the pool\'s containers, and the target is eks. '
        "Fix: use --target ecs, or choose a pool of eks.",
    ),
]

REFUSED_LOCALLY = [
    (
        format_distributed(model="tiny", pool="p5en", accelerators=2, pipeline=2),
        "blueprint.yaml:4:51: roles.worker.pipeline: 2: the engine's pipeline stages start on CPU, and never answer. "
        "Fix: set pipeline: 1 in a copy to try here.",
    ),
    (
        format_aggregated(model="Qwen/Qwen3-30B-A3B", pool="p5en", accelerators=2, expert="on"),
        "blueprint.yaml:4:49: roles.worker.expert: true: the engine has no exchange between ranks of experts on "
        "CPU, and ends at the first request. Fix: set expert: off in a copy to try here.",
    ),
    (
        format_distributed(model="Qwen/Qwen3-30B-A3B", pool="p5en", accelerators=2, data=2),
        "blueprint.yaml:4:47: roles.worker.data: 2: the engine has no exchange between ranks of experts on "
        "CPU, and ends at the first request. Fix: set data: 1 in a copy to try here.",
    ),
    (
        format_aggregated(model="tiny", pool="p5en", accelerators=2, replicas=3),
        "blueprint.yaml:4:51: roles.worker.replicas: 3: worker 6 engine processes would run on 2 cores, which carry "
        "4. Fix: set fewer in a copy to try here; a target with more nodes, --target TARGET, renders it.",
    ),
    (
        format_aggregated(model="tiny", pool="general", extra="tuning: {quantization: fp8}\n"),
        'blueprint.yaml:5:24: tuning.quantization: "fp8": the engine has no arithmetic of 8-bit floats on CPU. '
        "Fix: remove quantization in a copy to try here.",
    ),
    (
        format_aggregated(model="tiny", pool="general", extra="tuning: {kv_offload: 1Gi}\n"),
        'blueprint.yaml:5:22: tuning.kv_offload: "1Gi": the engine moves cached prompts to memory from GPUs alone. '
        "Fix: remove kv_offload in a copy to try here.",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_an_unsupported_blueprint_is_refused_at_check_time(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text) == message


def test_what_gives_way_on_ecs_fills_instances_of_a_pool_whose_tasks_move(tmp_path: Path) -> None:
    text = format_aggregated(pool="on-ecs", accelerators=2, replicas="1..2", gives_way="on")
    assert get_error(tmp_path, text, "ecs").splitlines() == [
        "blueprint.yaml:4:40: roles.worker.accelerators: 2: a replica that gives way on ECS must fill its instance, or the "
        "instance is not free then. Fix: set accelerators: 4.",
        'blueprint.yaml:4:53: roles.worker.replicas: "1..2": autoscaling on ECS would start again what gave way. '
        "Fix: set replicas: 2.",
        "blueprint.yaml:4:70: roles.worker.gives_way: true: on ECS the function that moves tasks between choices of a pool "
        "does it, and this has one choice. Fix: set buy: [spot, on-demand] of the pool, for example.",
    ]
    assert resolve_blueprint(tmp_path, text.replace("on-ecs", "general")).workers[0].placement.gives_way, (
        "on EKS it may"
    )


@pytest.mark.parametrize(
    ("target", "pool", "accelerators", "reason"),
    [
        ("eks", "general", 1, "a replica has one node, which starts whole. Fix: remove gang."),
        (
            "ecs",
            "on-ecs",
            1,
            "on ECS each node of a replica is a service that starts by itself. Fix: remove gang, or use EKS.",
        ),
    ],
)
def test_a_gang_is_refused_where_nothing_admits_it(
    tmp_path: Path, target: str, pool: str, accelerators: int, reason: str
) -> None:
    text = format_aggregated(pool=pool, accelerators=accelerators, gang="on")
    assert f"roles.worker.gang: true: {reason}" in get_error(tmp_path, text, target)


def test_a_gang_waits_in_the_queue_of_its_pool(tmp_path: Path) -> None:
    text = format_distributed(pool="p5en", accelerators=16, pipeline=2, expert="on", gang="on")
    placement = resolve_blueprint(tmp_path, text).workers[0].placement
    assert placement.queue == "p5en"
    assert resolve_blueprint(tmp_path, text.replace(", gang: on", "")).workers[0].placement.queue == ""


MULTI_MODEL = "pattern: multi-model\nroles:\n  models: {one: {model: tiny, pool: general}}\n"


@pytest.mark.parametrize("name", ["router", "prefill", "decode"])
def test_a_model_is_not_called_as_a_role_of_its_own_meaning_is(tmp_path: Path, name: str) -> None:
    text = MULTI_MODEL + TRAFFIC_AND_SLO
    resolve_blueprint(tmp_path, text, "local")
    assert get_error(tmp_path, text.replace("{one:", f"{{{name}:"), "local") == (
        f"blueprint.yaml:3:{len(name) + 14}: roles.models.{name}: {name} is the name of another role. "
        "Fix: name it after its model, such as qwen3."
    )


@pytest.mark.parametrize(
    ("text", "target", "reason"),
    [
        (
            format_disaggregated(GENERAL, GENERAL, "tiny").replace(
                "traffic:", "  router: {policy: kv-aware}\ntraffic:"
            ),
            "local",
            "the router reads the cache events of prefill engines whose addresses it is given when it starts, and of no "
            "others. Fix: set policy: cache-aware, or framework: dynamo",
        ),
        (
            f"{MULTI_MODEL}  router: {{policy: kv-aware}}\n{TRAFFIC_AND_SLO}",
            "local",
            "the router reads the cache events of one model. Fix: set policy: cache-aware",
        ),
        (
            format_aggregated("tiny", pool="general", accelerators=2, data=2).replace(
                "traffic:", "  router: {policy: kv-aware}\ntraffic:"
            ),
            "local",
            "each data-parallel rank publishes its cache's events on a port of its own; cache-aware chooses between ranks "
            "as well. Fix: set policy: cache-aware",
        ),
    ],
)
def test_kv_aware_routing_is_refused_without_cache_events(tmp_path: Path, text: str, target: str, reason: str) -> None:
    line = next(number for number, content in enumerate(text.splitlines(), 1) if "kv-aware" in content)
    assert get_error(tmp_path, text, target) == (
        f'blueprint.yaml:{line}:20: roles.router.policy: "kv-aware": {reason}.'
    )
    resolve_blueprint(tmp_path, text.replace("kv-aware", "cache-aware"), target)


@pytest.mark.parametrize("framework", ["", "framework: dynamo\n"])
@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware"])
def test_a_policy_that_follows_caches_is_refused_where_engines_keep_none(
    tmp_path: Path, policy: str, framework: str
) -> None:
    text = f"{framework}tuning: {{prefix_cache: off}}\n" + format_aggregated("tiny", pool="general").replace(
        "traffic:", f"  router: {{policy: {policy}}}\ntraffic:"
    )
    assert f'roles.router.policy: "{policy}": with tuning: {{prefix_cache: off}} no engine keeps a prompt' in get_error(
        tmp_path, text, "local"
    )
    resolve_blueprint(tmp_path, text.replace("prefix_cache: off", "prefix_cache: on"), "local")


def test_without_caches_the_default_policy_follows_the_load_whatever_the_prompts_share(tmp_path: Path) -> None:
    text = format_aggregated("tiny", pool="general").replace("traffic: {", "traffic: {shared_prefix: 90%, ")
    notes = resolve_blueprint(tmp_path, text, "local").notes
    assert any("policy is cache-aware" in note for note in notes)
    notes = resolve_blueprint(tmp_path, f"tuning: {{prefix_cache: off}}\n{text}", "local").notes
    assert "The router's policy is load-aware, since by tuning: {prefix_cache: off} no engine keeps a prompt." in notes


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
            "Fix: set accelerators: 2 on p5en.48xlarge, or use a smaller model.",
        ),
        (
            "nvidia/Qwen3-235B-A22B-NVFP4",
            "p5en",
            "on p5en.48xlarge weights 134 GB and reserve 6.26 GB are 2.49 GB more than the 138 GB of one accelerator. "
            "Fix: set accelerators: 2 on p5en.48xlarge, or use a smaller model.",
        ),
    ],
)
def test_prefill_on_a_single_gpu_fits_a_235b_model_on_b300_and_not_on_h200(
    tmp_path: Path, model: str, pool: str, message: str
) -> None:
    text = format_disaggregated({"pool": pool, "replicas": 12}, {"pool": pool, "accelerators": 4}, model)
    if message:
        assert get_error(tmp_path, text).endswith(message)
        mended = {"pool": pool, "replicas": 12, "accelerators": 2}
        resolve_blueprint(tmp_path, format_disaggregated(mended, {"pool": pool, "accelerators": 4}, model))
        return
    prefill, decode, _ = resolve_blueprint(tmp_path, text).roles
    assert (prefill.replicas.max, prefill.resources.efa, decode.resources.efa) == (12, 2, 8)


def test_with_rdma_over_efa_nixl_uses_libfabric_and_the_pods_address(tmp_path: Path) -> None:
    for process in resolve_blueprint(tmp_path, format_disaggregated(P5EN, P5EN)).workers:
        assert '"backends": ["LIBFABRIC"]' in get_flag(process.command, "--kv-transfer-config")
        assert '"kv_load_failure_policy": "fail"' in get_flag(process.command, "--kv-transfer-config")
        assert process.env["FI_PROVIDER"] == "efa"
        assert process.env["FI_EFA_USE_DEVICE_RDMA"] == "1"
        assert process.env["FI_EFA_ENABLE_SHM_TRANSFER"] == "0"
        assert process.address_variables == ("VLLM_NIXL_SIDE_CHANNEL_HOST",)
        assert process.resources.efa == 2


def test_without_rdma_caches_go_through_host_memory_with_a_note(tmp_path: Path) -> None:
    deployment = resolve_blueprint(tmp_path, format_disaggregated(GENERAL, GENERAL))
    for engine in deployment.workers:
        assert '"kv_buffer_device": "cpu"' in get_flag(engine.command, "--kv-transfer-config")
        assert "FI_PROVIDER" not in engine.env
        assert engine.resources.efa == 0
    assert any("no EFA with GPUDirect RDMA" in note for note in deployment.notes)
    host_deployment = resolve_blueprint(
        tmp_path, format_disaggregated(P5EN, P5EN, extra="tuning: {kv_transfer: host}\n")
    )
    assert any("as the blueprint asks" in note for note in host_deployment.notes)


def test_a_cache_that_is_copied_to_the_nodes_memory_is_no_larger_than_its_room(tmp_path: Path) -> None:
    """g6e.xlarge has 48 GB beside its GPU's cores and 32 GiB beside its own: a whole copy ends the engine under load."""
    text = format_disaggregated({"pool": "single"}, {"pool": "single"}, model="Qwen/Qwen3-8B")
    deployment = resolve_blueprint(tmp_path, text)
    for engine in deployment.workers:
        limit = int(get_flag(engine.command, "--kv-cache-memory-bytes"))
        assert 2**30 < limit <= engine.resources.memory_bytes // 2 - engine.resources.shared_memory_bytes
    [prefill_note, decode_note] = [note for note in deployment.notes if note.startswith("The KV cache of ")]
    assert re.match(r"The KV cache of prefill is \d+\.\d GiB an accelerator, [\d,]+ tokens: the transfer", prefill_note)
    assert "decode" in decode_note
    by_efa = resolve_blueprint(tmp_path, format_disaggregated(P5EN, P5EN))
    assert all("--kv-cache-memory-bytes" not in engine.command for engine in by_efa.workers), "there is no copy"


def test_a_multi_node_replica_has_one_type_one_zone_and_a_leader(tmp_path: Path) -> None:
    text = format_distributed(model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, data=16, expert="on")
    worker = resolve_blueprint(tmp_path, text).workers[0]
    place = worker.placement
    assert (worker.nodes, place.instance_types, place.zones) == (2, ("p5en.48xlarge",), ("us-west-2c",))
    assert (worker.resources.accelerators, worker.resources.efa) == (8, 16)
    assert (get_flag(worker.command, "--node-rank"), get_flag(worker.worker_command, "--node-rank")) == (
        "0",
        "$(LWS_WORKER_INDEX)",
    )
    assert get_flag(worker.command, "--nnodes") == "2"
    assert get_flag(worker.worker_command, "--master-addr") == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in worker.worker_command and "--headless" not in worker.command
    assert worker.probe is not None


@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [
        pytest.param(SMALL, 4, 2, id="fewer ways than key and value heads"),
        pytest.param("deepseek-ai/DeepSeek-R1", 8, 4, id="latent attention, whose cache every accelerator has whole"),
        pytest.param("openai/gpt-oss-20b", 2, 1, id="sliding windows"),
    ],
)
def test_prefill_may_split_a_layer_more_ways_than_decode(tmp_path: Path, model: str, prefill: int, decode: int) -> None:
    pool = {"pool": "b300"}
    text = format_disaggregated({**pool, "accelerators": prefill}, {**pool, "accelerators": decode}, model)
    prefill_role, decode_role = resolve_blueprint(tmp_path, text).engine_roles
    assert (prefill_role.parallelism.tensor, decode_role.parallelism.tensor) == (prefill, decode)


def test_a_transfer_between_splits_that_are_no_multiples_is_refused(tmp_path: Path) -> None:
    config = {**models.read_config("tiny"), "num_attention_heads": 12, "num_key_value_heads": 12}
    (tmp_path / "twelve").mkdir()
    (tmp_path / "twelve" / "config.json").write_text(json.dumps(config))
    text = format_disaggregated({**P5EN, "accelerators": 2}, {**P5EN, "accelerators": 3}, f"{tmp_path}/twelve")
    assert get_error(tmp_path, text) == (
        "blueprint.yaml:5:38: roles.decode.accelerators: 3: prefill splits a layer 2 ways and decode 3: the KV "
        "transfer needs one to be a multiple of the other. Fix: set accelerators: 2 or 4 for decode."
    )


GIB = 2**30


@pytest.mark.parametrize(
    ("worker", "offload", "shared_gib", "flag"),
    [
        ({"pool": "general"}, "16Gi", 4 + 1.2 * 16, "16"),
        ({"pool": "general", "accelerators": 4, "data": 4}, "16Gi", 4 * 4 + 1.2 * 16, "4"),
        ({"pool": "general", "accelerators": 4}, "0.5Gi", 4 * 4 + 1.2 * 0.5, "0.5"),
    ],
)
def test_offloaded_caches_have_room_in_shared_memory_within_the_replicas(
    tmp_path: Path, worker: dict[str, Any], offload: str, shared_gib: float, flag: str
) -> None:
    text = format_aggregated(**worker, extra=f"tuning: {{kv_offload: {offload}}}\n")
    role = resolve_blueprint(tmp_path, text).workers[0]
    assert role.resources.shared_memory_bytes == pytest.approx(shared_gib * GIB, abs=1)
    assert role.resources.shared_memory_bytes <= role.resources.memory_bytes / 2
    assert get_flag(role.command, "--kv-offloading-size") == flag, "of each data-parallel rank"


def test_api_servers_wait_as_long_for_their_ranks_as_the_probe_does(tmp_path: Path) -> None:
    text = format_distributed(model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, data=16, expert="on")
    [leader] = resolve_blueprint(tmp_path, text).workers
    assert leader.probe and leader.probe.deadline_s > 3600, "it loads 689 GB"
    assert int(leader.env["VLLM_ENGINE_READY_TIMEOUT_S"]) >= leader.probe.deadline_s


def test_data_parallel_ranks_with_adapters_share_one_api_server(tmp_path: Path) -> None:
    worker = {
        "pool": "p5en",
        "accelerators": 16,
        "data": 16,
        "expert": "on",
        "adapters": "{sql: 's3://demo-models-123456789012-us-west-2/sql'}",
    }
    [leader] = resolve_blueprint(tmp_path, format_distributed(model="deepseek-ai/DeepSeek-R1", **worker)).workers
    assert get_flag(leader.command, "--api-server-count") == "1"
    assert "--api-server-count" not in leader.worker_command, "--headless refuses it"
    del worker["adapters"]
    [plain] = resolve_blueprint(tmp_path, format_distributed(model="deepseek-ai/DeepSeek-R1", **worker)).workers
    assert "--api-server-count" not in plain.command


LOADING = [
    # name, worker, whether ranks share the checkpoint, memory limit of one reader
    ("one accelerator", {"pool": "general"}, SMALL, False),
    ("independent copies", {"pool": "general", "accelerators": 4, "data": 4}, SMALL, False),
    ("split layers", {"pool": "general", "accelerators": 4}, SMALL, True),
    ("experts", {"pool": "b300", "accelerators": 8, "data": 8, "expert": "on"}, LARGE, True),
]


@pytest.mark.parametrize(
    ("worker", "model", "is_shared"), [row[1:] for row in LOADING], ids=[row[0] for row in LOADING]
)
def test_ranks_read_the_checkpoint_together_where_the_engine_joins_them(
    tmp_path: Path, worker: dict[str, Any], model: str, is_shared: bool
) -> None:
    role = resolve_blueprint(tmp_path, format_aggregated(model, **worker)).workers[0]
    config = json.loads(get_flag(role.command, "--model-loader-extra-config"))
    assert config.get("distributed", False) is is_shared
    readers = 1 if is_shared else worker.get("data", 1)
    streaming_bytes = readers * config["memory_limit"]
    assert streaming_bytes + role.resources.shared_memory_bytes <= role.resources.memory_bytes / 2
    assert config["memory_limit"] >= 151_936 * 1024 * 2, "the embedding is one tensor"


def test_streaming_takes_less_of_a_small_replicas_memory_beside_offloaded_caches(tmp_path: Path) -> None:
    limits = []
    for extra in ("", "tuning: {kv_offload: 30Gi}\n"):
        role = resolve_blueprint(tmp_path, format_aggregated(pool="general", extra=extra)).workers[0]
        config = json.loads(get_flag(role.command, "--model-loader-extra-config"))
        limits.append(config["memory_limit"])
        assert limits[-1] == int((role.resources.memory_bytes - role.resources.shared_memory_bytes) * 0.25)
    assert limits[1] < limits[0]


@pytest.mark.parametrize(
    ("api", "path", "key"), [("chat", "/v1/chat/completions", "messages"), ("completions", "/v1/completions", "prompt")]
)
def test_probes_ask_the_api_that_the_traffic_uses(tmp_path: Path, api: str, path: str, key: str) -> None:
    text = format_aggregated(pool="on-ecs").replace("{users: 2,", f"{{users: 2, api: {api},")
    deployment = resolve_blueprint(tmp_path, text, "ecs")
    for process in (*deployment.workers, *deployment.entries):
        assert process.probe and process.probe.path == path
        assert process.probe.body["model"] == SMALL and process.probe.body[key]


ADD_ONS = "add_ons: {observability: on, schedulers: on, operators: on}\n"

WITHOUT_ADD_ONS = {
    "scaled, nothing installed": (
        "",
        format_aggregated("tiny", pool="general", replicas="1..4"),
        'blueprint.yaml:4:37: roles.worker.replicas: "1..4": KEDA scales it by Prometheus\' metrics, which the fleet '
        "installs with operators and observability. Fix: set add_ons: {operators: on, observability: on} in the fleet "
        "and apply it, or replicas: 4.",
    ),
    "scaled, without Prometheus": (
        "add_ons: {operators: on}\n",
        format_aggregated("tiny", pool="general", replicas="0..4"),
        'blueprint.yaml:4:37: roles.worker.replicas: "0..4": KEDA scales it by Prometheus\' metrics, which the fleet '
        "installs with operators and observability. Fix: set add_ons: {observability: on} in the fleet and apply it, "
        "or replicas: 4.",
    ),
    "several nodes": (
        "add_ons: {observability: on, operators: on}\n",
        format_distributed(pool="p5en", accelerators=16, pipeline=2, expert="on"),
        "blueprint.yaml:4:38: roles.worker.accelerators: 16: LeaderWorkerSet joins 2 nodes, and the fleet "
        "installs it with schedulers. Fix: set add_ons: {schedulers: on} in the fleet and apply it, or accelerators: 8.",
    ),
}


@pytest.mark.parametrize("case", WITHOUT_ADD_ONS)
def test_what_a_cluster_does_not_know_without_an_add_on_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    add_ons, text, message = WITHOUT_ADD_ONS[case]
    fleet = FLEET.replace(ADD_ONS, add_ons)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path / "mine", text, fleet, "eks")
    assert str(error.value).replace(f"{tmp_path}/mine/", "") == message
    assert resolving.resolve_files(tmp_path / "mine", text, FLEET, "eks"), "with the add-ons"


def test_a_deployment_is_monitored_where_the_fleet_has_prometheus_whether_it_scales_or_not(tmp_path: Path) -> None:
    text = format_aggregated("tiny", pool="general", replicas=2)
    for add_ons, is_monitored in ((ADD_ONS, True), ("", False)):
        (tmp_path / "mine").mkdir(exist_ok=True)
        fleet = FLEET.replace(ADD_ONS, add_ons)
        assert resolving.resolve_files(tmp_path / "mine", text, fleet, "eks").is_monitored is is_monitored


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs"), ("local", "general")])
def test_what_asks_for_health_and_metrics_all_the_time_is_in_no_log(tmp_path: Path, target: str, pool: str) -> None:
    [worker] = resolve_blueprint(tmp_path, format_aggregated("tiny", pool=pool), target).workers
    unlogged = get_flag(worker.command, "--disable-access-log-for-endpoints").split(",")
    assert unlogged == ["/health", "/metrics", "/v1/models"]
    assert worker.probe and worker.probe.health in unlogged and worker.metrics_path in unlogged


def test_nccls_plugin_for_efa_is_named_only_where_nodes_communicate(tmp_path: Path) -> None:
    spanning = format_distributed(pool="p5en", accelerators=16, pipeline=2, expert="on")
    for process in resolve_blueprint(tmp_path, spanning).workers:
        assert process.env["NCCL_NET_PLUGIN"] == "ofi"
    single = format_aggregated(pool="p5en", accelerators=8).replace("}\n", "}\n  router: {policy: kv-aware}\n", 1)
    [process] = resolve_blueprint(tmp_path, single).workers
    assert "NCCL_NET_PLUGIN" not in process.env


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs"), ("local", "general")])
@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_the_model_that_guesses_comes_from_the_fleets_bucket_as_the_other_does(
    tmp_path: Path, target: str, pool: str, method: str
) -> None:
    extra = f"tuning: {{speculative: {{method: {method}, model: ORG/draft}}}}\n"
    deployment = resolve_blueprint(tmp_path, format_aggregated("tiny", pool=pool, extra=extra), target)
    bucket = deployment.environment.bucket
    uris = [f"s3://{bucket}/models/tiny/", f"s3://{bucket}/models/ORG/draft/"]
    assert [loaded_model.weights.uri for loaded_model in deployment.loaded_models] == uris
    command = deployment.workers[0].command
    config = json.loads(get_flag(command, "--speculative-config"))
    assert (command[2], config["model"]) == tuple(uris), "no hub is asked: HF_HUB_OFFLINE is set"


def test_a_draft_takes_of_the_accelerators_what_the_check_counts(tmp_path: Path) -> None:
    draft = "tuning: {speculative: {method: draft_model, model: MODEL}}\n"

    def resolve(extra: str) -> ServingDeployment:
        return resolve_blueprint(
            tmp_path, format_aggregated("Qwen/Qwen3-14B\ncontext: 40k", pool="general", extra=extra)
        )

    assert not any("draft model" in note for note in resolve("").notes)
    with pytest.raises(InputError, match="the cache holds 39024 tokens, 976 short of one request of 40000"):
        resolve(draft.replace("MODEL", "Qwen/Qwen3-0.6B"))
    [note] = [note for note in resolve(draft.replace("MODEL", "ORG/draft")).notes if "draft model" in note]
    assert note == (
        "Memory of the draft model ORG/draft: not computed, since no such model is known here. Its weights and its "
        "cache take a part of what is computed for the KV cache."
    )


def test_here_a_draft_has_its_part_of_the_cache_and_its_weights(tmp_path: Path) -> None:
    draft, cpu = models.find(SMALL), engines.load_engines()["vllm"].platforms["cpu"]

    def resolve(extra: str = "") -> tuple[int, int]:
        [worker] = resolve_blueprint(tmp_path, format_aggregated("mid", pool="general", extra=extra), "local").workers
        return int(get_flag(worker.command, "--kv-cache-memory-bytes")), worker.resources.memory_bytes

    (cache, memory), (cache_with, memory_with) = (
        resolve(),
        resolve(f"tuning: {{speculative: {{method: draft_model, model: {SMALL}}}}}\n"),
    )
    assert cache_with == 2 * cache, "both have as many layers and heads"
    assert memory_with - memory == pytest.approx(cache + cpu.weight_copies * draft.weight_bytes, abs=1)


def test_layers_that_predict_tokens_are_the_model_s_own(tmp_path: Path) -> None:
    def resolve(model: str) -> ServingDeployment:
        text = format_aggregated(
            f"{model}\ncontext: 8k", pool="p5en", accelerators=8, extra="tuning: {speculative: {method: mtp}}\n"
        )
        return resolve_blueprint(tmp_path, text)

    def list_notes(model: str) -> list[str]:
        return [note for note in resolve(model).notes if "predict tokens" in note]

    assert list_notes("deepseek-ai/DeepSeek-V3") == []
    [note] = list_notes("MiniMaxAI/MiniMax-M3")
    assert note.startswith("Memory of the layers of MiniMaxAI/MiniMax-M3 that predict tokens: not computed.")
    with pytest.raises(
        InputError, match=r'"mtp": Qwen/Qwen3-8B has no layers that predict tokens\. Fix: set method: ngr'
    ):
        resolve("Qwen/Qwen3-8B")


def test_a_draft_that_generates_nothing_is_refused_at_its_line(tmp_path: Path) -> None:
    extra = "tuning: {speculative: {method: draft_model, model: BAAI/bge-reranker-v2-m3}}\n"
    assert get_error(tmp_path, format_aggregated("tiny", pool="general", extra=extra)) == (
        'blueprint.yaml:5:52: tuning.speculative.model: "BAAI/bge-reranker-v2-m3": it is made to rerank, and a draft '
        "generates tokens. Fix: use a small model that generates."
    )


def test_a_method_without_a_second_model_loads_one(tmp_path: Path) -> None:
    extra = "tuning: {speculative: {method: ngram}}\n"
    deployment = resolve_blueprint(tmp_path, format_aggregated("tiny", pool="general", extra=extra))
    assert [loaded_model.model for loaded_model in deployment.loaded_models] == ["tiny"]
    assert "model" not in json.loads(get_flag(deployment.workers[0].command, "--speculative-config"))


@pytest.mark.parametrize(
    ("target", "pool", "line", "message"),
    [
        (
            "eks",
            "general",
            "eks: {al2023: v20251016}",
            'fleet.yaml:15:15: eks.al2023: "v20251016": its NVIDIA driver is older than branch 580, which the image of '
            "vllm needs. Fix: set al2023: v20251023 or later.",
        ),
        (
            "ecs",
            "on-ecs",
            "ecs: {al2023: 2023.0.20250923}",
            'fleet.yaml:15:15: ecs.al2023: "2023.0.20250923": its NVIDIA driver is older than branch 580, which the '
            "image of vllm needs. Fix: set al2023: 2023.0.20251015 or later.",
        ),
    ],
)
def test_an_ami_whose_driver_is_too_old_for_the_engines_image_is_refused(
    tmp_path: Path, target: str, pool: str, line: str, message: str
) -> None:
    text, fleet = f"{format_aggregated(pool=pool)}name: mine\n", f"{FLEET}{line}\n"
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, fleet, target)
    assert str(error.value) == f"{tmp_path}/{message}"
    with_own_image = f"image: example.com/mine:1.0\n{text}"
    assert resolving.resolve_files(tmp_path, with_own_image, fleet, target), "nothing is known of another image"
    newer = line.replace("2025", "2026")
    assert resolving.resolve_files(tmp_path, text, f"{FLEET}{newer}\n", target)


def test_experts_over_several_nodes_communicate_by_nccl_and_are_balanced(tmp_path: Path) -> None:
    worker = {"pool": "p5en", "accelerators": 16, "data": 16, "expert": "on"}
    text = format_distributed(model="deepseek-ai/DeepSeek-R1", **worker)
    [worker_service] = resolve_blueprint(tmp_path, text).workers
    for command in (worker_service.command, worker_service.worker_command):
        assert get_flag(command, "--all2all-backend") == "allgather_reducescatter"
        assert get_flag(command, "--gpu-memory-utilization") == "0.8"
        balancing = json.loads(get_flag(command, "--eplb-config"))
        assert balancing == {"num_redundant_experts": 16, "communicator": "torch_gloo"}
        assert "--enable-eplb" in command and "--enable-dbo" not in command
    assert worker_service.env["NCCL_NET_PLUGIN"] == "ofi", "over EFA, not TCP"


def test_every_accelerator_holds_as_many_experts_and_copies(tmp_path: Path) -> None:
    fleet = FLEET.replace("us-west-2c, size: 4, efa: on}", "us-west-2c, size: 8, efa: on}", 1)
    for accelerators, spare in ((16, 16), (24, 8), (48, 32)):
        worker = {"pool": "p5en", "accelerators": accelerators, "data": accelerators, "expert": "on"}
        text = format_distributed(model="deepseek-ai/DeepSeek-R1", **worker) + "name: mine\n"
        role = resolving.resolve_files(tmp_path, text, fleet, "eks").workers[0]
        count = json.loads(get_flag(role.command, "--eplb-config"))["num_redundant_experts"]
        assert count == spare and (256 + count) % accelerators == 0


@pytest.mark.parametrize(
    ("model", "worker"),
    [
        ("openai/gpt-oss-120b", {"pool": "p5en", "accelerators": 16, "data": 16, "expert": "on"}),
        (LARGE, {"pool": "p5en", "accelerators": 8, "data": 8, "expert": "on"}),
        (LARGE, {"pool": "p5en", "accelerators": 16, "pipeline": 2, "expert": "on"}),
    ],
)
def test_experts_that_the_engine_cannot_balance_or_that_stay_on_one_node_are_not_copied(
    tmp_path: Path, model: str, worker: dict[str, Any]
) -> None:
    command = resolve_blueprint(tmp_path, format_distributed(model=model, **worker)).workers[0].command
    assert "--enable-eplb" not in command
    assert ("--all2all-backend" in command) == (worker["data"] == 16 if "data" in worker else False)


BUCKETS = "storage: {model_buckets: [{bucket: other-models}, {bucket: demo-models-old}]}\n"


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs")])
def test_weights_and_adapters_of_a_bucket_that_engines_may_not_read_are_refused(
    tmp_path: Path, target: str, pool: str
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = format_aggregated(
        pool=pool,
        accelerators=1,
        replicas=1,
        extra="weights: s3://other-models/qwen3/\n",
        adapters={"own": "s3://demo-models-123456789012-us-west-2/lora/", "sql": "s3://demo-models-old/sql/"},
    )
    refusal = get_error(tmp_path, text, target)
    assert refusal.count("the fleet lets its engines read no bucket") == 2
    assert 'weights: "s3://other-models/qwen3/": the fleet lets its engines read no bucket other-models.' in refusal
    assert (
        'roles.worker.adapters.sql: "s3://demo-models-old/sql/": the fleet lets its engines read no bucket demo-models-old. '
        "Fix: set storage: {model_buckets: {bucket: demo-models-old}} in the fleet, "
    ) in refusal
    assert resolving.resolve_files(folder, text, FLEET + BUCKETS, target, cores=2)


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs"), ("local", "general")])
@pytest.mark.parametrize(("policy", "ranks"), [("cache-aware", "2"), ("consistent-hash", "2"), ("load-aware", None)])
def test_the_router_chooses_a_rank_where_its_policy_follows_the_ranks_caches(
    tmp_path: Path, target: str, pool: str, policy: str, ranks: str | None
) -> None:
    text = format_aggregated("tiny", pool=pool, accelerators=2, data=2)
    text = text.replace("data: 2}\n", f"data: 2}}\n  router: {{policy: {policy}}}\n")
    command = resolve_blueprint(tmp_path, text, target).entries[0].command
    if ranks is None:
        assert "--intra-node-data-parallel-size" not in command, "the engine knows its ranks' queues"
    else:
        assert get_flag(command, "--intra-node-data-parallel-size") == ranks
        assert "--enable-igw" not in command, "with it vllm-router makes no entry for a rank"
    one_rank = text.replace("accelerators: 2, data: 2", "accelerators: 1")
    assert "--intra-node-data-parallel-size" not in resolve_blueprint(tmp_path, one_rank, target).entries[0].command


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs"), ("local", "general")])
def test_the_router_chooses_ranks_of_prefill_and_decode_where_both_have_as_many(
    tmp_path: Path, target: str, pool: str
) -> None:
    role = {"pool": pool, "accelerators": 2, "data": 2}
    text = format_disaggregated(role, role, "tiny").replace("traffic", "  router: {policy: cache-aware}\ntraffic", 1)
    command = resolve_blueprint(tmp_path, text, target, cores=4).entries[0].command
    assert get_flag(command, "--intra-node-data-parallel-size") == "2"
    unlike = text.replace("accelerators: 2, data: 2", "accelerators: 1", 1)
    command = resolve_blueprint(tmp_path, unlike, target, cores=4).entries[0].command
    assert "--intra-node-data-parallel-size" not in command, "it is one number for both"


def _format_by_slo(pool: str, slo: str = "{ttft_ms: {p95: 500}, itl_ms: {p95: 50}}", extra: str = "") -> str:
    prefill = {"pool": pool, "replicas": "1..2", "scale": "{queue: 4, slo: on}"}
    decode = {"pool": pool, "replicas": "1..2", "scale": "{kv_usage: 80%, slo: on}"}
    return format_disaggregated(prefill, decode, extra=extra).replace("slo: {}", f"slo: {slo}")


def test_prefill_and_decode_follow_their_own_limits_of_the_slo(tmp_path: Path) -> None:
    deployment = resolve_blueprint(tmp_path, _format_by_slo("general"))
    for service in deployment.workers:
        assert service.replicas.scale and service.replicas.scale.slo
    limits = [(objective.role, objective.name) for objective in deployment.latency_objectives]
    assert limits == [("prefill", "ttft p95"), ("decode", "itl p95")]


@pytest.mark.parametrize(
    ("text", "target", "role", "reason"),
    [
        (_format_by_slo("on-ecs"), "ecs", "prefill", "on ECS a role follows one measure of its engines"),
        (
            _format_by_slo("general", "{ttft_ms: {p95: 500}, itl_ms: {mean: 50}}"),
            "eks",
            "decode",
            "the SLO has no percentile of a latency that this role's engines measure",
        ),
    ],
    ids=["ecs", "no limit"],
)
def test_following_the_slo_is_refused_where_nothing_measures_it(
    tmp_path: Path, text: str, target: str, role: str, reason: str
) -> None:
    assert f"roles.{role}.scale.slo: true: {reason}. Fix: remove slo." in get_error(tmp_path, text, target)


def test_prefill_and_decode_span_several_nodes_each(tmp_path: Path) -> None:
    fleet = FLEET.replace("us-west-2c, size: 4, efa: on}", "us-west-2c, size: 6, efa: on}", 1)
    prefill = {**P5EN, "accelerators": 16, "data": 16, "expert": "on"}
    decode = {**P5EN, "accelerators": 32, "data": 32, "expert": "on"}
    text = f"{format_disaggregated(prefill, decode, 'deepseek-ai/DeepSeek-V3')}name: mine\n"
    deployment = resolving.resolve_files(tmp_path, text, fleet, "eks")
    assert [(worker.nodes, worker.resources.efa) for worker in deployment.workers] == [(2, 16), (4, 16)]
    for worker, kv_role, ranks in zip(deployment.workers, ("kv_producer", "kv_consumer"), ("16", "32"), strict=True):
        for command in (worker.command, worker.worker_command):
            transfer = json.loads(get_flag(command, "--kv-transfer-config"))
            assert (transfer["kv_role"], transfer["kv_buffer_device"]) == (kv_role, "cuda")
            assert (get_flag(command, "--data-parallel-size"), "--enable-expert-parallel" in command) == (ranks, True)
        # Rank n listens at the port and n, on the node that it is on.
        assert set(worker.address_variables) == {"VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"}
    router = deployment.entries[0].command
    assert router.count("inference/listens=true") == 2, "the first node of a replica alone answers requests"
    with pytest.raises(InputError, match="which grows to 4"):
        resolving.resolve_files(tmp_path, text, FLEET, "eks")


def test_prefill_follows_cached_prefixes_and_decode_the_load(tmp_path: Path) -> None:
    text = (
        format_disaggregated(GENERAL, GENERAL)
        .replace("}\n", "}\n  router: {policy: POLICY}\n", 2)
        .replace("  router: {policy: POLICY}\n", "", 1)
    )
    for policy, words in {
        "cache-aware": ("cache_aware", "power_of_two"),
        "round-robin": ("round_robin", "round_robin"),
        "load-aware": ("power_of_two", "power_of_two"),
    }.items():
        command = resolve_blueprint(tmp_path, text.replace("POLICY", policy)).entries[0].command
        assert (get_flag(command, "--policy"), get_flag(command, "--decode-policy")) == words


def test_a_single_decode_engine_at_a_known_address_leaves_no_choice(tmp_path: Path) -> None:
    """vllm-router refuses to start with power_of_two and fewer than two decode engines."""
    text = format_disaggregated(GENERAL, GENERAL)
    command = resolve_blueprint(tmp_path, text, "local").entries[0].command
    assert (get_flag(command, "--policy"), get_flag(command, "--decode-policy")) == ("power_of_two", "round_robin")


def test_a_claim_for_compiled_programs_is_refused_where_there_are_none(tmp_path: Path) -> None:
    text = format_aggregated(extra="tuning: {compile_cache: 'claim:compiled'}\n", pool="on-ecs")
    assert "ECS has no PersistentVolumeClaims. Fix: set compile_cache: node" in get_error(tmp_path, text, "ecs")
    mount = resolve_blueprint(tmp_path, text.replace("on-ecs", "general")).workers[0].mounts["compile-cache"]
    assert (mount.claim, mount.node_path) == ("compiled", "")


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("g6.12xlarge", 1),  # 40 Gbps for four GPUs, and a client is made for 10
        ("g6e.xlarge", 2),  # 4 cores take in 16 Gbps of the network's 20
        ("g6e.12xlarge", 3),  # 100 Gbps for four GPUs
        ("p5.48xlarge", 2),  # of 3,200 Gbps, the first card's 100 for eight GPUs
        ("p5en.48xlarge", 3),
        ("g6e.48xlarge", 5),
    ],
)
def test_clients_of_s3_fill_an_accelerators_share_of_network_and_cores(name: str, clients: int) -> None:
    assert engine_process.compute_stream_clients([instances.find(name)]) == clients
    smallest = [instances.find("p5.48xlarge"), instances.find("g6e.48xlarge")]
    assert engine_process.compute_stream_clients(smallest) == 2, "all instances of a role take the same command"
    assert engine_process.compute_stream_clients([instances.find("m8g.large")]) == 1


def test_the_engine_streams_with_as_many_clients_of_s3_as_its_instance_fills(tmp_path: Path) -> None:
    local = resolve_blueprint(tmp_path, format_aggregated("tiny", pool="general"), "local").workers[0]
    assert local.env["RUNAI_STREAMER_CONCURRENCY"] == "1"
    for worker, clients in (({"pool": "general"}, 3), ({"pool": "p5en", "accelerators": 8}, 3)):
        role = resolve_blueprint(tmp_path, format_aggregated(**worker)).workers[0]
        config = json.loads(get_flag(role.command, "--model-loader-extra-config"))
        assert config["concurrency"] == clients


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "RUBYOPT", "RUBYLIB"),
        *("GLIBC_TUNABLES", "GCONV_PATH", "PATH", "VLLM_PLUGINS"),
    ],
)
def test_variables_that_load_code_are_refused_on_this_machine_alone(tmp_path: Path, name: str) -> None:
    text = "name: mine\n" + format_aggregated(pool="general", extra=f"environment: {{{name}: env1/lib}}\n")
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, FLEET, "local")
    assert str(error.value).partition(": ")[2] == (
        f'environment.{name}: "env1/lib": on this machine it makes every program of the engine load code. '
        f"Fix: remove {name}."
    )
    assert resolving.resolve_files(tmp_path, text, FLEET, "eks"), "there it is the container's"


def test_a_start_that_is_longer_than_ecs_gives_a_task_is_noted_there_alone(tmp_path: Path) -> None:
    large = format_distributed(model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, data=16, expert="on")
    on_ecs = FLEET.replace("size: 4, efa: on}", "size: 4, efa: on, orchestrator: ecs}")
    notes = {
        "eks": resolve_blueprint(tmp_path, large).notes,
        "ecs": resolving.resolve_files(tmp_path / "mine", large, on_ecs, "ecs").notes,
    }
    start = "ECS ends a container that has not answered 55 minutes after its start. worker may take "
    assert [note.startswith(start) for note in notes["ecs"]].count(True) == 1
    assert not any("has not answered" in note for note in notes["eks"])
    small = format_disaggregated({"pool": "on-ecs"}, {"pool": "on-ecs"})
    assert not any("has not answered" in note for note in resolve_blueprint(tmp_path, small, "ecs").notes)


SURGE = "disruption: {surge: on}\n"


def test_an_upgrade_can_start_the_new_replica_first_where_the_pool_holds_both(tmp_path: Path) -> None:
    text = AGGREGATED.replace("MODEL", SMALL).replace(
        "{WORKER}", "{pool: general, replicas: REPLICAS, accelerators: 4}"
    )
    deployment = resolve_blueprint(tmp_path, text.replace("REPLICAS", "3") + SURGE + TRAFFIC_AND_SLO)
    assert [service.replicas.surge for service in deployment.services if not service.is_entry] == [1]
    with pytest.raises(InputError) as error:
        resolve_blueprint(tmp_path, text.replace("REPLICAS", "4") + SURGE + TRAFFIC_AND_SLO)
    assert str(error.value).endswith(
        'disruption.surge: "on": an upgrade starts one replica more of each role first: 5 nodes of the pool general, which '
        "grows to 4. Fix: set surge: off, or size: 0..5 in the pool."
    )


def test_an_upgrade_of_one_replica_without_a_second_is_noted_as_an_outage(tmp_path: Path) -> None:
    text = AGGREGATED.replace("MODEL", SMALL).replace("{WORKER}", "{pool: general}")
    reason = "An upgrade stops the one replica of worker before it starts the new one, and nothing answers meanwhile. "
    alone = resolve_blueprint(tmp_path, text + TRAFFIC_AND_SLO)
    assert [note.startswith(reason) for note in alone.notes].count(True) == 1
    assert not any(
        note.startswith(reason) for note in resolve_blueprint(tmp_path, text + SURGE + TRAFFIC_AND_SLO).notes
    )


def test_on_ecs_a_replica_over_several_instances_has_no_second_beside_it(tmp_path: Path) -> None:
    text = format_distributed(model=LARGE, pool="p5en", accelerators=16, pipeline=2, expert="on", extra=SURGE)
    on_ecs = FLEET.replace("size: 4, efa: on}", "size: 4, efa: on, orchestrator: ecs}")
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="on ECS each node of a replica is a service, and two of one rank would share"):
        resolving.resolve_files(tmp_path / "mine", text, on_ecs, "ecs")
