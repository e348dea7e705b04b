"""Engines that run nowhere in the tests: what is rendered for them, held against what their makers' own code takes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import engine_options, engines, instances, models
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import sglang, tensorrt_llm, vllm
from llm_serving.engines.memory import Batch, Fit, ReplicaSetup, compute_kv_bytes_per_token
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
pools:
  eks: {types: g6e.12xlarge, size: 0..4}
  ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}
"""
SMALL, EXPERTS, PREDICTING = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct"
SERVER = json.loads(Path(__file__).with_name("sglang.json").read_text(encoding="utf-8"))


def _format_blueprint(
    engine: str, worker: str, extra: str = "", model: str = SMALL, pattern: str = "aggregated"
) -> str:
    return (
        f"pattern: {pattern}\nengine: {engine}\nname: mine\nmodel: {model}\ncontext: 8k\nroles:\n  worker: {{{worker}}}\n"
        f"traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}\nslo: {{}}\n{extra}"
    )


def _resolve(folder: Path, text: str, target: str) -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target)


def _find_faults(words: Sequence[str], options: engine_options.EngineOptions) -> Iterator[str]:
    """Yield the words that the recorded parser would refuse, with the reason."""
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        name = word.removeprefix("--").replace("-", "_")
        option = options.options.get(name)
        if option is None or word != (option.word or f"--{name.replace('_', '-')}"):
            yield f"{word}: no such option"
            continue
        values = []
        while index < len(words) and not words[index].startswith("--") and option.type not in ("flag", "switch"):
            values.append(words[index])
            index += 1
            if not option.list:
                break
        if option.type not in ("flag", "switch") and not values:
            yield f"{word}: without a value"
        for value in values:
            mismatch = option.describe_mismatch(_read_value(option, value))
            if mismatch:
                yield f"{word} {value}: takes {mismatch}"


def _read_value(option: engine_options.EngineOption, value: str) -> Any:
    reader = {"int": int, "number": float, "json": json.loads}.get(option.type, str)
    try:
        return reader(value)
    except ValueError:
        return None


CASES = {
    "sglang": [
        ("pool: POOL", "", SMALL),
        ("pool: POOL, accelerators: 4", "", SMALL),
        ("pool: POOL, accelerators: 4, data: 2", "", SMALL),
        ("pool: POOL, accelerators: 4, expert: on", "", EXPERTS),
        ("pool: POOL", "tuning: {kv_cache: fp8, prefix_cache: off, batch_tokens: 8k, sequences: 32, kv_offload: 8Gi}\n", SMALL),
        ("pool: POOL", "tuning: {quantization: fp8, priority: on, speculative: {method: ngram}}\n", SMALL),
        ("pool: POOL", "tuning: {compile_cache: node}\nengine_arguments: {schedule_policy: lpm, log_requests: true}\n", SMALL),
        ("pool: POOL", "tuning: {kv_tiers: {ram: 8Gi, disk: 100Gi}}\n", SMALL),
        ("pool: POOL", "chat_template: own.jinja\n", SMALL),
        ("pool: POOL", "media_hosts: [pictures.example.com]\n", "Qwen/Qwen3-VL-8B-Instruct"),
        ("pool: POOL", "task: embed\n", "Qwen/Qwen3-Embedding-0.6B"),
    ],
    "tensorrt-llm": [
        ("pool: POOL", "", SMALL),
        ("pool: POOL, accelerators: 4", "chat_template: own.jinja\n", SMALL),
        ("pool: POOL, accelerators: 4, expert: on", "", EXPERTS),
        ("pool: POOL", "tuning: {kv_cache: fp8, batch_tokens: 8k, sequences: 32}\nengine_arguments: {num_postprocess_workers: 2}\n", SMALL),
    ],
}  # fmt: skip
"""Blueprints that ask for every option of the engine between them."""


