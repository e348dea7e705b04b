"""An engine's command and environment: ranks, experts, loading, probes and what it logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import instances
from llm_serving.kinds.serving import engine_process
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.texts import (
    FLEET,
    LARGE,
    P5EN,
    SMALL,
    format_aggregated,
    format_disaggregated,
    format_distributed,
    get_flag,
    resolve_blueprint,
)


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
