"""The baseline of a disaggregated blueprint: as many accelerators of the same pool, and all else alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving import baseline
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

PATTERN = Path(__file__).parents[3] / "blueprints/disaggregated"

ROLES = "prefill: {pool: gpus, replicas: 12}, decode: {pool: gpus, accelerators: 4}"


def _write_blueprint(folder: Path, roles: str = ROLES, extra: str = "") -> Path:
    folder = folder / "pair"
    folder.mkdir(exist_ok=True)
    (folder / "blueprint.yaml").write_text(
        f"pattern: disaggregated\nmodel: tiny\ncontext: 2k\nroles: {{{roles}}}\n"
        f"traffic: {{users: 8, input_tokens: 32..64, deadline: 2.5s}}\nslo: {{errors: 0.1%}}\n{extra}"
    )
    return folder / "blueprint.yaml"


def _make_baseline(folder: Path, roles: str = ROLES, extra: str = "") -> Blueprint:
    original = load(_write_blueprint(folder, roles, extra), Blueprint)
    (folder / "blueprint.yaml").write_text(baseline.render(original))
    return load(folder / "blueprint.yaml", Blueprint).value


@pytest.mark.parametrize(
    ("roles", "replicas", "each"),
    [
        (ROLES, (4, 4), 4),
        ("prefill: {pool: gpus}, decode: {pool: gpus}", (2, 2), 1),
        ("prefill: {pool: gpus, replicas: 2, accelerators: 2}, decode: {pool: gpus, accelerators: 4}", (2, 2), 4),
        ("prefill: {pool: gpus, replicas: 3}, decode: {pool: gpus, accelerators: 2}", (5, 5), 1),
        ("prefill: {pool: gpus, replicas: 4..12}, decode: {pool: gpus, accelerators: 4}", (2, 4), 4),
    ],
)
def test_a_baseline_has_the_same_accelerators_in_equal_replicas(
    tmp_path: Path, roles: str, replicas: tuple[int, int], each: int
) -> None:
    baseline_blueprint = _make_baseline(tmp_path, roles)
    assert baseline_blueprint.pattern == "aggregated"
    assert baseline_blueprint.roles.worker is not None
    assert (tuple(baseline_blueprint.roles.worker.replicas), baseline_blueprint.roles.worker.accelerators) == (
        replicas,
        each,
    )
    assert baseline_blueprint.roles.worker.pool == "gpus"


@pytest.mark.parametrize(
    ("roles", "pattern"),
    [
        (
            "prefill: {pool: gpus, accelerators: 16, data: 16, expert: on}, "
            "decode: {pool: gpus, accelerators: 32, data: 32, expert: on}",
            "distributed",
        ),
        ("prefill: {pool: gpus, accelerators: 4, expert: on}, decode: {pool: gpus, accelerators: 4}", "aggregated"),
    ],
)
def test_the_baseline_of_experts_over_several_nodes_spans_them_too(tmp_path: Path, roles: str, pattern: str) -> None:
    assert _make_baseline(tmp_path, roles).pattern == pattern


def test_a_baseline_has_the_originals_model_traffic_and_slo_without_kv_transfer(tmp_path: Path) -> None:
    extra = "name: pair\ntuning: {kv_transfer: host, prefix_cache: off, sequences: 64}\n"
    original = load(_write_blueprint(tmp_path, extra=extra), Blueprint).value
    baseline_blueprint = _make_baseline(tmp_path, extra=extra)
    unchanged_keys = {"model", "context", "traffic", "slo", "weights", "disruption"}
    assert baseline_blueprint.model_dump(include=unchanged_keys) == original.model_dump(include=unchanged_keys)
    assert baseline_blueprint.tuning == original.tuning.model_copy(update={"kv_transfer": "auto"})
    assert baseline_blueprint.name == "pair-baseline"


def test_a_baseline_has_the_originals_router_policy(tmp_path: Path) -> None:
    assert _make_baseline(tmp_path, f"{ROLES}, router: {{policy: round-robin}}").roles.router.policy == "round-robin"


def test_the_patterns_blueprint_has_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "blueprint.yaml").write_text(baseline.render(load(PATTERN / "blueprint.yaml", Blueprint)))
    assert load(tmp_path / "blueprint.yaml", Blueprint).value.pattern == "aggregated"


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            "prefill: {pool: gpus}, decode: {pool: others}",
            '4:47: roles.decode.pool: "others": prefill runs in the pool gpus: a baseline\'s replicas are all '
            "alike, and so are their nodes. Fix: set pool: gpus.",
        ),
        (
            "prefill: {pool: gpus, accelerators: 2}, decode: {pool: gpus, accelerators: 3}",
            "4:9: roles.prefill.replicas: 1: 5 accelerators of prefill and decode together make no whole number of "
            "replicas of 3 or 2. Fix: set replicas or accelerators whose sum is a multiple of 3.",
        ),
    ],
)
def test_a_blueprint_without_an_equal_baseline_is_refused_at_its_line(tmp_path: Path, roles: str, message: str) -> None:
    file = _write_blueprint(tmp_path, roles)
    with pytest.raises(InputError) as error:
        baseline.render(load(file, Blueprint))
    assert str(error.value) == f"{file}:{message}"


def test_only_a_disaggregated_blueprint_has_a_baseline(tmp_path: Path) -> None:
    original = load(PATTERN.parent / "aggregated/blueprint.yaml", Blueprint)
    with pytest.raises(InputError) as error:
        baseline.render(original)
    assert (
        'pattern: "aggregated": the pattern has no baseline: nothing is split that could run together. Fix: name the folder of a blueprint with pattern: disaggregated.'
        in str(error.value)
    )