@pytest.mark.parametrize("engine", CASES)
@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_the_makers_own_parser_takes_every_command_line(tmp_path: Path, engine: str, target: str) -> None:
    row, recorded = engines.load_engines()[engine], engine_options.load(engine)
    assert recorded
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    used: set[str] = set()
    for worker, extra, model in CASES[engine]:
        text = _format_blueprint(engine, worker.replace("POOL", target), extra, model)
        for process in _resolve(tmp_path, text, target).workers:
            launcher = process.command.index("sglang.launch_server") if engine == "sglang" else 0  # what starts it
            words = list(itertools.dropwhile(lambda word: not word.startswith("--"), process.command[launcher:]))
            assert list(_find_faults(words, recorded)) == [], process.command
            used |= {word for word in words if word.startswith("--")}
    flags = {word for part in row.options.values() for word in part.arguments if word.startswith("--")}
    assert flags - used - {"--pp-size", "--pp_size"} == set(), "options that no case asks for"


def test_an_unknown_option_and_a_value_of_another_type_are_found() -> None:
    recorded = engine_options.load("sglang")
    assert recorded
    words = ("--no-such-option", "--tp-size", "two", "--kv-cache-dtype", "fp8", "--port")
    assert list(_find_faults(words, recorded)) == [
        "--no-such-option: no such option",
        "--tp-size two: takes a whole number",
        "--kv-cache-dtype fp8: takes one of auto, bf16, bfloat16, fp4_mx_block16, fp8_e4m3, fp8_e5m2, mxfp8, nvfp4",
        "--port: without a value",
    ]


def test_the_probe_and_the_histograms_are_those_of_the_servers_source() -> None:
    row = engines.load_engines()["sglang"]
    assert {row.metrics[name] for name in ("ttft", "itl", "e2e")} <= {*SERVER["names"]["histogram"]}
    assert {row.metrics[name] for name in ("queue", "running", "kv-usage")} <= {*SERVER["names"]["gauge"]}
    assert {row.health, "/v1/chat/completions", "/v1/completions", "/v1/models"} <= {*SERVER["paths"]}
    assert SERVER["finish_types"] == ["abort", "length", "stop"]


@pytest.mark.parametrize(
    ("worker", "extra", "model", "message"),
    [
        (
            "pool: eks, accelerators: 4, data: 2, expert: on",
            "",
            EXPERTS,
            "7:46: roles.worker.data: 2: this row has no settings for attention split by data beside whole experts. "
            "Fix: set data: 1.",
        ),
        (
            "pool: eks, accelerators: 4, pipeline: 2",
            "",
            "google/gemma-3-27b-it",
            "7:50: roles.worker.pipeline: 2: SGLang has no pipeline stages of gemma3. Fix: set pipeline: 1.",
        ),
        (
            "pool: eks",
            "tuning: {chunked_prefill: off}\n",
            SMALL,
            "10:27: tuning.chunked_prefill: false: SGLang's memory follows from the size of its chunks, which "
            "tuning.batch_tokens sets. Fix: set chunked_prefill: on.",
        ),
        (
            "pool: eks",
            "engine_arguments: {mem_fraction_static: 0.8}\n",
            SMALL,
            '10:41: engine_arguments.mem_fraction_static: "0.8": it changes how the engine divides memory, and this '
            "program's arithmetic would not know. Fix: remove mem_fraction_static.",
        ),
    ],
)
def test_what_the_engine_lacks_here_is_refused_by_name(
    tmp_path: Path, worker: str, extra: str, model: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, _format_blueprint("sglang", worker, extra, model), "eks")
    assert f"{tmp_path}/blueprint.yaml:{message}" in str(error.value)


