"""What the engine does not do on Neuron devices, each refusal's text; and what it is given where it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.catalog import command_parts, engine_options, engines, models
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.service import Service
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving, texts

FLEET = """\
name: demo
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: both
pools:
  trainium: {types: trn2.48xlarge, zones: us-east-2b, size: 0..4, orchestrator: eks}
  on-ecs: {types: trn2.48xlarge, zones: us-east-2b, size: 0..4, orchestrator: ecs}
  sizes: {types: [trn2.3xlarge, trn2.48xlarge], zones: us-east-2b, size: 0..4, orchestrator: eks}
  joined: {types: trn2.48xlarge, zones: us-east-2b, size: 4, efa: on, orchestrator: eks}
  gpu: {types: g6e.12xlarge, size: 0..4, orchestrator: eks}
  old: {types: trn1.32xlarge, size: 0..2, orchestrator: eks}
  spare: {types: [inf2.24xlarge, inf2.48xlarge], size: 0..2, orchestrator: eks}
"""
TRAFFIC_AND_SLO = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
LLAMA, QWEN = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B"
WHOLE_MACHINE = "pool: trainium, accelerators: 64, data: 4"


def format_blueprint(
    worker: str = WHOLE_MACHINE,
    extra: str = "",
    *,
    model: str = LLAMA,
    pattern: str = "aggregated",
    role_lines: str = "",
) -> str:
    return f"pattern: {pattern}\nmodel: {model}\nroles:\n  worker: {{{worker}}}\n{role_lines}context: 16384\n{extra}{TRAFFIC_AND_SLO}"


def resolve_blueprint(folder: Path, text: str, target: str = "eks", fleet: str = FLEET) -> ServingDeployment:
    return resolving.resolve_files(folder, f"name: mine\n{text}", fleet, target, cores=64)


def list_errors(folder: Path, text: str, target: str = "eks", fleet: str = FLEET) -> list[str]:
    with pytest.raises(InputError) as error:
        resolve_blueprint(folder, text, target, fleet)
    return str(error.value).replace(f"{folder}/", "").splitlines()


def get_flag(service: Service, name: str) -> str:
    command = service.command
    return command[command.index(name) + 1]


PLUGIN = "vLLM's plugin for Neuron"
OLDER = (
    f"{PLUGIN} runs on Trainium2 and newer; the last release for Trainium and Inferentia2 is vLLM 0.16.0 with Neuron "
    "2.31.1, whose NxD Inference gets critical fixes only. Fix: use a pool of trn2, or one of GPUs."
)

REFUSED = [
    # where it does not run
    (
        format_blueprint("pool: old, accelerators: 32"),
        f'5:18: roles.worker.pool: "old": trn1.32xlarge carries Trainium: {OLDER}',
    ),
    (
        format_blueprint("pool: spare, accelerators: 12"),
        f'5:18: roles.worker.pool: "spare": inf2.24xlarge carries Inferentia2: {OLDER}',
    ),
    # whole machines
    (
        format_blueprint("pool: trainium, accelerators: 16"),
        f"5:42: roles.worker.accelerators: 16: {PLUGIN} allocates a node's NeuronCores from the first one on, so a "
        "replica has all 64 of a trn2.48xlarge for itself. Fix: set accelerators: 64.",
    ),
    (
        format_blueprint("pool: trainium, accelerators: 8", model="Qwen/Qwen3-8B"),
        f"5:42: roles.worker.accelerators: 8: {PLUGIN} allocates a node's NeuronCores from the first one on, so a "
        "replica has all 64 of a trn2.48xlarge for itself. Fix: set accelerators: 64, with data: 2 or more.",
    ),
    (
        format_blueprint("pool: trainium, accelerators: 64", model="Qwen/Qwen3-8B"),
        "5:42: roles.worker.accelerators: 64: 32 attention heads do not divide by 64. Fix: set data: 2.",
    ),
    (
        format_blueprint("pool: sizes, accelerators: 4", model="Qwen/Qwen3-8B"),
        f"5:39: roles.worker.accelerators: 4: {PLUGIN} allocates a node's NeuronCores from the first one on, so a "
        "replica has all 64 of a trn2.48xlarge for itself. Fix: set accelerators: 64, with data: 2 or more.",
    ),
    (
        format_blueprint("pool: joined, accelerators: 128, data: 8", pattern="distributed"),
        f"5:40: roles.worker.accelerators: 128: the documentation of {PLUGIN} does not describe replicas over several nodes. "
        "Fix: set accelerators: 64.",
    ),
    # settings
    (
        format_blueprint(f"{WHOLE_MACHINE}, pipeline: 2"),
        f"5:65: roles.worker.pipeline: 2: {PLUGIN} has no pipeline stages. Fix: set pipeline: 1.",
    ),
    (
        format_blueprint(f"{WHOLE_MACHINE}, adapters: {{sql: s3://mine/sql}}"),
        f'5:65: roles.worker.adapters: "sql": the documentation of {PLUGIN} does not mention LoRA adapters. Fix: remove adapters.',
    ),
    (
        format_blueprint(extra="tuning: {quantization: fp8}\n"),
        f'7:24: tuning.quantization: "fp8": {PLUGIN} makes no weights smaller as it loads them. Fix: remove quantization.',
    ),
    (
        format_blueprint(extra="tuning: {kv_cache: fp8}\n"),
        f'7:20: tuning.kv_cache: "fp8": {PLUGIN} reads an 8-bit cache by scales that come with the checkpoint, and '
        "this row is for those of 16 bits. Fix: set kv_cache: auto.",
    ),
    (
        format_blueprint(extra="tuning: {chunked_prefill: off}\n"),
        f"7:27: tuning.chunked_prefill: false: {PLUGIN} computes prompts in segments, each a program compiled "
        "beforehand. Fix: set chunked_prefill: on.",
    ),
    (
        format_blueprint(extra="tuning: {kv_offload: 16Gi}\n"),
        f'7:22: tuning.kv_offload: "16Gi": the documentation of {PLUGIN} does not mention KV offloading to CPU memory. Fix: '
        "remove kv_offload.",
    ),
    (
        format_blueprint(extra="task: embed\n", model="Qwen/Qwen3-Embedding-8B"),
        f'7:7: task: "embed": this row is for what {PLUGIN} writes: its recipes are of models that chat. '
        "Fix: set task: generate.",
    ),
    (
        format_blueprint(extra="tuning: {speculative: {method: ngram}}\n"),
        f'7:23: tuning.speculative: "ngram": {PLUGIN} supports EAGLE3 draft models only, which this '
        "repository does not deploy. Fix: remove speculative.",
    ),
    (
        format_blueprint("pool: trainium, accelerators: 64", role_lines="  router: {policy: kv-aware}\n"),
        '6:20: roles.router.policy: "kv-aware": the module that tells a router of a cache is in the fleet\'s own image '
        "of vLLM, for GPUs, alone. Fix: set policy: cache-aware.",
    ),
    (
        format_blueprint(f"{WHOLE_MACHINE}, max_requests: 16"),
        "5:69: roles.worker.max_requests: 16: the module that refuses requests as routers expect it is in the fleet's own "
        "image of vLLM, for GPUs, alone. Fix: remove max_requests, or set roles.router.max_requests.",
    ),
    (
        f"pattern: multi-model\nroles:\n  models:\n    one: {{model: {QWEN}, pool: trainium, accelerators: 64}}\n"
        f"    two: {{model: {QWEN}, shares: one}}\n{TRAFFIC_AND_SLO}",
        f'6:42: roles.models.two.shares: "one": the documentation of {PLUGIN} does not mention sleep mode. Fix: set pool: '
        "trainium in its place.",
    ),
    (
        format_blueprint(extra="logs: json\n"),
        '7:7: logs: "json": vLLM 0.29.0, of which the plugin is, has no option for it. Fix: set logs: text.',
    ),
    # of a later version
    (
        format_blueprint(extra="engine_arguments: {engram_config: {}}\n"),
        '7:35: engine_arguments.engram_config: "{}": on Trainium2 the engine is vllm 0.29.0, which has no such option. '
        "Fix: remove engram_config.",
    ),
    (
        format_blueprint(f"{WHOLE_MACHINE}, engine_arguments: {{engram_config: {{}}}}"),
        '5:89: roles.worker.engine_arguments.engram_config: "{}": on Trainium2 the engine is vllm 0.29.0, which has no '
        "such option. Fix: remove engram_config.",
    ),
    # programs that are compiled beforehand
    (
        format_blueprint(extra="tuning: {batch_tokens: 3000}\n"),
        "7:24: tuning.batch_tokens: 3000: a step is one segment of a prompt here, compiled for its size and below the "
        "context. Fix: use one of 512, 1024, 2048, 4096, 8192.",
    ),
    (
        format_blueprint().replace("16384", "512"),
        "6:10: context: 512: the engine computes prompts in segments here, the least of 512, below the context. Fix: "
        "set context: 1024 or more.",
    ),
    # models
    (
        format_blueprint(model="openai/gpt-oss-120b"),
        '3:8: model: "openai/gpt-oss-120b": it is a gpt_oss, and on Trainium2 the engine runs llama and qwen3. Fix: '
        "use a model of one of these.",
    ),
    (
        format_blueprint(model="tiny", worker="pool: trainium, accelerators: 64, data: 16"),
        '3:8: model: "tiny": its heads have 64 numbers each, and on Trainium2 the engine takes 128 for a qwen3. Fix: '
        "use another model.",
    ),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_an_unsupported_setting_is_refused_with_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    assert f"blueprint.yaml:{reason}" in list_errors(tmp_path, text)


def test_weights_of_eight_bits_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    folder.mkdir()
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({**models.read_config(QWEN), "quantization_config": quantized}))
    [error] = list_errors(tmp_path, format_blueprint("pool: trainium, accelerators: 64, data: 8", model=str(folder)))
    assert error.startswith("blueprint.yaml:3:8: model: ")
    assert error.endswith(
        "its weights are fp8, and on Trainium2 the engine takes those of 16 bits. Fix: use the checkpoint that is not "
        "quantized."
    )


def test_disaggregation_is_refused(tmp_path: Path) -> None:
    roles = "".join(f"  {name}: {{pool: trainium, accelerators: 64}}\n" for name in ("prefill", "decode"))
    text = f"pattern: disaggregated\nmodel: {LLAMA}\nroles:\n{roles}{TRAFFIC_AND_SLO}"
    assert (
        f'blueprint.yaml:2:10: pattern: "disaggregated": {PLUGIN} transfers caches with its own connector '
        "and proxy, for which the engines' catalog has no row. Fix: set pattern: aggregated, or choose pools of GPUs."
    ) in list_errors(tmp_path, text)


def test_a_setting_shared_by_roles_is_reported_once(tmp_path: Path) -> None:
    models = "".join(f"    {name}: {{model: {QWEN}, {WHOLE_MACHINE}}}\n" for name in ("first", "second"))
    text = f"pattern: multi-model\nroles:\n  models:\n{models}tuning: {{kv_cache: fp8}}\n{TRAFFIC_AND_SLO}"
    assert len(list_errors(tmp_path, text)) == 1


@pytest.mark.parametrize("pool", ["old", "spare", "trainium"])
def test_the_local_target_replaces_any_accelerator_with_the_cpu(tmp_path: Path, pool: str) -> None:
    deployment = resolve_blueprint(tmp_path, format_blueprint(f"pool: {pool}, accelerators: 2", model="tiny"), "local")
    command = deployment.workers[0].command
    assert ("--additional-config" in command, get_flag(deployment.workers[0], "--load-format")) == (
        False,
        "runai_streamer",
    )
    assert deployment.workers[0].prefetch is None


def test_every_reason_in_the_catalog_has_a_test() -> None:
    platform = engines.load_engines()["vllm"].platforms["neuron"]
    texts = [reason for _, reason in REFUSED]
    assert [
        reason
        for name, reason in platform.unsupported_options.items()
        if name != "transfer" and not any(reason in text for text in texts)
    ] == []


def test_a_gpu_replica_of_the_same_fleet_is_unchanged(tmp_path: Path) -> None:
    deployment = resolve_blueprint(tmp_path, format_blueprint("pool: gpu, accelerators: 4", model=QWEN))
    assert deployment.roles[0].image == engines.load_engines()["vllm"].image
    assert get_flag(deployment.workers[0], "--load-format") == "runai_streamer"
    assert deployment.workers[0].prefetch is None


@pytest.mark.parametrize("target", ["eks", "local"])
def test_weights_that_are_not_streamed_are_copied_first_and_read_by_the_engines_own_loader(
    tmp_path: Path, target: str
) -> None:
    text = format_blueprint("pool: gpu, accelerators: 1", "tuning: {stream_weights: off}\n", model="tiny")
    deployment = resolve_blueprint(tmp_path, text, target)
    worker, uri = deployment.workers[0], deployment.served_models[0].weights.uri
    folder = f"{deployment.environment.data_folder}/fetched/weights"
    assert worker.prefetch is None or worker.prefetch.uris == {"weights": uri}
    assert worker.prefetch or worker.command[3:6] == (folder, uri, "--"), "here the engine's command copies"
    assert worker.command[worker.command.index("serve") + 1] == folder
    assert not {"--load-format", "--model-loader-extra-config"} & set(worker.command)


@pytest.mark.parametrize(("target", "pool"), [("eks", "trainium"), ("ecs", "on-ecs")])
def test_a_replica_requests_all_devices_and_copies_its_weights(tmp_path: Path, target: str, pool: str) -> None:
    deployment = resolve_blueprint(tmp_path, format_blueprint(WHOLE_MACHINE.replace("trainium", pool)), target)
    worker, weights = deployment.workers[0], deployment.served_models[0].weights
    assert (worker.resources.device, worker.resources.accelerators) == ("aws.amazon.com/neuron", 16)
    assert (worker.resources.efa, worker.nodes) == (0, 1)
    assert worker.image == engines.load_engines()["vllm"].platforms["neuron"].image
    assert worker.prefetch
    assert worker.prefetch.uris == {"weights": weights.uri}
    assert weights.uri.endswith(f"-us-east-2/models/{LLAMA}/")
    assert worker.command[:3] == ("vllm", "serve", "/scratch/fetched/weights")
    assert "--load-format" not in worker.command
    # The weights and as much again as any other engine has; copied at 100 MB/s within the limit.
    assert worker.prefetch.disk_bytes > weights.bytes + 20 * 2**30
    assert worker.prefetch.timeout_s > weights.bytes / 100e6


def test_cores_are_divided_among_data_parallel_engines(tmp_path: Path) -> None:
    worker = resolve_blueprint(tmp_path, format_blueprint()).workers[0]
    assert (get_flag(worker, "--tensor-parallel-size"), get_flag(worker, "--data-parallel-size")) == ("16", "4")


@pytest.mark.parametrize(
    ("rest", "tokens", "sequences"),
    [("", 2048, 8), ("tuning: {batch_tokens: 8192, sequences: 4}\n", 8192, 4)],
)
def test_compiled_programs_match_the_engines_batch_settings(
    tmp_path: Path, rest: str, tokens: int, sequences: int
) -> None:
    worker = resolve_blueprint(tmp_path, format_blueprint(extra=rest)).workers[0]
    compiled = json.loads(get_flag(worker, "--additional-config"))["neuron_config"]
    assert compiled["num_batched_tokens_buckets"] == compiled["kv_segment_size_buckets"] == [tokens]
    assert compiled["num_seqs_buckets"] == [sequences]
    assert get_flag(worker, "--max-num-batched-tokens") == str(tokens)
    assert get_flag(worker, "--max-num-seqs") == str(sequences)
    assert worker.command.count("--max-num-seqs") == 1


def test_a_segment_stays_below_a_short_context(tmp_path: Path) -> None:
    worker = resolve_blueprint(tmp_path, format_blueprint().replace("16384", "2048")).workers[0]
    assert get_flag(worker, "--max-num-batched-tokens") == "1024"


def test_the_startup_deadline_allows_for_compilation(tmp_path: Path) -> None:
    on_neuron = resolve_blueprint(tmp_path, format_blueprint()).workers[0].probe
    on_gpus = resolve_blueprint(tmp_path, format_blueprint("pool: gpu, accelerators: 4", model=QWEN)).workers[0].probe
    assert on_neuron and on_gpus
    assert on_neuron.deadline_s > 40 * 60 > on_gpus.deadline_s


def test_the_version_on_neuron_has_every_option_that_is_rendered(tmp_path: Path) -> None:
    platform = engines.load_engines()["vllm"].platforms["neuron"]
    known = engine_options.load_arguments(platform.version_arguments).arguments
    extra = (
        "tools: hermes\nreasoning: qwen3\ntuning: {priority: on, prefix_cache: off, batch_tokens: 4096}\n"
        "engine_arguments: {max_logprobs: 5}\ntraces: http://collector:4318/v1/traces\n"
    )
    command = resolve_blueprint(tmp_path, format_blueprint(extra=extra, model=QWEN)).workers[0].command
    names = set(command_parts.list_option_names(command))
    assert names <= known
    assert {"additional_config", "scheduling_policy", "max_logprobs", "tool_call_parser"} <= names
    on_gpus = resolve_blueprint(
        tmp_path, format_blueprint("pool: gpu, accelerators: 4", "logs: json\n", model=QWEN)
    ).workers[0]
    assert "logging_config" in set(command_parts.list_option_names(on_gpus.command)) - known


@pytest.mark.parametrize(("cache", "volume"), [("claim:programs", "programs"), ("node", "")])
def test_compiled_programs_and_traces_outlive_a_replica_where_a_cache_is_kept(
    tmp_path: Path, cache: str, volume: str
) -> None:
    text = format_blueprint(extra=f"tuning: {{compile_cache: '{cache}'}}\n")
    worker = resolve_blueprint(tmp_path, text).workers[0]
    environment, mount = worker.env, worker.mounts["compile-cache"]
    for name in ("VLLM_CACHE_ROOT", "NKI_COMPILE_CACHE_URL", "NEURON_COMPILE_CACHE_URL"):
        assert environment[name].startswith(f"{mount.path}/")
    assert (mount.claim, environment["VLLM_NEURON_BACKEND"]) == (volume, "neuron_native")
    assert "NEURON_LIBTORCH_REMOTE_CACHE" not in environment, "nothing would ever fill it"


def test_compilation_caches_are_in_the_replicas_scratch_directory(tmp_path: Path) -> None:
    environment = resolve_blueprint(tmp_path, format_blueprint()).workers[0].env
    cache_folders = {
        environment[name] for name in ("VLLM_CACHE_ROOT", "NKI_COMPILE_CACHE_URL", "NEURON_COMPILE_CACHE_URL")
    }
    assert all(folder.startswith("/scratch/cache") for folder in cache_folders) and len(cache_folders) == 3


@pytest.mark.parametrize(
    ("target", "pool", "line", "message"),
    [
        (
            "eks",
            "general",
            "eks: {al2023: v20251016}",
            'fleet.yaml:15:15: eks.al2023: "v20251016": its NVIDIA driver is older than branch 580, which the image of '
            "vllm needs. Fix: set al2023: v20251023 or later.",
        ),
        (
            "ecs",
            "on-ecs",
            "ecs: {al2023: 2023.0.20250923}",
            'fleet.yaml:15:15: ecs.al2023: "2023.0.20250923": its NVIDIA driver is older than branch 580, which the '
            "image of vllm needs. Fix: set al2023: 2023.0.20251015 or later.",
        ),
    ],
)
def test_an_ami_whose_driver_is_too_old_for_the_engines_image_is_refused(
    tmp_path: Path, target: str, pool: str, line: str, message: str
) -> None:
    text, fleet = f"{texts.format_aggregated(pool=pool)}name: mine\n", f"{texts.FLEET}{line}\n"
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, fleet, target)
    assert str(error.value) == f"{tmp_path}/{message}"
    with_own_image = f"image: example.com/mine:1.0\n{text}"
    assert resolving.resolve_files(tmp_path, with_own_image, fleet, target), "nothing is known of another image"
    newer = line.replace("2025", "2026")
    assert resolving.resolve_files(tmp_path, text, f"{texts.FLEET}{newer}\n", target)


def test_bottlerocket_whose_neuron_driver_is_too_old_for_the_engines_image_is_refused(tmp_path: Path) -> None:
    fleet = FLEET.replace("orchestrator: eks}", "orchestrator: eks, os: bottlerocket}", 1)
    assert list_errors(tmp_path, format_blueprint(), fleet=fleet) == [
        'fleet.yaml:1:1: eks.bottlerocket: "1.64.0": its Neuron driver is older than 2.27, which the image of vllm needs. '
        "Fix: set bottlerocket: 1.65.0 or later."
    ]
    assert resolve_blueprint(tmp_path, format_blueprint(), fleet=f"{fleet}eks: {{bottlerocket: 1.65.0}}\n")


STEP_REFUSALS = {
    "tuning: {chunked_prefill: off, batch_tokens: 2k}": "tuning.batch_tokens: 2000: prompts are not split, and a step has no "
    "room for one of the context, 16384: the engine ends. Fix: set batch_tokens: 16384 or more, or remove it.",
    "tuning: {sequences: 4096}": "tuning.sequences: 4096: a step has 2048 tokens, fewer than these requests: the engine ends. "
    "Fix: set sequences: 2048 or less, or tuning: {batch_tokens: 4096} or more.",
    "engine_arguments: {max_num_seqs: 4096}": "engine_arguments.max_num_seqs: 4096: a step has 2048 tokens, fewer than these "
    "requests: the engine ends. Fix: set max_num_seqs: 2048 or less, or tuning: {batch_tokens: 4096} or more.",
}


@pytest.mark.parametrize("extra", STEP_REFUSALS)
def test_a_step_that_vllm_does_not_start_with_is_refused(tmp_path: Path, extra: str) -> None:
    """SchedulerConfig.verify_max_model_len of vLLM 0.32.0 raises for each of them."""
    [error] = list_errors(tmp_path, format_blueprint("pool: gpu", f"{extra}\n", model="Qwen/Qwen3-8B"))
    assert error.endswith(STEP_REFUSALS[extra])


def test_adapters_leave_a_step_room_for_fewer_draft_tokens(tmp_path: Path) -> None:
    """EngineArgs.create_engine_config of vLLM 0.32.0 raises: 256 requests of 9 tokens each are more than 2,048."""
    worker = "pool: gpu, adapters: {sql: s3://demo-models-123456789012-us-east-2/sql}"
    extra = "tuning: {speculative: {method: ngram, tokens: 8}}\n"
    [error] = list_errors(tmp_path, format_blueprint(worker, extra, model="Qwen/Qwen3-8B"))
    assert error.endswith(
        "tuning.speculative.tokens: 8: with adapters a step needs room for these and one more of each of its 256 requests, "
        "and has 2048 tokens: the engine ends. Fix: set tokens: 7 or less, or set tuning: {sequences: 227} or fewer."
    )
    fewer = extra.replace("}}", "}, sequences: 227}")
    assert resolve_blueprint(tmp_path, format_blueprint("pool: gpu", extra, model="Qwen/Qwen3-8B")).workers
    for text in (extra.replace("8", "7"), fewer):
        assert resolve_blueprint(tmp_path, format_blueprint(worker, text, model="Qwen/Qwen3-8B")).workers


def test_a_prompt_that_is_not_split_takes_memory_for_a_step_of_the_whole_context(tmp_path: Path) -> None:
    """vLLM's default is then the context, not the 2,048 tokens of an L40S."""
    extra = "engine_arguments: {gpu_memory_utilization: 0.9}\ntuning: {chunked_prefill: on}\n"
    text = format_blueprint("pool: gpu", extra, model="Qwen/Qwen3-14B").replace("16384", "40k")
    assert resolve_blueprint(tmp_path, text).workers
    [error] = list_errors(tmp_path, text.replace("prefill: on", "prefill: off"))
    assert "does not fit into 1 accelerator of the pool gpu" in error


