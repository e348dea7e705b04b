"""Tiers of cached prompts: what is rendered and refused, what `check` says of them, and folders that stay within their size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from llm_serving import processes
from llm_serving.catalog import cache_keepers, engines
from llm_serving.kinds.serving import cache_keeper, kv_tiers, summary
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.tuning import KvTiers
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
storage: {tier_buckets: {bucket: demo-kv}, model_buckets: {bucket: demo}}
pools:
  general: {types: g6e.12xlarge, size: 0..4}
  rocket: {types: g6e.12xlarge, size: 0..4, os: bottlerocket}
  volumes: {types: g6e.12xlarge, size: 0..4, disk: gp3}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  trainium: {types: trn2.48xlarge, size: 0..2}
  plain: {types: m8i.8xlarge, size: 0..2}
  pair: {types: p5.48xlarge, size: 0..2, zones: us-west-2a, efa: on}
"""
BOTH = "{ram: 8Gi, disk: 100Gi, shared: {size: 1Ti, claim: kv}}"
GROUPS = "shared_prefix: 50%, prefix_groups: 1000, "


def _resolve(
    folder: Path, tiers: str, pool: str = "general", target: str = "eks", traffic: str = "", extra: str = ""
) -> ServingDeployment:
    text = (
        f"name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-32B\ncontext: 8k\n{extra}"
        f"roles: {{worker: {{pool: {pool}, accelerators: 4}}}}\ntuning: {{kv_tiers: {tiers}}}\n"
        f"traffic: {{users: 2, {traffic}input_tokens: 4k, output_tokens: 8}}\nslo: {{}}\n"
    )
    return resolving.resolve_files(folder, text, FLEET, target)


def _read_key(deployment: ServingDeployment) -> str:
    """Return the name of the engine's own folder among the deployment's."""
    [folder] = {Path(word.partition("=")[0]).name for word in deployment.workers[0].command if word.startswith("/kv-")}
    return folder


def _read_connector(deployment: ServingDeployment) -> dict[str, object]:
    [engine] = deployment.workers
    connector: dict[str, object] = json.loads(engine.command[engine.command.index("--kv-transfer-config") + 1])
    return connector


def test_the_engine_looks_in_memory_then_on_the_nodes_nvme_then_in_the_shared_file_system(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, BOTH)
    key = _read_key(deployment)
    assert _read_connector(deployment)["kv_connector_extra_config"] == {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8 * 2**30,
        "secondary_tiers": [
            {"type": "fs", "root_dir": f"/kv-disk/{key}"},
            {"type": "fs", "root_dir": f"/kv-shared/{key}"},
        ],
    }
    [engine] = deployment.workers
    disk, shared = engine.mounts["kv-disk"], engine.mounts["kv-shared"]
    assert (disk.path, disk.node_path) == ("/kv-disk", "/mnt/k8s-disks/0/kv-cache/mine")
    [other] = _resolve(tmp_path, BOTH, pool="rocket").workers
    assert other.mounts["kv-disk"].node_path == "/mnt/.ephemeral/kv-cache/mine", "Bottlerocket's mount of its NVMe"
    assert (shared.path, shared.claim, shared.key) == ("/kv-shared", "kv", "kv-cache/mine")
    assert engine.is_root, "the folder of the node is root's"
    # Four queues of 4 GiB and 1.2 times the tier, which the engine maps there.
    assert engine.resources.shared_memory_bytes == pytest.approx((4 * 4 + 1.2 * 8) * 2**30, abs=1)


def test_memory_alone_is_what_kv_offload_was(tmp_path: Path) -> None:
    commands = [_resolve(tmp_path, "{ram: 8Gi}").workers[0].command]
    text = (tmp_path / "blueprint.yaml").read_text().replace("kv_tiers: {ram: 8Gi}", "kv_offload: 8Gi")
    commands.append(resolving.resolve_files(tmp_path, text, FLEET, "eks").workers[0].command)
    assert commands[0] == commands[1]
    assert commands[0][commands[0].index("--kv-offloading-size") + 1] == "8"