@pytest.mark.parametrize(
    ("worker", "extra", "model", "message"),
    [
        (
            "pool: eks, accelerators: 2, data: 2",
            "",
            SMALL,
            "roles.worker.data: 2: trtllm-serve is one engine a process; more replicas do the same. Fix: set data: 1.",
        ),
        (
            "pool: eks",
            "tuning: {quantization: fp8}\n",
            SMALL,
            'tuning.quantization: "fp8": trtllm-serve makes no weights smaller as it loads them by any key that was found. '
            "Fix: remove quantization.",
        ),
        (
            "pool: eks",
            "",
            "Qwen/Qwen3-VL-8B-Instruct",
            'model: "Qwen/Qwen3-VL-8B-Instruct": trtllm-serve fetches pictures from any host that a request names, and '
            "has no list of allowed ones. Fix: use a model that reads text only.",
        ),
        (
            "pool: eks",
            "engine_arguments: {config: /my.yaml}\n",
            SMALL,
            'engine_arguments.config: "/my.yaml": the deployment writes its file itself. Fix: remove config.',
        ),
    ],
)
def test_what_trtllm_serve_lacks_here_is_refused_by_name(
    tmp_path: Path, worker: str, extra: str, model: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, _format_blueprint("tensorrt-llm", worker, extra, model), "eks")
    assert message in str(error.value)


SETTINGS = json.loads(Path(__file__).with_name("tensorrt-llm-settings.json").read_text(encoding="utf-8"))["keys"]


def _read_settings(folder: Path, extra: str, target: str = "eks", worker: str = "accelerators: 2") -> dict[str, Any]:
    """Return what the engine's command writes to its file before the engine starts."""
    fleet = FLEET
    text = _format_blueprint("tensorrt-llm", f"pool: {target}, {worker}", extra)
    if "mtp" in extra:  # of a model that has layers for it
        text = text.replace(SMALL, PREDICTING).replace("accelerators: 2", "accelerators: 8")
        fleet = fleet.replace("g6e.12xlarge", "p5.48xlarge")
    [process] = resolving.resolve_files(folder, text, fleet, target).workers
    file = process.command[process.command.index("--config") + 1]
    settings: dict[str, Any] = json.loads(process.command[process.command.index(file) + 1])
    return settings


def _find_unknown(settings: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(known.get(key), dict) and isinstance(value, dict):
            yield from _find_unknown(value, known[key])
        elif type(value).__name__ != known.get(key):
            yield f"{key}: {value}"


@pytest.mark.parametrize(
    ("extra", "settings"),
    [
        ("", {}),
        ("tuning: {prefix_cache: off}\n", {"kv_cache_config": {"enable_block_reuse": False}}),
        (
            "tuning: {kv_offload: 8Gi, prefix_cache: off}\n",
            {"kv_cache_config": {"enable_block_reuse": False, "host_cache_size": 4 * 2**30}},
        ),
        (
            "tuning: {speculative: {method: ngram, tokens: 4}}\n",
            {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 4}},
        ),
        (
            "tuning: {speculative: {method: mtp, tokens: 2}}\n",
            {"speculative_config": {"decoding_type": "MTP", "max_draft_len": 2}},
        ),
    ],
)
@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_the_file_of_settings_has_keys_that_tensorrt_llm_takes(
    tmp_path: Path, extra: str, settings: dict[str, Any], target: str
) -> None:
    written = _read_settings(tmp_path, extra, target)
    assert written == {"return_perf_metrics": True, "enable_iter_perf_stats": True, **settings}
    assert list(_find_unknown(written, SETTINGS)) == []


def test_a_key_or_a_type_that_tensorrt_llm_does_not_take_is_found() -> None:
    wrong = {"kv_cache_config": {"host_cache_size": "8", "no_such": 1}, "backend": True}
    assert list(_find_unknown(wrong, SETTINGS)) == ["host_cache_size: 8", "no_such: 1", "backend: True"]


