"""LoRA adapters of a blueprint: what cannot be loaded is refused at its line, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.engines.memory import ADAPTER_RANK
from llm_serving.hub import make_tiny
from llm_serving.kinds.serving import adapters
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.targets.registry import load_target
from tests.kinds.serving import resolving

BLUEPRINT = """\
pattern: multi-model
roles:
  models:
    plain: {{model: tiny, pool: general}}
    tuned: {{model: {model}, pool: general, adapters: {{tone: {where}}}}}
traffic: {{users: 2}}
slo: {{}}
"""


FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
storage: {model_buckets: {bucket: my-adapters}}
pools:
  eks: {types: g6e.2xlarge, size: 0..4}
  ecs: {types: g6e.2xlarge, size: 0..4, orchestrator: ecs}
"""


@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_an_adapter_in_s3_is_fetched_to_the_path_in_the_engines_command(tmp_path: Path, target: str) -> None:
    text = f"model: Qwen/Qwen3-8B, pool: {target}, adapters: {{sql: s3://my-adapters/sql}}"
    blueprint_text = (
        f"name: mine\npattern: multi-model\nroles: {{models: {{one: {{{text}}}}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    )
    role = resolving.resolve_files(tmp_path, blueprint_text, FLEET, target).workers[0]
    assert role.prefetch and role.prefetch.uris == {"adapter-sql": "s3://my-adapters/sql"}
    command = role.command
    assert command[command.index("--lora-modules") + 1] == "sql=/scratch/fetched/adapter-sql"


@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_an_engine_takes_adapters_at_run_time_only_where_its_role_has_some(tmp_path: Path, target: str) -> None:
    one = f"one: {{model: Qwen/Qwen3-8B, pool: {target}, adapters: {{sql: s3://my-adapters/sql}}}}"
    two = f"two: {{model: Qwen/Qwen3-0.6B, pool: {target}}}"
    text = f"name: mine\npattern: multi-model\nroles: {{models: {{{one}, {two}}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    workers = resolving.resolve_files(tmp_path, text, FLEET, target).workers
    switches = {worker.role: worker.env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") for worker in workers}
    assert switches == {"one": "True", "two": None}


def test_adapters_that_have_no_room_beside_the_model_are_told_to_change_less(tmp_path: Path) -> None:
    names = ", ".join(f"{name}: s3://my-adapters/{name}" for name in ("sql", "tone", "tools"))
    role = f"one: {{model: Qwen/Qwen3-30B-A3B, context: 8k, pool: eks, adapters: {{{names}}}}}"
    fleet = FLEET.replace("eks: {types: g6e.2xlarge", "eks: {types: p5.4xlarge")
    text = f"name: mine\npattern: multi-model\nroles: {{models: {{{role}}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    with pytest.raises(
        InputError, match=r"GB of it for adapters.* Fix: name the modules that adapters change as lora_target"
    ):
        resolving.resolve_files(tmp_path, text, fleet, "eks")
    attention = "engine_arguments: {lora_target_modules: [qkv_proj, o_proj]}\n"
    [worker] = resolving.resolve_files(tmp_path, text + attention, fleet, "eks").workers
    assert worker.command[worker.command.index("--lora-target-modules") + 1 :][:2] == ("qkv_proj", "o_proj")


def test_hundreds_of_adapters_share_the_memory_of_those_that_max_loras_counts(tmp_path: Path) -> None:
    names = ", ".join(f"team-{number}: s3://my-adapters/{number}" for number in range(300))
    role = f"one: {{model: Qwen/Qwen3-8B, context: 8k, pool: eks, adapters: {{{names}}}}}"
    text = f"name: mine\npattern: multi-model\nroles: {{models: {{{role}}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    with pytest.raises(InputError, match=r"117 GB of it for adapters.* or fewer adapters than there are as max_loras"):
        resolving.resolve_files(tmp_path, text, FLEET, "eks")
    slots = "engine_arguments: {max_loras: 8, max_cpu_loras: 300}\n"
    [worker] = resolving.resolve_files(tmp_path, text + slots, FLEET, "eks").workers
    command = worker.command
    assert command.count("--max-loras") == 1
    assert command[command.index("--max-loras") + 1] == "8"
    assert len([word for word in command if word.startswith("team-")]) == 300
    with pytest.raises(InputError, match=r"GB of it for adapters"):  # more than are named, for those that come later
        resolving.resolve_files(tmp_path, text + slots.replace("max_loras: 8", "max_loras: 80"), FLEET, "eks")


def test_adapters_of_a_model_that_the_engine_runs_without_any_are_refused(tmp_path: Path) -> None:
    role = "one: {model: MiniMaxAI/MiniMax-M3, context: 8k, pool: eks, accelerators: 8, adapters: {sql: s3://my-adapters/sql}}"
    text = f"name: mine\npattern: multi-model\nroles: {{models: {{{role}}}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    with pytest.raises(
        InputError, match=r'adapters: "sql": vLLM 0\.32\.0 runs MiniMaxAI/MiniMax-M3 without adapters\. Fix'
    ):
        resolving.resolve_files(tmp_path, text, FLEET.replace("g6e.2xlarge", "p6-b200.48xlarge"), "eks")


def _find_errors(
    folder: Path, location: str = "adapters/tone", model: str = "tiny", target: str = "local"
) -> list[str]:
    (folder / "blueprint.yaml").write_text(BLUEPRINT.format(model=model, where=location))
    document = load(folder / "blueprint.yaml", Blueprint)
    conflicts = adapters.check(document.value, folder, target, load_target(target).conventions)
    return [str(mistake).replace(f"{folder}/", "") for mistake in document.locate(conflicts)]


