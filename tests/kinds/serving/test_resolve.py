"""A blueprint resolved for this machine: every number, and every refusal's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import models
from llm_serving.engines import memory
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import resolve
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import Environment
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.targets.local.environment import CONVENTIONS

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  small: {types: [g6e.2xlarge, g6e.4xlarge], size: 0..8}
  large: {types: [g6e.2xlarge, g6e.48xlarge], size: 0..8}
  plain: {types: m8g.4xlarge, size: 0..8}
"""

WORKERS = [f"worker-{number}" for number in range(16)]
PORTS = {
    name: 20000 + number for number, name in enumerate(["aws", "router", "router-metrics", *WORKERS, "router-admin"])
}


def _build_environment(**fields: Any) -> Environment:
    defaults = {
        "target": "local",
        "conventions": CONVENTIONS,
        "region": "us-west-2",
        "bucket": "demo-models",
        "s3_endpoint": "http://127.0.0.1:20000",
        "env": {"AWS_REGION": "us-west-2"},
        "engine_folder": "/engine/bin",
        "data_folder": "/run/mine",
        "socket_folder": "/run/mine/tmp",
        "ports": PORTS,
        "cores": 4,
    }
    return Environment.model_validate({**defaults, **fields})


def _resolve(folder: Path, environment: Environment | None = None, **overrides: str) -> ServingDeployment:
    values = {
        "model": "tiny",
        "context": "2k",
        "worker": "{pool: small, replicas: 2}",
        "router": "{}",
        "traffic": "{users: 8, input_tokens: 32..64, output_tokens: 8..16}",
        "weights": "s3",
        **overrides,
    }
    folder = folder / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "blueprint.yaml").write_text(
        f"pattern: aggregated\nmodel: {values['model']}\ncontext: {values['context']}\nweights: {values['weights']}\n"
        f"roles:\n  worker: {values['worker']}\n  router: {values['router']}\ntraffic: {values['traffic']}\nslo: {{}}\n"
    )
    (folder / "fleet.yaml").write_text(FLEET)
    return resolve.resolve(
        load(folder / "blueprint.yaml", Blueprint),
        load(folder / "fleet.yaml", Fleet),
        environment or _build_environment(),
    )


def _get_flag(deployment: ServingDeployment, name: str, process: int = 0) -> str:
    command = deployment.workers[process].command
    return command[command.index(name) + 1]


def _get_router_flag(deployment: ServingDeployment, name: str) -> str:
    command = deployment.entries[0].command
    return command[command.index(name) + 1]


def test_each_replica_has_a_name_a_port_and_a_cache_of_its_own(tmp_path: Path) -> None:
    first, second = _resolve(tmp_path).workers
    assert (first.name, second.name) == ("worker-0", "worker-1")
    assert (first.port, second.port) == (PORTS["worker-0"], PORTS["worker-1"])
    assert first.env["VLLM_CACHE_ROOT"] == "/run/mine/cache/worker-0"
    assert second.env["VLLM_CACHE_ROOT"] == "/run/mine/cache/worker-1"


def test_the_engine_listens_on_loopback_and_streams_from_the_bucket(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path)
    assert deployment.workers[0].command[:3] == ("/engine/bin/vllm", "serve", "s3://demo-models/models/tiny/")
    assert _get_flag(deployment, "--host") == "127.0.0.1"
    assert _get_flag(deployment, "--load-format") == "runai_streamer"
    assert _get_flag(deployment, "--served-model-name") == "tiny"
    assert _get_flag(deployment, "--max-model-len") == "2000"
    assert deployment.served_models[0].weights.bytes == models.find("tiny").weight_bytes
    assert deployment.served_models[0].weights.random