def test_the_file_is_there_when_the_engine_starts(tmp_path: Path) -> None:
    """As a container runs it, with a program in the engine's place that prints the file."""
    [process] = _resolve(tmp_path, _format_blueprint("tensorrt-llm", "pool: eks"), "eks").workers
    start = process.command.index("trtllm-serve")
    file = tmp_path / "settings.json"
    writer = [str(file) if word.endswith("settings.json") else word for word in process.command[:start]]
    run = subprocess.run([*writer, "cat", str(file)], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(run.stdout)["return_perf_metrics"] is True


def test_replicas_of_tensorrt_llm_scale_by_its_queue(tmp_path: Path) -> None:
    text = _format_blueprint("tensorrt-llm", "pool: eks, replicas: 1..4, scale: {queue: 4}")
    fleet = f"{FLEET}add_ons: {{operators: on, observability: on}}\n"
    [worker] = resolving.resolve_files(tmp_path, text, fleet, "eks").workers
    assert worker.replicas.scale and worker.replicas.scale.signal == "queue"
    assert worker.metrics["queue"] == "trtllm_num_requests_waiting"


def _format_disaggregated(engine: str, pool: str, extra: str = "", router: str = "{}") -> str:
    roles = f"  prefill: {{pool: {pool}}}\n  decode: {{pool: {pool}, accelerators: 2}}\n  router: {router}"
    text = _format_blueprint(engine, f"pool: {pool}", extra, pattern="disaggregated")
    return text.replace(f"  worker: {{pool: {pool}}}", roles)


ORCHESTRATOR = json.loads(Path(__file__).with_name("tensorrt-llm-orchestrator.json").read_text(encoding="utf-8"))


def _resolve_orchestrated(
    folder: Path, extra: str = "", router: str = "{}", prefill: str = "replicas: 2"
) -> ServingDeployment:
    text = _format_disaggregated("tensorrt-llm", "ecs", extra, router)
    text = text.replace("prefill: {pool: ecs}", f"prefill: {{pool: ecs, {prefill}}}")
    return _resolve(folder, text.replace("accelerators: 2}", "accelerators: 2, replicas: 3}"), "ecs")


def _list_config_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the orchestrator's own reader would refuse of its file, or take for something else."""
    for part, known in (
        ("keys", config),
        *(("servers", config[key]) for key in ("context_servers", "generation_servers")),
    ):
        for key, value in known.items():
            if type(value).__name__ != ORCHESTRATOR[part].get(key):
                yield f"{key}: {value}"
    for servers in (config["context_servers"], config["generation_servers"]):
        if len(servers["urls"]) != servers["num_instances"]:
            yield f"num_instances: {servers['num_instances']} of {len(servers['urls'])} urls"
        yield from (f"urls: {url}" for url in servers["urls"] if url.count(":") != 1 or not url.split(":")[1].isdigit())
        if servers["router"]["type"] not in ORCHESTRATOR["routers"]:
            yield f"router: {servers['router']['type']}"


def test_each_replica_of_tensorrt_llms_prefill_and_decode_has_a_name_that_its_orchestrator_reads(
    tmp_path: Path,
) -> None:
    deployment = _resolve_orchestrated(tmp_path)
    names = ("prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2")
    assert [service.name for service in deployment.workers] == [*names]
    assert {(service.replicas.min, service.replicas.max) for service in deployment.workers} == {(1, 1)}
    assert deployment.stack and deployment.stack.router_container
    container = deployment.stack.router_container
    config = json.loads(container.command[4])
    assert list(_list_config_faults(config)) == []
    urls = [*config["context_servers"]["urls"], *config["generation_servers"]["urls"]]
    assert urls == [f"mine-{name}.demo.internal:8000" for name in names]
    assert container.image == deployment.workers[0].image
    assert (container.port, config["port"]) == (8081, 8081)
    [router] = deployment.entries
    assert "--router=127.0.0.1:8081" in router.command
    assert router.ports["metrics"] == 8081, "nginx has no page of its own"
    assert router.resources.memory_bytes > container.memory_bytes
    assert router.resources.cpus > container.cpus


def test_a_file_that_the_orchestrator_would_refuse_is_noticed(tmp_path: Path) -> None:
    deployment = _resolve_orchestrated(tmp_path)
    assert deployment.stack and deployment.stack.router_container
    config = json.loads(deployment.stack.router_container.command[4])
    config["no_such"] = config["context_servers"]["num_instances"] = 3
    config["generation_servers"]["urls"][0] = "http://mine-decode-0:8000"
    config["generation_servers"]["router"]["type"] = "power_of_two"
    assert list(_list_config_faults(config)) == [
        "no_such: 3",
        "num_instances: 3 of 2 urls",
        "urls: http://mine-decode-0:8000",
        "router: power_of_two",
    ]


def test_the_orchestrators_command_line_is_the_published_one(tmp_path: Path) -> None:
    deployment = _resolve_orchestrated(tmp_path, router="{request_timeout: 10min}")
    assert deployment.stack and deployment.stack.router_container
    container = deployment.stack.router_container
    words = container.command[container.command.index("disaggregated") + 1 :]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options.keys() <= ORCHESTRATOR["options"].keys()
    assert options["--config"] == container.command[3]
    assert options["--request_timeout"] == "600"
    assert int(options["--server_start_timeout"]) >= max(
        service.probe.deadline_s for service in deployment.workers if service.probe
    )
    assert all(options[name].isdigit() for name in options if ORCHESTRATOR["options"][name] == "int")


def test_the_orchestrator_starts_with_its_file_and_the_images_own_libraries(tmp_path: Path) -> None:
    """As a container runs it, with a program in its place that prints what it finds."""
    deployment = _resolve_orchestrated(tmp_path)
    assert deployment.stack and deployment.stack.router_container
    words = list(deployment.stack.router_container.command)
    file, program = tmp_path / "settings.json", tmp_path / "trtllm-serve"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\ncat "$3"\n')
    program.chmod(0o755)
    words = [{words[3]: str(file), "trtllm-serve": str(program)}.get(word, word) for word in words]
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib"}
    words[0] = sys.executable
    run = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=env)
    folders, config = run.stdout.split("\n", 1)
    assert folders.startswith("/usr/local/cuda/compat/lib.real:") and folders.endswith(":/usr/local/nvidia/lib")
    assert json.loads(config)["context_servers"]["num_instances"] == 2