def test_lmcaches_server_starts_beside_the_engine_with_the_same_folders(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, BOTH.replace("{ram", "{by: lmcache, ram", 1))
    [engine] = deployment.workers
    connector = _read_connector(deployment)
    assert (connector["kv_connector"], connector["kv_load_failure_policy"]) == ("LMCacheMPConnector", "recompute")
    separator = [place for place, word in enumerate(engine.command) if word == "--"]
    key = _read_key(deployment)
    assert engine.command[3 : separator[0]] == (f"/kv-disk/{key}={100 * 2**30}", f"/kv-shared/{key}={2**40}")
    server = engine.command[separator[0] + 1 : separator[1]]
    assert server[:3] == ("python3", "-m", "lmcache.v1.multiprocess.server")
    assert (server[server.index("--host") + 1], server[server.index("--l1-size-gb") + 1]) == ("127.0.0.1", "8")
    folders = [json.loads(word.partition("=")[2])["base_path"] for word in server if word.startswith("--l2-adapter=")]
    assert folders == [f"{engine.mounts[name].path}/{key}" for name in ("kv-disk", "kv-shared")]
    assert engine.command[separator[1] + 1] == "vllm"
    assert "cache" not in engine.ports, "no other container reaches the server"
    assert engine.env["LMCACHE_TRACK_USAGE"] == "false"


@pytest.mark.parametrize(("pool", "target"), [("general", "eks"), ("on-ecs", "ecs")])
def test_lmcache_keeps_prompts_in_s3_under_names_of_their_model(tmp_path: Path, pool: str, target: str) -> None:
    tiers = "{by: lmcache, ram: 8Gi, s3: {size: 1Ti, bucket: demo-kv}}"
    deployment = _resolve(tmp_path, tiers, pool, target, GROUPS)
    [engine] = deployment.workers
    [tier] = [json.loads(word.partition("=")[2]) for word in engine.command if word.startswith("--l2-adapter=")]
    assert tier == {"type": "s3", "s3_endpoint": "demo-kv.s3.us-west-2.amazonaws.com", "s3_region": "us-west-2"}
    folder = engine.env["VLLM_ASSETS_CACHE"]
    for more in (", kv_cache: fp8", ", compile_cache: node"):
        [other] = _resolve(tmp_path, f"{tiers}{more}", pool, target).workers
        assert (other.env["VLLM_ASSETS_CACHE"] == folder) == ("compile_cache" in more)
    assert deployment.cached_prompts[-1].endswith(
        "from s3 at the 100 Gbit/s of a g6e.12xlarge, for all of its replicas."
    )
    if target == "ecs":
        assert deployment.stack and deployment.stack.caches == ("demo-kv",)


@pytest.mark.parametrize("by", ["", "by: lmcache, "])
def test_all_that_changes_what_is_computed_has_another_folder_in_the_same_mount(tmp_path: Path, by: str) -> None:
    tiers = BOTH.replace("{ram", f"{{{by}ram", 1)

    def resolve(more: str = "", extra: str = "", role: str = "", traffic: str = "") -> ServingDeployment:
        deployment = _resolve(tmp_path, f"{tiers}{more}", extra=extra, traffic=traffic)
        if role:
            text = (tmp_path / "blueprint.yaml").read_text().replace("pool: general, accelerators: 4", role)
            deployment = resolving.resolve_files(tmp_path, text, FLEET, "eks")
        return deployment

    first = resolve()
    others = [
        resolve(extra="image: my/vllm:1\n"),
        resolve(", kv_cache: fp8"),
        resolve(", quantization: fp8"),
        resolve(extra="engine_arguments: {attention_backend: FLASHINFER}\n"),
        resolve(extra="environment: {VLLM_KV_CACHE_LAYOUT: HND}\n"),
        resolve(role="pool: pair, accelerators: 4"),
    ]
    if not by:
        others += [
            resolve(role=f"pool: general, accelerators: 4, adapters: {{law: s3://demo/{version}/}}")
            for version in ("one", "two")
        ]
    keys = [_read_key(deployment) for deployment in (first, *others)]
    assert len(set(keys)) == len(keys)
    assert {json.dumps(row.workers[0].model_dump()["mounts"]) for row in others} == {
        json.dumps(first.workers[0].model_dump()["mounts"])
    }, "what the one before has left is in it, and makes room"
    assert _read_key(resolve(traffic=GROUPS)) == keys[0]