def test_an_s3_other_than_awss_is_addressed_by_path(tmp_path: Path) -> None:
    other = _resolve(tmp_path).workers[0].env
    aws = _resolve(tmp_path, _build_environment(s3_endpoint=None)).workers[0].env
    assert other["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] == "0"
    assert other["http_proxy"] == other["HTTPS_PROXY"] == "", "the streamer heeds no NO_PROXY"
    assert "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING" not in aws
    assert other["AWS_REGION"] == "us-west-2"


def test_weights_of_the_user_are_read_from_their_uri(tmp_path: Path) -> None:
    assert _resolve(tmp_path, weights="s3://mine/some/model").served_models[0].weights.uri == "s3://mine/some/model/"


@pytest.mark.parametrize(("cores", "replicas", "threads"), [(4, 2, "2"), (2, 2, "1"), (2, 3, "1"), (8, 1, "8")])
def test_the_replicas_share_the_cores(tmp_path: Path, cores: int, replicas: int, threads: str) -> None:
    deployment = _resolve(tmp_path, _build_environment(cores=cores), worker=f"{{pool: small, replicas: {replicas}}}")
    assert {process.env["OMP_NUM_THREADS"] for process in deployment.workers} == {threads}


def test_the_cache_fits_a_full_request_and_all_requests_in_flight(tmp_path: Path) -> None:
    deployment = _resolve(
        tmp_path, model="mid", context="4k", traffic="{users: 50, input_tokens: 1k..2k, output_tokens: 200}"
    )
    tokens = int(_get_flag(deployment, "--kv-cache-memory-bytes")) // memory.compute_kv_bytes_per_token(
        models.find("mid")
    )
    assert tokens >= 4000 + 50 * 2200
    assert tokens < (4000 + 50 * 2200) * 1.1


def test_a_replicas_memory_grows_with_its_weights_and_its_cache(tmp_path: Path) -> None:
    tiny, mid = (_resolve(tmp_path, model=name).workers[0].resources.memory_bytes for name in ("tiny", "mid"))
    assert mid - tiny > models.find("mid").weight_bytes


@pytest.mark.parametrize(
    ("policy", "router_policy"),
    [
        ("cache-aware", "cache_aware"),
        ("round-robin", "round_robin"),
        ("random", "random"),
        ("load-aware", "power_of_two"),
        ("consistent-hash", "consistent_hash"),
    ],
)
def test_every_policy_of_the_blueprint_maps_to_one_of_the_routers(
    tmp_path: Path, policy: str, router_policy: str
) -> None:
    assert _get_router_flag(_resolve(tmp_path, router=f"{{policy: {policy}}}"), "--policy") == router_policy


@pytest.mark.parametrize(
    ("shared", "router_policy", "reason"),
    [
        ("0%", "power_of_two", "load-aware, since by the blueprint's traffic its prompts share nothing."),
        (
            "30%",
            "power_of_two",
            "load-aware, since by the blueprint's traffic 30% of each prompt is shared, not more than the 30% that it follows.",
        ),
        (
            "31%",
            "cache_aware",
            "cache-aware, since by the blueprint's traffic 31% of each prompt is shared, more than the 30% that it follows.",
        ),
    ],
)
def test_the_default_policy_is_cache_aware_for_long_shared_prefixes(
    tmp_path: Path, shared: str, router_policy: str, reason: str
) -> None:
    deployment = _resolve(tmp_path, traffic=f"{{users: 8, input_tokens: 8, output_tokens: 8, shared_prefix: {shared}}}")
    assert _get_router_flag(deployment, "--policy") == router_policy
    assert f"The router's policy is {reason}" in deployment.notes


def test_a_load_aware_router_of_a_single_replica_uses_round_robin(
    tmp_path: Path,
) -> None:
    deployment = _resolve(tmp_path, worker="{pool: small, replicas: 1}", router="{policy: load-aware}")
    assert _get_router_flag(deployment, "--policy") == "round_robin"
    two = _resolve(tmp_path, worker="{pool: small, replicas: 2}", router="{policy: load-aware}")
    assert _get_router_flag(two, "--policy") == "power_of_two"


def test_the_router_knows_every_replica_and_the_longest_request(tmp_path: Path) -> None:
    traffic = "{users: 8, deadline: 2s, input_tokens: 8, output_tokens: 8}"
    assert _get_router_flag(_resolve(tmp_path, traffic=traffic), "--request-timeout-secs") == "1800"
    deployment = _resolve(tmp_path, traffic=traffic, router="{request_timeout: 2.5s}")
    urls = tuple(f"http://{process.host}:{process.port}" for process in deployment.workers)
    assert deployment.entries[0].command[-2:] == urls
    assert _get_router_flag(deployment, "--request-timeout-secs") == "3"
    assert deployment.url == f"http://127.0.0.1:{PORTS['router']}"


@pytest.mark.parametrize(("users", "replicas", "imbalance"), [(8, 2, "2"), (1, 2, "1"), (100, 2, "25")])
def test_an_imbalance_of_half_a_replicas_share_overrides_the_cached_prefix(
    tmp_path: Path, users: int, replicas: int, imbalance: str
) -> None:
    deployment = _resolve(
        tmp_path,
        worker=f"{{pool: small, replicas: {replicas}}}",
        traffic=f"{{users: {users}, input_tokens: 8, output_tokens: 8}}",
    )
    assert _get_router_flag(deployment, "--balance-abs-threshold") == imbalance