def test_prefill_and_decode_of_tensorrt_llm_hand_the_cache_over(tmp_path: Path) -> None:
    recorded = engine_options.load("tensorrt-llm")
    assert recorded
    for process in _resolve_orchestrated(tmp_path).workers:
        words = process.command[process.command.index("serve") + 2 :]
        assert list(_find_faults(words, recorded)) == [], words
        settings = json.loads(process.command[4])
        assert list(_find_unknown(settings, SETTINGS)) == []
        assert settings["cache_transceiver_config"] == {"backend": "NIXL"}
        assert settings["disable_overlap_scheduler"] is (process.role == "prefill")
        assert process.env["TRTLLM_NIXL_INTERFACE"] == process.env["UCX_NET_DEVICES"] == "eth0"


def test_a_team_needs_its_key_before_the_orchestrator_too(tmp_path: Path) -> None:
    deployment = _resolve_orchestrated(tmp_path, "auth: {keys: {secret: teams}}\n", "{max_requests: 64}")
    command = deployment.entries[0].command
    assert {"--keys=secret:teams", "--max-requests=64", "--health-only", "--repeat-500"} <= {*command}


@pytest.mark.parametrize(
    ("target", "extra", "router", "prefill", "message"),
    [
        (
            "eks", "", "{}", "replicas: 1",
            'pattern: "disaggregated": the router of tensorrt-llm before prefill and decode reads a name of each replica when '
            "it starts, which replicas have on ECS only. Fix: set framework: dynamo, or render it for ecs: --target ecs.",
        ),
        (
            "ecs", "", "{}", "replicas: 1..2",
            'roles.prefill.replicas: "1..2": the router of tensorrt-llm before prefill and decode reads a name of each replica '
            "when it starts: it would not learn of others. Fix: set replicas: 2.",
        ),
        (
            "ecs", "", "{policy: load-aware}", "replicas: 1",
            'roles.router.policy: "load-aware": the router of tensorrt-llm in the pattern disaggregated has no such policy. '
            "Fix: use one of round-robin.",
        ),
        (
            "ecs", "tuning: {kv_transfer: rdma}\n", "{}", "replicas: 1",
            'tuning.kv_transfer: "rdma": the engine tensorrt-llm has no transfer by EFA in the catalog. Fix: set kv_transfer: '
            "host.",
        ),
    ],
)  # fmt: skip
def test_what_tensorrt_llms_prefill_and_decode_lack_is_refused(
    tmp_path: Path, target: str, extra: str, router: str, prefill: str, message: str
) -> None:
    text = _format_disaggregated("tensorrt-llm", target, extra, router)
    with pytest.raises(InputError) as error:
        _resolve(
            tmp_path, text.replace(f"prefill: {{pool: {target}}}", f"prefill: {{pool: {target}, {prefill}}}"), target
        )
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("target", "names"),
    [("eks", "$(RELEASE)-{role}.$(NAMESPACE)"), ("ecs", "mine-{role}.demo.internal")],
)
def test_sglangs_own_router_tells_decode_where_prefill_hands_its_cache_over(
    tmp_path: Path, target: str, names: str
) -> None:
    recorded = engine_options.load("sglang")
    assert recorded
    deployment = _resolve(tmp_path, _format_disaggregated("sglang", target), target)
    for process in deployment.workers:
        words = process.command[3:]
        assert list(_find_faults(words, recorded)) == [], words
        assert words[words.index("--disaggregation-mode") + 1] == process.role
        assert words[words.index("--disaggregation-bootstrap-port") + 1] == "5600"
        assert process.address_variables == ("SGLANG_HOST_IP",), "peers call this address"
        assert process.probe and process.probe.body["bootstrap_host"] == "2.2.2.2", "each end answers it alone"
    assert {worker.role: worker.ports.get("side") for worker in deployment.workers} == {"prefill": 5600, "decode": None}
    [router] = deployment.entries
    prefill, decode = (f"--{role}={names.format(role=role)}:8000" for role in ("prefill", "decode"))
    assert router.command[router.command.index("router-dns-discovery") :][:6] == (
        *("router-dns-discovery", "--router=http://127.0.0.1:8081", prefill, decode, "--bootstrap-port=5600", "--"),
    )
    assert router.command[-3:] == ("--pd-disaggregation", "--decode-policy", "cache_aware")
    assert deployment.router.metrics["requests"] == "smg_router_requests_total"


