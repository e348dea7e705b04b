"""The engine's own options and variables in blueprint.yaml: what is refused, in which words, and what they reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  small: {types: g6e.2xlarge, size: 0..8}
"""
PORTS = {
    name: 20000 + number for number, name in enumerate(("aws", "router", "router-metrics", "router-admin", "worker-0"))
}


def _resolve(
    folder: Path, extra: str, target: str = "eks", worker: str = "", model: str = "Qwen/Qwen3-8B"
) -> ServingDeployment:
    blueprint = (
        f"name: mine\npattern: aggregated\nmodel: {model}\ncontext: 2k\nroles: {{worker: {{pool: small{worker}}}}}\n"
        f"traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}\nslo: {{}}\n{extra}"
    )
    return resolving.resolve_files(
        folder, blueprint, FLEET, target, cores=2, ports=PORTS, s3_endpoint="http://127.0.0.1:20000"
    )


def _list_words(deployment: ServingDeployment) -> tuple[str, ...]:
    return deployment.workers[0].command


REFUSALS = {
    "max_num_sequs: 4": 'max_num_sequs: "4": vLLM 0.32.0 has no such option. Fix: write max_num_seqs, or remove max_num_sequs.',
    "max_modl_len: 4": 'max_modl_len: "4": vLLM 0.32.0 has no such option. Fix: write context, or remove max_modl_len.',
    # SGLang's name of it.
    "max_running_requests: 8": 'max_running_requests: "8": vLLM 0.32.0 has no such option. Fix: set tuning.sequences, '
    "and remove max_running_requests here.",
    "max_num_seqs: many": 'max_num_seqs: "many": the engine takes a whole number, 1 or more. '
    "Fix: write a whole number, 1 or more.",
    "gpu_memory_utilization: 1.5": 'gpu_memory_utilization: "1.5": the engine takes a number, more than 0, 1 or less. '
    "Fix: write a number, more than 0, 1 or less.",
    "logprobs_mode: raw": 'logprobs_mode: "raw": the engine takes one of processed_logits, processed_logprobs, '
    "raw_logits, raw_logprobs. Fix: write one of processed_logits, processed_logprobs, raw_logits, raw_logprobs.",
    "max_model_len: 4096": 'max_model_len: "4096": the deployment writes it from context. '
    "Fix: set context, and remove max_model_len here.",
    "port: 80": 'port: "80": the deployment writes it by itself. Fix: remove port.',
    "block_size: 16": 'block_size: "16": it changes how the engine divides memory, and this program\'s arithmetic '
    "would not know. Fix: remove block_size.",
    # It doubles the largest batch where no other is set: EngineArgs._set_default_max_num_seqs_and_batched_tokens_args.
    "performance_mode: throughput": 'performance_mode: "throughput": it changes how the engine divides memory, and this '
    "program's arithmetic would not know. Fix: remove performance_mode.",
    "all2all_backend: deepep_v2": 'all2all_backend: "deepep_v2": experts over several nodes exchange tokens by NCCL; '
    "DeepEP on EFA takes a fork of it, efa driver 3.3.0 and gdrdrv, which the image and the nodes do not have. "
    "Fix: remove all2all_backend.",
    "max_num_queued_reqs: 8": 'max_num_queued_reqs: "8": the deployment writes it from max_requests of the role. '
    "Fix: set max_requests of the role, and remove max_num_queued_reqs here.",
    "max_num_queued_tokens: 9000": 'max_num_queued_tokens: "9000": the engine answers 503 beyond it, for which the router '
    "sends it nothing for 5 s; max_requests of a role bounds its queue. Fix: remove max_num_queued_tokens.",
    "enable_sleep_mode: true": 'enable_sleep_mode: "true": models that share accelerators have it, by `shares` of their '
    "roles; /sleep and /wake_up themselves come with VLLM_SERVER_DEV_MODE only, and with it /collective_rpc, by which "
    "whoever reaches an engine calls any of its methods. Fix: remove enable_sleep_mode.",
    "api_key: abc": 'api_key: "(hidden)": it is a secret, and it would be readable in this file and wherever the command '
    "line is. Fix: remove api_key.",
    "api-key: abc": 'api-key: "(hidden)": vLLM 0.32.0 has no such option. Fix: write api_key, or remove api-key.',
}