def test_the_first_type_of_the_pool_that_fits_is_selected(tmp_path: Path) -> None:
    assert _resolve(tmp_path, worker="{pool: large}").engine_roles[0].instance_types[0] == "g6e.2xlarge"
    assert (
        _resolve(tmp_path, worker="{pool: large, accelerators: 2}").engine_roles[0].instance_types[0] == "g6e.48xlarge"
    )
    assert (
        _resolve(tmp_path, _build_environment(cores=8), worker="{pool: large, replicas: 9}")
        .engine_roles[0]
        .instance_types[0]
        == "g6e.48xlarge"
    )


def test_the_deployment_lists_its_substitutions(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, _build_environment(emulated=("AWS is emulated.",)))
    assert deployment.notes == (
        "The router's policy is load-aware, since by the blueprint's traffic its prompts share nothing.",
    )
    assert deployment.emulated == (
        "The engine runs on this machine's CPU in place of L40S on g6e.2xlarge, at the CPU's speed.",
        models.RANDOM_NOTICE,
        "AWS is emulated.",
    )


def test_resolution_is_deterministic_and_round_trips_through_json(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path)
    assert deployment == _resolve(tmp_path)
    assert ServingDeployment.model_validate_json(deployment.model_dump_json()) == deployment


def test_the_deployments_name_is_explicit_or_its_folders(tmp_path: Path) -> None:
    assert _resolve(tmp_path).name == "mine"
    assert _resolve(tmp_path, model="tiny\nname: other").name == "other"


def test_a_model_in_a_folder_is_served_under_the_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {key: value for key, value in models.read_config("tiny").items() if key != models.RANDOM_KEY}
    (folder / "config.json").write_text(json.dumps(config))
    deployment = _resolve(tmp_path, model=str(folder))
    assert deployment.served_models[0].name == "my-model"
    assert deployment.served_models[0].weights.uri == "s3://demo-models/models/my-model/"
    assert not deployment.served_models[0].weights.random