def test_without_disaggregation_sglang_keeps_the_router_of_every_engine(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, _format_blueprint("sglang", "pool: eks"), "eks")
    assert "vllm-router" in deployment.entries[0].command


def test_the_memory_of_prefill_and_decode_is_that_of_their_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases, compute_fit = [], sglang.compute_fit

    def record(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
        phases.append(setup.phase)
        return compute_fit(model, instance, setup)

    monkeypatch.setattr(sglang, "compute_fit", record)
    _resolve(tmp_path, _format_disaggregated("sglang", "eks"), "eks")
    assert {*phases} == {"prefill", "decode"}
    phases.clear()
    _resolve(tmp_path, _format_blueprint("sglang", "pool: eks"), "eks")
    assert {*phases} == {""}


def test_sglang_keeps_no_copy_of_its_cache_in_the_nodes_memory(tmp_path: Path) -> None:
    limits = {
        engine: [
            role.resources.memory_bytes
            for role in _resolve(tmp_path, _format_disaggregated(engine, "eks"), "eks").engine_roles
        ]
        for engine in ("sglang", "vllm")
    }
    assert limits["sglang"] == limits["vllm"]
    words = _resolve(tmp_path, _format_disaggregated("vllm", "eks"), "eks").workers[0].command
    assert "--kv-cache-memory-bytes" in words, "vLLM's cache is limited to what has room there"


@pytest.mark.parametrize(
    ("extra", "router", "message"),
    [
        (
            "tuning: {kv_transfer: rdma}\n",
            "{}",
            'tuning.kv_transfer: "rdma": the engine sglang has no transfer by EFA in the catalog. '
            "Fix: set kv_transfer: host.",
        ),
        (
            "",
            "{policy: consistent-hash}",
            'roles.router.policy: "consistent-hash": the router of sglang in the pattern disaggregated has no such '
            "policy. Fix: use one of cache-aware, load-aware, round-robin, random.",
        ),
    ],
)
def test_what_sglangs_prefill_and_decode_lack_is_refused(tmp_path: Path, extra: str, router: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        _resolve(tmp_path, _format_disaggregated("sglang", "eks", extra, router), "eks")
    assert message in str(error.value)


def test_tensorrt_llms_cache_is_a_share_of_what_is_free() -> None:
    model, instance = models.load()[SMALL], instances.load()["p5.48xlarge"]
    whole = vllm.compute_fit(model, instance, ReplicaSetup(1, context=8192, utilization=1.0, batch=tensorrt_llm.BATCH))
    fit = tensorrt_llm.compute_fit(model, instance, ReplicaSetup(1, context=8192))
    assert (fit.cache_bytes, fit.cache_tokens) == (int(whole.cache_bytes * 0.9), int(whole.cache_tokens * 0.9))
    assert not fit.calibrated


@pytest.mark.parametrize(("name", "keeps_all"), [("google/gemma-3-27b-it", True), ("google/gemma-4-31B-it", False)])
def test_tensorrt_llm_keeps_all_tokens_of_windows_but_gemma_4s(name: str, keeps_all: bool) -> None:
    model, instance = models.load()[name], instances.load()["p5en.48xlarge"]
    fit = tensorrt_llm.compute_fit(model, instance, ReplicaSetup(1, context=131_072))
    whole_tokens = fit.cache_bytes // compute_kv_bytes_per_token(model)
    assert (fit.cache_tokens <= whole_tokens) == keeps_all
    assert fit.cache_tokens > whole_tokens * 0.85


def test_a_value_is_spelt_as_the_command_line_spells_its_option() -> None:
    options = engine_options.get_options("tensorrt-llm")
    assert options["num_postprocess_workers"].format_words("num_postprocess_workers", 2) == (
        "--num_postprocess_workers",
        "2",
    )


def test_sglang_keeps_a_fixed_reserve_and_vllm_a_share() -> None:
    model, instance = models.load()[SMALL], instances.load()["p5.48xlarge"]
    fits = {module: module.compute_fit(model, instance, ReplicaSetup(1, context=8192)) for module in (sglang, vllm)}
    # 512 + 8192 * 1.5 + 128 + 256 * 2 + 58 * 8 MiB, above the least of 10 GiB.
    assert fits[sglang].reserve_bytes == 13_904 * 2**20
    assert fits[sglang].weight_bytes == fits[vllm].weight_bytes
    assert fits[sglang].cache_bytes == fits[sglang].budget_bytes - fits[sglang].weight_bytes - 13_904 * 2**20


def test_sglang_shares_its_cache_with_the_states_of_linear_layers() -> None:
    model, instance = models.load()["Qwen/Qwen3-Next-80B-A3B-Instruct"], instances.load()["p5.48xlarge"]
    state_bytes = 36 * (2 * 3 * 8192 + 4 * 32 * 128 * 128) // 4  # 36 layers, split four ways, heads in 32 bits
    counts = {}
    for context in (4096, 262_144):
        fit = sglang.compute_fit(model, instance, ReplicaSetup(4, context=context))
        assert fit.fits
        states = int(fit.cache_bytes * 0.9 / 1.9) // state_bytes
        counts[context] = (fit.cache_tokens, (fit.cache_bytes - states * state_bytes) // 12_288, states)
    long_tokens, long_room, _ = counts[262_144]
    assert long_tokens == long_room, "the cache is full before the states are"
    short_tokens, short_room, states = counts[4096]
    assert short_tokens == (states - 1) // 5 * 4096 < short_room, "requests have five states each, beside a spare"


def test_sglang_keeps_one_state_of_a_request_where_no_beginnings_of_prompts_are_cached() -> None:
    model, instance = models.load()["Qwen/Qwen3-Next-80B-A3B-Instruct"], instances.load()["p5.48xlarge"]
    setup = ReplicaSetup(4, context=4096, batch=sglang.select_batch(instance.accelerators))
    cache_bytes = sglang.compute_fit(model, instance, setup).cache_bytes
    state_bytes = 36 * (2 * 3 * 8192 + 4 * 32 * 128 * 128) // 4
    states = int(cache_bytes * 0.9 / 1.9) // state_bytes - 1
    uncached = replace(setup, prefix_cache=False)
    few = replace(uncached, batch=Batch(tokens=8192, sequences=100))
    counts = [sglang.count_running(model, cache_bytes, own, 1000) for own in (setup, uncached, few)]
    assert counts == [states // 5, states, 100]
    fit = sglang.compute_fit(model, instance, few)
    assert fit.cache_tokens == min(100 * 4096, (fit.cache_bytes - 101 * state_bytes) // 12_288)


def test_sglang_runs_few_requests_whose_tokens_are_drafted_and_keeps_a_state_for_each_draft(tmp_path: Path) -> None:
    drafting = "tuning: {speculative: {method: ngram, tokens: 4}}\n"
    text = _format_blueprint("sglang", "pool: p5en, accelerators: 4", drafting, model=PREDICTING)
    role = _resolve(tmp_path, text, "eks").engine_roles[0]
    assert role.batch and role.batch.sequences == 48
    state_bytes = 36 * (2 * 3 * 8192 + 4 * 32 * 128 * 128) // 4
    states = int((role.cache_bytes * 0.9 / 1.9 - 5 * state_bytes) // (state_bytes * (1 + 4 / 5))) + 1
    tokens = (role.cache_bytes - (states + 4 * 49) * state_bytes) // 12_288
    assert role.cache_tokens == min(tokens, (states - 1) // 5 * 8000)


def test_tensorrt_llm_keeps_a_state_for_each_request_of_its_largest_step() -> None:
    model, instance = models.load()["Qwen/Qwen3-Next-80B-A3B-Instruct"], instances.load()["p5en.48xlarge"]
    state_bytes = 36 * (2 * 3 * 8192 + 2 * 32 * 128 * 128)
    for count in (2048, 64):
        setup = ReplicaSetup(4, context=8192, batch=Batch(tokens=8192, sequences=count))
        fit = tensorrt_llm.compute_fit(model, instance, setup)
        assert fit.fits and fit.cache_tokens == (fit.cache_bytes - (count + 1) * state_bytes // 4) // 12_288
    fit = tensorrt_llm.compute_fit(model, instance, ReplicaSetup(2, context=8192, utilization=0.85))
    assert fit.fits and fit.most_sequences and fit.most_sequences < 2048, "what is left of two GPUs holds fewer states"
    assert 8192 <= fit.cache_tokens < 8192 + state_bytes // 2 // 12_288 + 1


def test_tensorrt_llm_says_that_it_computes_whole_prompts_of_models_with_states(tmp_path: Path) -> None:
    note = f"tensorrt-llm keeps no states of prompts: of {PREDICTING} it computes each from its start."
    text = _format_blueprint("tensorrt-llm", "pool: p5en, accelerators: 4", model=PREDICTING)
    text = text.replace("traffic: {", "traffic: {shared_prefix: 60%, ")
    assert {note, "The router's policy is load-aware, since tensorrt-llm keeps no prompt of such a model."} <= {
        *_resolve(tmp_path, text, "eks").notes
    }
    for other in (text.replace("tensorrt-llm", "sglang"), f"{text}tuning: {{prefix_cache: off}}\n"):
        assert note not in _resolve(tmp_path, other, "eks").notes


def test_sglang_keeps_room_for_pictures() -> None:
    model, instance = models.load()["google/gemma-3-27b-it"], instances.load()["p5.48xlarge"]
    fits = [
        sglang.compute_fit(row, instance, ReplicaSetup(1, context=8192))
        for row in (model, model.model_copy(update={"vision": None}))
    ]
    share = 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))
    kept = [fit.budget_bytes - fit.reserve_bytes for fit in fits]
    graph_bytes, picture_bytes = 58 * 8 * 2**20, 100 * 2**20  # of prompts, which a model that sees has none of
    assert kept[0] == int((kept[1] + graph_bytes) * share) - picture_bytes