def test_mooncakes_pool_has_one_master_and_a_share_of_memory_of_each_accelerator(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, "{by: mooncake, ram: 8Gi}")
    [engine] = deployment.workers
    assert engine.command[:2] == ("python3", "-c") and engine.env["MOONCAKE_CONFIG_PATH"] == engine.command[3]
    settings = json.loads(engine.command[4])
    assert settings["global_segment_size"] == 8 * 2**30 // 4
    assert deployment.pool_master is not None
    assert settings["master_server_address"] == f"mine-{deployment.pool_master.name}:{deployment.pool_master.port}"
    assert deployment.pool_master.image == engine.image, "its package is there"
    connector = _read_connector(deployment)
    assert (connector["kv_connector"], connector["kv_load_failure_policy"]) == ("MooncakeStoreConnector", "recompute")
    assert engine.address_variables == ("MOONCAKE_REQUESTER_LOCAL_HOSTNAME",), "other pods reach the memory there"
    assert _resolve(tmp_path, "{ram: 8Gi}").pool_master is None


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [
        ("Qwen/Qwen3-32B", 16 * 64 * 2 * 128 * 2 * 2),
        # 18 layers read all of a prompt and 18 a window of it, in blocks of their own, of 2 of 8 heads.
        ("openai/gpt-oss-120b", 16 * 18 * 2 * 64 * 2 * 2),
    ],
)
def test_mooncakes_master_has_memory_for_the_names_of_a_full_pool(tmp_path: Path, model: str, block_bytes: int) -> None:
    _resolve(tmp_path, "{by: mooncake, ram: 64Gi}")
    text = (tmp_path / "blueprint.yaml").read_text().replace("Qwen/Qwen3-32B", model)
    masters = [
        resolving.resolve_files(tmp_path, text.replace("accelerators: 4", f"accelerators: 4, {replicas}"), FLEET, "eks")
        for replicas in ("replicas: 1", "replicas: 4")
    ]
    [one, four] = [deployment.pool_master.memory_bytes for deployment in masters if deployment.pool_master]
    assert one == 2**30 + 1640 * (64 * 2**30 // block_bytes)
    assert four == 2**30 + 1640 * (4 * 64 * 2**30 // block_bytes)


def test_mooncakes_keys_begin_with_another_word_for_all_that_changes_a_cache(tmp_path: Path) -> None:
    def read_key(more: str = "", extra: str = "", role: str = "", traffic: str = "") -> object:
        deployment = _resolve(tmp_path, f"{{by: mooncake, ram: 8Gi}}{more}", extra=extra, traffic=traffic)
        if role:
            text = (tmp_path / "blueprint.yaml").read_text().replace("pool: general, accelerators: 4", role)
            deployment = resolving.resolve_files(tmp_path, text, FLEET, "eks")
        extra_config = _read_connector(deployment)["kv_connector_extra_config"]
        assert isinstance(extra_config, dict)
        return extra_config["cache_prefix"]

    keys = [
        read_key(),
        read_key(extra="image: my/vllm:1\n"),
        read_key(extra="engine_arguments: {seed: 7}\n"),
        read_key(", kv_cache: fp8"),
        read_key(", quantization: fp8"),
        read_key(role="pool: general, accelerators: 2"),
        read_key(role="pool: pair, accelerators: 4"),
    ]
    assert all(keys) and len(set(keys)) == len(keys)
    assert read_key(traffic=GROUPS) == keys[0], "what changes no cache keeps the pool"


@pytest.mark.parametrize(
    ("tier", "folder"), [("disk: 100Gi", "/kv-disk"), ("shared: {size: 1Ti, claim: kv}", "/kv-shared")]
)
def test_sglang_keeps_pages_of_64_tokens_in_one_folder_of_their_settings(
    tmp_path: Path, tier: str, folder: str
) -> None:
    tiers, extra = f"{{ram: 8Gi, {tier}}}", "engine: sglang\n"
    deployment = _resolve(tmp_path, tiers, extra=extra)
    [engine], own_folder = deployment.workers, f"{folder}/{_read_key(deployment)}"
    words = " ".join(engine.command)
    assert "--enable-hierarchical-cache --hicache-size 2 --hicache-storage-backend file --page-size 64" in words
    assert engine.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == own_folder
    assert engine.command[3].startswith(f"{own_folder}="), "what was used longest ago makes room"
    assert engine.mounts[folder.strip("/")].path == folder
    [other] = _resolve(tmp_path, f"{tiers}, kv_cache: fp8", extra=extra).workers
    assert other.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] != own_folder
    with pytest.raises(InputError, match="SGLang's store of files has one folder"):
        _resolve(tmp_path, BOTH, extra=extra)
    with pytest.raises(InputError, match="drafts from the prompt only with pages of one token"):
        _resolve(tmp_path, f"{tiers}, speculative: {{method: ngram}}", extra=extra)


def test_on_ecs_the_nodes_nvme_is_mounted_too(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, "{ram: 8Gi, disk: 100Gi}", "on-ecs", "ecs")
    assert deployment.workers[0].mounts["kv-disk"].node_path == "/mnt/instance-store/kv-cache/mine"
    assert all(word.isprintable() for word in deployment.workers[0].command), "a task's command has no line breaks"


@pytest.mark.parametrize(
    ("tiers", "pool", "target", "message"),
    [
        (
            "{disk: 100Gi}",
            "general",
            "eks",
            "tuning.kv_tiers: the engine reads and writes every other tier through ram. Fix: set ram: 16Gi too.",
        ),
        (
            "{ram: 300Gi}",
            "general",
            "eks",
            'tuning.kv_tiers.ram: "300Gi": a replica\'s share of its node is 326 GiB, of which half may be shared memory, '
            "where the engine keeps this cache: 147 GiB are free there, and it takes 1.2 times its size. "
            "Fix: set ram: 122Gi or less.",
        ),
        (
            "{ram: 8Gi, disk: 4Ti}",
            "general",
            "eks",
            'tuning.kv_tiers.disk: "4096Gi": g6e.12xlarge has 3800 GB of NVMe, of which 70% may hold cached prompts: '
            "images, compiled programs and what is written between two cleanings need the rest. "
            "Fix: set disk: 2477Gi or less.",
        ),
        (
            "{ram: 8Gi, disk: 100Gi}",
            "volumes",
            "eks",
            'tuning.kv_tiers.disk: "100Gi": the nodes of the pool volumes start without NVMe. Fix: remove disk, or use a '
            "pool of types with NVMe, such as g6e or p5en, that has disk: nvme.",
        ),
        (
            BOTH,
            "on-ecs",
            "ecs",
            'tuning.kv_tiers.shared: "kv": ECS has no PersistentVolumeClaims. Fix: remove shared, or use EKS.',
        ),
        (
            "{ram: 8Gi, s3: {size: 1Ti, bucket: demo-kv}}",
            "general",
            "eks",
            'tuning.kv_tiers: "ram, s3": the engine\'s image lacks libcuobjclient.so.1, without which it does not reach S3. '
            "Fix: set by: lmcache, or remove s3.",
        ),
        (
            "{by: lmcache, ram: 8Gi, s3: {size: 1Ti, bucket: other}}",
            "general",
            "eks",
            'tuning.kv_tiers.s3.bucket: "other": the fleet lets its engines write to no bucket other. '
            "Fix: set storage: {tier_buckets: {bucket: other}} in the fleet, and apply the fleet.",
        ),
        (
            "{by: lmcache, ram: 1Gi, s3: {size: 1Ti, bucket: demo-kv}}",
            "general",
            "local",
            'tuning.kv_tiers.s3.bucket: "demo-kv": the S3 of this machine has no address of its own for each bucket, which '
            "LMCache needs. Fix: remove s3 in a copy to try here.",
        ),
        (
            "{by: lmcache, ram: 8Gi, s3: {size: 1Ti, bucket: demo-kv}}, stream_weights: off",
            "general",
            "eks",
            'tuning.kv_tiers.s3.bucket: "demo-kv": LMCache names objects after the folder of the weights, which is the same '
            "for all that are copied first. Fix: set stream_weights: on, or remove s3.",
        ),
        (
            "{by: mooncake, ram: 8Gi, disk: 100Gi}",
            "general",
            "eks",
            'tuning.kv_tiers.disk: "100Gi": Mooncake\'s pool is rendered in memory only. Fix: remove disk, or set by: lmcache.',
        ),
        (
            "{by: mooncake, ram: 8Gi}",
            "on-ecs",
            "ecs",
            'tuning.kv_tiers.by: "mooncake": Mooncake\'s master and its pool are rendered for EKS, and nothing of them on '
            "ECS. Fix: remove by, or set by: lmcache.",
        ),
        (
            "{by: mooncake, ram: 1Gi}",
            "general",
            "local",
            'tuning.kv_tiers.by: "mooncake": Mooncake\'s master and its pool are rendered for EKS, and nothing of them on ',
        ),
        (
            "{by: mooncake, ram: 8Gi}",
            "trainium",
            "eks",
            'tuning.kv_tiers: "ram": the documentation of vLLM\'s plugin for Neuron does not mention KV offloading to CPU ',
        ),
        (
            "{ram: 1Gi, disk: 1Gi}",
            "general",
            "local",
            'tuning.kv_tiers: "ram, disk": the engine moves cached prompts to memory from GPUs alone. '
            "Fix: remove kv_tiers in a copy to try here.",
        ),
        (
            "{by: lmcache, ram: 8Gi}",
            "trainium",
            "eks",
            'tuning.kv_tiers: "ram": the documentation of vLLM\'s plugin for Neuron does not mention KV offloading to CPU '
            "memory. Fix: remove kv_tiers.",
        ),
        (
            "{ram: 8Gi}, kv_offload: 8Gi",
            "general",
            "eks",
            'tuning.kv_offload: "8Gi": kv_tiers says it too. Fix: keep ram of kv_tiers, and remove kv_offload.',
        ),
    ],
)
def test_tiers_that_have_no_room_or_no_way_there_are_refused(
    tmp_path: Path, tiers: str, pool: str, target: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, tiers, pool, target)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("by", "role", "extra", "message"),
    [
        (
            "lmcache",
            "pool: plain",
            "",
            'tuning.kv_tiers.by: "lmcache": the nodes of plain have no accelerators: the engine\'s own cache is in their '
            "memory already. Fix: remove kv_tiers.",
        ),
        (
            "lmcache",
            "pool: pair, accelerators: 16, pipeline: 2",
            "pattern: distributed",
            'tuning.kv_tiers.by: "lmcache": LMCache\'s server is rendered for one node, and a replica of worker has several. '
            "Fix: remove kv_tiers.",
        ),
        (
            "lmcache",
            "pool: general, accelerators: 4, adapters: {law: s3://demo/law/, tax: s3://demo/tax/}",
            "",
            'roles.worker.adapters: "law, tax": LMCache knows a prompt by its words alone, and would give what one adapter '
            "computed to another. Fix: remove adapters, or by of tuning.kv_tiers.",
        ),
        (
            "lmcache",
            "pool: general, accelerators: 4",
            "pattern: aggregated\nengine: sglang",
            'tuning.kv_tiers: "ram": the engine sglang has no option for it in the catalog. Fix: remove by.',
        ),
        (
            "mooncake",
            "pool: plain",
            "",
            'tuning.kv_tiers.by: "mooncake": the nodes of plain have no accelerators, and vLLM\'s connector to Mooncake runs '
            "on GPUs only. Fix: remove kv_tiers.",
        ),
        (
            "mooncake",
            "pool: pair, accelerators: 16, pipeline: 2",
            "pattern: distributed",
            'tuning.kv_tiers.by: "mooncake": Mooncake\'s pool is rendered for one node, and a replica of worker has several. '
            "Fix: remove kv_tiers.",
        ),
        (
            "mooncake",
            "pool: general, accelerators: 4, adapters: {law: s3://demo/law/}",
            "",
            'roles.worker.adapters: "law": the pool outlives an adapter\'s replacement, and knows it by its name and folder '
            "alone. Fix: remove adapters, or by of tuning.kv_tiers.",
        ),
        (
            "mooncake",
            "pool: general, accelerators: 4",
            "pattern: aggregated\nengine: sglang",
            'tuning.kv_tiers: "ram": the engine sglang has no option for it in the catalog. Fix: remove by.',
        ),
        (
            "mooncake",
            "pool: general, accelerators: 4",
            "pattern: aggregated\nframework: ray",
            "Ray starts engines itself, without the program beside them that keeps the tiers of cached prompts",
        ),
        (
            "mooncake",
            "pool: general, accelerators: 4",
            "pattern: aggregated\nframework: llm-d",
            "the master of Mooncake was not compared with what llm-d renders",
        ),
        (
            "mooncake",
            "pool: general, accelerators: 4}, workers: {pool-master: {pool: general, accelerators: 4}",
            "",
            "roles.workers.pool-master: \"pool-master\": Mooncake's master has this name among the deployment's objects. Fix: "
            "give the role another name.",
        ),
    ],
)
def test_what_is_kept_wrongly_or_nowhere_is_refused(
    tmp_path: Path, by: str, role: str, extra: str, message: str
) -> None:
    text = (
        f"name: mine\nmodel: Qwen/Qwen3-8B\n{extra or 'pattern: aggregated'}\nroles: {{worker: {{{role}}}}}\n"
        f"tuning: {{kv_tiers: {{by: {by}, ram: 8Gi}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    )
    fleet = f"{FLEET}add_ons: {{gateway: on}}\n" if "llm-d" in extra else FLEET
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, fleet, "eks")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("tiers", "is_shared"),
    [
        ("{ram: 8Gi, disk: 100Gi}", False),
        ("{by: lmcache, ram: 8Gi}", False),
        ("{ram: 8Gi, shared: {size: 1Ti, claim: kv}}", True),
        ("{by: lmcache, ram: 8Gi, s3: {size: 1Ti, bucket: demo-kv}}", True),
        ("{by: mooncake, ram: 8Gi}", True),
    ],
)
def test_replicas_that_share_cached_prompts_have_one_kind_of_accelerator(
    tmp_path: Path, tiers: str, is_shared: bool
) -> None:
    text = (
        f"name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-8B\ncontext: 8k\nroles: {{worker: {{pool: mixed}}}}\n"
        f"tuning: {{kv_tiers: {tiers}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    )
    fleet = f"{FLEET}  mixed: {{types: [p5en.48xlarge, p6-b200.48xlarge], size: 0..2}}\n"
    if not is_shared:
        resolving.resolve_files(tmp_path, text, fleet, "eks")
        return
    with pytest.raises(InputError, match=r"roles\.worker\.pool.*share cached prompts and run on H200 or B200"):
        resolving.resolve_files(tmp_path, text, fleet, "eks")


def test_what_may_keep_prompts_has_a_row_and_an_engine_that_works_with_it() -> None:
    [choices] = [get_args(field.annotation) for name, field in KvTiers.model_fields.items() if name == "by"]
    assert choices == ("engine", *cache_keepers.load_cache_keepers())
    for name, keeper in cache_keepers.load_cache_keepers().items():
        assert any(f"kv-{name}" in engine.options for engine in engines.load_engines().values())
        assert set(keeper.tiers) <= set(KvTiers.model_fields) - {"by"}


def test_check_says_what_the_tiers_find_of_the_traffic_and_how_fast_they_must_be(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, BOTH, traffic=GROUPS)
    first, second, third, fourth = deployment.cached_prompts
    # Qwen3-32B: 64 layers x 8 heads x 128 numbers x keys and values x 2 bytes = 262,144 bytes a token.
    assert first.startswith(
        "Cached prompts of worker, in tokens: ram of 8.59 GB 32,768 and disk of 107 GB 409,600 and shared of 1.1 TB "
        "4,194,304, beside "
    )
    assert second.startswith(
        "The traffic's prompts share 2,000 tokens each in 1,000 groups: at most 50% of a prompt is found"
    )
    assert third.startswith("A replica computes at most ") and " GB/s of its cache: " in third
    assert fourth.startswith("2,000 shared tokens are 524 MB: ")
    # 524,288,000 bytes x 8 / 100 Gbit/s.
    assert fourth.endswith("at least 0.04 s from shared at the 100 Gbit/s of a g6e.12xlarge, for all of its replicas.")
    lines = summary.describe(load(tmp_path / "blueprint.yaml", Blueprint), deployment)
    assert [text for label, text in lines if label == "kv tiers"] == [first, second, third, fourth]


def test_without_a_shared_tier_its_bandwidth_is_not_named(tmp_path: Path) -> None:
    assert len(_resolve(tmp_path, "{ram: 8Gi, disk: 100Gi}", traffic=GROUPS).cached_prompts) == 3


def test_a_tier_of_half_the_shared_prefixes_finds_half_of_what_is_shared(tmp_path: Path) -> None:
    traffic = _resolve(tmp_path, BOTH, traffic=GROUPS).traffic
    found = [kv_tiers.compute_found_share(traffic, 0.5, tokens) for tokens in (0, 1_000_000, 2_000_000, 4_000_000)]
    assert found == [0.0, 0.25, 0.5, 0.5]


def test_without_shared_prefixes_the_tiers_find_nothing(tmp_path: Path) -> None:
    assert (
        "By the blueprint's traffic its prompts share nothing, and the tiers would find nothing of them."
        in _resolve(tmp_path, BOTH).cached_prompts
    )


def _write(folder: Path, name: str, size: int, used_at: int) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (used_at, used_at))


