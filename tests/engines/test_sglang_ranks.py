"""SGLang's memory, against what its own classes and its own choice of shares have on each kind of GPU
(scripts/record_ranks.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances, models
from llm_serving.catalog.instances import Accelerators
from llm_serving.engines import memory, sglang
from llm_serving.engines.memory import GIB, ReplicaSetup

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "sglang_ranks.json").read_text())


def _get_device(row: dict[str, Any]) -> Accelerators:
    device = instances.load()[row["instance"]].accelerators
    assert device
    return device


def _build_setup(row: dict[str, Any]) -> ReplicaSetup:
    return ReplicaSetup(row["tensor"], whole_experts=row["whole_experts"], context=4096)


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("model", "instance", "tensor", "whole_experts"))


def _compare_weights(row: dict[str, Any]) -> float:
    weight_bytes = sglang.compute_weight_bytes(models.find(row["model"]), _build_setup(row), _get_device(row))
    return weight_bytes / float(row["weight_bytes"]) - 1


def test_weights_are_those_of_sglang_or_a_little_more() -> None:
    """More are experts in MXFP4, whose widths some of its kernels round up once they are loaded, and Gemma 4's keys and
    values, which are split further."""
    differences = {_name(row): _compare_weights(row) for row in ROWS}
    mxfp4 = {name for name in differences if models.find(name[0]).quantization == "mxfp4"}
    assert {name: share for name, share in differences.items() if not -0.017 < share < 0.045}.keys() <= mxfp4
    assert all(-0.01 < differences[name] < 0.13 for name in mxfp4)
    assert sorted(map(abs, differences.values()))[len(ROWS) // 2] < 0.003


def test_the_reserve_covers_what_sglang_leaves_free() -> None:
    """More are the graphs of prompts, which only latent attention has whole, and the tower of Qwen2.5-VL; half a GiB of 41
    less is that of Kimi K2.6."""
    more = {}
    for row in ROWS:
        device_bytes = memory.compute_rank_bytes(_get_device(row))
        fit = sglang.compute_fit(models.find(row["model"]), instances.load()[row["instance"]], _build_setup(row))
        reserve = fit.reserve_bytes + device_bytes - fit.budget_bytes
        more[_name(row)] = (reserve - device_bytes * (1 - row["memory_share"])) / GIB
    assert {name: gib for name, gib in more.items() if not -0.6 < gib < 9.8} == {}
    assert sorted(more.values())[len(more) // 2] < 2.5


def test_the_rows_have_each_kind_whose_weights_are_sglang_s_own() -> None:
    kinds = {(models.find(row["model"]).kind, row["instance"]) for row in ROWS}
    assert {("gemma3", "p5.48xlarge"), ("gemma4", "g6e.48xlarge")} <= kinds
    padded = ("qwen3_moe", "qwen3_5_moe", "glm4_moe", "granitemoehybrid")
    assert {(kind, "p6-b200.48xlarge") for kind in padded} <= kinds
