"""How a replica is split and what it takes of its nodes: each refusal's text, and beside it what does work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kinds.serving.texts import (
    LARGE,
    format_aggregated,
    format_disaggregated,
    format_distributed,
    get_error,
    get_flag,
    resolve_blueprint,
)

REFUSED = [
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


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_an_unsupported_blueprint_is_refused_at_check_time(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text) == message


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


def test_a_request_keeps_one_state_where_no_beginnings_of_prompts_are_cached(tmp_path: Path) -> None:
    """Of three kinds of layers, each with a block for a state; 31 blocks are for keys and values."""
    texts = [
        format_aggregated("Qwen/Qwen3-Next-80B-A3B-Instruct", f"context: 8192\n{tuning}", pool="p5en", accelerators=4)
        for tuning in ("", "tuning: {prefix_cache: off}\n")
    ]
    cached, uncached = (resolve_blueprint(tmp_path, text).engine_roles[0].cache_tokens for text in texts)
    assert uncached / cached == pytest.approx((31 + 3 * 2) / (31 + 3 * 1))