REFUSED = [
    (
        {"worker": "{pool: gpu}"},
        'blueprint.yaml:6:18: roles.worker.pool: "gpu": the fleet demo has no such pool. '
        "Fix: use one of its pools, small, large, plain, or add gpu to them.",
    ),
    (
        {"model": "tinyy"},
        'blueprint.yaml:2:8: model: "tinyy": neither in the catalog nor a folder that holds config.json. '
        "Fix: use tiny or tiny-draw, or the path of a folder; `blueprint model list` names all.",
    ),
    (
        {"model": "Qwen/Qwen3-Embedding-0.6B"},
        'blueprint.yaml:2:8: model: "Qwen/Qwen3-Embedding-0.6B": the model is made to embed, and the task here is '
        "generate. Fix: set task: embed, or use a model such as Qwen/Qwen3-0.6B.",
    ),
    (
        {"context": "100k"},
        "blueprint.yaml:3:10: context: 100000: tiny takes up to 32768 tokens a request. Fix: set context: 32768 or less, or "
        "use a copy whose config.json says more (docs/models.md).",
    ),
    (
        {"worker": "{pool: small, accelerators: 2}"},
        "blueprint.yaml:6:39: roles.worker.accelerators: 2: a replica runs on one node, and in the pool small "
        "g6e.2xlarge has 1, g6e.4xlarge has 1. Fix: set accelerators: 1 or less, or use a pool of larger types, or pattern: distributed.",
    ),
    (
        {"worker": "{pool: plain, accelerators: 2}"},
        "blueprint.yaml:6:39: roles.worker.accelerators: 2: the pool plain has no accelerators, and on CPU a replica has "
        "one node. Fix: set accelerators: 1.",
    ),
    (
        {"worker": "{pool: large, accelerators: 3}"},
        "blueprint.yaml:6:39: roles.worker.accelerators: 3: 4 attention heads do not divide by 3. "
        "Fix: set accelerators: 1 or 2.",
    ),
    (
        {"model": "Qwen/Qwen3-235B-A22B-FP8"},
        'blueprint.yaml:2:8: model: "Qwen/Qwen3-235B-A22B-FP8": it does not fit into 1 accelerator of the pool '
        "small: on g6e.2xlarge and g6e.4xlarge weights 236 GB and reserve 3.54 GB are 196 GB more than the 43.7 GB of "
        "one accelerator. Fix: set pool: large and accelerators: 8, or use a smaller model.",
    ),
    (
        {"model": "nvidia/Qwen3-235B-A22B-NVFP4"},
        'blueprint.yaml:2:8: model: "nvidia/Qwen3-235B-A22B-NVFP4": it does not fit into 1 accelerator of the pool '
        "small: on g6e.2xlarge and g6e.4xlarge weights 134 GB and reserve 3.54 GB are 93.9 GB more than the 43.7 GB of "
        "one accelerator. Fix: set pool: large and accelerators: 4, or use a smaller model.",
    ),
    (
        {"model": "Qwen/Qwen3-32B", "worker": "{pool: large, accelerators: 1}"},
        'blueprint.yaml:2:8: model: "Qwen/Qwen3-32B": it does not fit into 1 accelerator of the pool large: on '
        "g6e.2xlarge and g6e.48xlarge weights 65.5 GB and reserve 2.61 GB are 24.4 GB more than the 43.7 GB of one "
        "accelerator. Fix: set accelerators: 2 on g6e.48xlarge, or use a smaller model.",
    ),
    (
        {"worker": "{pool: small, replicas: 9}"},
        "blueprint.yaml:6:35: roles.worker.replicas: 9: the pool small grows to 8 nodes, which fit 8. "
        "Fix: set replicas: 8 or less, or size: 0..9 in the pool.",
    ),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_an_impossible_blueprint_is_refused_at_its_line(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, **changed)
    folder = f"{tmp_path}/mine"
    assert str(error.value) == f"{folder}/{message}".replace("FOLDER", folder)


def test_a_model_that_does_not_fit_is_pointed_at_another_pool_before_types_that_no_pool_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixes = []
    for large in ("g6e.48xlarge", "g6e.8xlarge"):
        monkeypatch.setitem(globals(), "FLEET", FLEET.replace("g6e.48xlarge", large))
        with pytest.raises(InputError) as error:
            _resolve(tmp_path, model="nvidia/Qwen3-235B-A22B-NVFP4")
        fixes.append(error.value.mistakes[0].fix)
        monkeypatch.undo()
    assert fixes == [
        "set pool: large and accelerators: 4, or use a smaller model",
        "set accelerators: 1 on p6-b200.48xlarge or accelerators: 2 on p4de.24xlarge, or use a smaller model",
    ]


def test_a_model_that_does_not_fit_is_pointed_at_types_that_the_region_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixes = []
    for region in ("us-west-2", "eu-central-1"):
        fleet = FLEET.replace("g6e.48xlarge", "g6e.8xlarge").replace("us-west-2", region)
        monkeypatch.setitem(globals(), "FLEET", fleet)
        with pytest.raises(InputError) as error:
            _resolve(tmp_path, _build_environment(region=region), model="Qwen/Qwen3-235B-A22B-FP8")
        fixes.append(error.value.mistakes[0].fix)
        monkeypatch.undo()
    assert fixes == [
        "set accelerators: 1 on p6-b300.48xlarge, or use a smaller model",
        "set accelerators: 4 on p4de.24xlarge, or use a smaller model",
    ]


def test_all_mistakes_of_a_blueprint_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, model="tinyy", worker="{pool: gpu}")
    assert [mistake.field for mistake in error.value.mistakes] == ["model", "roles.worker.pool"]


def test_a_folder_with_an_invalid_name_needs_an_explicit_name(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "blueprint.yaml").write_text(
        "pattern: aggregated\nmodel: tiny\nroles: {worker: {pool: small}}\ntraffic: {users: 8}\nslo: {}\n"
    )
    with pytest.raises(InputError) as error:
        resolve_name(load(folder / "blueprint.yaml", Blueprint))
    assert str(error.value) == (
        f'{folder}/blueprint.yaml:1:1: name: "My Model": the folder\'s name is used, and is not a valid name. '
        "Fix: set name: NAME, 2 to 32 of a-z, 0-9 and -."
    )


def test_the_context_of_each_model_is_checked_also_where_two_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "blueprint.yaml").write_text(
        "name: mine\npattern: multi-model\nroles:\n  models:\n    one: {model: tiny, pool: small}\n"
        "    two: {model: tiny, pool: small, context: 900k}\ntraffic: {users: 2}\nslo: {}\n"
    )
    (tmp_path / "fleet.yaml").write_text(FLEET)
    documents = load(tmp_path / "blueprint.yaml", Blueprint), load(tmp_path / "fleet.yaml", Fleet)
    message = r"blueprint\.yaml:6:46: roles\.models\.two\.context: \d+: tiny takes up to \d+ tokens a request\. Fix: "
    with pytest.raises(InputError, match=message):
        resolve.resolve(*documents, _build_environment())
