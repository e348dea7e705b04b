"""The router's command: its policy, and the ranks that it chooses between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kinds.serving import resolving
from tests.kinds.serving.texts import GENERAL, format_aggregated, format_disaggregated, get_flag, resolve_blueprint


def test_without_caches_the_default_policy_follows_the_load_whatever_the_prompts_share(tmp_path: Path) -> None:
    text = format_aggregated("tiny", pool="general").replace("traffic: {", "traffic: {shared_prefix: 90%, ")
    notes = resolve_blueprint(tmp_path, text, "local").notes
    assert any("policy is cache-aware" in note for note in notes)
    notes = resolve_blueprint(tmp_path, f"tuning: {{prefix_cache: off}}\n{text}", "local").notes
    assert "The router's policy is load-aware, since by tuning: {prefix_cache: off} no engine keeps a prompt." in notes


@pytest.mark.parametrize(("replicas", "size"), [(2, 2**25), (200, 2**31 // 400)])
def test_a_router_remembers_of_many_replicas_no_more_than_it_has_memory_for(
    tmp_path: Path, replicas: int, size: int
) -> None:
    text = "name: mine\n" + format_aggregated(pool="many", replicas=replicas)
    fleet = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools: {many: {types: g6e.12xlarge, size: 0..50}}\n"
    command = resolving.resolve_files(tmp_path, text, fleet, "eks").entries[0].command
    assert get_flag(command, "--max-tree-size") == str(size)


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
