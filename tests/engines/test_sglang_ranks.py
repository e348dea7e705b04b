"""SGLang's memory, against what its own classes and its own choice of shares have on each kind of GPU
(scripts/record_ranks.py)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances, models
from llm_serving.catalog.instances import Accelerators
from llm_serving.engines import memory, sglang
from llm_serving.engines.memory import GIB, Fit, ReplicaSetup

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "sglang_ranks.json").read_text())

CONTEXT = 4096
MIB = 2**20


def _get_device(row: dict[str, Any]) -> Accelerators:
    device = instances.load()[row["instance"]].accelerators
    assert device
    return device


def _build_setup(row: dict[str, Any]) -> ReplicaSetup:
    split = (row["tensor"], row["pipeline"], row["whole_experts"])
    return ReplicaSetup(*split, context=CONTEXT, phase=row.get("phase", ""))


def _compute_fit(row: dict[str, Any]) -> Fit:
    return sglang.compute_fit(models.find(row["model"]), instances.load()[row["instance"]], _build_setup(row))


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("model", "instance", "tensor", "pipeline", "whole_experts", "phase"))


def _compare_weights(row: dict[str, Any]) -> float:
    weight_bytes = sglang.compute_weight_bytes(models.find(row["model"]), _build_setup(row), _get_device(row))
    return weight_bytes / float(row["weight_bytes"]) - 1


def test_weights_are_those_of_sglang_or_a_little_more() -> None:
    """More are experts in MXFP4, whose widths some of its kernels round up once they are loaded, and Gemma 4's keys and
    values, which are split further. Less are DeepSeek V4's on Blackwell, whose scales have 32 bits until then."""
    differences = {_name(row): _compare_weights(row) for row in ROWS}
    mxfp4 = {name for name in differences if models.find(name[0]).quantization == "mxfp4"}
    wide = {name for name in differences if models.find(name[0]).kind == "deepseek_v4" and name[1].startswith("p6-")}
    assert {name: share for name, share in differences.items() if not -0.023 < share < 0.045}.keys() <= mxfp4 | wide
    assert all(-0.01 < differences[name] < 0.13 for name in mxfp4)
    assert all(-0.15 < differences[name] < -0.14 for name in wide)
    assert sorted(map(abs, differences.values()))[len(ROWS) // 2] < 0.003


def test_the_reserve_is_what_sglang_leaves_free() -> None:
    """Up to SGLang's rounding of its share to thousandths, and that of memory to GiB when it was asked."""
    differences = {}
    for row in ROWS:
        free_bytes = memory.compute_rank_bytes(_get_device(row)) * (1 - row["memory_share"])
        differences[_name(row)] = abs(_compute_fit(row).reserve_bytes - free_bytes) - 0.012 * free_bytes
    allowed = {name: 1.2 if "Qwen3-VL" in name[0] and name[1].startswith("p5") else 0.3 for name in differences}
    assert {name for name, number in differences.items() if number > allowed[name] * GIB} == set()


def test_all_that_is_left_beside_the_tokens_is_for_pictures() -> None:
    """So a token takes as much as in SGLang. Of DeepSeek V4, whose rings are counted otherwise, and of stages of GLM-5 and
    gpt-oss, which have unlike numbers of indexers and windows, a sixth more at most, or a fiftieth less."""
    pictures, unlike = {}, {}
    for row in ROWS:
        model, fit = models.find(row["model"]), _compute_fit(row)
        if not fit.cache_tokens or model.state:
            continue
        token_bytes = fit.cache_bytes / fit.cache_tokens
        free_bytes = (
            round(memory.compute_rank_bytes(_get_device(row)) / GIB) * GIB * row["memory_share"] - row["weight_bytes"]
        )
        if model.compressed or (row["pipeline"] > 1 and model.kind in ("glm_moe_dsa", "gpt_oss")):
            unlike[_name(row)] = token_bytes * row["tokens"] / free_bytes
        else:
            pictures[_name(row)] = (free_bytes - token_bytes * row["tokens"]) / MIB
    assert len(pictures) > 280 and len(unlike) >= 8
    for name, mib in pictures.items():
        model = models.find(name[0])
        expected = 0 if not model.vision else 1024 if "Qwen3-VL" in name[0] and name[1].startswith("p5") else 100
        assert abs(mib - expected) < 20, name
    assert all(share < 1.17 for share in unlike.values())
    assert all(share > 0.979 for name, share in unlike.items() if not models.find(name[0]).compressed)


def test_as_many_requests_have_a_state_as_in_sglang() -> None:
    """Fewer by the hundredth of the memory that is left to the driver here, and which SGLang takes."""
    stateful = [row for row in ROWS if models.find(row["model"]).state]
    assert len(stateful) > 60
    for row in stateful:
        requests = _compute_fit(row).cache_tokens // CONTEXT
        least = 0.9 if row["pipeline"] == 1 else 0.75  # stages have unlike numbers of linear layers
        assert least * row["requests"] - 2 <= requests <= 1.06 * row["requests"], _name(row)


def test_models_that_sglang_has_no_stages_of_fit_in_none() -> None:
    for name, pipeline in itertools.product(("google/gemma-3-27b-it", "ibm-granite/granite-4.0-h-small"), (1, 2)):
        setup = ReplicaSetup(2, pipeline, context=CONTEXT)
        fit = sglang.compute_fit(models.find(name), instances.load()["p5.48xlarge"], setup)
        assert fit.fits == (pipeline == 1)
        assert ("SGLang has no pipeline stages" in fit.why) == (pipeline == 2)


def test_the_rows_have_each_kind_whose_weights_are_sglang_s_own() -> None:
    assert {row.get("phase") for row in ROWS} == {None, "prefill", "decode"}
    kinds = {(models.find(row["model"]).kind, row["instance"]) for row in ROWS}
    assert {("gemma3", "p5.48xlarge"), ("gemma4", "g6e.48xlarge")} <= kinds
    padded = ("qwen3_moe", "qwen3_5_moe", "glm4_moe", "granitemoehybrid")
    assert {(kind, "p6-b200.48xlarge") for kind in padded} <= kinds