@pytest.fixture
def adapter_folder(tmp_path: Path) -> Path:
    """An adapter of `tiny` beside the blueprint."""
    return make_tiny.make_adapter(tmp_path / "adapters" / "tone")


def _update_config(folder: Path, **values: object) -> None:
    file = folder / adapters.CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_an_adapter_of_its_roles_model_is_accepted(tmp_path: Path, adapter_folder: Path) -> None:
    assert adapter_folder.is_dir()
    assert _find_errors(tmp_path) == []


@pytest.mark.parametrize(
    ("base", "model"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/data/models/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B-FP8"),
        ("Qwen/Qwen3-235B-A22B", "nvidia/Qwen3-235B-A22B-NVFP4"),
    ],
)
def test_the_adapters_base_model_can_be_a_path_or_quantized(
    tmp_path: Path, adapter_folder: Path, base: str, model: str
) -> None:
    _update_config(adapter_folder, base_model_name_or_path=base)
    assert _find_errors(tmp_path, model=model) == []


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, adapter_folder: Path) -> None:
    _update_config(adapter_folder, base_model_name_or_path="Qwen/Qwen3-8B")
    assert _find_errors(tmp_path) == [
        'blueprint.yaml:5:58: roles.models.tuned.adapters.tone: "adapters/tone": it was trained on Qwen/Qwen3-8B, and '
        "the role serves tiny. Fix: use an adapter of tiny, or a role of Qwen/Qwen3-8B."
    ]


def test_an_adapter_above_the_maximum_rank_is_refused(tmp_path: Path, adapter_folder: Path) -> None:
    _update_config(adapter_folder, r=128)
    assert _find_errors(tmp_path) == [
        'blueprint.yaml:5:58: roles.models.tuned.adapters.tone: "adapters/tone": its rank is 128, and replicas '
        "reserve memory for 64. Fix: use an adapter of rank 64 or less."
    ]


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("use_dora", True, False),
        ("modules_to_save", ["embed_tokens", "lm_head"], None),
        ("bias", "lora_only", "none"),
        ("init_lora_weights", "pissa_niter_16", "gaussian"),
        ("init_lora_weights", "loftq", True),
        ("layer_replication", [[0, 4]], None),
    ],
)
def test_an_adapter_that_the_engine_does_not_load_is_refused(
    tmp_path: Path, adapter_folder: Path, key: str, value: object, accepted: object
) -> None:
    _update_config(adapter_folder, **{key: value})
    [error] = _find_errors(tmp_path)
    assert f"its {key} is {json.dumps(value)}, with which the engine does not load it. Fix: train it without" in error
    _update_config(adapter_folder, **{key: accepted})
    assert _find_errors(tmp_path) == []


def test_an_adapter_with_a_module_above_the_maximum_rank_is_refused(tmp_path: Path, adapter_folder: Path) -> None:
    _update_config(adapter_folder, rank_pattern={"q_proj": 64, "v_proj": 96})
    [error] = _find_errors(tmp_path)
    assert "its rank is 96, and replicas reserve memory for 64" in error


@pytest.mark.parametrize(
    ("changed", "room", "left_out"),
    [
        (["q_proj", "o_proj"], "qkv_proj, o_proj", ""),
        (["q_proj", "o_proj"], "v_proj, o_proj", ""),
        (["q_proj", "up_proj", "down_proj"], "qkv_proj, o_proj", "down_proj, up_proj"),
        (["model.layers.0.self_attn.q_proj", "down_proj"], "qkv_proj, experts", ""),
        ("q_proj|down_proj", "qkv_proj", ""),  # a pattern of names is not read
    ],
)
def test_an_adapter_that_changes_what_its_role_leaves_out_is_refused(
    tmp_path: Path, changed: list[str] | str, room: str, left_out: str
) -> None:
    text = BLUEPRINT.format(model="tiny", where="s3://mine/tone")
    (tmp_path / "blueprint.yaml").write_text(f"{text}engine_arguments: {{lora_target_modules: [{room}]}}\n")
    settings = load(tmp_path / "blueprint.yaml", Blueprint).value
    config = {"base_model_name_or_path": "tiny", "r": 8, "target_modules": changed}
    files = ({adapters.CONFIG: 1, adapters.WEIGHTS: 1}, json.dumps(config))
    found = [conflict.reason for conflict in adapters.check_remote(settings, lambda _uri, _name: files)]
    reason = f"it changes {left_out}, which lora_target_modules leaves out: answers would be without that"
    assert found == ([reason] if left_out else [])


def test_the_maximum_rank_matches_the_engines_command_line() -> None:
    from llm_serving.catalog import engines

    arguments = engines.load_engines()["vllm"].options["adapters"].arguments
    assert arguments[arguments.index("--max-lora-rank") + 1] == str(ADAPTER_RANK)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    assert _find_errors(tmp_path) == [
        'blueprint.yaml:5:58: roles.models.tuned.adapters.tone: "adapters/tone": adapters/tone has no adapter_config.json '
        "and no adapter_model.safetensors. Fix: use a folder that PEFT wrote."
    ]


def test_a_container_refuses_a_folder_and_the_local_target_refuses_s3(tmp_path: Path, adapter_folder: Path) -> None:
    assert adapter_folder.is_dir()
    assert _find_errors(tmp_path, target="eks") == [
        'blueprint.yaml:5:58: roles.models.tuned.adapters.tone: "adapters/tone": a container on eks cannot read '
        "this folder. Fix: use s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` uploads it."
    ]
    assert _find_errors(tmp_path, "s3://mine/tone", target="eks") == []
    assert _find_errors(tmp_path, "s3://mine/tone") == [
        'blueprint.yaml:5:58: roles.models.tuned.adapters.tone: "s3://mine/tone": the S3 of this machine is an '
        "embedded one, which has no adapters. Fix: use a folder beside the blueprint."
    ]
