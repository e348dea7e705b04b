"""Memory of one rank, against what vLLM's own classes have on each kind of GPU (scripts/record_vllm_ranks.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances, models
from llm_serving.engines import memory, vllm
from llm_serving.engines.memory import ReplicaSetup

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "vllm_ranks.json").read_text())


def _compute(row: dict[str, Any]) -> tuple[int, int]:
    """Return bytes of weights and of a token's cache."""
    model, device = models.find(row["model"]), instances.load()[row["instance"]].accelerators
    assert device
    dtype = vllm.select_cache_type(model, device, "auto")
    weight_bytes = vllm.compute_weight_bytes(model, ReplicaSetup(row["tensor"]), device)
    return weight_bytes, memory.compute_kv_bytes_per_token(model, row["tensor"], dtype)


def test_weights_are_those_of_vllm_or_a_little_more() -> None:
    """More are the keys' and values' projections of latent attention, which vLLM copies once they are loaded, and widths
    of experts in MXFP4, which one of its kernels for Hopper rounds up to fewer."""
    differences = {
        (row["model"], row["instance"], row["tensor"]): _compute(row)[0] / row["weight_bytes"] - 1 for row in ROWS
    }
    assert {key: share for key, share in differences.items() if not -0.006 < share < 0.041} == {}
    assert sorted(map(abs, differences.values()))[len(ROWS) // 2] < 0.001


def test_a_token_takes_the_bytes_of_vllm_s_cache() -> None:
    tokens = [(row["model"], row["instance"], row["tensor"], row["token_bytes"], _compute(row)[1]) for row in ROWS]
    assert [row for row in tokens if row[3] != row[4]] == []


def test_the_rows_have_each_kind_whose_memory_is_the_gpu_s() -> None:
    kinds = {(models.find(row["model"]).kind, row["instance"]) for row in ROWS}
    names = ("qwen3_moe", "glm4_moe", "nemotron_h", "glm_moe_dsa", "deepseek_v32", "gpt_oss", "gemma4")
    assert {(kind, "p6-b200.48xlarge") for kind in names} <= kinds
    assert {("gpt_oss", instance) for instance in ("p4d.24xlarge", "p5.48xlarge", "g7e.48xlarge")} <= kinds