@pytest.mark.parametrize("argument", REFUSALS)
def test_an_argument_that_cannot_be_set_is_refused_at_its_line(tmp_path: Path, argument: str) -> None:
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, f"engine_arguments:\n  {argument}\n")
    column = len(argument.partition(":")[0]) + 5
    assert str(refusal.value) == f"{tmp_path}/blueprint.yaml:9:{column}: engine_arguments.{REFUSALS[argument]}"


def test_an_argument_that_a_key_sets_too_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"tuning.sequences says it too. Fix: keep one of max_num_seqs and tuning.sequences"
    ):
        _resolve(tmp_path, "tuning: {sequences: 8}\nengine_arguments: {max_num_seqs: 8}\n")


def test_an_argument_that_the_target_needs_for_itself_is_refused_there_alone(tmp_path: Path) -> None:
    extra = "engine_arguments: {enforce_eager: false}\n"
    assert _list_words(_resolve(tmp_path, extra))[-1] == "--no-enforce-eager"
    with pytest.raises(
        InputError, match=r'"false": the deployment writes it by itself on this machine. Fix: remove enforce_eager'
    ):
        _resolve(tmp_path, extra, target="local", model="tiny")
    assert "--enforce-eager" in _list_words(
        _resolve(tmp_path, extra.replace("false", "true"), target="local", model="tiny")
    )


def test_each_argument_is_compared_with_what_the_deployment_writes_for_it(tmp_path: Path) -> None:
    """One switch that is written in the same way does not excuse another option."""
    extra = "engine_arguments: {enforce_eager: true, distributed_timeout_seconds: 9, max_num_seqs: 4}\n"
    worker = ", engine_arguments: {enforce_eager: false}"
    assert _resolve(tmp_path, extra, target="local", model="tiny")
    with pytest.raises(InputError, match=r'roles.worker.engine_arguments.enforce_eager: "false": the deployment'):
        _resolve(tmp_path, extra, target="local", model="tiny", worker=worker)


@pytest.mark.parametrize("target", ["local", "eks"])
def test_arguments_stand_at_the_end_of_the_command_and_a_roles_own_win(tmp_path: Path, target: str) -> None:
    worker = ", engine_arguments: {stream_interval: 2}, environment: {NCCL_DEBUG: INFO}"
    extra = "engine_arguments: {stream_interval: 1, enable_prompt_tokens_details: true}\n"
    deployment = _resolve(tmp_path, f"{extra}environment: {{NCCL_DEBUG: WARN, MINE: x}}\n", target, worker, "tiny")
    assert _list_words(deployment)[-3:] == ("--stream-interval", "2", "--enable-prompt-tokens-details")
    env = deployment.workers[0].env
    assert (env["NCCL_DEBUG"], env["MINE"]) == ("INFO", "x")


def test_arguments_that_change_memory_reach_the_arithmetic(tmp_path: Path) -> None:
    """At 32% of an L40S the weights of 8 billion parameters do not fit; at 92% they do."""
    assert _resolve(tmp_path, "engine_arguments: {gpu_memory_utilization: 0.92}\n")
    with pytest.raises(InputError, match=r"it does not fit into 1 accelerator of the pool small"):
        _resolve(tmp_path, "engine_arguments: {gpu_memory_utilization: 0.32}\n")


def test_a_larger_step_takes_more_memory(tmp_path: Path) -> None:
    assert _resolve(tmp_path, "engine_arguments: {max_num_batched_tokens: 8192}\n")
    with pytest.raises(InputError, match=r"it does not fit into 1 accelerator of the pool small"):
        _resolve(tmp_path, "engine_arguments: {max_num_batched_tokens: 1000000}\n")


