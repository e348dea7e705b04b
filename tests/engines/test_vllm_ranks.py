"""Memory of the fullest rank, against what vLLM's own classes have on each kind of GPU (scripts/record_ranks.py)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances, models
from llm_serving.engines import memory, vllm
from llm_serving.engines.memory import ReplicaSetup, Split

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "vllm_ranks.json").read_text())


def _compute_weight_bytes(row: dict[str, Any]) -> int:
    setup = ReplicaSetup(**{field.name: row[field.name] for field in dataclasses.fields(Split)})
    return vllm.compute_weight_bytes(models.find(row["model"]), setup, instances.load()[row["instance"]].accelerators)


def _compute_token_bytes(row: dict[str, Any]) -> int:
    model, device = models.find(row["model"]), instances.load()[row["instance"]].accelerators
    assert device
    stage, dtype = memory.select_stage(model, row["pipeline"]), vllm.select_cache_type(model, device, "auto")
    return memory.compute_kv_bytes_per_token(stage, row["tensor"], dtype)


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("model", "instance", *(field.name for field in dataclasses.fields(Split))))


def test_weights_are_those_of_vllm_or_a_little_more() -> None:
    """More are the keys' and values' projections of latent attention, which vLLM copies once they are loaded, widths of
    experts in MXFP4, which one of its kernels for Hopper rounds up to fewer, and layers of a stage, which are all of the
    larger kind. Fewer are layers of Gemma 4 with full attention, of which some
    stages have one more."""
    differences = {_name(row): _compute_weight_bytes(row) / row["weight_bytes"] - 1 for row in ROWS}
    assert {name: share for name, share in differences.items() if not -0.009 < share < 0.049} == {}
    whole = {_name(row): differences[_name(row)] for row in ROWS if row["pipeline"] == 1}
    assert {name: share for name, share in whole.items() if not -0.006 < share < 0.041} == {}
    assert sorted(map(abs, differences.values()))[len(ROWS) // 2] < 0.001


def test_a_token_takes_the_bytes_of_vllm_s_cache() -> None:
    """What DeepSeek V4 compresses has sizes of other kinds, which vLLM does not count by token."""
    rows = [row for row in ROWS if not models.find(row["model"]).compressed]
    differences = {_name(row): (row["token_bytes"], _compute_token_bytes(row)) for row in rows if row["pipeline"] == 1}
    assert {name: pair for name, pair in differences.items() if pair[0] != pair[1]} == {}


def test_a_token_takes_no_less_in_a_stage_than_in_vllm_s_fullest() -> None:
    """More are layers of GLM-5 without an indexer, which are counted with one."""
    stages = [row for row in ROWS if row["pipeline"] > 1 and not models.find(row["model"]).compressed]
    shares = {_name(row): _compute_token_bytes(row) / row["token_bytes"] for row in stages if row["token_bytes"]}
    assert {name: share for name, share in shares.items() if not 1 <= share < 1.17} == {}
    assert sorted(shares.values())[len(shares) // 2] == 1


def test_the_rows_have_each_kind_whose_memory_is_the_gpu_s() -> None:
    kinds = {(models.find(row["model"]).kind, row["instance"]) for row in ROWS}
    names = ("qwen3_moe", "glm4_moe", "nemotron_h", "glm_moe_dsa", "deepseek_v32", "gpt_oss", "gemma4")
    assert {(kind, "p6-b200.48xlarge") for kind in names} <= kinds
    assert {("gpt_oss", instance) for instance in ("p4d.24xlarge", "p5.48xlarge", "g7e.48xlarge")} <= kinds


def test_the_rows_have_each_way_to_spread_a_model() -> None:
    splits = {(row["instance"], row["pipeline"] > 1, row["data"] > 1, row["whole_experts"]) for row in ROWS}
    spread = [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
    assert {(name, *way) for name in ("p4d.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge") for way in spread} <= splits
