"""KV caches that are kept, sent and followed: each refusal's text, and beside it what does work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llm_serving.catalog import models
from tests.kinds.serving.texts import (
    GENERAL,
    MULTI_MODEL,
    P5EN,
    SMALL,
    TRAFFIC_AND_SLO,
    format_aggregated,
    format_disaggregated,
    get_error,
    get_flag,
    resolve_blueprint,
)

FLASH = {"engine_arguments": "{attention_backend: FLASH_ATTN}"}

REFUSED = [
    (
        format_disaggregated(GENERAL, GENERAL, extra="tuning: {kv_offload: 16Gi}\n"),
        'blueprint.yaml:6:22: tuning.kv_offload: "16Gi": the engine has one connector for KV caches: offloading '
        "would replace the one that sends them to decode. Fix: remove kv_offload, or set pattern: aggregated.",
    ),
    (
        format_aggregated("BAAI/bge-m3", "task: embed\ntuning: {kv_tiers: {ram: 1Gi}}\n", pool="general"),
        'blueprint.yaml:6:20: tuning.kv_tiers: "ram": BAAI/bge-m3 is an encoder, which keeps no KV cache. '
        "Fix: remove kv_tiers.",
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
        format_disaggregated({**P5EN, "accelerators": 2}, {**P5EN, "accelerators": 4}, "Qwen/Qwen3.6-35B-A3B"),
        "blueprint.yaml:5:38: roles.decode.accelerators: 4: prefill splits a layer 2 ways and decode 4: with the 2 key and "
        "value heads on several accelerators each, decode's blocks of the cache have fewer tokens than prefill's, and the "
        "engine vllm hands none over between them: every request would fail. Fix: set accelerators: 2 for decode, or 2 or "
        "fewer for both.",
    ),
    (
        format_disaggregated({**P5EN, "accelerators": 2, "pipeline": 2}, {**P5EN, "accelerators": 4}),
        "blueprint.yaml:4:52: roles.prefill.pipeline: 2: the KV transfer sends the cache of one pipeline stage. "
        "Fix: set pipeline: 1.",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_caches_that_cannot_be_kept_or_sent_are_refused(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text) == message


@pytest.mark.parametrize(("model", "ways"), [("Qwen/Qwen3.6-35B-A3B", (1, 2)), ("Qwen/Qwen3-32B", (4, 8))])
def test_a_cache_is_handed_over_where_its_blocks_are_alike_or_hold_no_state(
    tmp_path: Path, model: str, ways: tuple[int, int]
) -> None:
    prefill, decode = ({**P5EN, "accelerators": count} for count in ways)
    resolve_blueprint(tmp_path, format_disaggregated(prefill, decode, model))


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


@pytest.mark.parametrize(
    ("prefill", "decode", "is_refused"),
    [
        ({"pool": "p5en"}, {"pool": "b300"}, True),
        ({"pool": "general"}, {"pool": "p5en"}, False),
        ({"pool": "b300"}, {"pool": "b300"}, False),
        ({"pool": "p5en", **FLASH}, {"pool": "b300", **FLASH}, False),
        ({"pool": "p5en", **FLASH}, {"pool": "b300"}, True),
        ({"pool": "p5en", **FLASH}, {"pool": "p5en"}, False),
        ({"pool": "p5en", **FLASH}, {"pool": "p5en", "engine_arguments": "{attention_backend: FLASHINFER}"}, True),
    ],
)
def test_prefill_and_decode_have_the_same_kernels_of_attention(
    tmp_path: Path, prefill: dict[str, str], decode: dict[str, str], is_refused: bool
) -> None:
    text = format_disaggregated(prefill, decode, extra="tuning: {kv_transfer: host}\n")
    if not is_refused:
        assert resolve_blueprint(tmp_path, text)
        return
    assert "have unlike kernels of attention, between which the engine vllm hands no cache over" in get_error(
        tmp_path, text
    )


def test_on_sglang_kernels_may_be_unlike(tmp_path: Path) -> None:
    text = format_disaggregated({"pool": "p5en"}, {"pool": "b300"}, extra="engine: sglang\n")
    assert resolve_blueprint(tmp_path, text)


def test_a_transfer_between_splits_that_are_no_multiples_is_refused(tmp_path: Path) -> None:
    config = {**models.read_config("tiny"), "num_attention_heads": 12, "num_key_value_heads": 12}
    (tmp_path / "twelve").mkdir()
    (tmp_path / "twelve" / "config.json").write_text(json.dumps(config))
    text = format_disaggregated({**P5EN, "accelerators": 2}, {**P5EN, "accelerators": 3}, f"{tmp_path}/twelve")
    assert get_error(tmp_path, text) == (
        "blueprint.yaml:5:38: roles.decode.accelerators: 3: prefill splits a layer 2 ways and decode 3: the KV "
        "transfer needs one to be a multiple of the other. Fix: set accelerators: 2 or 4 for decode."
    )