@pytest.mark.parametrize("name", ["HF_TOKEN", "MY_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
def test_a_secret_in_the_environment_is_refused_without_its_value(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        InputError, match=rf"environment.{name}: .*a secret here could be read.*Fix: remove {name}"
    ) as refusal:
        _resolve(tmp_path, f"environment: {{{name}: hush}}\n")
    assert "hush" not in str(refusal.value)


def test_a_misspelt_variable_of_the_engine_is_named_and_others_pass(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"vLLM 0.32.0 reads no such variable. Fix: write VLLM_LOGGING_LEVEL, or remove VLLM_LOGING_LEVEL",
    ):
        _resolve(tmp_path, "environment: {VLLM_LOGING_LEVEL: DEBUG}\n")
    variables = 'VLLM_LOGGING_LEVEL: DEBUG, ANY_OTHER: x, VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD: "8"'
    env = _resolve(tmp_path, f"environment: {{{variables}}}\n").workers[0].env
    assert (env["VLLM_LOGGING_LEVEL"], env["ANY_OTHER"]) == ("DEBUG", "x")
    # Of which no list of variables is recorded.
    env = _resolve(tmp_path, "engine: tensorrt-llm\nenvironment: {TLLM_LOG_LEVEL: DEBUG}\n").workers[0].env
    assert env["TLLM_LOG_LEVEL"] == "DEBUG"


def test_a_variable_that_the_deployment_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'environment.HF_HUB_OFFLINE: "0": the deployment writes it by itself on'):
        _resolve(tmp_path, 'environment: {HF_HUB_OFFLINE: "0"}\n')


VARIABLES = {
    "VLLM_MLA_DISABLE": "it changes how the engine divides memory, and this program's arithmetic would not know",
    "VLLM_SERVER_DEV_MODE": "it brings /collective_rpc, by which whoever reaches an engine calls any of its methods",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_undoes_what_was_decided_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, f'environment: {{{name}: "1"}}\n')
    assert f'environment.{name}: "1": {VARIABLES[name]}. Fix: remove {name}.' in str(refusal.value)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_memory_that_moves_is_refused_where_a_cache_is_copied(tmp_path: Path, name: str) -> None:
    extra = f"environment: {{{name}: 'expandable_segments:True'}}\n"
    assert _resolve(tmp_path, extra).workers[0].env[name] == "expandable_segments:True"
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, f"{extra}tuning: {{kv_offload: 4Gi}}\n")
    assert f'environment.{name}: "expandable_segments:True": PyTorch may then move a KV cache whose' in str(
        refusal.value
    )
    assert str(refusal.value).endswith("Fix: remove expandable_segments:True.")


MEMORY = "it changes how the engine divides memory, and this program's arithmetic would not know"
SGLANG_REFUSALS = {
    # SGLang would make two groups within the four accelerators of a copy, and leave the four of the other without work.
    "enable_dp_attention: true": "it decides which processes run where, which follows from the roles",
    "enable_hicache: true": "the deployment writes it from tuning.kv_tiers",
    "cuda_graph_max_bs_decode: 1024": MEMORY,
    "disable_hybrid_swa_memory: true": MEMORY,
}


@pytest.mark.parametrize("argument", SGLANG_REFUSALS)
def test_options_of_sglang_that_undo_what_was_decided_are_refused(tmp_path: Path, argument: str) -> None:
    blueprint = (
        "name: mine\npattern: aggregated\nengine: sglang\nmodel: Qwen/Qwen3-32B\ncontext: 2k\n"
        "roles: {worker: {pool: large, accelerators: 8, data: 2}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    fleet = f"{FLEET}  large: {{types: g6e.48xlarge, size: 0..8}}\n"
    assert "--dp-size" in resolving.resolve_files(tmp_path, blueprint, fleet, "eks").workers[0].command
    with pytest.raises(InputError) as refusal:
        resolving.resolve_files(tmp_path, f"{blueprint}engine_arguments: {{{argument}}}\n", fleet, "eks")
    assert f": {SGLANG_REFUSALS[argument]}. Fix: " in str(refusal.value)


@pytest.mark.parametrize(("value", "noted"), [("true", 1), ("false", 0)])
def test_an_option_that_makes_the_engine_run_code_is_noted(tmp_path: Path, value: str, noted: int) -> None:
    deployment = _resolve(tmp_path, f"engine_arguments: {{trust_remote_code: {value}}}\n")
    note = (
        "engine_arguments.trust_remote_code makes the engine run code, of the model's folder or of a module: read it before "
        "you deploy a blueprint that is not your own."
    )
    assert deployment.notes.count(note) == noted


def test_a_variable_of_all_roles_is_refused_once(tmp_path: Path) -> None:
    blueprint = (
        "name: mine\npattern: disaggregated\nmodel: Qwen/Qwen3-8B\ncontext: 2k\nenvironment: {HF_HUB_OFFLINE: '0'}\n"
        "roles: {prefill: {pool: small}, decode: {pool: small}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    with pytest.raises(InputError) as refusal:
        resolving.resolve_files(tmp_path, blueprint, FLEET, "eks")
    assert str(refusal.value).count("environment.HF_HUB_OFFLINE") == 1