def test_what_was_used_longest_ago_makes_room_and_nothing_goes_while_there_is_room(tmp_path: Path) -> None:
    for number in range(10):
        _write(tmp_path, f"{number % 3}/{number}.bin", 100, 1_000 + number)
    cache_keeper.trim(str(tmp_path), 1_000)
    assert len(list(tmp_path.rglob("*.bin"))) == 10
    os.utime(tmp_path / "0" / "0.bin", (9_000, 1_000))
    cache_keeper.trim(str(tmp_path), 500)
    kept = {file.stem for file in tmp_path.rglob("*.bin")}
    assert kept == {"0", "7", "8", "9"}, "the oldest was read last, and goes last"


def test_folders_that_are_left_empty_go_and_those_of_engines_stay(tmp_path: Path) -> None:
    for number, name in enumerate(("old/a/1.bin", "old/a/2.bin", "flat/3.bin", "own/a/4.bin", "own/b/5.bin")):
        _write(tmp_path, name, 100, 1_000 + number)
    cache_keeper.trim(str(tmp_path), 150)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["flat", "old", "own", "own/b", "own/b/5.bin"]


def test_one_of_many_replicas_looks_at_their_folder_at_a_time(tmp_path: Path) -> None:
    _write(tmp_path, "own/1.bin", 100, 1_000)
    cache_keeper.look(tmp_path, 200)
    _write(tmp_path, "own/2.bin", 200, 2_000)
    cache_keeper.look(tmp_path, 200)
    assert len(list(tmp_path.rglob("*.bin"))) == 2, "another has just looked"
    os.utime(tmp_path / cache_keeper.MARK, (1_000, 1_000))
    cache_keeper.look(tmp_path, 200)
    assert not list(tmp_path.rglob("1.bin")), "its turn is over, or it ended as it looked"


def test_the_engine_takes_the_place_of_the_program_which_trims_beside_it(tmp_path: Path) -> None:
    """As a container runs it: the text by `python3 -c`, and the engine with the process's own number."""
    for number in range(10):
        _write(tmp_path / "kv", f"{number % 2}/{number}.bin", 100, 1_000 + number)
    text = _resolve(tmp_path, BOTH).workers[0].command[2]
    engine = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", text, f"{tmp_path}/kv/own=500", "--", "--", sys.executable, "-c", engine]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        assert int(child.stdout.readline()) == child.pid
        assert (tmp_path / "kv" / "own").is_dir(), "SGLang's ranks do not wait for the one that makes it"
        files = "the folders of earlier engines within its size"
        processes.wait_until(lambda: len(list((tmp_path / "kv").rglob("*.bin"))) == 4, files, 60)
        child.stdin.close()
        assert child.wait(60) == 0