def test_requests_that_keep_a_state_are_as_many_as_the_cache_has_room_for(tmp_path: Path) -> None:
    """vLLM ends after all else of its start, with `max_num_seqs (1024) exceeds available Mamba cache blocks`."""
    fleet = FLEET + "  h100: {types: p5.4xlarge, size: 0..4, orchestrator: eks}\n"
    text = f"name: mine\n{format_blueprint('pool: h100', model='Qwen/Qwen3.6-27B')}"
    deployment = resolving.resolve_files(tmp_path, text, fleet, "eks")
    assert get_flag(deployment.services[0], "--max-num-seqs") == "256"
    for chosen, name in (
        ("tuning: {sequences: 512}", "sequences"),
        ("engine_arguments: {max_num_seqs: 512}", "max_num_seqs"),
    ):
        with pytest.raises(InputError) as refusal:
            resolving.resolve_files(tmp_path, f"{text}{chosen}\n", fleet, "eks")
        assert str(refusal.value).endswith(
            f"{name}: 512: each request of a step keeps a state in the cache of Qwen/Qwen3.6-27B, which has room for "
            f"about 378: the engine ends. Fix: remove {name}, or use more accelerators."
        )
    deployment = resolving.resolve_files(tmp_path, f"{text}engine_arguments: {{max_num_seqs: 300}}\n", fleet, "eks")
    assert deployment.services[0].command.count("--max-num-seqs") == 1
    other = resolving.resolve_files(tmp_path, text.replace("Qwen3.6-27B", "Qwen3-14B"), fleet, "eks")
    assert "--max-num-seqs" not in other.services[0].command


def test_each_draft_token_has_a_state_of_its_own(tmp_path: Path) -> None:
    """MambaSpec.max_memory_usage_bytes of vLLM 0.32.0: a request takes a block more for each, in each group of layers."""
    fleet = FLEET + "  h100: {types: p5.4xlarge, size: 0..4, orchestrator: eks}\n"
    extra = "tuning: {sequences: 16, speculative: {method: ngram, tokens: TOKENS}}\n"
    extra += "engine_arguments: {gpu_memory_utilization: 0.9}\n"
    text = f"name: mine\n{format_blueprint('pool: h100', extra, model='Qwen/Qwen3.6-27B')}".replace("16384", "255k")
    assert resolving.resolve_files(tmp_path, text.replace("TOKENS", "1"), fleet, "eks").workers
    with pytest.raises(InputError, match=r"the cache holds \d+ tokens, \d+ short of one request of 255000"):
        resolving.resolve_files(tmp_path, text.replace("TOKENS", "16"), fleet, "eks")
